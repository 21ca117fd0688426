//! What callers say to a partition, and what they get back.

use super::aborted::Aborted;
use crate::config::TopicConfig;
use crate::types::{Epoch, Offset, TopicId};
use bytes::Bytes;
use std::sync::Arc;

/// The right to act, as the lease gives it (design: self-fence).
///
/// A partition asks before and after every durable step whose result is acknowledged, shown or
/// destroys something. `right` returns a token for the present lease, and a token stays good only as long as
/// that very lease has not ended: once ended it never returns.
pub trait Fence: Send + Sync + 'static {
    /// The present lease's token, if the right to act stands now.
    fn right(&self) -> Option<u64>;

    /// Who holds the lease of `token`, as claims name him: others look for his end by that.
    fn holder(&self, _token: u64) -> String {
        String::new()
    }

    /// Whether the lease of `token` still stands.
    fn holds(&self, token: u64) -> bool {
        self.right() == Some(token)
    }

    /// Whether the lease of `holder`, as a claim names it, is proven to be over. `false` proves nothing.
    fn is_over(&self, _holder: &str) -> bool {
        true
    }
}

/// A fence that always stands: for offline tools and storage tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unfenced;

impl Fence for Unfenced {
    fn right(&self) -> Option<u64> {
        Some(0)
    }
}

/// Which partition, and where it lies.
#[derive(Clone, Debug)]
pub struct PartitionSpec {
    pub topic: String,
    pub topic_id: TopicId,
    pub index: i32,
    /// Directory, relative to the volume's root: `{topic}/{topic id}/{index}`.
    pub dir: String,
    pub config: Arc<TopicConfig>,
}

/// When an append counts as done (Kafka: `acks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// 0 and 1: after the write.
    Written,
    /// -1: after the sync that the durability dial asks for.
    All,
}

/// One `records` field of a produce request.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    pub records: Bytes,
    pub acks: Acks,
}

/// Where a batch came to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub base_offset: Offset,
    pub last_offset: Offset,
    /// Milliseconds since the epoch under LogAppendTime, else `None`.
    pub log_append_time: Option<i64>,
    pub log_start: Offset,
}

/// Why an append did not happen (or, for `Storage`, `NotLeader` and `TimedOut`, may not have).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("this broker does not lead the partition now")]
    NotLeader,
    #[error("the volume failed or does not answer: {0}")]
    Storage(String),
    #[error("the batch was not durable in time")]
    TimedOut,
    #[error("invalid record batch: {0}")]
    Invalid(String),
    #[error("the batch's checksum does not match")]
    Corrupt,
    #[error("the batch has {size} bytes, {max} are allowed")]
    TooLarge { size: u64, max: u64 },
    #[error("the batch has {size} bytes, a segment holds {max}")]
    LargerThanSegment { size: u64, max: u64 },
    #[error("unknown compression type {0}")]
    UnsupportedCompression(u8),
    #[error("timestamp {0} is out of the allowed range")]
    InvalidTimestamp(i64),
    #[error("sequence {got} where {expected} was expected")]
    OutOfOrderSequence { got: i32, expected: i32 },
    #[error("producer epoch {got} is older than {current}")]
    InvalidProducerEpoch { got: i16, current: i16 },
    #[error("sequence {0} was appended before, too long ago to say where")]
    DuplicateSequence(i32),
    #[error("no transaction of the producer is open here, or one is")]
    InvalidTxnState,
}

/// What a client may see of a partition. Obtained only under a live lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub epoch: Epoch,
    /// The leader epoch from which on this broker leads the partition: it may have opened it more than once since.
    pub since: Epoch,
    pub log_start: Offset,
    /// High watermark: the end of what consumers may read.
    pub hwm: Offset,
    /// Last stable offset: the end of what `read_committed` consumers may read.
    pub lso: Offset,
}

/// How far a read may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    HighWatermark,
    LastStable,
}

#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    pub from: Offset,
    /// Bytes to return at most, but for the first batch.
    pub max_bytes: usize,
    /// Whether the first batch is returned though it is larger than `max_bytes` (KIP-74).
    pub at_least_one: bool,
    pub bound: Bound,
}

#[derive(Clone, Debug)]
pub struct ReadOk {
    /// Whole batches; the first holds `from` unless that lies in a hole.
    pub records: Bytes,
    pub marks: Marks,
    /// The aborted transactions that have something in `records`, by first offset. None unless the read went up to the last
    /// stable offset.
    pub aborted: Vec<Aborted>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error("this broker does not lead the partition now")]
    NotLeader,
    #[error("offset out of range, the log is {}..{}", .0.log_start, .0.hwm)]
    OutOfRange(Marks),
    #[error("the batch at offset {0} is damaged")]
    Corrupt(Offset),
    #[error("the volume failed: {0}")]
    Storage(String),
}

/// A producer as DescribeProducers shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    pub id: i64,
    pub epoch: i16,
    /// -1 if nothing is remembered, as with the two that follow.
    pub last_sequence: i32,
    /// Milliseconds since the epoch.
    pub last_timestamp: i64,
    pub coordinator_epoch: i32,
    pub transaction_start: Option<Offset>,
}

/// A record found by timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampHit {
    pub offset: Offset,
    pub timestamp: i64,
    pub epoch: Epoch,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum DeleteRecordsError {
    #[error("this broker does not lead the partition now")]
    NotLeader,
    #[error("offset {0} is past the high watermark")]
    OutOfRange(Offset),
    #[error("the volume failed: {0}")]
    Storage(String),
}

/// What the cluster says of a partition that this broker is to lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The leader epoch from which on it is to be opened.
    pub epoch: Epoch,
    /// Who gave it up without being able to say so in his claim: his claims below that epoch hold nobody up.
    pub disowned: Vec<(String, Epoch)>,
}

/// One line of what a partition is and does, for status pages and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStatus {
    pub topic: String,
    pub index: i32,
    pub life: LifeName,
    /// The last leader epoch in which this process led it; 0 if it never did.
    pub epoch: Epoch,
    pub log_start: Offset,
    pub hwm: Offset,
    pub leo: Offset,
    /// Bytes of log, sealed-off parts excepted.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeName {
    Closed,
    Opening,
    Leading,
    Stalled,
    Relinquished,
    Abandoned,
}
