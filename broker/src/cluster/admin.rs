//! What a broker asks of the controller.

use super::controller::checked_overrides;
use super::core::Core;
use super::error::StartError;
use super::lease::Lease;
use super::metadata::{Metadata, TopicMeta};
use super::names::check_topic_name;
use super::roster::View;
use super::{ClusterImage, TopicImage};
use crate::config::BrokerConfig;
use crate::metrics::Metrics;
use crate::rt::{Entropy, Env};
use crate::storage::Engine;
use crate::types::{BrokerId, Epoch, TopicId};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

pub struct NewTopic {
    pub name: String,
    pub partitions: i32,
    pub overrides: BTreeMap<String, String>,
}

/// Why an admin call changed nothing (or, for `NotController` and `Storage`, may not have).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

/// A change of a topic's overrides.
pub type ConfigChange = Box<dyn FnOnce(&mut BTreeMap<String, String>) -> Result<(), AdminError> + Send>;

/// This broker's part in the cluster: its lease, the metadata, and the engine below.
pub struct Cluster {
    pub(super) core: Core,
    engine: Arc<Engine>,
    entropy: Arc<dyn Entropy>,
}

impl Cluster {
    /// Starts this broker on the volume. When it returns, the lease stands, the metadata is read and
    /// every partition is attached. See [`StartError`] for why not.
    pub async fn start(
        env: Env,
        config: Arc<BrokerConfig>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Cluster>, StartError> {
        let entropy = env.entropy.clone();
        let (core, engine) = Core::start(env.clone(), &config, |fence| {
            Engine::new(env, fence, config.storage.clone(), metrics.storage.clone())
        })
        .await?;
        Ok(Arc::new(Cluster { core, engine, entropy }))
    }

    /// Clean stop: flush, checkpoint and close all partitions, then say that the lease is given up.
    pub async fn shutdown(&self) {
        self.core.shutdown(self.engine.as_ref()).await;
    }

    /// Returns when a task died without which this broker cannot go on, and says which and why. It has yet to be
    /// shut down.
    pub async fn failed(&self) -> String {
        self.core.failed().await
    }

    pub fn broker_id(&self) -> BrokerId {
        self.core.me.broker
    }

    pub fn controller_epoch(&self) -> Epoch {
        self.core.controller.epoch()
    }

    /// Kafka's cluster id: 22 characters of URL-safe base64.
    pub fn cluster_id(&self) -> &str {
        &self.core.cluster_id
    }

    /// Brokers that may be there, with where clients reach them.
    pub fn members(&self) -> Arc<View> {
        self.core.roster.view()
    }

    pub fn image(&self) -> Arc<ClusterImage> {
        self.core.controller.image()
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The right to act; a [`crate::storage::Fence`].
    pub fn lease(&self) -> &Arc<Lease> {
        &self.core.lease
    }

    /// Follows the token of the last lease that ended: what was done under it is void.
    pub fn lease_ended(&self) -> watch::Receiver<u64> {
        self.core.lease.ended()
    }

    /// Whether the lease stands and the metadata can be changed.
    pub fn ready(&self) -> bool {
        self.core.ready()
    }

    /// Durable when it returns. Validates name, partition count and configs; with `dry_run` only that.
    pub async fn create_topic(&self, topic: NewTopic, dry_run: bool) -> Result<Arc<TopicImage>, AdminError> {
        self.core.create_topic(TopicId(self.entropy.uuid()), topic, dry_run).await
    }

    /// Durable when it returns; the topic's files go away in the background.
    pub async fn delete_topic(&self, name: &str) -> Result<(), AdminError> {
        self.core.delete_topic(name).await
    }

    /// Deletes the topic only if it is still that incarnation: [`AdminError::UnknownTopic`] if it was deleted, also
    /// if another was created under the name since.
    pub async fn delete_incarnation(&self, name: &str, id: TopicId) -> Result<(), AdminError> {
        self.core.delete_incarnation(name, id).await
    }

    /// `total`: the new number of partitions.
    pub async fn create_partitions(&self, name: &str, total: i32, dry_run: bool) -> Result<(), AdminError> {
        self.core.create_partitions(name, total, dry_run).await
    }

    /// Replaces the topic's overrides through `change`, atomically.
    pub async fn alter_topic_config(
        &self,
        name: &str,
        change: ConfigChange,
        dry_run: bool,
    ) -> Result<(), AdminError> {
        self.core.alter_topic_config(name, change, dry_run).await
    }
}

impl Core {
    pub(super) async fn create_topic(
        &self,
        id: TopicId,
        new: NewTopic,
        dry_run: bool,
    ) -> Result<Arc<TopicImage>, AdminError> {
        check_topic_name(&new.name)?;
        let defaults = self.controller.defaults().clone();
        checked_overrides(&defaults, &new.overrides)?;
        self.change(dry_run, move |m| {
            let leaders = Vec::new();
            let topic = TopicMeta { id, partitions: new.partitions, configs: new.overrides, leaders };
            m.create_topic(&new.name, topic.clone())?;
            Ok(Arc::new(TopicImage::new(&new.name, &topic, &defaults)))
        })
        .await
    }

    pub(super) async fn delete_topic(&self, name: &str) -> Result<(), AdminError> {
        let name = name.to_owned();
        self.change(false, move |m| m.delete_topic(&name).map(|_| ())).await
    }

    async fn delete_incarnation(&self, name: &str, id: TopicId) -> Result<(), AdminError> {
        let name = name.to_owned();
        self.change(false, move |m| match m.topics.get(&name) {
            Some(topic) if topic.id == id => m.delete_topic(&name).map(|_| ()),
            _ => Err(AdminError::UnknownTopic(name)),
        })
        .await
    }

    pub(super) async fn create_partitions(
        &self,
        name: &str,
        total: i32,
        dry_run: bool,
    ) -> Result<(), AdminError> {
        let name = name.to_owned();
        self.change(dry_run, move |m| m.create_partitions(&name, total)).await
    }

    pub(super) async fn alter_topic_config(
        &self,
        name: &str,
        change: ConfigChange,
        dry_run: bool,
    ) -> Result<(), AdminError> {
        let name = name.to_owned();
        let defaults = self.controller.defaults().clone();
        self.change(dry_run, move |m| {
            let topic = m.topic_mut(&name)?;
            let mut overrides = topic.configs.clone();
            change(&mut overrides)?;
            checked_overrides(&defaults, &overrides)?;
            topic.configs = overrides;
            Ok(())
        })
        .await
    }

    async fn change<T: Send + 'static>(
        &self,
        dry_run: bool,
        change: impl FnOnce(&mut Metadata) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, AdminError> {
        if !dry_run {
            return self.controller.submit(change).await;
        }
        self.controller.in_office().ok_or(AdminError::NotController)?;
        change(&mut Metadata::clone(&self.controller.metadata()))
    }
}
