//! Records that fetch responses hold in memory, over all connections.
//!
//! A response is whole in memory until its client has taken it, and many slow clients may ask for much at once. Above
//! [`FULL`] nobody waits, and nobody is refused: each fetch is given little, so that all go on.

use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// Bytes held, or about to be read, above which fetches are given [`LITTLE`].
const FULL: usize = 512 << 20;
const LITTLE: usize = 1 << 20;
/// Smaller pieces are not worth the count.
const SMALL: usize = 16 << 10;

/// Counts bytes that are held or about to be read.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<AtomicUsize>);

/// Room for a response that is being read; given back when it has been.
pub struct Room {
    held: Held,
    bytes: usize,
}

impl Held {
    /// Room for up to `asked` bytes.
    pub fn room(&self, asked: usize) -> Room {
        let bytes = if self.0.load(Relaxed).saturating_add(asked) > FULL { asked.min(LITTLE) } else { asked };
        self.0.fetch_add(bytes, Relaxed);
        Room { held: self.clone(), bytes }
    }

    /// Counts `records` until the last reference to them is gone.
    pub fn hold(&self, records: Bytes) -> Bytes {
        if records.len() < SMALL {
            return records;
        }
        self.0.fetch_add(records.len(), Relaxed);
        Bytes::from_owner(Counted { records, held: self.clone() })
    }
}

impl Room {
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes, Relaxed);
    }
}

struct Counted {
    records: Bytes,
    held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.records
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.records.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_given_until_it_is_held_and_then_little() {
        let held = Held::default();
        let ask = 50 << 20;
        let rooms: Vec<Room> = (0..40).map(|_| held.room(ask)).collect();
        let given: usize = rooms.iter().map(Room::bytes).sum();
        assert!(given <= FULL + 40 * LITTLE, "{given}");
        assert_eq!(rooms.last().map(Room::bytes), Some(LITTLE));
        drop(rooms);
        let records = held.hold(Bytes::from(vec![0; FULL]));
        assert_eq!(held.room(ask).bytes(), LITTLE);
        let part = records.slice(0..10);
        drop(records);
        assert_eq!(held.room(ask).bytes(), LITTLE, "a part keeps the whole alive");
        drop(part);
        assert_eq!(held.room(ask).bytes(), ask);
    }
}
