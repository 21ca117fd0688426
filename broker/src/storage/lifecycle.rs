//! A partition's openings and its clean end.

use super::api::{AppendError, Assignment};
use super::committer::{self, LogWriter};
use super::guarded::{contained, guarded_while, Failure};
use super::partition::{Incarnation, Life, MetaWriter, Partition, State, View};
use super::queue::Leader;
use super::recovery::{self, OpenArgs, OpenError, Opened};
use super::segment::{Active, Segment};
use crate::reached;
use crate::types::{Epoch, Offset, Pos};
use crate::volume::{Volume, VolumeError};
use futures::FutureExt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed attempt to open: doubles from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An open that takes longer gives up its place among those that open side by side.
const SLOW_OPEN: Duration = Duration::from_secs(1);

impl Partition {
    /// Starts to open in the background. `failing`: why it closed, if not by itself.
    pub(super) fn begin_open(self: &Arc<Self>, state: &mut State, failing: Option<String>) {
        state.life = Life::Opening { failing };
        state.generation += 1;
        tokio::spawn(self.clone().open_until_done(state.generation));
    }

    /// Tries until it leads, or something else decided about its life meanwhile (P13).
    async fn open_until_done(self: Arc<Self>, generation: u64) {
        let mut pause = BACKOFF.0;
        loop {
            let Ok(permit) = self.shared.opens.acquire().await else { return };
            let Some(token) = self.shared.fence.right() else {
                let mut state = self.state.lock();
                if state.generation == generation {
                    state.life = Life::Closed;
                    state.generation += 1;
                    self.end_stall(&mut state);
                    self.view.store(None);
                    drop(state);
                    self.announce();
                }
                return;
            };
            {
                let mut state = self.state.lock();
                if state.generation != generation {
                    return;
                }
                state.attempts += 1;
            }
            let began = self.shared.clock.boot();
            let outcome = {
                let attempt = self.attempt(token, generation);
                tokio::pin!(attempt);
                match tokio::time::timeout(SLOW_OPEN, &mut attempt).await {
                    Ok(outcome) => outcome,
                    Err(_) => {
                        // Stuck, perhaps: others must not wait for its place.
                        drop(permit);
                        attempt.await
                    }
                }
            };
            // One that is stuck counts no more: what it has under way may land late, like that of a process that died,
            // and a successor must not wait for it.
            self.state.lock().attempts -= 1;
            match outcome {
                Ok(opened) => {
                    let took = self.shared.clock.boot().saturating_sub(began);
                    self.shared.metrics.recovery_bytes.inc_by(opened.scanned);
                    self.shared.metrics.recovery_seconds.observe(took.as_secs_f64());
                    self.install(opened, token, generation);
                    // Given up while its last step was under way: then nobody leads under the epoch that exists now.
                    return self.say_given_up().await;
                }
                // Whatever made it so has decided what comes next; without a lease, the next round closes.
                Err(Attempt::Unwanted) => {}
                Err(Attempt::Refused(why)) => self.note_failed_open(generation, why),
                Err(Attempt::Stuck(drain)) => {
                    self.note_failed_open(generation, "the volume does not answer".into());
                    self.say_given_up().await;
                    self.drained_of(drain).await;
                }
            }
            if self.state.lock().generation != generation {
                return self.say_given_up().await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    fn note_failed_open(&self, generation: u64, why: String) {
        tracing::warn!(partition = %self.spec.dir, %why, "cannot open yet, trying on");
        let mut state = self.state.lock();
        if state.generation == generation {
            state.life = Life::Opening { failing: Some(why) };
            drop(state);
            self.announce();
        }
    }

    async fn attempt(self: &Arc<Self>, token: u64, generation: u64) -> Result<Opened, Attempt> {
        let this = self.clone();
        let progress = Arc::new(AtomicU64::new(0));
        let from = self.state.lock().from;
        let args = OpenArgs {
            volume: self.shared.volume.clone(),
            spec: self.spec.clone(),
            config: self.shared.config.clone(),
            floor: (*self.floor.lock()).max(Epoch(from.0.saturating_sub(1))),
            disowned: Arc::new({
                let this = self.clone();
                move || this.state.lock().disowned_by_others.clone()
            }),
            assigned: Some(from).filter(|from| *from > Epoch::default()),
            nonce: self.shared.entropy.u64(),
            holder: self.shared.fence.holder(token),
            fence: self.shared.fence.clone(),
            on_claim: Arc::new({
                let this = self.clone();
                move |epoch| {
                    let mut last = this.claimed.lock();
                    // A create of an earlier attempt may return after later ones: it is not the last claim then.
                    *last = (*last).max(Some((token, epoch)));
                }
            }),
            now: self.shared.clock.wall_ms(),
            relaxed: !self.config().durable(),
            wanted: Arc::new(move || {
                this.shared.fence.holds(token) && this.state.lock().generation == generation
            }),
            progress: progress.clone(),
        };
        let limit = self.shared.config.sync_timeout;
        // Errors of the open itself travel inside, so that the watchdog sees only time.
        let work = async move { Ok::<_, VolumeError>(recovery::open(&args).await) };
        match contained(guarded_while(limit, progress, work)).await {
            Ok(Ok(opened)) => self.plausible(opened),
            Ok(Err(e)) => {
                if let OpenError::Outbid { epoch, .. } = &e {
                    let mut floor = self.floor.lock();
                    *floor = (*floor).max(*epoch);
                }
                match e {
                    OpenError::Unwanted { .. } => Err(Attempt::Unwanted),
                    e => Err(Attempt::Refused(e.to_string())),
                }
            }
            Err(Failure::Stuck(drain)) => Err(Attempt::Stuck(drain)),
            Err(other) => Err(Attempt::Refused(other.to_string())),
        }
    }

    /// Compares what was recovered with what this process has shown: a volume that lost what it had synced
    /// must not make the high watermark go back without a word.
    fn plausible(&self, opened: Opened) -> Result<Opened, Attempt> {
        let shown = Offset(self.shown.load(Relaxed));
        if opened.end < shown && !self.relaxed_once.load(Relaxed) {
            let why = format!("the volume lost synced records: it holds {}, {shown} was shown", opened.end);
            return Err(Attempt::Refused(why));
        }
        Ok(opened)
    }

    fn install(self: &Arc<Self>, opened: Opened, token: u64, generation: u64) {
        let Opened { manifest, copied, end, producers, garbage, .. } = opened;
        let epoch = manifest.epoch;
        let now = self.shared.clock.wall_ms();
        let active = copied.as_ref().map(|c| {
            let a = Active::new(c.name, now);
            a.index.write().clone_from(&c.index);
            a.aborted.write().clone_from(&c.aborted);
            c.first_timestamp.into_iter().chain(c.max_timestamp).for_each(|t| a.saw(t));
            Arc::new(a)
        });
        let active_end = copied.as_ref().map_or(Pos::ZERO, |c| c.end_pos);
        let segments = manifest.segments.iter().map(|s| Segment::new(s.clone(), None, None)).collect();
        let view = View {
            epoch,
            since: self.state.lock().from.min(epoch),
            token,
            log_start: manifest.log_start,
            hwm: end,
            lso: manifest.log_start,
            segments: Arc::new(segments),
            active: active.clone(),
            active_end,
            leader_epochs: Arc::new(manifest.leader_epochs.clone()),
        };
        let log = LogWriter {
            active,
            dirty: None,
            pos: active_end,
            end,
            unflushed: 0,
            checkpointed: active_end,
            closed: Vec::new(),
            flush_timer: false,
            pace: Default::default(),
            deadline: tokio::time::Instant::now(),
        };
        let installed = {
            let mut state = self.state.lock();
            // Asked again after the last durable step: the lease may have ended during the recovery.
            let current = state.generation == generation && self.shared.fence.holds(token);
            if current {
                let mut floor = self.floor.lock();
                *floor = (*floor).max(epoch);
                state.led = epoch;
                state.generation += 1;
                let has_snapshot = manifest.has_producers;
                let inc = Arc::new(Incarnation {
                    epoch,
                    token,
                    generation: state.generation,
                    newest_checkpoint: AtomicI64::new(-1),
                    log: tokio::sync::Mutex::new(log),
                    meta: tokio::sync::Mutex::new(MetaWriter {
                        manifest,
                        checkpointed: Offset::ZERO,
                        snapshot: end,
                        has_snapshot,
                    }),
                });
                self.lead_with(&mut state, Leader::new(inc, end, producers), view);
            } else if state.generation == generation {
                state.generation += 1;
                state.life = Life::Closed;
                self.end_stall(&mut state);
                self.view.store(None);
            }
            current
        };
        self.announce();
        if installed {
            tokio::spawn(unlink_all(self.clone(), token, garbage));
        }
    }

    /// The cluster says whether this broker is to lead the partition, under its present lease.
    ///
    /// Taken away, the partition closes cleanly, and then says so where its successor looks: who was told to lead it
    /// waits for that, or for the end of this broker's lease.
    ///
    /// `None`: it is not this broker's to lead.
    pub(super) fn assign(self: &Arc<Self>, assigned: Option<Assignment>) {
        {
            let mut state = self.state.lock();
            let void = state.disowned.filter(|from| assigned.as_ref().is_some_and(|a| a.epoch < *from));
            if void.is_some() {
                return;
            }
            let was_disowned = state.disowned.take().is_some();
            let was_assigned = std::mem::replace(&mut state.assigned, assigned.is_some());
            let before = state.from;
            if let Some(a) = assigned {
                (state.from, state.disowned_by_others) = (a.epoch, a.disowned);
            }
            // Given away and given back, and only that was seen: clients are told of the later assignment's epoch.
            let is_anew = was_assigned && state.from >= before.of_next_assignment();
            match (&state.life, state.assigned) {
                (Life::Abandoned, _) => return,
                (Life::Relinquished, true) if was_disowned || !was_assigned => {
                    state.life = Life::Closed;
                    state.generation += 1;
                }
                // Whoever is to lead it waits for a word, which a disowning may have crossed.
                (Life::Relinquished, false) if was_disowned => drop(tokio::spawn(self.clone().hand_over())),
                (Life::Leading(_) | Life::Opening { .. }, true) if is_anew => {
                    drop(tokio::spawn(self.clone().hand_over()));
                }
                (Life::Relinquished, _) | (_, true) => return,
                (_, false) if !was_assigned => return,
                (_, false) => drop(tokio::spawn(self.clone().hand_over())),
            }
        }
        self.announce();
    }

    /// Gives the partition up, for good under its present assignment, if a call for it hangs: another broker may do better
    /// (design: *Takeover*). What hangs may land later, like that of a process that died; its epoch will be sealed.
    pub(super) fn disown(&self) {
        {
            let mut state = self.state.lock();
            let hangs = matches!(state.life, Life::Stalled(_) | Life::Opening { failing: Some(_) })
                && self.stuck.load(Relaxed) > 0
                && state.attempts == 0;
            if !state.assigned || !self.assignable || !hangs {
                return;
            }
            reached!("disowned");
            tracing::warn!(partition = %self.spec.dir, "the volume does not answer; giving the partition up to another broker");
            state.disowned = Some(self.given_up_below(&state));
            self.end_life(&mut state, Life::Relinquished, AppendError::NotLeader);
            self.end_stall(&mut state);
            self.view.store(None);
        }
        self.announce();
    }

    /// Closes cleanly and says so. Whoever is to lead next waits for that word; if a call for it hangs, he gets one through the
    /// cluster, like that of a stalled partition.
    async fn hand_over(self: Arc<Self>) {
        let mut handed_over = self.clone().close_and_say_so().boxed();
        if tokio::time::timeout(self.shared.config.sync_timeout, &mut handed_over).await.is_err() {
            self.disown_while_handing_over();
            self.drained_of(handed_over).await;
        }
    }

    fn disown_while_handing_over(&self) {
        {
            let mut state = self.state.lock();
            if state.assigned || !self.assignable || matches!(state.life, Life::Abandoned) {
                return;
            }
            reached!("disowned-while-handing-over");
            tracing::warn!(partition = %self.spec.dir, "the volume does not answer; another broker need not wait for its clean end");
            state.disowned = Some(self.given_up_below(&state));
            if !matches!(state.life, Life::Relinquished) {
                self.end_life(&mut state, Life::Relinquished, AppendError::NotLeader);
                self.end_stall(&mut state);
                self.view.store(None);
            }
        }
        self.announce();
    }

    /// The epoch from which on another assignment counts. Openings that failed may have claimed beyond what the present one has
    /// room for.
    fn given_up_below(&self, state: &State) -> Epoch {
        let claimed = self.claimed.lock().map_or(Epoch::default(), |(_, epoch)| epoch);
        state.from.max(claimed).of_next_assignment()
    }

    async fn close_and_say_so(self: Arc<Self>) {
        self.relinquish().await;
        let is_back = {
            let mut state = self.state.lock();
            let is_assigned = state.assigned && state.disowned.is_none();
            let is_back = is_assigned && matches!(state.life, Life::Relinquished);
            if is_back {
                state.life = Life::Closed;
                state.generation += 1;
            }
            is_back
        };
        self.announce();
        if !is_back {
            self.say_given_up().await;
        }
    }

    /// Says where a successor looks that nothing is done under the last claim any more; keeps trying for as long as the
    /// lease stands, since the successor waits. Nothing if the partition was not given up.
    async fn say_given_up(&self) {
        let claimed = {
            let state = self.state.lock();
            // An attempt to open that was given up goes on writing to the end of its step: it is the one to say so then.
            let is_over = matches!(state.life, Life::Relinquished | Life::Abandoned) && state.attempts == 0;
            if state.assigned || !is_over {
                return;
            }
            // Not a later one, which may be led under.
            *self.claimed.lock()
        };
        if let Some((token, epoch)) = claimed {
            self.write_given_up(token, epoch).await;
        }
    }

    async fn write_given_up(&self, token: u64, epoch: Epoch) {
        let mut pause = BACKOFF.0;
        while self.shared.fence.holds(token) {
            let holder = self.shared.fence.holder(token);
            match recovery::relinquish(&*self.shared.volume, &self.spec.dir, epoch, holder).await {
                Ok(()) => return,
                Err(e) => tracing::warn!(error = %e, "cannot say yet that the partition was given up"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// Clean stop: accepts nothing more, lets the queue drain, writes index, snapshot and a checkpoint at
    /// the end, so that the next open reads nothing of the log.
    pub(super) async fn relinquish(self: &Arc<Self>) {
        let inc = {
            let mut state = self.state.lock();
            match &mut state.life {
                Life::Leading(leader) => {
                    leader.draining = true;
                    leader.inc.clone()
                }
                _ => {
                    self.end_life(&mut state, Life::Relinquished, AppendError::NotLeader);
                    self.end_stall(&mut state);
                    self.view.store(None);
                    drop(state);
                    self.announce();
                    return;
                }
            }
        };
        let limit = self.shared.config.sync_timeout;
        let drained = tokio::time::timeout(limit, self.drained(&inc)).await;
        // Given up meanwhile, it writes nothing more.
        if drained.is_ok() && self.is_leading(&inc) {
            let last = async {
                let mut log = inc.log.lock().await;
                log.begin(limit);
                committer::flush(self, &inc, &mut log).await?;
                self.final_checkpoint(&inc, &log).await
            };
            match tokio::time::timeout(limit, last).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => {
                    tracing::warn!(partition = %self.spec.dir, why = %e, "closed without a checkpoint")
                }
                Err(_) => {
                    tracing::warn!(partition = %self.spec.dir, "the volume does not answer; closed without a checkpoint")
                }
            }
        }
        self.drop_now(Life::Relinquished);
    }

    async fn drained(&self, inc: &Incarnation) {
        loop {
            {
                let state = self.state.lock();
                match &state.life {
                    Life::Leading(l) if state.generation == inc.generation && l.committing => {}
                    _ => return,
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

enum Attempt {
    Unwanted,
    Refused(String),
    Stuck(futures::future::BoxFuture<'static, ()>),
}

/// Deletes what a durable manifest gave up, going on past what is busy.
async fn unlink_all(p: Arc<Partition>, token: u64, names: Vec<String>) {
    for name in names {
        if !p.shared.fence.holds(token) {
            return;
        }
        let path = p.path(&name);
        p.shared.handles.forget(&path);
        unlink(&*p.shared.volume, &path).await;
        p.shared.handles.forget(&path);
    }
}

/// Unlinks one file; what can't be deleted now is garbage for the next open to find.
pub(super) async fn unlink(volume: &dyn Volume, path: &str) {
    match volume.unlink(path).await {
        Err(e) if !e.is_not_found() => tracing::warn!(error = %e, "left for the next open"),
        _ => {}
    }
}
