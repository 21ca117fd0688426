//! All groups of a broker: what the API handlers call.

use super::any::AnyGroup;
use super::consumer::{Lookup, Topic};
use super::durable::Place;
use super::group::{Caller, JoinInput, JoinReply, Reply, SyncInput, SyncReply};
use super::record::{json_len, Committed, MAX_GROUP_BYTES};
use super::serving::{Answer, CommitInput, Serving};
use super::settings::GroupSettings;
use super::slot::Slot;
use super::slot_log::SlotLog;
use super::{slot_of, SLOTS};
use crate::cluster::Cluster;
use crate::config::{BrokerConfig, CleanupPolicy, TopicConfig};
use crate::rt::{Env, Vital};
use crate::storage::{Partition, PartitionSpec};
use crate::types::{Epoch, TopicId};
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Bytes of one commit: it must fit into one batch.
pub(super) const MAX_COMMIT_BYTES: usize = 12 << 20;

/// The largest batch of a slot's log, and the size of its segments.
const SLOT_SEGMENT: u64 = 16 << 20;

/// Which topics exist.
pub trait Topics: Lookup + Send + Sync + 'static {
    fn exists(&self, id: TopicId) -> bool;
}

impl Lookup for Cluster {
    fn topic(&self, name: &str) -> Option<Topic> {
        self.image().topic(name).map(|t| Topic { id: t.id, partitions: t.partitions })
    }
}

impl Topics for Cluster {
    fn exists(&self, id: TopicId) -> bool {
        self.image().topic_by_id(id).is_some()
    }
}

/// All groups of a broker.
pub struct Groups {
    slots: Vec<Arc<Slot>>,
    env: Env,
    settings: GroupSettings,
    /// Says when a slot's task died.
    vital: Arc<Vital>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Groups {
    /// Attaches the slots' logs to the cluster's engine and starts a task for each. Returns at once: until a slot is
    /// loaded its groups answer COORDINATOR_LOAD_IN_PROGRESS.
    pub fn start(env: Env, cluster: &Arc<Cluster>, config: &BrokerConfig) -> Arc<Groups> {
        let settings = GroupSettings::new(&config.groups, &config.storage);
        let logs = Groups::logs(|spec| cluster.engine().know(spec));
        Groups::on(env, logs, cluster.clone(), settings)
    }

    #[cfg(test)]
    pub(super) fn attach(
        env: Env,
        engine: &crate::storage::Engine,
        topics: Arc<dyn Topics>,
        settings: GroupSettings,
    ) -> Arc<Groups> {
        Groups::on(env, Groups::logs(|spec| engine.attach(spec)), topics, settings)
    }

    fn logs(partition: impl Fn(PartitionSpec) -> Arc<Partition>) -> Vec<Arc<dyn SlotLog>> {
        let config = Arc::new(slot_config());
        let log = |index: u32| -> Arc<dyn SlotLog> {
            let spec = PartitionSpec {
                topic: "__groups".to_owned(),
                topic_id: TopicId::default(),
                index: index as i32,
                dir: super::inspect::slot_dir(index),
                config: config.clone(),
            };
            Arc::new(partition(spec))
        };
        (0..SLOTS).map(log).collect()
    }

    /// On these logs, one for each slot.
    pub(super) fn on(
        env: Env,
        logs: Vec<Arc<dyn SlotLog>>,
        topics: Arc<dyn Topics>,
        settings: GroupSettings,
    ) -> Arc<Groups> {
        let slot = |(index, log)| Slot::new(index, log, env.clock.clone(), topics.clone(), settings.clone());
        let slots: Vec<Arc<Slot>> = (0i32..).zip(logs).map(slot).collect();
        let vital = Arc::new(Vital::default());
        let named =
            |(i, slot): (usize, &Arc<Slot>)| vital.spawn(format!("group slot {i}"), slot.clone().run());
        let tasks = slots.iter().enumerate().map(named).collect();
        Arc::new(Groups { slots, env, settings, vital, tasks: Mutex::new(tasks) })
    }

    /// Finishes the commits that are under way and lets the logs go. Those who wait for a rebalance are told
    /// NOT_COORDINATOR.
    pub async fn shutdown(&self) {
        self.vital.may_end();
        let stops = self.slots.iter().map(|slot| slot.stop(Duration::from_secs(5)));
        futures::future::join_all(stops).await;
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            if task.await.is_err() {
                tracing::error!("the task of a group slot did not end well");
            }
        }
    }

    /// Returns when the task of a slot died, and says which and why. The slot's groups answer NOT_COORDINATOR then.
    pub async fn failed(&self) -> String {
        self.vital.failed().await
    }

    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    #[cfg(test)]
    pub(super) fn clock(&self) -> &dyn crate::rt::Clock {
        &*self.env.clock
    }

    /// An id that nobody had before.
    pub(super) fn fresh_id(&self) -> String {
        self.env.entropy.uuid().to_string()
    }

    pub(super) fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }

    /// The slot of a group or of a transactional id.
    pub(super) fn slot(&self, id: &str) -> Result<&Slot, ResponseError> {
        let slot = self.slots.get(slot_of(id) as usize);
        slot.map(|s| &**s).ok_or(ResponseError::CoordinatorNotAvailable)
    }

    // ---- members ----

    /// JoinGroup. `input.fresh_id` is filled in here. Waits as long as the rebalance lasts.
    pub async fn join(&self, group: &str, mut input: JoinInput) -> JoinReply {
        let member_id = input.member_id.clone();
        let who = input.instance.as_ref().unwrap_or(&input.client_id);
        input.fresh_id = format!("{who}-{}", self.env.entropy.uuid());
        match self.try_join(group, input).await {
            Ok(Reply::Join(reply)) => reply,
            Ok(Reply::Sync(_)) => JoinReply::refused(ResponseError::UnknownServerError, member_id),
            Err(error) => JoinReply::refused(error, member_id),
        }
    }

    async fn try_join(&self, group: &str, input: JoinInput) -> Answer {
        valid_id(group)?;
        let limits = &self.settings.limits;
        if input.session < limits.min_session || input.session > limits.max_session {
            return Err(ResponseError::InvalidSessionTimeout);
        }
        let slot = self.slot(group)?;
        let waiting = slot.with(|s, now| {
            let unknown = !s.knows(group) && !input.member_id.is_empty();
            match unknown {
                true => Err(ResponseError::UnknownMemberId),
                false => Ok(s.join(group, now, &slot.terms(), input)),
            }
        })?;
        self.answer(slot, waiting.0, waiting.1?).await
    }

    /// SyncGroup. Waits for the leader's assignment.
    pub async fn sync(&self, group: &str, input: SyncInput) -> SyncReply {
        match self.try_sync(group, input).await {
            Ok(Reply::Sync(reply)) => reply,
            Ok(Reply::Join(_)) => SyncReply::refused(ResponseError::UnknownServerError),
            Err(error) => SyncReply::refused(error),
        }
    }

    async fn try_sync(&self, group: &str, input: SyncInput) -> Answer {
        valid_id(group)?;
        if input.assignments.iter().map(|(_, a)| 2 * a.len()).sum::<usize>() > MAX_GROUP_BYTES {
            return Err(ResponseError::InvalidRequest);
        }
        let slot = self.slot(group)?;
        let (epoch, waiting) = slot.with(|s, now| s.sync(group, now, input))?;
        self.answer(slot, epoch, waiting).await
    }

    async fn answer(&self, slot: &Slot, epoch: Epoch, waiting: oneshot::Receiver<Answer>) -> Answer {
        let reply = waiting.await.map_err(|_| ResponseError::NotCoordinator)??;
        slot.confirm(epoch).await?;
        Ok(reply)
    }

    pub async fn heartbeat(&self, group: &str, caller: &Caller) -> Result<(), ResponseError> {
        valid_id(group)?;
        let slot = self.slot(group)?;
        let (epoch, (result, gate)) = slot.with(|s, now| s.heartbeat(group, now, caller))?;
        slot.pass(gate).await?;
        slot.confirm(epoch).await?;
        result
    }

    /// LeaveGroup, for several members: each by member id, by instance id with an empty member id, or both.
    pub async fn leave(
        &self,
        group: &str,
        members: &[(String, Option<String>)],
    ) -> Result<Vec<Result<String, ResponseError>>, ResponseError> {
        valid_id(group)?;
        let slot = self.slot(group)?;
        let (epoch, (results, gate)) = slot.with(|s, now| s.leave(group, now, &slot.terms(), members))?;
        slot.pass(gate).await?;
        slot.confirm(epoch).await?;
        Ok(results)
    }

    // ---- offsets ----

    /// Commits offsets, all or none. When it returns they are durable and visible (P8).
    pub async fn commit(&self, group: &str, input: CommitInput) -> Result<(), ResponseError> {
        if commit_bytes(group, &input.offsets) > MAX_COMMIT_BYTES {
            return Err(ResponseError::InvalidCommitOffsetSize);
        }
        let slot = self.slot(group)?;
        let (epoch, gate) = slot.with(|s, now| s.commit(group, now, input))?;
        slot.pass(gate?).await?;
        slot.confirm(epoch).await
    }

    /// The group's committed offsets; none for a group that nobody knows.
    pub async fn offsets(&self, group: &str) -> Result<Vec<(Place, Committed)>, ResponseError> {
        self.offsets_for(group, None).await
    }

    /// As [`Groups::offsets`], for a member of a consumer group in its epoch (KIP-848): UNKNOWN_MEMBER_ID and
    /// STALE_MEMBER_EPOCH keep it from going on where another member has been since.
    pub async fn offsets_for(
        &self,
        group: &str,
        reader: Option<(&str, i32)>,
    ) -> Result<Vec<(Place, Committed)>, ResponseError> {
        Ok(self.offsets_and_unstable(group, reader).await?.0)
    }

    /// As [`Groups::offsets_for`], and the places on whose offset an open transaction has yet to decide: who asks
    /// for stable offsets is told UNSTABLE_OFFSET_COMMIT there (KIP-447).
    pub async fn offsets_and_unstable(
        &self,
        group: &str,
        reader: Option<(&str, i32)>,
    ) -> Result<(Vec<(Place, Committed)>, BTreeSet<Place>), ResponseError> {
        let read = |s: &mut Serving| {
            if let (Some((member, epoch)), Some(AnyGroup::Consumer(group))) = (reader, s.group(group)) {
                group.check_member(member, epoch).map_err(|e| e.error())?;
            }
            let Some(kept) = s.durable().group(group) else { return Ok(Default::default()) };
            let offsets = kept.offsets().map(|(place, c)| (*place, c.clone())).collect();
            Ok((offsets, kept.pending().places().copied().collect()))
        };
        let slot = self.slot(group)?;
        let (epoch, offsets) = slot.with(|s, _| read(s))?;
        slot.confirm(epoch).await?;
        offsets
    }
}

/// At least as many bytes as the offsets of one commit take in the log.
pub(super) fn commit_bytes(group: &str, offsets: &[(Place, Committed)]) -> usize {
    let bytes =
        |(_, c): &(Place, Committed)| 500 + json_len(group) + json_len(&c.topic) + json_len(&c.metadata);
    offsets.iter().map(bytes).sum()
}

/// Kafka takes any group id but the empty one; for offsets alone even that.
pub(super) fn valid_id(group: &str) -> Result<(), ResponseError> {
    match group.is_empty() {
        true => Err(ResponseError::InvalidGroupId),
        false => Ok(()),
    }
}

fn slot_config() -> TopicConfig {
    TopicConfig {
        segment_bytes: SLOT_SEGMENT,
        max_message_bytes: SLOT_SEGMENT,
        retention_ms: None,
        retention_bytes: None,
        flush_messages: 1,
        flush_ms: None,
        cleanup_policy: CleanupPolicy { delete: true, compact: false },
        // Our own wall clock, which may jump.
        timestamp_after_max: Duration::from_millis(i64::MAX as u64),
        ..TopicConfig::default()
    }
}
