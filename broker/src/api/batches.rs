//! What the wire rules need to know of record batches, from the fixed part of their headers
//! (Kafka: *Record Batch*). Records are never opened.

use super::verification::Batch;
use crate::coordinator::transactions::Producer;
use crate::storage::batch::Header;

/// Where a batch's length ends: base offset (8), length (4).
const LENGTH_END: usize = 12;
/// The attributes' low byte: after base offset, length, leader epoch (4), magic (1), CRC (4), and the high byte.
const ATTRIBUTES_LOW: usize = 22;
const COMPRESSION_MASK: u8 = 0x07;
const TRANSACTIONAL: u8 = 0x10;
const ZSTD: u8 = 4;

/// Whether any of the batches in `records` is compressed with zstd. What is not a batch ends the search.
pub(super) fn has_zstd(mut records: &[u8]) -> bool {
    loop {
        let Some(attributes) = records.get(ATTRIBUTES_LOW) else { return false };
        if attributes & COMPRESSION_MASK == ZSTD {
            return true;
        }
        let Some([.., l0, l1, l2, l3]) = records.first_chunk::<LENGTH_END>() else { return false };
        let Ok(length) = usize::try_from(i32::from_be_bytes([*l0, *l1, *l2, *l3])) else { return false };
        match records.get(LENGTH_END.saturating_add(length)..) {
            Some(rest) => records = rest,
            None => return false,
        }
    }
}

/// Who wrote the batch, and from which sequence on, if it is of a transaction. Whether it is a sound batch is for storage to
/// see.
pub(super) fn transactional(records: &[u8]) -> Option<Batch> {
    // Most batches are of no transaction, and one byte says so.
    records.get(ATTRIBUTES_LOW).filter(|attributes| **attributes & TRANSACTIONAL != 0)?;
    let head = Header::parse(records).filter(|h| h.magic == 2 && h.has_producer())?;
    let producer = Producer { id: head.producer_id, epoch: head.producer_epoch };
    Some(Batch { producer, first_sequence: head.base_sequence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(compression: u8) -> Vec<u8> {
        let mut b = vec![0; 61];
        b[8..12].copy_from_slice(&49i32.to_be_bytes());
        b[ATTRIBUTES_LOW] = compression | 0x08;
        b
    }

    #[test]
    fn zstd_is_seen_in_any_batch() {
        assert!(!has_zstd(&[]));
        assert!(!has_zstd(&[batch(0), batch(1), batch(2), batch(3)].concat()));
        assert!(has_zstd(&[batch(0), batch(4)].concat()));
    }

    #[test]
    fn a_transactional_batch_says_who_writes_it() {
        const PRODUCER: usize = 43;
        let mut b = batch(0);
        b[16] = 2;
        b[PRODUCER..PRODUCER + 8].copy_from_slice(&7i64.to_be_bytes());
        b[PRODUCER + 9] = 2;
        b[PRODUCER + 13] = 40;
        assert_eq!(transactional(&b), None);
        b[ATTRIBUTES_LOW] |= 0x10;
        let producer = Producer { id: 7, epoch: 2 };
        assert_eq!(transactional(&b), Some(Batch { producer, first_sequence: 40 }));
    }

    proptest! {
        #[test]
        fn no_bytes_confuse_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            has_zstd(&bytes);
            transactional(&bytes);
        }
    }
}
