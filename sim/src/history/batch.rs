//! A record batch as a history remembers it: its head, and a hash of its records.
//!
//! Whole batches would make a history of a minute some megabytes; two batches with the same head, size and
//! hash are the same bytes, since nobody here tries to find a collision.
//!
//! The layout is Kafka's record batch, magic 2 (Kafka docs: *Message Format → Record Batch*):
//!
//! ```text
//!  0 baseOffset i64      16 magic i8            35 maxTimestamp i64
//!  8 batchLength i32     17 crc u32 (of 21..)   43 producerId i64
//! 12 leaderEpoch i32     21 attributes i16      51 producerEpoch i16
//!                        23 lastOffsetDelta i32 53 baseSequence i32
//!                        27 baseTimestamp i64   57 recordCount i32    61 records
//! ```

use bytes::Buf;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes before the records.
pub const HEADER_LEN: usize = 61;
/// Bytes that `batchLength` does not count.
const PREFIX_LEN: usize = 12;
/// Under LogAppendTime the broker sets this bit (KIP-32).
const LOG_APPEND_TIME: i16 = 0x08;
/// Part of a transaction (KIP-98).
const TRANSACTIONAL: i16 = 0x10;
/// Written by a broker: a transaction's marker.
const CONTROL: i16 = 0x20;

/// The head of a batch and what tells its records from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchInfo {
    pub base: i64,
    pub leader_epoch: i32,
    /// Bytes, all of them.
    pub size: u32,
    pub magic: i8,
    pub crc: u32,
    pub attributes: i16,
    pub last_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub count: i32,
    /// A hash of the records.
    pub records: u64,
    /// The checksum fits.
    pub sound: bool,
    /// Of a control batch, the type of its record: 0 is an abort, 1 a commit. -1 if it can't be read.
    pub control: Option<i16>,
}

impl BatchInfo {
    /// Of the batch that `bytes` begin with; `None` if they hold no whole one.
    pub fn parse(bytes: &[u8]) -> Option<BatchInfo> {
        let length = i32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?);
        let size = usize::try_from(length).ok()?.checked_add(PREFIX_LEN)?;
        let whole = bytes.get(..size).filter(|b| b.len() >= HEADER_LEN)?;
        let mut b = whole;
        let base = b.get_i64();
        b.advance(4);
        let leader_epoch = b.get_i32();
        let magic = b.get_i8();
        let crc = b.get_u32();
        let sound = crc32c::crc32c(b) == crc;
        let attributes = b.get_i16();
        let control = (attributes & CONTROL != 0).then(|| control_type(&whole[HEADER_LEN..]).unwrap_or(-1));
        Some(BatchInfo {
            base,
            leader_epoch,
            size: size as u32,
            magic,
            crc,
            attributes,
            last_delta: b.get_i32(),
            base_timestamp: b.get_i64(),
            max_timestamp: b.get_i64(),
            producer_id: b.get_i64(),
            producer_epoch: b.get_i16(),
            base_sequence: b.get_i32(),
            count: b.get_i32(),
            records: xxh3_64(b),
            sound,
            control,
        })
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// A marker: no client sent it.
    pub fn is_control(&self) -> bool {
        self.control.is_some()
    }

    /// The offset after its last record.
    pub fn end(&self) -> i64 {
        self.base.saturating_add(i64::from(self.last_delta)).saturating_add(1)
    }

    /// Whether `self`, as stored, is `sent` byte for byte, but for what a broker may set (P9): base offset
    /// and leader epoch; under LogAppendTime also timestamp type, largest timestamp and checksum.
    pub fn is_verbatim(&self, sent: &BatchInfo, is_stamped: bool) -> bool {
        let mut want = BatchInfo { base: self.base, leader_epoch: self.leader_epoch, ..*sent };
        if is_stamped && self.attributes & LOG_APPEND_TIME != 0 {
            want.attributes |= LOG_APPEND_TIME;
            (want.max_timestamp, want.crc) = (self.max_timestamp, self.crc);
        }
        *self == want
    }

    /// Whether both are the same bytes, but for the leader epoch, which no checksum covers.
    pub fn is_equal_but_epoch(&self, other: &BatchInfo) -> bool {
        *self == BatchInfo { leader_epoch: self.leader_epoch, ..*other }
    }

    /// Whether both hold the same records of the same producer: one batch, stored twice or seen twice.
    pub fn is_same_content(&self, other: &BatchInfo) -> bool {
        self.key() == other.key()
    }

    /// What identifies the content. Workloads never send the same records twice but when they try again.
    pub fn key(&self) -> (u64, i64, i16, i32) {
        (self.records, self.producer_id, self.producer_epoch, self.base_sequence)
    }
}

/// The type that a control record's key says (Kafka docs: *Control Records*): version, then type.
fn control_type(records: &[u8]) -> Option<i16> {
    let mut b = records;
    varint(&mut b)?;
    b = b.get(1..)?;
    varint(&mut b)?;
    varint(&mut b)?;
    let key = usize::try_from(varint(&mut b)?).ok()?;
    let key = b.get(..key)?;
    Some(i16::from_be_bytes(key.get(2..4)?.try_into().ok()?))
}

/// Zigzag, as records have it.
fn varint(b: &mut &[u8]) -> Option<i64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = b.split_first()?;
        *b = rest;
        n |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some((n >> 1) as i64 ^ -((n & 1) as i64));
        }
    }
    None
}

/// Steps over the batches in a fetch response or a file.
pub struct BatchReader<'a> {
    rest: &'a [u8],
    pos: usize,
}

impl<'a> BatchReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        BatchReader { rest: bytes, pos: 0 }
    }

    /// Bytes that hold no whole batch.
    pub fn left_over(&self) -> usize {
        self.rest.len()
    }
}

impl Iterator for BatchReader<'_> {
    /// Position and head.
    type Item = (usize, BatchInfo);

    fn next(&mut self) -> Option<Self::Item> {
        let batch = BatchInfo::parse(self.rest)?;
        let at = self.pos;
        self.pos += batch.size as usize;
        self.rest = self.rest.get(batch.size as usize..)?;
        Some((at, batch))
    }
}
