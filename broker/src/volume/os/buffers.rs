//! Buffers for large reads, kept for the next one.
//!
//! The allocator gives large blocks back to the system and takes fresh ones, which cost a page fault and a
//! cleared page for every 4 KiB: for a consumer that catches up, more than reading and sending together.
//! Keeps [`KEPT`] bytes at most; what is more is freed as usual.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// Smaller reads are the allocator's business.
const LARGE: usize = 64 << 10;
/// A buffer fits if it is larger than needed by no more than this part of it: what has room is read, too.
const SPARE: usize = 16;
/// Bytes that are kept while nobody reads.
const KEPT: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Free>);

#[derive(Debug, Default)]
struct Free {
    /// By capacity.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// An empty buffer with room for `len` bytes and not much more.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        if len < LARGE {
            return Vec::with_capacity(len);
        }
        let mut free = self.0.lock();
        let at = free.buffers.partition_point(|b| b.capacity() < len);
        if free.buffers.get(at).is_some_and(|b| b.capacity() - len <= len / SPARE) {
            let buffer = free.buffers.remove(at);
            free.bytes -= buffer.capacity();
            return buffer;
        }
        drop(free);
        Vec::with_capacity(len)
    }

    /// What was read into a buffer; the buffer comes back when the last reference to it is gone.
    pub(super) fn lend(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        match buffer.capacity() {
            // Not worth holding a large buffer for.
            capacity if buffer.len() < capacity / 4 => {
                let few = Bytes::copy_from_slice(&buffer);
                self.put(buffer);
                few
            }
            capacity if capacity < LARGE => buffer.into(),
            _ => Bytes::from_owner(Lent { buffer, home: self.clone() }),
        }
    }

    fn put(&self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let mut free = self.0.lock();
        if capacity >= LARGE && free.bytes.saturating_add(capacity) <= KEPT {
            buffer.clear();
            let at = free.buffers.partition_point(|b| b.capacity() < capacity);
            free.buffers.insert(at, buffer);
            free.bytes += capacity;
        }
    }
}

struct Lent {
    buffer: Vec<u8>,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn filled(home: &Arc<Buffers>, len: usize) -> Bytes {
        let mut b = home.take(len);
        b.resize(len, 7);
        home.lend(b)
    }

    #[test]
    fn a_buffer_serves_again_once_its_last_reader_is_done() {
        let home = Arc::new(Buffers::default());
        let first = filled(&home, MIB);
        let at = first.as_ptr();
        let part = first.slice(10..20);
        drop(first);
        assert_ne!(filled(&home, MIB).as_ptr(), at, "it is still read");
        drop(part);
        let again: Vec<Bytes> = (0..2).map(|_| filled(&home, MIB - 5)).collect();
        assert!(again.iter().any(|b| b.as_ptr() == at));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let home = Arc::new(Buffers::default());
        drop((0..40).map(|_| filled(&home, MIB)).collect::<Vec<_>>());
        let free = home.0.lock();
        assert_eq!(free.bytes, KEPT);
        assert_eq!(free.bytes, free.buffers.iter().map(Vec::capacity).sum::<usize>());
    }

    #[test]
    fn a_short_read_holds_no_large_buffer_and_a_small_one_takes_none() {
        let home = Arc::new(Buffers::default());
        let mut b = home.take(MIB);
        b.extend_from_slice(b"few");
        let few = home.lend(b);
        assert_eq!(home.0.lock().bytes, MIB, "the buffer is back though its content lives");
        assert_eq!(&few[..], b"few");
        let small = home.take(100);
        assert!(small.capacity() < LARGE);
        assert_eq!(home.0.lock().bytes, MIB);
    }
}
