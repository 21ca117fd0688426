//! Frames: a 32-bit big-endian length, then that many bytes (Kafka: *size-delimited*).
//!
//! [`Inbound`] is fed bytes as they come and gives whole frames back. It never believes an announced length:
//! room grows with what has arrived, to at most twice that.

use bytes::{Buf, Bytes, BytesMut};

/// Room made when nothing has arrived. An idle connection costs this.
const FIRST_ROOM: usize = 2 * 1024;
/// Room made at least once a frame is under way.
const ROOM: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes was announced")]
    Negative(i32),
    #[error("a frame of {size} bytes was announced, socket.request.max.bytes is {max}")]
    TooLong { size: usize, max: usize },
}

/// Bytes that came in and were not taken yet.
#[derive(Debug)]
pub struct Inbound {
    buf: BytesMut,
    max_frame: usize,
}

impl Inbound {
    pub fn new(max_frame: usize) -> Self {
        Inbound { buf: BytesMut::new(), max_frame }
    }

    /// Bytes that wait here.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// The next whole frame, without its length. An error is for good.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(size) = self.announced()? else { return Ok(None) };
        if self.buf.len() < 4 + size {
            return Ok(None);
        }
        self.buf.advance(4);
        let frame = self.buf.split_to(size).freeze();
        if self.buf.is_empty() {
            // Else an idle connection would keep the memory of its last frames alive.
            self.buf = BytesMut::new();
        }
        Ok(Some(frame))
    }

    /// Where to read the next bytes to.
    pub fn room(&mut self) -> &mut BytesMut {
        let have = self.buf.len();
        if self.buf.capacity() == have {
            let missing = match self.announced() {
                Ok(Some(size)) => (4 + size).saturating_sub(have),
                _ => 0,
            };
            let more = if have == 0 { FIRST_ROOM } else { missing.min(have).max(ROOM) };
            self.buf.reserve(more);
        }
        &mut self.buf
    }

    fn announced(&self) -> Result<Option<usize>, FrameError> {
        let Some(prefix) = self.buf.first_chunk::<4>() else { return Ok(None) };
        let size = i32::from_be_bytes(*prefix);
        let size_in_bytes = usize::try_from(size).map_err(|_| FrameError::Negative(size))?;
        if size_in_bytes > self.max_frame {
            return Err(FrameError::TooLong { size: size_in_bytes, max: self.max_frame });
        }
        Ok(Some(size_in_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use proptest::prelude::*;

    fn wire(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for f in frames {
            out.put_i32(f.len() as i32);
            out.extend_from_slice(f);
        }
        out
    }

    proptest! {
        /// However the stream is cut, the same frames come out.
        #[test]
        fn frames_survive_any_cutting(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in prop::collection::vec(1usize..200, 1..50),
        ) {
            let bytes = wire(&frames);
            let mut inbound = Inbound::new(1000);
            let (mut got, mut rest, mut cut) = (Vec::new(), &bytes[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let n = rest.len().min(*cut.next().unwrap());
                inbound.room().put_slice(&rest[..n]);
                rest = &rest[n..];
                while let Some(f) = inbound.next_frame().unwrap() {
                    got.push(f.to_vec());
                }
            }
            prop_assert_eq!(got, frames);
            prop_assert_eq!(inbound.len(), 0);
        }
    }

    #[test]
    fn a_negative_and_a_too_long_frame_are_refused_at_their_fourth_byte() {
        for (prefix, error) in [
            (-1, FrameError::Negative(-1)),
            (i32::MIN, FrameError::Negative(i32::MIN)),
            (1001, FrameError::TooLong { size: 1001, max: 1000 }),
            (i32::MAX, FrameError::TooLong { size: i32::MAX as usize, max: 1000 }),
        ] {
            let mut inbound = Inbound::new(1000);
            let bytes = i32::to_be_bytes(prefix);
            inbound.room().put_slice(&bytes[..3]);
            assert_eq!(inbound.next_frame(), Ok(None));
            inbound.room().put_slice(&bytes[3..]);
            assert_eq!(inbound.next_frame(), Err(error));
        }
        let mut inbound = Inbound::new(1000);
        inbound.room().put_slice(&wire(&[vec![7; 1000]]));
        assert_eq!(inbound.next_frame().unwrap().unwrap().len(), 1000);
    }

    #[test]
    fn room_grows_with_what_arrives_and_not_with_what_is_announced() {
        let size = 100 << 20;
        let mut inbound = Inbound::new(size);
        inbound.room().put_i32(size as i32);
        let mut arrived = 4;
        while arrived < 4 << 20 {
            let room = inbound.room();
            let n = (room.capacity() - room.len()).min(1000);
            room.put_bytes(0, n);
            arrived += n;
            let held = room.capacity();
            assert!(held <= 2 * arrived + ROOM, "{held} held for {arrived} that arrived");
        }
    }

    #[test]
    fn an_idle_connection_holds_nothing_of_its_last_frame() {
        let mut inbound = Inbound::new(10 << 20);
        inbound.room().put_slice(&wire(&[vec![1; 5 << 20]]));
        inbound.next_frame().unwrap().unwrap();
        assert!(inbound.room().capacity() <= 2 * FIRST_ROOM);
    }
}
