//! The control batch that ends a transaction on one partition (KIP-98; Kafka docs: *Control Records*).
//!
//! One record, as Kafka writes it: the key is version 0 and type (0 abort, 1 commit), the value version 0 and coordinator
//! epoch. It has one record header on top, which clients pass over:
//!
//! ```text
//! "highwater":  0 version u8 (0)   1 first i64   9 stable i64   17 number i64
//! ```
//!
//! `first`: the transaction's first offset here, −1 if none was open. `stable`: what is before it is decided, with this
//! marker. `number`: the transaction's number, −1 if it was ended without one. So the marker alone tells all that the
//! index of aborted transactions and a replay need, and neither has to look for the transaction's beginning, which
//! may lie in a segment that is gone.

use super::aborted::Aborted;
use super::batch::{crc_matches, Header, CRC_START, HEADER_LEN, PREFIX_LEN};
use super::records::Records;
use crate::types::Offset;
use bytes::{BufMut, Bytes, BytesMut};
use prometheus_client::metrics::counter::Counter;

const TRANSACTIONAL_CONTROL: i16 = 0x30;
const HEADER_KEY: &[u8] = b"highwater";
const HEADER_VALUE: usize = 25;
const KEY: usize = 4;
const VALUE: usize = 6;
/// Bytes of the record behind its length. All lengths are varints of one byte.
const RECORD: usize = 3 + 1 + KEY + 1 + VALUE + 1 + 1 + HEADER_KEY.len() + 1 + HEADER_VALUE;
const _: () = assert!(RECORD < 64);

/// What a marker in the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub commit: bool,
    pub coordinator_epoch: i32,
    pub number: Option<u64>,
    /// The first offset of the transaction that it ended, if one was open.
    pub first: Option<Offset>,
    /// Every transaction that began before this is decided, with this marker.
    pub stable: Offset,
    /// Its own offset.
    pub at: Offset,
}

impl Written {
    /// The marker as a batch of one record. Base offset and leader epoch are still to be stamped.
    pub fn encode(&self, now: i64) -> Bytes {
        let mut b = BytesMut::with_capacity(HEADER_LEN + 1 + RECORD);
        b.put_i64(0);
        b.put_i32((HEADER_LEN - PREFIX_LEN + 1 + RECORD) as i32);
        b.put_i32(0);
        b.put_i8(2);
        b.put_u32(0);
        b.put_i16(TRANSACTIONAL_CONTROL);
        b.put_i32(0);
        b.put_i64(now);
        b.put_i64(now);
        b.put_i64(self.producer_id);
        b.put_i16(self.producer_epoch);
        b.put_i32(-1);
        b.put_i32(1);
        let length = |b: &mut BytesMut, n: usize| b.put_u8((n << 1) as u8);
        length(&mut b, RECORD);
        // No attributes, no deltas.
        b.put_bytes(0, 3);
        length(&mut b, KEY);
        b.put_i16(0);
        b.put_i16(i16::from(self.commit));
        length(&mut b, VALUE);
        b.put_i16(0);
        b.put_i32(self.coordinator_epoch);
        length(&mut b, 1);
        length(&mut b, HEADER_KEY.len());
        b.put_slice(HEADER_KEY);
        length(&mut b, HEADER_VALUE);
        b.put_u8(0);
        b.put_i64(self.first.map_or(-1, |o| o.0));
        b.put_i64(self.stable.0);
        b.put_i64(self.number.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1));
        let crc = crc32c::crc32c(b.get(CRC_START..).unwrap_or_default());
        if let Some(field) = b.get_mut(17..CRC_START) {
            field.copy_from_slice(&crc.to_be_bytes());
        }
        b.freeze()
    }

    /// Reads a marker. `None`: not a whole, sound control batch, or of another kind.
    pub fn parse(batch: &[u8], h: &Header) -> Option<Written> {
        if !h.is_control() || !h.has_producer() || !crc_matches(batch, h) {
            return None;
        }
        // Not a client's record (P9): counted nowhere.
        let record = Records::open(batch, h, &Counter::default()).ok()?.next()?.ok()?;
        let (key, value) = (record.key?, record.value?);
        let commit = match short(&key, 2)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let own = record.headers.iter().find(|(name, _)| name.as_bytes() == HEADER_KEY);
        let own = own.and_then(|(_, value)| value.as_deref()).unwrap_or_default();
        let at = Offset(h.base_offset);
        Some(Written {
            producer_id: h.producer_id,
            producer_epoch: h.producer_epoch,
            commit,
            coordinator_epoch: i32::from_be_bytes(value.get(2..6)?.try_into().ok()?),
            number: long(own, 17).and_then(|n| u64::try_from(n).ok()),
            first: long(own, 1).filter(|o| *o >= 0).map(Offset),
            stable: long(own, 9).map_or(Offset::ZERO, Offset),
            at,
        })
    }

    /// What the index of aborted transactions says of it, if anything.
    pub fn aborted(&self) -> Option<Aborted> {
        let first = self.first.filter(|_| !self.commit)?;
        Some(Aborted { producer_id: self.producer_id, first, last: self.at, stable: self.stable })
    }
}

fn short(b: &[u8], at: usize) -> Option<i16> {
    Some(i16::from_be_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn long(b: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::batch::stamp;
    use super::*;
    use crate::types::Epoch;
    use kafka_protocol::records::RecordBatchDecoder;

    #[test]
    fn a_marker_reads_back_and_is_what_other_decoders_take_for_one() {
        for (commit, number, first) in
            [(true, Some(7), Some(3)), (false, None, None), (false, Some(0), Some(0))]
        {
            let w = Written {
                producer_id: 5,
                producer_epoch: 2,
                commit,
                coordinator_epoch: 9,
                number,
                first: first.map(Offset),
                stable: Offset(12),
                at: Offset(11),
            };
            let stored = stamp(&w.encode(1000), Offset(11), Epoch(4), None).concat();
            let h = Header::parse(&stored).unwrap();
            assert!(h.is_control() && h.is_transactional() && h.size == stored.len() as u64);
            assert_eq!(Written::parse(&stored, &h), Some(w));
            assert_eq!(w.aborted().is_some(), !commit && first.is_some());
            let set = RecordBatchDecoder::decode(&mut Bytes::from(stored.clone())).unwrap();
            let r = &set.records[0];
            assert!(r.control && r.transactional && r.offset == 11 && r.producer_id == 5);
            assert_eq!(r.key.as_deref(), Some(&[0, 0, 0, u8::from(commit)][..]));
            assert_eq!(r.value.as_deref(), Some(&[0, 0, 0, 0, 0, 9][..]));
            let mut torn = stored.clone();
            torn[70] ^= 1;
            assert_eq!(Written::parse(&torn, &h), None);
        }
    }
}
