//! What the control plane asks of the storage engine.

use crate::config::TopicConfig;
use crate::storage::{Assignment, Engine, LifeName, PartitionSpec};
use crate::types::{Epoch, TopicId};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;

#[async_trait]
pub(super) trait Partitions: Send + Sync + 'static {
    /// Makes a partition known that is led only while it is assigned.
    fn know(&self, spec: PartitionSpec);
    /// What this broker is to lead under its present lease; slots of groups have a nil topic id.
    fn assign(&self, wanted: BTreeMap<(TopicId, i32), Assignment>);
    /// Whether a call hangs on the volume.
    fn is_stuck(&self) -> bool;
    /// Gives up for good, under its present assignment, what cannot be led because a call hangs.
    fn disown_stuck(&self);
    /// What was given up so, and the epoch from which on another assignment counts.
    fn disowned(&self) -> Vec<(TopicId, i32, Epoch)>;
    /// The leader epoch in which this broker leads the partition at present.
    fn led_in(&self, topic: TopicId, index: i32) -> Option<Epoch>;
    fn reconfigure(&self, topic: TopicId, config: Arc<TopicConfig>);
    async fn abandon_topic(&self, topic: TopicId);
    /// The lease ended.
    fn drop_all(&self);
    /// Background work; never returns.
    async fn run(self: Arc<Self>);
    async fn shutdown(&self);
}

#[async_trait]
impl Partitions for Engine {
    fn know(&self, spec: PartitionSpec) {
        Engine::know(self, spec);
    }
    fn assign(&self, wanted: BTreeMap<(TopicId, i32), Assignment>) {
        Engine::assign(self, wanted);
    }
    fn is_stuck(&self) -> bool {
        Engine::is_stuck(self)
    }
    fn disown_stuck(&self) {
        Engine::disown_stuck(self);
    }
    fn disowned(&self) -> Vec<(TopicId, i32, Epoch)> {
        Engine::disowned(self)
    }
    fn led_in(&self, topic: TopicId, index: i32) -> Option<Epoch> {
        let status = self.get(topic, index)?.status();
        (status.life == LifeName::Leading).then_some(status.epoch)
    }
    fn reconfigure(&self, topic: TopicId, config: Arc<TopicConfig>) {
        Engine::reconfigure(self, topic, config);
    }
    async fn abandon_topic(&self, topic: TopicId) {
        Engine::abandon_topic(self, topic).await;
    }
    fn drop_all(&self) {
        Engine::drop_all(self);
    }
    async fn run(self: Arc<Self>) {
        Engine::run(self).await;
    }
    async fn shutdown(&self) {
        Engine::shutdown(self).await;
    }
}
