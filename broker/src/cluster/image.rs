//! The cluster's metadata as an immutable picture: topics, their ids, partitions and configs.

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
}
