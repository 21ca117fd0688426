//! Writes record batches, magic 2 (Kafka docs: *Message Format → Record Batch*). Independent of the broker's own.

use bytes::{BufMut, Bytes, BytesMut};

/// Attributes of a batch; both lie in the low byte.
const TRANSACTIONAL: u8 = 0x10;
#[cfg(test)]
const CONTROL: u8 = 0x20;

/// Who produces, for the broker to see repetitions (KIP-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub id: i64,
    pub epoch: i16,
    pub sequence: i32,
}

impl Identity {
    pub const NONE: Identity = Identity { id: -1, epoch: -1, sequence: -1 };
}

/// One record per value, each a millisecond later than the one before.
pub fn batch(identity: Identity, timestamp: i64, values: &[Bytes]) -> Bytes {
    let mut payload = BytesMut::with_capacity(values.iter().map(|v| v.len() + 24).sum());
    let mut record = BytesMut::new();
    for (i, value) in (0i64..).zip(values) {
        record.clear();
        record.put_u8(0);
        varint(&mut record, i);
        varint(&mut record, i);
        // No key.
        varint(&mut record, -1);
        varint(&mut record, value.len() as i64);
        record.put_slice(value);
        varint(&mut record, 0);
        varint(&mut payload, record.len() as i64);
        payload.put_slice(&record);
    }
    let count = i32::try_from(values.len()).expect("few records");
    let last = timestamp + i64::from(count) - 1;
    whole(identity, 0, (timestamp, last), count, &payload)
}

/// The same as part of a transaction.
pub fn transactional(identity: Identity, timestamp: i64, values: &[Bytes]) -> Bytes {
    let mut b = BytesMut::from(&*batch(identity, timestamp, values));
    b[22] |= TRANSACTIONAL;
    let crc = crc32c::crc32c(&b[21..]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    b.freeze()
}

/// A transaction's marker, as brokers write them (Kafka docs: *Control Records*): for tests of what reads them.
#[cfg(test)]
pub fn marker(identity: Identity, timestamp: i64, commit: bool) -> Bytes {
    let mut key = BytesMut::new();
    key.put_i16(0);
    key.put_i16(i16::from(commit));
    let mut value = BytesMut::new();
    value.put_i16(0);
    value.put_i32(1);
    let mut record = BytesMut::new();
    record.put_u8(0);
    varint(&mut record, 0);
    varint(&mut record, 0);
    varint(&mut record, key.len() as i64);
    record.put_slice(&key);
    varint(&mut record, value.len() as i64);
    record.put_slice(&value);
    varint(&mut record, 0);
    let mut payload = BytesMut::new();
    varint(&mut payload, record.len() as i64);
    payload.put_slice(&record);
    let attributes = i16::from(TRANSACTIONAL | CONTROL);
    whole(Identity { sequence: -1, ..identity }, attributes, (timestamp, timestamp), 1, &payload)
}

/// A batch that claims to be compressed and whose records are `payload`, taken as they are. A broker that keeps
/// what it was sent never finds out.
pub fn opaque(identity: Identity, codec: i16, timestamp: i64, count: i32, payload: &[u8]) -> Bytes {
    whole(identity, codec & 0x07, (timestamp, timestamp), count, payload)
}

fn whole(identity: Identity, attributes: i16, times: (i64, i64), count: i32, payload: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(61 + payload.len());
    b.put_i64(0);
    b.put_i32(49 + payload.len() as i32);
    b.put_i32(-1);
    b.put_i8(2);
    b.put_u32(0);
    b.put_i16(attributes);
    b.put_i32(count - 1);
    b.put_i64(times.0);
    b.put_i64(times.1);
    b.put_i64(identity.id);
    b.put_i16(identity.epoch);
    b.put_i32(identity.sequence);
    b.put_i32(count);
    b.put_slice(payload);
    let crc = crc32c::crc32c(&b[21..]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    b.freeze()
}

/// Zigzag, as records have it.
fn varint(b: &mut BytesMut, n: i64) {
    let mut n = ((n << 1) ^ (n >> 63)) as u64;
    while n >= 0x80 {
        b.put_u8(n as u8 | 0x80);
        n >>= 7;
    }
    b.put_u8(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::BatchInfo;

    #[test]
    fn a_batch_reads_back_as_it_was_written() {
        let identity = Identity { id: 7, epoch: 2, sequence: 40 };
        let b = batch(identity, 1000, &[Bytes::from_static(b"a"), Bytes::from_static(b"bc")]);
        let info = BatchInfo::parse(&b).expect("a whole batch");
        assert!(info.sound);
        assert_eq!((info.size as usize, info.magic, info.count, info.last_delta), (b.len(), 2, 2, 1));
        assert_eq!((info.producer_id, info.producer_epoch, info.base_sequence), (7, 2, 40));
        assert_eq!((info.base_timestamp, info.max_timestamp), (1000, 1001));
        assert_eq!(BatchInfo::parse(&b[..b.len() - 1]), None);
        let mut torn = b.to_vec();
        torn[70] ^= 1;
        assert!(!BatchInfo::parse(&torn).expect("a whole batch").sound);
    }

    #[test]
    fn a_marker_tells_what_was_decided_and_a_record_of_a_transaction_is_none() {
        let identity = Identity { id: 7, epoch: 2, sequence: 40 };
        for (commit, control) in [(true, 1), (false, 0)] {
            let info = BatchInfo::parse(&marker(identity, 5, commit)).expect("a whole batch");
            assert!(info.sound && info.is_transactional());
            assert_eq!((info.control, info.base_sequence, info.end()), (Some(control), -1, 1));
        }
        let info = BatchInfo::parse(&transactional(identity, 5, &[Bytes::from_static(b"a")])).expect("whole");
        assert!(info.sound && info.is_transactional() && !info.is_control());
    }

    /// Kafka's own decoder, as kafka-protocol has it, agrees.
    #[test]
    fn another_decoder_reads_the_records() {
        use kafka_protocol::records::RecordBatchDecoder;
        let b =
            batch(Identity::NONE, 5, &[Bytes::from_static(b"x"), Bytes::new(), Bytes::from(vec![1; 300])]);
        let set = RecordBatchDecoder::decode(&mut b.clone()).expect("decodes");
        let sizes: Vec<usize> = set.records.iter().map(|r| r.value.as_ref().map_or(0, Bytes::len)).collect();
        assert_eq!(sizes, [1, 0, 300]);
    }
}
