//! Broker and topic configuration, under Kafka's names where Kafka has one.

mod broker;
mod storage;
mod topic;

pub use broker::BrokerConfig;
pub use storage::StorageConfig;
pub use topic::{CleanupPolicy, TimestampType, TopicConfig};
