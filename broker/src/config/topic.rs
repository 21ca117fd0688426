//! A topic's configuration, resolved: what Kafka's "Topic Configs" section names, as typed values.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    pub delete: bool,
    pub compact: bool,
}

/// What the storage engine and the produce path need of a topic's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// `segment.bytes`
    pub segment_bytes: u64,
    /// `segment.ms`
    pub segment_ms: Duration,
    /// `retention.ms`; `None` is -1, for ever
    pub retention_ms: Option<Duration>,
    /// `retention.bytes`; `None` is -1, unbounded
    pub retention_bytes: Option<u64>,
    /// `flush.messages`: records that may stay unflushed; 1 syncs before every acknowledgement
    pub flush_messages: u64,
    /// `flush.ms`; `None` is off
    pub flush_ms: Option<Duration>,
    /// `max.message.bytes`: the largest batch that is accepted
    pub max_message_bytes: u64,
    /// `index.interval.bytes`
    pub index_interval_bytes: u64,
    /// `cleanup.policy`
    pub cleanup_policy: CleanupPolicy,
    /// `message.timestamp.type`
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`
    pub timestamp_before_max: Duration,
    /// `message.timestamp.after.max.ms`
    pub timestamp_after_max: Duration,
}

impl Default for TopicConfig {
    fn default() -> Self {
        TopicConfig {
            segment_bytes: 1 << 30,
            segment_ms: Duration::from_secs(7 * 24 * 3600),
            retention_ms: Some(Duration::from_secs(7 * 24 * 3600)),
            retention_bytes: None,
            flush_messages: 1,
            flush_ms: None,
            max_message_bytes: 1_048_588,
            index_interval_bytes: 4096,
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max: Duration::from_millis(i64::MAX as u64),
            timestamp_after_max: Duration::from_secs(3600),
        }
    }
}

impl TopicConfig {
    /// Whether every acknowledgement waits for a sync, so that P1 and P2 hold for all records.
    pub fn durable(&self) -> bool {
        self.flush_messages <= 1
    }
}
