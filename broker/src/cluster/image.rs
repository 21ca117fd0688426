//! The cluster's metadata as an immutable picture: topics, their ids, partitions and configs.

use super::metadata::{Metadata, TopicMeta};
use crate::config::TopicConfig;
use crate::types::TopicId;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct TopicImage {
    pub name: String,
    pub id: TopicId,
    pub partitions: i32,
    /// What was set on the topic itself, by Kafka's config names.
    pub overrides: BTreeMap<String, String>,
    /// `overrides` over the broker's defaults.
    pub config: Arc<TopicConfig>,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterImage {
    pub topics: BTreeMap<String, Arc<TopicImage>>,
    pub names: BTreeMap<TopicId, String>,
}

impl ClusterImage {
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics.get(name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.names.get(&id).and_then(|n| self.topics.get(n))
    }

    /// The picture of `m`. Topics that are as in `self` are shared with it.
    pub(super) fn next(&self, m: &Metadata, defaults: &Arc<TopicConfig>) -> ClusterImage {
        let mut next = ClusterImage::default();
        for (name, topic) in &m.topics {
            let same = self.topics.get(name).filter(|old| old.shows(topic)).cloned();
            let image = same.unwrap_or_else(|| Arc::new(TopicImage::new(name, topic, defaults)));
            next.topics.insert(name.clone(), image);
            next.names.insert(topic.id, name.clone());
        }
        next
    }
}

impl TopicImage {
    pub(super) fn new(name: &str, topic: &TopicMeta, defaults: &Arc<TopicConfig>) -> TopicImage {
        // Overrides were checked before they were stored. Should this version know less than the one
        // that stored them, the topic is served with the defaults rather than not at all.
        let config = match TopicConfig::resolve(defaults, &topic.configs) {
            _ if topic.configs.is_empty() => defaults.clone(),
            Ok(config) => Arc::new(config),
            Err(e) => {
                tracing::warn!("topic {name} is served with the broker's defaults: {e}");
                defaults.clone()
            }
        };
        TopicImage {
            name: name.into(),
            id: topic.id,
            partitions: topic.partitions,
            overrides: topic.configs.clone(),
            config,
        }
    }

    fn shows(&self, topic: &TopicMeta) -> bool {
        self.id == topic.id && self.partitions == topic.partitions && self.overrides == topic.configs
    }
}
