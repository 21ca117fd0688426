//! What the rest of a broker asks of the cluster. Changes are the controller's to make, wherever it is.

use super::controller::Controller;
use super::core::Core;
use super::error::StartError;
use super::lease::Lease;
use super::metadata::{Metadata, TopicMeta};
use super::names::check_topic_name;
use super::requests::{Ask, Asking};
use super::roster::{Roster, View};
use super::{ClusterImage, TopicImage};
use crate::config::BrokerConfig;
use crate::metrics::Metrics;
use crate::reached;
use crate::rt::{Entropy, Env};
use crate::storage::{Engine, Fence};
use crate::types::{BrokerId, Epoch, TopicId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

pub struct NewTopic {
    pub name: String,
    pub partitions: i32,
    pub overrides: BTreeMap<String, String>,
}

/// Why an admin call changed nothing (or, for `NotController` and `Storage`, may not have).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
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
    #[error("topic {0} was deleted, and a broker may not know yet")]
    StillServed(String),
    #[error("the configs of topic {0} were changed by somebody else again and again")]
    Outpaced(String),
    #[error("the volume failed: {0}")]
    Storage(String),
}

/// A change of a topic's overrides. It is made again if somebody else's came between.
pub type ConfigChange = Box<dyn Fn(&mut BTreeMap<String, String>) -> Result<(), AdminError> + Send + Sync>;

/// How often a change of configs is made anew because others came between.
const CONFIG_ATTEMPTS: u32 = 8;

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

    /// Whether the lease stands, and there is a controller.
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
        let NewTopic { name, partitions, overrides: configs } = new;
        let topic = TopicMeta { id, partitions, configs: configs.clone(), ..TopicMeta::default() };
        let ask = Ask::CreateTopic { name: name.clone(), id, partitions, configs };
        let until = tokio::time::Instant::now() + self.me.terms.lease * 3;
        loop {
            match self.change(ask.clone(), dry_run).await {
                Err(AdminError::StillServed(_)) if tokio::time::Instant::now() < until => {
                    self.roster.look_soon();
                    tokio::time::sleep(self.me.terms.beat() / 2).await;
                }
                done => break done?,
            }
        }
        Ok(Arc::new(TopicImage::new(&name, &topic, self.controller.defaults())))
    }

    pub(super) async fn delete_topic(&self, name: &str) -> Result<(), AdminError> {
        self.delete(Ask::DeleteTopic { name: name.into(), id: None }).await
    }

    async fn delete_incarnation(&self, name: &str, id: TopicId) -> Result<(), AdminError> {
        self.delete(Ask::DeleteTopic { name: name.into(), id: Some(id) }).await
    }

    /// Returns when no broker serves the topic any more: nobody who asks for it by name from now on, and perhaps for one that
    /// was created under that name since, reaches the deleted one. A broker that does not say so is not waited for longer than
    /// its lease may last.
    async fn delete(&self, ask: Ask) -> Result<(), AdminError> {
        self.change(ask, false).await?;
        let told = self.roster.until_all_show(self.controller.latest());
        let _ = tokio::time::timeout(self.me.terms.lease * 2, told).await;
        Ok(())
    }

    pub(super) async fn create_partitions(
        &self,
        name: &str,
        total: i32,
        dry_run: bool,
    ) -> Result<(), AdminError> {
        self.change(Ask::CreatePartitions { name: name.into(), total }, dry_run).await
    }

    pub(super) async fn alter_topic_config(
        &self,
        name: &str,
        change: ConfigChange,
        dry_run: bool,
    ) -> Result<(), AdminError> {
        for _ in 0..CONFIG_ATTEMPTS {
            let metadata = self.controller.metadata();
            let topic = metadata.topics.get(name).ok_or_else(|| AdminError::UnknownTopic(name.into()))?;
            let mut to = topic.configs.clone();
            change(&mut to)?;
            let ask = Ask::SetConfigs { name: name.into(), id: topic.id, from: topic.configs.clone(), to };
            match self.change(ask, dry_run).await {
                // What outpaced it is shown here by now.
                Err(AdminError::Outpaced(_)) => {}
                done => return done,
            }
        }
        Err(AdminError::Outpaced(name.into()))
    }

    async fn change(&self, ask: Ask, dry_run: bool) -> Result<(), AdminError> {
        self.changes.make(ask, dry_run).await
    }
}

/// The way to the controller, wherever it is.
#[derive(Clone)]
pub(super) struct Changes {
    pub controller: Arc<Controller>,
    pub roster: Arc<Roster>,
    /// What is to be asked of the controller, where that is another broker.
    pub asks: mpsc::Sender<Asking>,
}

impl Changes {
    /// Makes the change if this broker is controller, else has the controller make it.
    pub async fn make(&self, ask: Ask, dry_run: bool) -> Result<(), AdminError> {
        let controller = &self.controller;
        if dry_run {
            controller.lease.right().ok_or(AdminError::NotController)?;
            let metadata = controller.metadata();
            let all = metadata.deleting.keys().copied().collect();
            return ask.apply(&mut Metadata::clone(&metadata), controller.defaults(), &all);
        }
        if controller.in_office().is_some() {
            let defaults = controller.defaults().clone();
            let free = controller.served_by_nobody(&self.roster.view());
            return controller.submit(move |m| ask.apply(m, &defaults, &free)).await;
        }
        reached!("asked-another-controller");
        let (tell, told) = oneshot::channel();
        self.asks.send(Asking { ask, tell }).await.map_err(|_| AdminError::NotController)?;
        told.await.unwrap_or(Err(AdminError::NotController))
    }
}
