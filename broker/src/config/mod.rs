//! Broker and topic configuration, under Kafka's names where Kafka has one.
//!
//! Two tables, [`BROKER_KEYS`] and [`TOPIC_KEYS`], name every key with its type, default, range and
//! meaning. Parsing, DescribeConfigs and the README's tables are all made from them. A key that is not in a
//! table is an error, never ignored; a key that is accepted without effect says so.

mod address;
mod broker;
mod broker_keys;
mod describe;
mod docs;
mod error;
mod key;
mod layer;
mod storage;
#[cfg(test)]
mod tests;
mod topic;
mod topic_keys;

pub use broker::{BrokerConfig, GroupConfig, TransactionConfig};
pub use broker_keys::BROKER_KEYS;
pub use describe::{broker_entries, topic_entries, ConfigEntry, ConfigSource, ConfigType, Synonym};
pub use docs::markdown;
pub use error::ConfigError;
pub use key::{Effect, Key, Kind};
pub use layer::{Layer, Origin, SetValue, SetValues, Setting};
pub use storage::StorageConfig;
pub use topic::{topic_key, validate_topic_key, CleanupPolicy, TimestampType, TopicConfig};
pub use topic_keys::TOPIC_KEYS;
