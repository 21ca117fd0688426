//! The fixed-size head of a record batch (Kafka docs: *Message Format → Record Batch*), magic 2.
//!
//! This is all that the hot path ever reads of a batch. Nothing here decompresses or walks records; see
//! `records` for that.
//!
//! ```text
//!  0 baseOffset i64      16 magic i8            35 maxTimestamp i64
//!  8 batchLength i32     17 crc u32 (of 21..)   43 producerId i64
//! 12 leaderEpoch i32     21 attributes i16      51 producerEpoch i16
//!                        23 lastOffsetDelta i32 53 baseSequence i32
//!                        27 baseTimestamp i64   57 recordCount i32    61 records
//! ```

use super::AppendError;
use crate::config::{TimestampType, TopicConfig};
use crate::types::{Epoch, Offset};
use bytes::{Bytes, BytesMut};

/// Bytes of a batch before its records.
pub const HEADER_LEN: usize = 61;
/// Bytes before the part that `batchLength` counts.
pub const PREFIX_LEN: usize = 12;
/// The part that the checksum covers starts here.
pub(super) const CRC_START: usize = 21;

/// Bytes of the smallest record: length, attributes, two deltas, no key, no value, no headers.
const MIN_RECORD: u64 = 7;

const ATTR_CODEC: i16 = 0x07;
const ATTR_LOG_APPEND_TIME: i16 = 0x08;
const ATTR_TRANSACTIONAL: i16 = 0x10;
const ATTR_CONTROL: i16 = 0x20;

/// A decoded batch head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub base_offset: i64,
    /// Bytes of the whole batch, prefix included.
    pub size: u64,
    pub leader_epoch: i32,
    pub magic: i8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub count: i32,
}

fn take<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at + N)?.try_into().ok()
}

impl Header {
    /// Reads a head. `None` if the bytes are too few or `batchLength` cannot be right.
    pub fn parse(b: &[u8]) -> Option<Header> {
        let len = i32::from_be_bytes(take(b, 8)?);
        if (len as i64) < (HEADER_LEN - PREFIX_LEN) as i64 {
            return None;
        }
        Some(Header {
            base_offset: i64::from_be_bytes(take(b, 0)?),
            size: len as u64 + PREFIX_LEN as u64,
            leader_epoch: i32::from_be_bytes(take(b, 12)?),
            magic: i8::from_be_bytes(take(b, 16)?),
            crc: u32::from_be_bytes(take(b, 17)?),
            attributes: i16::from_be_bytes(take(b, 21)?),
            last_offset_delta: i32::from_be_bytes(take(b, 23)?),
            base_timestamp: i64::from_be_bytes(take(b, 27)?),
            max_timestamp: i64::from_be_bytes(take(b, 35)?),
            producer_id: i64::from_be_bytes(take(b, 43)?),
            producer_epoch: i16::from_be_bytes(take(b, 51)?),
            base_sequence: i32::from_be_bytes(take(b, 53)?),
            count: i32::from_be_bytes(take(b, 57)?),
        })
    }

    /// The offset of the last record.
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset).plus(self.last_offset_delta as i64)
    }

    /// The offset after the last record.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().plus(1)
    }

    /// 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    pub fn codec(&self) -> u8 {
        (self.attributes & ATTR_CODEC) as u8
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & ATTR_TRANSACTIONAL != 0
    }

    pub fn is_control(&self) -> bool {
        self.attributes & ATTR_CONTROL != 0
    }

    pub fn is_log_append_time(&self) -> bool {
        self.attributes & ATTR_LOG_APPEND_TIME != 0
    }

    pub fn has_producer(&self) -> bool {
        self.producer_id >= 0
    }

    /// Sequence number of the last record; wraps to 0 after 2^31 − 1.
    pub fn last_sequence(&self) -> i32 {
        sequence_plus(self.base_sequence, self.last_offset_delta)
    }

    /// Whether this can be the head of a stored batch at all, at `lowest` or later.
    pub fn plausible_from(&self, lowest: Offset) -> bool {
        self.magic == 2
            && self.base_offset >= lowest.0
            && self.last_offset_delta >= 0
            && self.base_offset.checked_add(self.last_offset_delta as i64 + 1).is_some()
            && self.count >= 0
            && i64::from(self.count) <= i64::from(self.last_offset_delta) + 1
            && self.codec() <= 4
    }

    /// Whether a stored batch with this head is the next after `expected`. Offsets are dense (P3), and the checksum
    /// does not cover the base offset: this is what finds a damaged one.
    pub fn follows(&self, expected: Offset) -> bool {
        self.base_offset == expected.0 && self.plausible_from(expected)
    }
}

/// `sequence + n` in Kafka's sequence space, 0 ..= 2^31 − 1.
pub fn sequence_plus(sequence: i32, n: i32) -> i32 {
    ((sequence as i64 + n as i64) & 0x7fff_ffff) as i32
}

/// Whether the checksum of the whole batch in `b` matches.
pub fn crc_matches(b: &[u8], header: &Header) -> bool {
    match usize::try_from(header.size).ok().and_then(|n| b.get(CRC_START..n)) {
        Some(body) => crc32c::crc32c(body) == header.crc,
        None => false,
    }
}

/// Checks what a producer sent as one partition's `records`: exactly one well-formed batch (Kafka's
/// LogValidator). Reads the head and the checksum, opens nothing.
///
/// `now` is wall time in ms, for the timestamp limits.
pub fn validate(records: &Bytes, config: &TopicConfig, now: i64) -> Result<Header, AppendError> {
    let invalid = |m: String| Err(AppendError::Invalid(m));
    if records.get(16).is_some_and(|m| *m < 2) {
        return invalid("message format versions 0 and 1 are not supported".into());
    }
    let Some(h) = Header::parse(records) else {
        return invalid(format!("{} bytes do not hold a record batch", records.len()));
    };
    if h.magic != 2 {
        return invalid(format!("unknown magic {}", h.magic));
    }
    let have = records.len() as u64;
    if h.size > have {
        return invalid(format!("the batch says {} bytes, {have} were sent", h.size));
    }
    if h.size < have {
        return invalid("one record batch per partition is allowed".into());
    }
    if h.size > config.max_message_bytes {
        return Err(AppendError::TooLarge { size: h.size, max: config.max_message_bytes });
    }
    if h.size > config.segment_bytes {
        return Err(AppendError::LargerThanSegment { size: h.size, max: config.segment_bytes });
    }
    if !crc_matches(records, &h) {
        return Err(AppendError::Corrupt);
    }
    if h.is_control() {
        return invalid("clients may not write control batches".into());
    }
    if h.count <= 0 || i64::from(h.count) != i64::from(h.last_offset_delta) + 1 {
        return invalid(format!("{} records with last offset delta {}", h.count, h.last_offset_delta));
    }
    if h.codec() == 0
        && h.count > 1
        && u64::from(h.count.unsigned_abs()) * MIN_RECORD > h.size - HEADER_LEN as u64
    {
        // Else one small batch could use up the partition's offsets.
        return invalid(format!("{} records do not fit in {} bytes", h.count, h.size));
    }
    if h.codec() > 4 {
        return Err(AppendError::UnsupportedCompression(h.codec()));
    }
    if h.is_transactional() && !h.has_producer() {
        return invalid("a transactional batch without a producer id".into());
    }
    if h.has_producer() && (h.base_sequence < 0 || h.producer_epoch < 0) {
        return invalid(format!("producer {} without a sequence", h.producer_id));
    }
    if config.timestamp_type == TimestampType::CreateTime && h.max_timestamp >= 0 {
        let before = config.timestamp_before_max.as_millis().min(i64::MAX as u128) as i64;
        let after = config.timestamp_after_max.as_millis().min(i64::MAX as u128) as i64;
        if h.max_timestamp > now.saturating_add(after) {
            return Err(AppendError::InvalidTimestamp(h.max_timestamp));
        }
        if h.base_timestamp >= 0 && h.base_timestamp < now.saturating_sub(before) {
            return Err(AppendError::InvalidTimestamp(h.base_timestamp));
        }
    }
    Ok(h)
}

/// The batch as it goes to the log: base offset and leader epoch set, and under LogAppendTime also
/// timestamp type, max timestamp and checksum (P9). The records are not copied.
pub fn stamp(records: &Bytes, base: Offset, epoch: Epoch, append_time: Option<i64>) -> [Bytes; 2] {
    let cut = HEADER_LEN.min(records.len());
    let body = records.slice(cut..);
    let mut head = BytesMut::from(records.slice(..cut).as_ref());
    put(&mut head, 0, base.0.to_be_bytes());
    put(&mut head, 12, epoch.wire().to_be_bytes());
    let attributes = take(&head, 21).map_or(0, i16::from_be_bytes);
    let wanted = match append_time {
        Some(_) => attributes | ATTR_LOG_APPEND_TIME,
        None => attributes & !ATTR_LOG_APPEND_TIME,
    };
    if append_time.is_some() || wanted != attributes {
        put(&mut head, 21, wanted.to_be_bytes());
        if let Some(t) = append_time {
            put(&mut head, 35, t.to_be_bytes());
        }
        let covered = head.get(CRC_START..).unwrap_or_default();
        let crc = crc32c::crc32c_append(crc32c::crc32c(covered), &body);
        put(&mut head, 17, crc.to_be_bytes());
    }
    [head.freeze(), body]
}

fn put<const N: usize>(b: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(field) = b.get_mut(at..at + N) {
        field.copy_from_slice(&value);
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
pub(crate) mod testing {
    //! Batches for the tests of the engine.
    use super::*;

    /// A batch of `count` records whose body is `body` (opaque; not real records), checksummed.
    pub fn raw(count: i32, body: &[u8], timestamp: i64, producer: (i64, i16, i32)) -> Bytes {
        let mut b = BytesMut::zeroed(HEADER_LEN);
        b.extend_from_slice(body);
        let len = (b.len() - PREFIX_LEN) as i32;
        b[8..12].copy_from_slice(&len.to_be_bytes());
        b[16] = 2;
        b[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        b[27..35].copy_from_slice(&timestamp.to_be_bytes());
        b[35..43].copy_from_slice(&timestamp.to_be_bytes());
        b[43..51].copy_from_slice(&producer.0.to_be_bytes());
        b[51..53].copy_from_slice(&producer.1.to_be_bytes());
        b[53..57].copy_from_slice(&producer.2.to_be_bytes());
        b[57..61].copy_from_slice(&count.to_be_bytes());
        seal(b)
    }

    pub fn plain(count: i32, body: &[u8]) -> Bytes {
        raw(count, body, 1000, (-1, -1, -1))
    }

    /// Sets the checksum.
    pub fn seal(mut b: BytesMut) -> Bytes {
        let crc = crc32c::crc32c(&b[CRC_START..]);
        b[17..21].copy_from_slice(&crc.to_be_bytes());
        b.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    fn edit(b: &Bytes, f: impl FnOnce(&mut BytesMut)) -> Bytes {
        let mut m = BytesMut::from(&b[..]);
        f(&mut m);
        seal(m)
    }

    #[test]
    fn case_23_bad_batches_are_refused() {
        let c = TopicConfig::default();
        let good = plain(3, b"these are three records");
        assert!(validate(&good, &c, 1000).is_ok());
        let invalid = |b: &Bytes| matches!(validate(b, &c, 1000), Err(AppendError::Invalid(_)));
        let two = Bytes::from([&good[..], &good[..]].concat());
        assert!(invalid(&two), "two batches");
        assert!(invalid(&edit(&good, |b| b[60] = 4)), "count is not last offset delta + 1");
        assert!(invalid(&edit(&plain(0, b""), |_| ())), "zero records");
        assert!(invalid(&plain(i32::MAX, b"few bytes")), "more records than fit");
        assert!(invalid(&edit(&good, |b| b[22] |= 0x20)), "control bit");
        assert!(invalid(&edit(&good, |b| b[16] = 1)), "magic 1");
        assert!(invalid(&edit(&good, |b| b[16] = 0)), "magic 0");
        assert!(invalid(&edit(&good, |b| b[16] = 3)), "magic 3");
        assert!(invalid(&raw(1, b"x", 1000, (7, 0, -1))), "producer id without a sequence");
        assert!(invalid(&good.slice(..good.len() - 1)), "cut short");
        assert!(invalid(&Bytes::new()), "nothing");
        let mut flipped = BytesMut::from(&good[..]);
        flipped[65] ^= 1;
        assert_eq!(validate(&flipped.freeze(), &c, 1000), Err(AppendError::Corrupt));
    }

    #[test]
    fn case_22_the_client_s_base_offset_is_replaced_and_the_checksum_still_holds() {
        let b = plain(2, b"abc");
        for base in [0, 5, i64::MAX - 10] {
            let out = stamp(&b, Offset(base), Epoch(9), None).concat();
            let h = Header::parse(&out).unwrap();
            assert_eq!((h.base_offset, h.leader_epoch), (base, 9));
            assert!(crc_matches(&out, &h));
            assert_eq!(out[16..], b[16..], "all else is what the client sent");
        }
    }

    #[test]
    fn log_append_time_changes_type_timestamp_and_checksum_only() {
        let b = plain(2, b"abc");
        let out = stamp(&b, Offset(0), Epoch(1), Some(77)).concat();
        let h = Header::parse(&out).unwrap();
        assert!(h.is_log_append_time() && h.max_timestamp == 77 && crc_matches(&out, &h));
        assert_eq!(h.base_timestamp, 1000);
        assert_eq!(out[43..], b[43..]);
    }

    #[test]
    fn limits_name_their_own_errors() {
        let c = TopicConfig { max_message_bytes: 100, ..TopicConfig::default() };
        assert!(matches!(validate(&plain(1, &[0; 80]), &c, 0), Err(AppendError::TooLarge { .. })));
        let c = TopicConfig { segment_bytes: 100, ..TopicConfig::default() };
        assert!(matches!(validate(&plain(1, &[0; 80]), &c, 0), Err(AppendError::LargerThanSegment { .. })));
        let c = TopicConfig::default();
        let late = raw(1, b"", 1000 + 3_600_001, (-1, -1, -1));
        assert!(matches!(validate(&late, &c, 1000), Err(AppendError::InvalidTimestamp(_))));
        let bad = edit(&plain(1, b""), |b| b[22] |= 5);
        assert_eq!(validate(&bad, &c, 1000), Err(AppendError::UnsupportedCompression(5)));
    }
}
