//! What a broker asks of the controller.

use super::{ClusterImage, TopicImage};
use crate::storage::Engine;
use crate::types::{BrokerId, Epoch};
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct NewTopic {
    pub name: String,
    pub partitions: i32,
    pub overrides: BTreeMap<String, String>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum AdminError {
    #[error("this broker is not the controller now")]
    NotController,
    #[error("topic {0} already exists")]
    TopicExists(String),
    #[error("no such topic: {0}")]
    UnknownTopic(String),
    #[error("{0}")]
    InvalidTopic(String),
    #[error("{0}")]
    InvalidPartitions(String),
    #[error("{0}")]
    InvalidConfig(String),
    #[error("the volume failed: {0}")]
    Storage(String),
}

pub struct Cluster;

impl Cluster {
    pub fn broker_id(&self) -> BrokerId {
        unimplemented!()
    }
    pub fn controller_epoch(&self) -> Epoch {
        unimplemented!()
    }
    /// Kafka's cluster id: 22 characters of URL-safe base64.
    pub fn cluster_id(&self) -> &str {
        unimplemented!()
    }
    pub fn image(&self) -> Arc<ClusterImage> {
        unimplemented!()
    }
    pub fn engine(&self) -> &Arc<Engine> {
        unimplemented!()
    }
    /// Durable when it returns. Validates name, partition count and configs; with `dry_run` only that.
    pub async fn create_topic(
        &self,
        _topic: NewTopic,
        _dry_run: bool,
    ) -> Result<Arc<TopicImage>, AdminError> {
        unimplemented!()
    }
    pub async fn delete_topic(&self, _name: &str) -> Result<(), AdminError> {
        unimplemented!()
    }
    /// `total`: the new number of partitions.
    pub async fn create_partitions(
        &self,
        _name: &str,
        _total: i32,
        _dry_run: bool,
    ) -> Result<(), AdminError> {
        unimplemented!()
    }
    /// Replaces the topic's overrides through `change`, atomically.
    pub async fn alter_topic_config(
        &self,
        _name: &str,
        _change: Box<dyn FnOnce(&mut BTreeMap<String, String>) -> Result<(), AdminError> + Send>,
        _dry_run: bool,
    ) -> Result<(), AdminError> {
        unimplemented!()
    }
}
