//! Configuration entries as the responses of CreateTopics and DescribeConfigs carry them.

use crate::config::{topic_entries, BrokerConfig, ConfigEntry, Synonym};
use kafka_protocol::messages::create_topics_response::CreatableTopicConfigs;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsSynonym,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;

/// What a new topic's configuration came to (KIP-525).
pub(super) fn of_created_topic(
    broker: &BrokerConfig,
    overrides: &BTreeMap<String, String>,
) -> Vec<CreatableTopicConfigs> {
    let shown = topic_entries(broker, overrides).into_iter().map(|e| {
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(e.name))
            .with_value(text(e.value))
            .with_read_only(e.read_only)
            .with_config_source(e.source as i8)
            .with_is_sensitive(e.is_sensitive)
    });
    shown.collect()
}

/// One entry of a DescribeConfigs answer.
pub(super) fn described(
    entry: ConfigEntry,
    synonyms: bool,
    documentation: bool,
) -> DescribeConfigsResourceResult {
    let shown_synonyms =
        if synonyms { entry.synonyms.into_iter().map(synonym).collect() } else { Vec::new() };
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(entry.name))
        // A sensitive value is never shown (KIP-226).
        .with_value(if entry.is_sensitive { None } else { text(entry.value) })
        .with_read_only(entry.read_only)
        .with_config_source(entry.source as i8)
        .with_is_sensitive(entry.is_sensitive)
        .with_synonyms(shown_synonyms)
        .with_config_type(entry.config_type as i8)
        .with_documentation(documentation.then(|| StrBytes::from_string(entry.documentation)))
}

fn synonym(s: Synonym) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym::default()
        .with_name(StrBytes::from_string(s.name))
        .with_value(text(s.value))
        .with_source(s.source as i8)
}

fn text(value: Option<String>) -> Option<StrBytes> {
    value.map(StrBytes::from_string)
}
