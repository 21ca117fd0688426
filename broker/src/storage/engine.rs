//! All partitions of a broker.
//!
//! Attaching a partition costs memory only; it opens when it is first used, or when the background task
//! comes round to it, so that a broker with ten thousand partitions answers at once after its start.

use super::api::*;
use super::handles::Handles;
use super::partition::{Life, Partition};
use crate::config::{StorageConfig, TopicConfig};
use crate::metrics::StorageMetrics;
use crate::rt::{Clock, Entropy, Env};
use crate::types::{Epoch, TopicId};
use crate::volume::Volume;
use futures::stream::StreamExt;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Partitions that open side by side: enough to hide the volume's latency (an opening waits for seven syncs, one after the
/// other), few enough to leave room for appends: the real volume has 64 threads for what writes.
const OPENS: usize = 48;
/// Partitions that close side by side at a clean stop.
const CLOSES: usize = 32;
/// Pause between two looks for closed partitions.
const OPEN_ROUND: Duration = Duration::from_secs(1);

/// What all partitions share.
pub(super) struct Shared {
    pub volume: Arc<dyn Volume>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub fence: Arc<dyn Fence>,
    pub config: StorageConfig,
    pub metrics: Arc<StorageMetrics>,
    pub handles: Handles,
    pub opens: Semaphore,
}

pub struct Engine {
    shared: Arc<Shared>,
    partitions: RwLock<BTreeMap<(TopicId, i32), Arc<Partition>>>,
    /// What the cluster assigned to this broker, also of partitions that are not known yet.
    assigned: RwLock<BTreeMap<(TopicId, i32), Assignment>>,
}

impl Engine {
    /// No I/O happens here.
    pub fn new(
        env: Env,
        fence: Arc<dyn Fence>,
        config: StorageConfig,
        metrics: Arc<StorageMetrics>,
    ) -> Arc<Self> {
        let handles = Handles::new(env.volume.clone(), metrics.clone(), config.max_open_files);
        let shared = Shared {
            volume: env.volume,
            clock: env.clock,
            entropy: env.entropy,
            fence,
            config,
            metrics,
            handles,
            opens: Semaphore::new(OPENS),
        };
        Arc::new(Engine {
            shared: Arc::new(shared),
            partitions: RwLock::default(),
            assigned: RwLock::default(),
        })
    }

    /// Makes a partition known, closed. It opens when first used, or by [`Engine::run`] in the background.
    pub fn attach(&self, spec: PartitionSpec) -> Arc<Partition> {
        let key = (spec.topic_id, spec.index);
        let mut all = self.partitions.write();
        all.entry(key).or_insert_with(|| Partition::new(spec, self.shared.clone(), false)).clone()
    }

    /// Makes a partition known that is led only while the cluster says so.
    pub fn know(&self, spec: PartitionSpec) -> Arc<Partition> {
        let key = (spec.topic_id, spec.index);
        let partition = {
            let mut all = self.partitions.write();
            all.entry(key).or_insert_with(|| Partition::new(spec, self.shared.clone(), true)).clone()
        };
        let assigned = self.assigned.read().get(&key).cloned();
        partition.assign(assigned);
        partition
    }

    /// Says which partitions this broker is to lead under its present lease, and from which leader epoch on each is to
    /// be opened; it gives all others up.
    pub fn assign(&self, wanted: BTreeMap<(TopicId, i32), Assignment>) {
        let before = std::mem::replace(&mut *self.assigned.write(), wanted.clone());
        let gone = before.keys().filter(|key| !wanted.contains_key(key)).map(|key| (key, None));
        let new = wanted.iter().filter(|(key, assigned)| before.get(key) != Some(*assigned));
        for (key, assigned) in gone.chain(new.map(|(key, assigned)| (key, Some(assigned.clone())))) {
            if let Some(p) = self.get(key.0, key.1) {
                p.assign(assigned);
            }
        }
    }

    pub fn get(&self, topic: TopicId, index: i32) -> Option<Arc<Partition>> {
        self.partitions.read().get(&(topic, index)).cloned()
    }

    fn all(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().values().cloned().collect()
    }

    fn of_topic(&self, topic: TopicId) -> Vec<Arc<Partition>> {
        let all = self.partitions.read();
        all.range((topic, i32::MIN)..=(topic, i32::MAX)).map(|(_, p)| p.clone()).collect()
    }

    /// Whether a call hangs on the volume, for any partition.
    pub fn is_stuck(&self) -> bool {
        self.partitions.read().values().any(|p| p.stuck.load(Relaxed) > 0)
    }

    /// Gives up the partitions of topics for which a call hangs.
    pub fn disown_stuck(&self) {
        self.all().iter().filter(|p| p.spec.topic_id != TopicId::default()).for_each(|p| p.disown());
    }

    /// What was given up under the present assignments, each with the epoch from which on another one counts.
    pub fn disowned(&self) -> Vec<(TopicId, i32, Epoch)> {
        let all = self.partitions.read();
        let disowned =
            all.iter().filter_map(|((id, index), p)| Some((*id, *index, p.state.lock().disowned?)));
        disowned.collect()
    }

    /// Live change of a topic's configuration.
    pub fn reconfigure(&self, topic: TopicId, config: Arc<TopicConfig>) {
        for p in self.of_topic(topic) {
            p.set_config(config.clone());
        }
    }

    /// Closes all partitions of a topic and writes nothing (design: *abandon*); forgets them.
    pub async fn abandon_topic(&self, topic: TopicId) {
        let gone = self.of_topic(topic);
        {
            let mut all = self.partitions.write();
            gone.iter().for_each(|p| drop(all.remove(&(topic, p.spec.index))));
        }
        gone.iter().for_each(|p| p.drop_now(Life::Abandoned));
    }

    /// The lease ended: every partition fails its waiters with `NotLeader` and closes, writing nothing. Each
    /// reopens under a new epoch when used again under the next lease.
    pub fn drop_all(&self) {
        self.assigned.write().clear();
        self.all().iter().for_each(|p| p.drop_with_lease());
    }

    /// Background work until cancelled: opens closed partitions, sweeps retention. Neither waits for the other.
    pub async fn run(self: Arc<Self>) {
        let every = self.shared.config.retention_check;
        let open = async {
            loop {
                self.open_closed().await;
                tokio::time::sleep(OPEN_ROUND).await;
            }
        };
        let sweep = async {
            loop {
                tokio::time::sleep(every).await;
                self.sweep().await;
            }
        };
        futures::join!(open, sweep);
    }

    async fn open_closed(&self) {
        let closed = self.all().into_iter().filter(|p| p.is_closed());
        // Half of the places: whoever is waiting for a partition must find one.
        futures::stream::iter(closed)
            .for_each_concurrent(OPENS / 2, |p| async move {
                if self.shared.fence.right().is_some() {
                    drop(p.lead().await);
                }
            })
            .await;
    }

    /// One retention pass over all partitions.
    pub async fn sweep(&self) {
        futures::stream::iter(self.all())
            .for_each_concurrent(OPENS / 2, |p| async move { p.sweep().await })
            .await;
    }

    /// Clean stop: flush, checkpoint at the end, close (design: *relinquish*).
    pub async fn shutdown(&self) {
        futures::stream::iter(self.all())
            .for_each_concurrent(CLOSES, |p| async move { p.relinquish().await })
            .await;
    }

    /// For metrics and DescribeLogDirs, by topic id and partition.
    pub fn statuses(&self) -> Vec<PartitionStatus> {
        self.partitions.read().values().map(|p| p.status()).collect()
    }
}
