//! A partition: its life, its queue of appends, and what readers may see.
//!
//! Promises: offsets are dense and in call order; an ack is given when the committer (see `committer`)
//! has made the batch as durable as asked, under a lease that stood before and after; readers load a
//! published [`View`] and never wait for an append. Does not do: I/O under its lock, or anything about requests.
//!
//! ```text
//! Closed ──use──▶ Opening ──▶ Leading ──stuck or failed write──▶ Stalled ──answers again──▶ Opening
//!   ▲                │           │ ──clean stop──▶ Relinquished
//!   └──lease ended───┴───────────┘ ──topic deleted──▶ Abandoned (from any)
//! ```

use super::api::*;
use super::committer;
use super::docs::Manifest;
use super::engine::Shared;
use super::guarded::Failure;
use super::queue::Leader;
use super::segment::{Active, Segment};
use crate::config::TopicConfig;
use crate::types::{Epoch, Offset, Pos};
use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long a request waits for a partition that is being opened.
const OPEN_WAIT: Duration = Duration::from_secs(10);

/// What readers may see. Replaced as a whole, never changed.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub epoch: Epoch,
    /// The leader epoch that others show for as long as this broker leads it.
    pub since: Epoch,
    /// The lease under which this was published.
    pub token: u64,
    pub log_start: Offset,
    pub hwm: Offset,
    /// The high watermark, or where the oldest transaction begins that has no durable marker.
    pub lso: Offset,
    /// Closed segments by base offset.
    pub segments: Arc<Vec<Arc<Segment>>>,
    pub active: Option<Arc<Active>>,
    /// End of what is visible in the active segment.
    pub active_end: Pos,
    pub leader_epochs: Arc<Vec<(Epoch, Offset)>>,
}

impl View {
    pub fn marks(&self) -> Marks {
        Marks {
            epoch: self.epoch,
            since: self.since,
            log_start: self.log_start,
            hwm: self.hwm,
            lso: self.lso,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.sealed.end_pos.0).sum::<u64>() + self.active_end.0
    }
}

/// One opening of a partition, for as long as it leads.
pub(super) struct Incarnation {
    pub epoch: Epoch,
    pub token: u64,
    pub generation: u64,
    /// Where the newest checkpoint that somebody is to write ends.
    pub newest_checkpoint: AtomicI64,
    /// Possession is the right to touch the log files.
    pub log: tokio::sync::Mutex<committer::LogWriter>,
    /// Possession is the right to replace manifest, checkpoint and snapshot.
    pub meta: tokio::sync::Mutex<MetaWriter>,
}

pub(super) struct MetaWriter {
    pub manifest: Manifest,
    /// The offset of the last checkpoint written.
    pub checkpointed: Offset,
    /// Producers of all batches before this offset are in a durable snapshot, or none was known there.
    pub snapshot: Offset,
    /// This epoch has written a snapshot file.
    pub has_snapshot: bool,
}

pub(super) enum Life {
    Closed,
    /// `failing`: appends fail at once rather than wait, since this follows a stall or a failed attempt.
    Opening {
        failing: Option<String>,
    },
    Leading(Box<Leader>),
    Stalled(String),
    Relinquished,
    Abandoned,
}

pub(super) struct State {
    pub life: Life,
    /// Counts lives: work of an earlier one that ends late changes nothing.
    pub generation: u64,
    /// Counted among the stalled partitions, until it leads again or is closed.
    pub stalled: bool,
    /// Whether this broker is to lead it.
    pub assigned: bool,
    /// The leader epoch from which on it is to be opened.
    pub from: Epoch,
    /// [`Assignment::disowned`].
    pub disowned_by_others: Vec<(String, Epoch)>,
    /// Given up for good under the present assignment: it is opened again under one from this epoch on.
    pub disowned: Option<Epoch>,
    /// The last epoch in which this process led it.
    pub led: Epoch,
    /// Attempts to open that are under way, those included that were given up and have yet to notice.
    pub attempts: u32,
}

pub struct Partition {
    pub(super) spec: PartitionSpec,
    pub(super) assignable: bool,
    pub(super) shared: Arc<Shared>,
    pub(super) config: ArcSwap<TopicConfig>,
    pub(super) state: Mutex<State>,
    pub(super) view: ArcSwapOption<View>,
    /// Told whenever the life changes or room appears in the queue.
    pub(super) changed: Notify,
    /// Those who append wait in it for room, in their order.
    pub(super) line: tokio::sync::Mutex<()>,
    watchers: Mutex<Watchers>,
    visible: AtomicU64,
    pub(super) leo: AtomicI64,
    /// Calls for this partition that outlasted the watchdog and have not come back.
    pub(super) stuck: AtomicU32,
    /// The highest epoch that this process has used here.
    pub(super) floor: Mutex<Epoch>,
    /// The highest claim that this process made here under its last lease that made one, with that lease's token.
    pub(super) claimed: Mutex<Option<(u64, Epoch)>>,
    /// The highest high watermark that this process has shown, in whatever life.
    pub(super) shown: AtomicI64,
    /// The dial was above 1 at some time: what was shown may lawfully be lost.
    pub(super) relaxed_once: AtomicBool,
}

#[derive(Default)]
struct Watchers {
    next: u64,
    by_id: BTreeMap<u64, Arc<Notify>>,
}

/// Keeps a long poll registered; dropping it unregisters.
pub struct WatchGuard {
    partition: Arc<Partition>,
    id: u64,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.partition.watchers.lock().by_id.remove(&self.id);
    }
}

impl Partition {
    /// `assignable`: it is led only while the cluster assigns it ([`Partition::assign`]); else always.
    pub(super) fn new(spec: PartitionSpec, shared: Arc<Shared>, assignable: bool) -> Arc<Partition> {
        let life = if assignable { Life::Relinquished } else { Life::Closed };
        Arc::new(Partition {
            assignable,
            config: ArcSwap::new(spec.config.clone()),
            spec,
            shared,
            state: Mutex::new(State {
                life,
                generation: 0,
                stalled: false,
                assigned: !assignable,
                from: Epoch::default(),
                disowned_by_others: Vec::new(),
                disowned: None,
                led: Epoch::default(),
                attempts: 0,
            }),
            view: ArcSwapOption::empty(),
            changed: Notify::new(),
            line: tokio::sync::Mutex::default(),
            watchers: Mutex::default(),
            visible: AtomicU64::new(0),
            leo: AtomicI64::new(0),
            stuck: AtomicU32::new(0),
            floor: Mutex::new(Epoch(0)),
            claimed: Mutex::new(None),
            shown: AtomicI64::new(0),
            relaxed_once: AtomicBool::new(false),
        })
    }

    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.load_full()
    }

    pub(super) fn set_config(&self, config: Arc<TopicConfig>) {
        self.config.store(config);
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state.lock().life, Life::Closed)
    }

    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.spec.dir)
    }

    /// Makes sure that the partition leads; opens it if it is closed.
    pub(super) async fn lead(self: &Arc<Self>) -> Result<Arc<Incarnation>, Unavailable> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                {
                    let mut state = self.state.lock();
                    match &mut state.life {
                        Life::Leading(l) => return Ok(l.inc.clone()),
                        Life::Stalled(why) => return Err(Unavailable::Storage(why.clone())),
                        Life::Opening { failing: Some(why) } => {
                            return Err(Unavailable::Storage(why.clone()))
                        }
                        Life::Opening { failing: None } => {}
                        Life::Closed => {
                            if self.shared.fence.right().is_none() {
                                return Err(Unavailable::NotLeader);
                            }
                            self.begin_open(&mut state, None);
                        }
                        Life::Relinquished | Life::Abandoned => return Err(Unavailable::NotLeader),
                    }
                }
                changed.await;
            }
        };
        tokio::time::timeout(OPEN_WAIT, wait).await.unwrap_or(Err(Unavailable::NotLeader))
    }

    /// The published view under a live lease; opens the partition if need be. A stalled partition's
    /// durable part stays readable.
    pub(super) async fn readable(self: &Arc<Self>) -> Result<Arc<View>, ReadError> {
        if let Some(v) = self.view.load_full().filter(|v| self.shared.fence.holds(v.token)) {
            return Ok(v);
        }
        match self.lead().await {
            Ok(_) => {}
            Err(Unavailable::NotLeader) => return Err(ReadError::NotLeader),
            Err(Unavailable::Storage(why)) => return Err(ReadError::Storage(why)),
        }
        let view = self.view.load_full().filter(|v| self.shared.fence.holds(v.token));
        view.ok_or(ReadError::NotLeader)
    }

    /// The marks under a live lease; opens the partition if need be.
    pub async fn marks(self: &Arc<Self>) -> Result<Marks, ReadError> {
        Ok(self.readable().await?.marks())
    }

    /// The marks that were shown last, to judge by whether a look is worth while. Not under a lease: not to be answered with.
    pub fn last_marks(&self) -> Option<Marks> {
        self.view.load().as_ref().map(|v| v.marks())
    }

    /// Whether reads are answered without waiting for an open.
    pub fn is_readable(&self) -> bool {
        self.view.load().as_ref().is_some_and(|v| self.shared.fence.holds(v.token))
    }

    /// Log end offset: the next offset to be given out, durable or not.
    pub(super) fn log_end(&self) -> Offset {
        Offset(self.leo.load(Relaxed))
    }

    /// What is known without waiting or opening.
    pub fn status(&self) -> PartitionStatus {
        let (life, epoch) = {
            let state = self.state.lock();
            let life = match &state.life {
                Life::Closed => LifeName::Closed,
                Life::Opening { .. } => LifeName::Opening,
                Life::Leading(_) => LifeName::Leading,
                Life::Stalled(_) => LifeName::Stalled,
                Life::Relinquished => LifeName::Relinquished,
                Life::Abandoned => LifeName::Abandoned,
            };
            (life, state.led)
        };
        let view = self.view.load();
        let (log_start, hwm, bytes) =
            view.as_ref().map_or((Offset::ZERO, Offset::ZERO, 0), |v| (v.log_start, v.hwm, v.bytes()));
        PartitionStatus {
            topic: self.spec.topic.clone(),
            index: self.spec.index,
            life,
            epoch,
            log_start,
            hwm,
            leo: self.log_end(),
            bytes,
        }
    }

    /// A counter of bytes that became visible since the process began; differences say how much arrived.
    pub fn visible_bytes(&self) -> u64 {
        self.visible.load(Relaxed)
    }

    /// `notify` is notified (`notify_one`) whenever more becomes visible, the epoch changes or the
    /// partition stops leading, until the guard is dropped.
    pub fn watch(self: &Arc<Self>, notify: &Arc<Notify>) -> WatchGuard {
        let mut w = self.watchers.lock();
        w.next += 1;
        let id = w.next;
        w.by_id.insert(id, notify.clone());
        WatchGuard { partition: self.clone(), id }
    }

    pub(super) fn wake_watchers(&self) {
        for n in self.watchers.lock().by_id.values() {
            n.notify_one();
        }
    }

    /// Publishes a changed view and answers who waited for it.
    ///
    /// `change` runs under the lock, on the present view: a group, a roll and a new log start may be published side
    /// by side. `durable`: everything before the high watermark is as durable as the dial asks. Returns `false` if this
    /// incarnation is no longer the present one; nothing is shown or answered then.
    pub(super) fn publish(
        &self,
        inc: &Incarnation,
        added: u64,
        durable: bool,
        change: impl FnOnce(&View) -> View,
    ) -> bool {
        {
            let mut state = self.state.lock();
            if state.generation != inc.generation {
                return false;
            }
            let (Life::Leading(leader), Some(old)) = (&mut state.life, self.view.load_full()) else {
                return false;
            };
            let mut new = change(&old);
            new.lso = leader.stable(new.hwm, new.log_start);
            assert!(
                old.hwm <= new.hwm && old.lso <= new.lso && old.log_start <= new.log_start,
                "the marks of {} would go back",
                self.spec.dir
            );
            let end = new.hwm;
            self.shown.fetch_max(end.0, Relaxed);
            self.view.store(Some(Arc::new(new)));
            leader.answer(end, durable);
        }
        self.visible.fetch_add(added, Relaxed);
        self.wake_watchers();
        true
    }

    /// Answers `acks` 0 and 1 for batches that are written, before their sync.
    pub(super) fn answer_written(&self, inc: &Incarnation, end: Offset) {
        let mut state = self.state.lock();
        if state.generation != inc.generation {
            return;
        }
        if let Life::Leading(leader) = &mut state.life {
            leader.answer(end, false);
        }
    }

    pub(super) fn wants_early_answer(&self) -> bool {
        match &self.state.lock().life {
            Life::Leading(l) => l.waiters.iter().any(|w| w.acks == Acks::Written),
            _ => false,
        }
    }

    /// Ends this incarnation after a failure: waiters fail, and the partition reopens by itself under a new epoch
    /// (or, without a lease, when it is next used).
    pub(super) fn fail(self: &Arc<Self>, inc: &Incarnation, failure: Failure) {
        let why = failure.to_string();
        {
            let mut state = self.state.lock();
            if state.generation != inc.generation || !matches!(state.life, Life::Leading(_)) {
                return;
            }
            let fenced = matches!(failure, Failure::Fenced);
            let error = if fenced { AppendError::NotLeader } else { AppendError::Storage(why.clone()) };
            let next = if fenced { Life::Closed } else { Life::Stalled(why.clone()) };
            self.end_life(&mut state, next, error);
            if fenced {
                self.view.store(None);
            }
        }
        self.announce();
        if !matches!(failure, Failure::Fenced) {
            tracing::error!(partition = %self.spec.dir, epoch = %inc.epoch, %why, "the log failed; reopening under a new epoch");
            let generation = {
                let mut state = self.state.lock();
                if !std::mem::replace(&mut state.stalled, true) {
                    self.shared.metrics.stalled_partitions.inc();
                }
                state.generation
            };
            tokio::spawn(self.clone().heal(failure, generation));
        }
    }

    async fn heal(self: Arc<Self>, failure: Failure, generation: u64) {
        if let Failure::Stuck(drain) = failure {
            // The call is still out there: nothing is asked of the volume for this partition before it
            // has come back, one way or the other.
            self.drained_of(drain).await;
        }
        let mut state = self.state.lock();
        if state.generation == generation {
            if let Life::Stalled(why) = &state.life {
                let why = why.clone();
                self.begin_open(&mut state, Some(why));
            }
        }
    }

    /// Waits for a call that outlasted the watchdog.
    pub(super) async fn drained_of(&self, call: futures::future::BoxFuture<'static, ()>) {
        self.stuck.fetch_add(1, Relaxed);
        call.await;
        self.stuck.fetch_sub(1, Relaxed);
    }

    /// Replaces the life, failing everybody who waits. The caller announces it after unlocking.
    pub(super) fn end_life(&self, state: &mut State, next: Life, error: AppendError) {
        state.generation += 1;
        if let Life::Leading(leader) = std::mem::replace(&mut state.life, next) {
            for w in leader.waiters {
                drop(w.done.send(Err(error.clone())));
            }
        }
        let hwm = self.view.load().as_ref().map_or(0, |v| v.hwm.0);
        self.leo.store(hwm, Relaxed);
        self.shared.handles.forget_dir(&self.spec.dir);
    }

    /// Whether this opening is still the one that leads. Once not, never again.
    pub(super) fn is_leading(&self, inc: &Incarnation) -> bool {
        self.state.lock().generation == inc.generation
    }

    pub(super) fn end_stall(&self, state: &mut State) {
        if std::mem::take(&mut state.stalled) {
            self.shared.metrics.stalled_partitions.dec();
        }
    }

    pub(super) fn announce(&self) {
        self.changed.notify_waiters();
        self.wake_watchers();
    }

    /// The lease ended, or the topic is gone: stop at once and write nothing.
    pub(super) fn drop_now(&self, next: Life) {
        {
            let mut state = self.state.lock();
            if matches!(state.life, Life::Relinquished | Life::Abandoned) {
                return;
            }
            self.end_life(&mut state, next, AppendError::NotLeader);
            self.end_stall(&mut state);
            self.view.store(None);
        }
        self.announce();
    }

    /// The lease ended, and with it what was assigned under it.
    pub(super) fn drop_with_lease(&self) {
        if self.assignable {
            let mut state = self.state.lock();
            (state.assigned, state.disowned) = (false, None);
            drop(state);
            self.drop_now(Life::Relinquished);
        } else {
            self.drop_now(Life::Closed);
        }
    }

    pub(super) fn lead_with(&self, state: &mut State, mut leader: Leader, mut view: View) {
        view.lso = leader.stable(view.hwm, view.log_start);
        self.leo.store(leader.next.0, Relaxed);
        self.shown.fetch_max(view.hwm.0, Relaxed);
        self.end_stall(state);
        self.view.store(Some(Arc::new(view)));
        state.life = Life::Leading(Box::new(leader));
    }
}

/// Why a partition cannot be used now.
#[derive(Clone, Debug)]
pub(super) enum Unavailable {
    NotLeader,
    Storage(String),
}
