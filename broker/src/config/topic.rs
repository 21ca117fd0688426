//! A topic's configuration, resolved: what Kafka's "Topic Configs" section names, as typed values.

use super::broker_keys::BROKER_KEYS;
use super::error::ConfigError;
use super::key::{find, nearest, Key};
use super::layer::SetValues;
use super::topic_keys::TOPIC_KEYS;
use std::collections::BTreeMap;
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

    /// Which durability promise holds, in a sentence for people.
    pub fn durability(&self) -> String {
        if self.durable() {
            return "every acknowledged batch is fsynced".to_owned();
        }
        let messages = self.flush_messages;
        let every = match self.flush_ms {
            Some(ms) => format!("every {messages} records or {} ms", ms.as_millis()),
            None => format!("every {messages} records"),
        };
        format!(
            "fsynced {every}: a crash of the host or of the volume's server can take back what was acknowledged since"
        )
    }

    /// A topic's configuration: `overrides` (by Kafka's names) over `defaults`.
    pub fn resolve(
        defaults: &TopicConfig,
        overrides: &BTreeMap<String, String>,
    ) -> Result<TopicConfig, ConfigError> {
        let mut config = defaults.clone();
        for (key, value) in overrides {
            let (row, value) = checked(key, value)?;
            config.apply(row.name, &value);
        }
        Ok(config)
    }

    /// The topic defaults that a broker's settings give.
    pub(super) fn defaults_of(set: &SetValues) -> Result<TopicConfig, ConfigError> {
        let mut config = TopicConfig::default();
        for row in TOPIC_KEYS {
            for (broker_key, factor) in row.synonyms {
                if let Some(given) = set.get(broker_key) {
                    let value = scaled(&given.value, *factor);
                    let value = row
                        .check(&value)
                        .map_err(|why| ConfigError::bad(broker_key, &given.value, why).at(&given.origin))?;
                    config.apply(row.name, &value);
                    break;
                }
            }
        }
        Ok(config)
    }

    /// Sets one served key to a checked value; other keys change nothing.
    fn apply(&mut self, key: &str, value: &str) {
        let number = value.parse::<i64>().unwrap_or_default();
        let unsigned = u64::try_from(number).unwrap_or_default();
        let millis = Duration::from_millis(unsigned);
        match key {
            "segment.bytes" => self.segment_bytes = unsigned,
            "segment.ms" => self.segment_ms = millis,
            "retention.ms" => self.retention_ms = (number >= 0).then_some(millis),
            "retention.bytes" => self.retention_bytes = u64::try_from(number).ok(),
            "flush.messages" => self.flush_messages = unsigned,
            "flush.ms" => self.flush_ms = (number < i64::MAX).then_some(millis),
            "max.message.bytes" => self.max_message_bytes = unsigned,
            "index.interval.bytes" => self.index_interval_bytes = unsigned,
            "cleanup.policy" => {
                let has = |policy| value.split(',').any(|p| p == policy);
                self.cleanup_policy = CleanupPolicy { delete: has("delete"), compact: has("compact") };
            }
            "message.timestamp.type" => {
                self.timestamp_type = match value {
                    "LogAppendTime" => TimestampType::LogAppendTime,
                    _ => TimestampType::CreateTime,
                }
            }
            "message.timestamp.before.max.ms" => self.timestamp_before_max = millis,
            "message.timestamp.after.max.ms" => self.timestamp_after_max = millis,
            _ => {}
        }
    }

    /// The value of a key as Kafka writes it; `None` if the key is not one of these fields.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX).to_string();
        let or_unlimited = |n: Option<String>| n.unwrap_or_else(|| "-1".to_owned());
        Some(match key {
            "segment.bytes" => self.segment_bytes.to_string(),
            "segment.ms" => millis(self.segment_ms),
            "retention.ms" => or_unlimited(self.retention_ms.map(millis)),
            "retention.bytes" => or_unlimited(self.retention_bytes.map(|n| n.to_string())),
            "flush.messages" => self.flush_messages.to_string(),
            "flush.ms" => self.flush_ms.map_or_else(|| i64::MAX.to_string(), millis),
            "max.message.bytes" => self.max_message_bytes.to_string(),
            "index.interval.bytes" => self.index_interval_bytes.to_string(),
            "cleanup.policy" => match (self.cleanup_policy.delete, self.cleanup_policy.compact) {
                (true, true) => "compact,delete".to_owned(),
                (false, true) => "compact".to_owned(),
                _ => "delete".to_owned(),
            },
            "message.timestamp.type" => match self.timestamp_type {
                TimestampType::CreateTime => "CreateTime".to_owned(),
                TimestampType::LogAppendTime => "LogAppendTime".to_owned(),
            },
            "message.timestamp.before.max.ms" => millis(self.timestamp_before_max),
            "message.timestamp.after.max.ms" => millis(self.timestamp_after_max),
            _ => return None,
        })
    }
}

/// Whether a topic may be given this setting (CreateTopics, AlterConfigs).
pub fn validate_topic_key(key: &str, value: &str) -> Result<(), ConfigError> {
    checked(key, value).map(|_| ())
}

/// The table's row of a topic key.
pub fn topic_key(name: &str) -> Option<&'static Key> {
    find(TOPIC_KEYS, name)
}

fn checked(key: &str, value: &str) -> Result<(&'static Key, String), ConfigError> {
    let row = topic_key(key).ok_or_else(|| ConfigError::UnknownKey {
        key: key.to_owned(),
        origin: None,
        hint: hint(key),
    })?;
    let value = row.check(value).map_err(|why| ConfigError::bad(row.name, value, why))?;
    Ok((row, value))
}

fn hint(key: &str) -> Option<String> {
    if find(BROKER_KEYS, key).is_some() {
        return Some("it is a broker's key, not a topic's".to_owned());
    }
    nearest(TOPIC_KEYS, key).map(|near| format!("did you mean {near}?"))
}

/// A broker key's value in the unit of the topic key. Negative values are Kafka's "unlimited" and keep
/// their meaning.
pub(super) fn scaled(value: &str, factor: i64) -> String {
    match value.parse::<i64>() {
        Ok(n) if factor != 1 && n > 0 => n.saturating_mul(factor).to_string(),
        _ => value.to_owned(),
    }
}
