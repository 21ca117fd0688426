//! What is not counted but looked at when somebody scrapes.

use std::fmt::Debug;

/// Gives the present state of partitions and groups. Must not wait for anything.
pub trait Samples: Debug + Send + Sync + 'static {
    fn partitions(&self) -> Vec<PartitionSample>;
    fn topics(&self) -> Vec<TopicSample>;
    fn group_lags(&self) -> Vec<LagSample>;
}

#[derive(Clone, Debug)]
pub struct PartitionSample {
    pub topic: String,
    pub partition: i32,
    pub leading: bool,
    /// `None` until the partition has been opened: nothing is known then.
    pub marks: Option<MarksSample>,
}

#[derive(Clone, Copy, Debug)]
pub struct MarksSample {
    pub epoch: i64,
    pub log_start: i64,
    pub hwm: i64,
    pub leo: i64,
    /// Bytes of log.
    pub bytes: i64,
}

#[derive(Clone, Debug)]
pub struct TopicSample {
    pub topic: String,
    /// `flush.messages`
    pub flush_messages: u64,
}

#[derive(Clone, Debug)]
pub struct LagSample {
    pub group: String,
    pub topic: String,
    pub partition: i32,
    /// Records between the committed offset and the high watermark.
    pub lag: i64,
}
