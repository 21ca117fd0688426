//! All partitions of a broker.

use super::{api::*, partition::Partition};
use crate::config::{StorageConfig, TopicConfig};
use crate::metrics::StorageMetrics;
use crate::rt::Env;
use crate::types::TopicId;
use std::sync::Arc;

pub struct Engine;

impl Engine {
    /// No I/O happens here.
    pub fn new(
        _env: Env,
        _fence: Arc<dyn Fence>,
        _config: StorageConfig,
        _metrics: Arc<StorageMetrics>,
    ) -> Arc<Self> {
        unimplemented!()
    }

    /// Makes a partition known, closed. It opens when first used, or by [`Engine::run`] in the background.
    pub fn attach(&self, _spec: PartitionSpec) -> Arc<Partition> {
        unimplemented!()
    }

    pub fn get(&self, _topic: TopicId, _index: i32) -> Option<Arc<Partition>> {
        unimplemented!()
    }

    /// Live change of a topic's configuration.
    pub fn reconfigure(&self, _topic: TopicId, _config: Arc<TopicConfig>) {
        unimplemented!()
    }

    /// Closes all partitions of a topic and writes nothing (design: *abandon*); forgets them.
    pub async fn abandon_topic(&self, _topic: TopicId) {
        unimplemented!()
    }

    /// The lease ended: every partition fails its waiters with `NotLeader` and closes, writing nothing. Each
    /// reopens under a new epoch when used again under the next lease.
    pub fn drop_all(&self) {
        unimplemented!()
    }

    /// Background work until cancelled: opens closed partitions at a gentle rate, sweeps retention, closes
    /// idle files, re-drives stalled partitions.
    pub async fn run(self: Arc<Self>) {
        unimplemented!()
    }

    /// Clean stop: flush, checkpoint at the end, close (design: *relinquish*).
    pub async fn shutdown(&self) {
        unimplemented!()
    }

    /// For metrics and DescribeLogDirs, in topic and partition order.
    pub fn statuses(&self) -> Vec<PartitionStatus> {
        unimplemented!()
    }
}
