//! What DescribeConfigs shows: every key with its value, where that comes from, and what it means.

use super::broker_keys::BROKER_KEYS;
use super::key::{find, Key, Kind};
use super::layer::Origin;
use super::topic::scaled;
use super::topic_keys::TOPIC_KEYS;
use super::BrokerConfig;
use std::collections::BTreeMap;

/// Where a value comes from; the numbers are the wire's (KIP-226).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    DynamicTopicConfig = 1,
    StaticBrokerConfig = 4,
    DefaultConfig = 5,
}

/// A value's type; the numbers are the wire's (KIP-569).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigType {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// A setting that gives, or would give, a key its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    pub name: String,
    pub value: Option<String>,
    pub source: ConfigSource,
}

/// One line of a DescribeConfigs answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: &'static str,
    /// `None` is null: unset.
    pub value: Option<String>,
    pub source: ConfigSource,
    pub is_sensitive: bool,
    pub read_only: bool,
    /// The strongest first; the first gives the value.
    pub synonyms: Vec<Synonym>,
    pub config_type: ConfigType,
    pub documentation: String,
}

/// Every topic key, for a topic with these overrides.
pub fn topic_entries(broker: &BrokerConfig, overrides: &BTreeMap<String, String>) -> Vec<ConfigEntry> {
    TOPIC_KEYS.iter().map(|row| topic_entry(row, broker, overrides)).collect()
}

fn topic_entry(
    row: &'static Key,
    broker: &BrokerConfig,
    overrides: &BTreeMap<String, String>,
) -> ConfigEntry {
    let mut synonyms = Vec::new();
    if let Some(value) = overrides.get(row.name) {
        synonyms.push(Synonym {
            name: row.name.to_owned(),
            value: Some(value.clone()),
            source: ConfigSource::DynamicTopicConfig,
        });
    }
    for (broker_key, factor) in row.synonyms {
        if let Some(set) = broker.set.get(broker_key) {
            synonyms.push(Synonym {
                name: (*broker_key).to_owned(),
                value: Some(scaled(&set.value, *factor)),
                source: ConfigSource::StaticBrokerConfig,
            });
        }
    }
    synonyms.push(Synonym {
        name: default_name(row).to_owned(),
        value: row.default.map(str::to_owned),
        source: ConfigSource::DefaultConfig,
    });
    let mut entry = entry(row, synonyms, false);
    if !overrides.contains_key(row.name) {
        // The typed value is what the broker acts on.
        entry.value = broker.topic_defaults.text(row.name).or(entry.value);
    }
    if matches!(row.name, "flush.messages" | "flush.ms") {
        let config = super::TopicConfig::resolve(&broker.topic_defaults, overrides);
        let holds = config.unwrap_or_else(|_| broker.topic_defaults.clone()).durability();
        entry.documentation = format!("{} Now: {holds}.", row.doc);
    }
    entry
}

/// The name under which a default is known: the broker key that has one, else the key itself.
fn default_name(row: &'static Key) -> &'static str {
    let with_default =
        |name: &&'static str| find(BROKER_KEYS, name).is_some_and(|k: &Key| k.default.is_some());
    row.synonyms.iter().map(|(name, _)| *name).find(with_default).unwrap_or(row.name)
}

/// Every broker key. All are read-only: a running broker's are changed by a restart.
pub fn broker_entries(broker: &BrokerConfig) -> Vec<ConfigEntry> {
    BROKER_KEYS.iter().map(|row| broker_entry(row, broker)).collect()
}

fn broker_entry(row: &'static Key, broker: &BrokerConfig) -> ConfigEntry {
    let mut synonyms = Vec::new();
    let default = match broker.set.get(row.name) {
        Some(set) if set.origin == Origin::Host => Some(set.value.clone()),
        Some(set) => {
            synonyms.push(Synonym {
                name: row.name.to_owned(),
                value: Some(set.value.clone()),
                source: ConfigSource::StaticBrokerConfig,
            });
            row.default.map(str::to_owned)
        }
        None => row.default.map(str::to_owned),
    };
    synonyms.push(Synonym { name: row.name.to_owned(), value: default, source: ConfigSource::DefaultConfig });
    let mut entry = entry(row, synonyms, true);
    if row.name == "log.flush.interval.messages" {
        entry.documentation = format!("{} Now: {}.", row.doc, broker.topic_defaults.durability());
    }
    entry
}

fn entry(row: &'static Key, synonyms: Vec<Synonym>, read_only: bool) -> ConfigEntry {
    let first = synonyms.first();
    ConfigEntry {
        name: row.name,
        value: first.and_then(|s| s.value.clone()),
        source: first.map_or(ConfigSource::DefaultConfig, |s| s.source),
        is_sensitive: false,
        read_only,
        config_type: match row.kind {
            Kind::Bool => ConfigType::Boolean,
            Kind::Int(..) => ConfigType::Int,
            Kind::Long(..) => ConfigType::Long,
            Kind::Ratio => ConfigType::Double,
            Kind::Text | Kind::Choice(_) => ConfigType::String,
            Kind::List(_) => ConfigType::List,
        },
        documentation: row.doc.to_owned(),
        synonyms,
    }
}
