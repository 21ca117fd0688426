//! One slot: a share of the groups, with a log of its own. The async shell around [`Serving`].
//!
//! A task loads the log, then serves: a writer appends what is submitted and never waits for a sync, so
//! that all commits that arrive during one sync share the next; a completer applies what became durable, in
//! log order; a clock runs the groups' deadlines; a trimmer gives up what a snapshot made needless. When
//! leadership or an append is lost, the state is dropped and the task loads anew.
//!
//! A slot is served for one leader epoch. An answer counts only if, after all that it rests on was durable,
//! the log still proves that epoch under a live lease: else NOT_COORDINATOR.

use super::any::Terms;
use super::durable::Durable;
use super::group::Now;
use super::record::{self, Entry, Record, Value};
use super::serving::{Gate, Seq, Serving};
use super::settings::GroupSettings;
use super::slot_log::{LogError, Pending, SlotLog};
use super::{Topics, HASH, SLOTS};
use crate::rt::Clock;
use crate::types::{Epoch, Offset, TopicId};
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, Notify};
use tokio::time::{sleep, timeout};

/// Appends under way at most; more wait in the queue.
const IN_FLIGHT: usize = 4096;

/// Bytes of records in one batch of a snapshot, one larger record excepted.
const SNAPSHOT_BATCH: usize = 1 << 20;

/// How often leadership is looked at when nobody says that it changed.
const LOOK: Duration = Duration::from_secs(1);

enum Phase {
    /// Not served; requests are told this error.
    Away(ResponseError),
    Serving(Box<Serving>),
    Stopped,
}

struct InFlight {
    seq: Seq,
    entries: Vec<Entry>,
    pending: Pending,
}

/// Where the log stands, for the decision to trim it.
#[derive(Default)]
struct Growth {
    /// Bytes of records since the last snapshot began.
    bytes: u64,
    snapshots: u32,
    trim_to: Option<Offset>,
}

pub struct Slot {
    index: i32,
    log: Arc<dyn SlotLog>,
    clock: Arc<dyn Clock>,
    topics: Arc<dyn Topics>,
    settings: GroupSettings,
    phase: Mutex<Phase>,
    growth: Mutex<Growth>,
    /// Something was submitted.
    work: Notify,
    /// Something became durable.
    settled: Notify,
    /// An earlier deadline, or perhaps another leader.
    clockwork: Arc<Notify>,
    trim: Notify,
    stop: Notify,
    /// Something for the driver of transactions: an outcome was decided, or the serving ended.
    news: Notify,
}

impl Slot {
    pub fn new(
        index: i32,
        log: Arc<dyn SlotLog>,
        clock: Arc<dyn Clock>,
        topics: Arc<dyn Topics>,
        settings: GroupSettings,
    ) -> Arc<Self> {
        Arc::new(Slot {
            index,
            log,
            clock,
            topics,
            settings,
            phase: Mutex::new(Phase::Away(ResponseError::CoordinatorLoadInProgress)),
            growth: Mutex::default(),
            work: Notify::new(),
            settled: Notify::new(),
            clockwork: Arc::new(Notify::new()),
            trim: Notify::new(),
            stop: Notify::new(),
            news: Notify::new(),
        })
    }

    pub fn now(&self) -> Now {
        Now { boot: self.clock.boot(), wall_ms: self.clock.wall_ms() }
    }

    /// What decides beside a request.
    pub fn terms(&self) -> Terms<'_> {
        Terms { limits: &self.settings.limits, consumer: &self.settings.consumer, topics: &*self.topics }
    }

    // ---- for requests ----

    /// Works on the served state, and gives back the epoch under which that happened.
    pub fn with<R>(&self, f: impl FnOnce(&mut Serving, Now) -> R) -> Result<(Epoch, R), ResponseError> {
        let now = self.now();
        let mut phase = self.phase.lock();
        let serving = match &mut *phase {
            Phase::Away(error) => return Err(*error),
            Phase::Stopped => return Err(ResponseError::NotCoordinator),
            Phase::Serving(serving) => serving,
        };
        if self.log.leads() != Some(serving.epoch) {
            self.clockwork.notify_one();
            return Err(ResponseError::NotCoordinator);
        }
        let before = serving.next_deadline();
        let result = f(serving, now);
        if serving.queued() > 0 {
            self.work.notify_one();
        }
        if serving.next_deadline() != before {
            self.clockwork.notify_one();
        }
        if serving.take_news() {
            self.news.notify_one();
        }
        Ok((serving.epoch, result))
    }

    /// What is in memory, without a proof that it is still so: for metrics only.
    pub fn peek<R>(&self, f: impl FnOnce(&Durable) -> R) -> Option<R> {
        match &*self.phase.lock() {
            Phase::Serving(serving) => Some(f(serving.durable())),
            _ => None,
        }
    }

    /// Waits until what an answer rests on is durable.
    pub async fn pass(&self, gate: Gate) -> Result<(), ResponseError> {
        match timeout(self.settings.patience, gate).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ResponseError::NotCoordinator),
            Err(_) => Err(ResponseError::CoordinatorNotAvailable),
        }
    }

    /// Proves that what was read or decided under `epoch` may be shown.
    pub async fn confirm(&self, epoch: Epoch) -> Result<(), ResponseError> {
        if self.log.leads() != Some(epoch) {
            return Err(ResponseError::NotCoordinator);
        }
        match timeout(self.settings.patience, self.log.open()).await {
            Ok(Ok(bounds)) if bounds.epoch == epoch => Ok(()),
            Ok(Ok(_)) | Ok(Err(LogError::NotLeader)) => Err(ResponseError::NotCoordinator),
            Ok(Err(_)) | Err(_) => Err(ResponseError::CoordinatorNotAvailable),
        }
    }

    /// Returns when the driver of transactions may have something to do, or something to stop. For it alone.
    pub async fn news(&self) {
        self.news.notified().await
    }

    pub fn topic_exists(&self, id: TopicId) -> bool {
        self.topics.exists(id)
    }

    // ---- life ----

    /// Loads and serves until [`Slot::stop`]. However it ends, nothing is served afterwards.
    pub async fn run(self: Arc<Self>) {
        let _leaves = LeaveOnDrop(&self);
        tokio::select! {
            biased;
            () = self.stop.notified() => {}
            () = self.live() => {}
        }
    }

    /// Ends [`Slot::run`], after what was submitted is durable or `patience` is over.
    pub async fn stop(&self, patience: Duration) {
        let settled = async {
            while !self.is_settled() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(patience, settled).await.is_err() {
            tracing::warn!(slot = self.index, "commits of groups were still under way at the stop");
        }
        self.stop.notify_one();
    }

    fn is_settled(&self) -> bool {
        match &*self.phase.lock() {
            Phase::Serving(serving) => serving.is_settled(),
            _ => true,
        }
    }

    async fn live(&self) {
        let mut pause = Duration::from_millis(50);
        let mut last = None;
        loop {
            let lost = match self.load().await {
                Ok(epoch) => {
                    pause = Duration::from_millis(50);
                    last = None;
                    self.serve(epoch).await
                }
                Err(e) => e,
            };
            // Said once, not at every attempt.
            match &lost {
                _ if last.as_ref() == Some(&lost) => {}
                LogError::NotLeader => tracing::info!(slot = self.index, "group slot: {lost}"),
                _ => tracing::warn!(slot = self.index, "group slot: {lost}"),
            }
            let told = told(&lost);
            last = Some(lost);
            self.leave(Phase::Away(told), told);
            sleep(pause).await;
            pause = (pause * 2).min(LOOK);
        }
    }

    /// Ends the serving, if any, and tells everybody who waits.
    fn leave(&self, to: Phase, told: ResponseError) {
        let before = std::mem::replace(&mut *self.phase.lock(), to);
        if let Phase::Serving(serving) = before {
            serving.end(told);
            self.news.notify_one();
        }
    }

    async fn load(&self) -> Result<Epoch, LogError> {
        let bounds = self.within_patience(self.log.open()).await?;
        if self.log.leads() != Some(bounds.epoch) {
            return Err(LogError::Storage("it is open for reading only".to_owned()));
        }
        *self.phase.lock() = Phase::Away(ResponseError::CoordinatorLoadInProgress);
        let (durable, bytes) = self.read(bounds.epoch, bounds.start, bounds.end).await?;
        if let Some((slots, hash)) = durable.format() {
            if (slots, hash) != (SLOTS, HASH) {
                let other = format!("it is one of {slots} slots by {hash}, not of {SLOTS} by {HASH}");
                return Err(LogError::Damaged(other));
            }
        }
        let fresh = durable.format().is_none();
        let mut serving = Box::new(Serving::new(bounds.epoch, durable, &self.settings.consumer, self.now()));
        if fresh {
            serving.submit_format(SLOTS, HASH);
            self.work.notify_one();
        }
        self.growth.lock().bytes = bytes;
        *self.phase.lock() = Phase::Serving(serving);
        self.news.notify_one();
        Ok(bounds.epoch)
    }

    /// A step that the volume does not answer is given up, and loading begins anew after a pause.
    async fn within_patience<T>(
        &self,
        step: impl Future<Output = Result<T, LogError>>,
    ) -> Result<T, LogError> {
        let late = || Err(LogError::Storage("the volume did not answer in time".to_owned()));
        timeout(self.settings.patience, step).await.unwrap_or_else(|_| late())
    }

    async fn read(&self, epoch: Epoch, start: Offset, end: Offset) -> Result<(Durable, u64), LogError> {
        let mut durable = Durable::default();
        let mut bytes = 0u64;
        let mut at = start;
        while at < end {
            let (read_under, records) = self.within_patience(self.log.read(at)).await?;
            if read_under != epoch {
                return Err(LogError::NotLeader);
            }
            bytes += records.len() as u64;
            let batches = record::decode(records).map_err(|e| LogError::Damaged(e.to_string()))?;
            let Some(last) = batches.last().filter(|b| b.end > at) else {
                return Err(LogError::Damaged(format!("nothing at offset {at}, before the end {end}")));
            };
            at = last.end;
            for batch in batches.iter().filter(|b| b.counts()) {
                batch.entries.iter().for_each(|entry| durable.apply(entry));
            }
        }
        Ok((durable, bytes))
    }

    // ---- serving ----

    async fn serve(&self, epoch: Epoch) -> LogError {
        let _watch = self.log.watch(&self.clockwork);
        let (tx, rx) = mpsc::channel(IN_FLIGHT);
        tokio::select! {
            biased;
            lost = self.complete(epoch, rx) => lost,
            lost = self.write(epoch, tx) => lost,
            lost = self.run_clock(epoch) => lost,
            lost = self.run_trims() => lost,
        }
    }

    fn serving<R>(&self, f: impl FnOnce(&mut Serving) -> R) -> Result<R, LogError> {
        match &mut *self.phase.lock() {
            Phase::Serving(serving) => Ok(f(serving)),
            _ => Err(LogError::NotLeader),
        }
    }

    async fn write(&self, epoch: Epoch, tickets: mpsc::Sender<InFlight>) -> LogError {
        loop {
            if let Err(e) = self.write_next(epoch, &tickets).await {
                return e;
            }
        }
    }

    async fn write_next(&self, epoch: Epoch, tickets: &mpsc::Sender<InFlight>) -> Result<(), LogError> {
        if self.is_grown()? {
            self.snapshot(epoch).await?;
        }
        let Some(next) = self.serving(Serving::next_submission)? else {
            self.work.notified().await;
            return Ok(());
        };
        let (entries, pending) = self.append(epoch, None, next.records).await?;
        let in_flight = InFlight { seq: next.seq, entries, pending };
        tickets.send(in_flight).await.map_err(|_| LogError::NotLeader)
    }

    async fn append(
        &self,
        epoch: Epoch,
        snapshot: Option<u64>,
        records: Vec<Record>,
    ) -> Result<(Vec<Entry>, Pending), LogError> {
        let (batch, sizes) = record::encode(epoch, snapshot, self.clock.wall_ms(), &records)
            .map_err(|e| LogError::Damaged(e.to_string()))?;
        self.growth.lock().bytes += batch.len() as u64;
        let pending = self.log.append(batch).await?;
        let entry = |(record, size)| Entry { record, epoch, snapshot, size };
        Ok((records.into_iter().zip(sizes).map(entry).collect(), pending))
    }

    async fn complete(&self, epoch: Epoch, mut tickets: mpsc::Receiver<InFlight>) -> LogError {
        while let Some(in_flight) = tickets.recv().await {
            if let Err(e) = in_flight.pending.await {
                return e;
            }
            // Epochs only rise: if it is still this one, the batch was written under it.
            if self.log.leads() != Some(epoch) {
                return LogError::NotLeader;
            }
            if let Err(e) = self.serving(|s| s.complete(in_flight.seq, &in_flight.entries)) {
                return e;
            }
            self.settled.notify_one();
        }
        LogError::NotLeader
    }

    async fn run_clock(&self, epoch: Epoch) -> LogError {
        let mut sweep_at = self.clock.boot() + self.settings.sweep_every;
        let mut refresh_at = self.clock.boot();
        loop {
            if self.log.leads() != Some(epoch) {
                return LogError::NotLeader;
            }
            let now = self.now();
            let sweeps = now.boot >= sweep_at;
            if sweeps {
                sweep_at = now.boot + self.settings.sweep_every;
            }
            let refreshes = now.boot >= refresh_at;
            if refreshes {
                refresh_at = now.boot + LOOK;
            }
            let next = self.serving(|s| {
                s.run_timers(now, &self.terms());
                if refreshes {
                    s.refresh(&self.terms());
                }
                if sweeps {
                    s.sweep(now, self.settings.retention, |id| self.topics.exists(id));
                }
                (s.next_deadline(), s.queued())
            });
            let deadline = match next {
                Err(e) => return e,
                Ok((deadline, queued)) => {
                    if queued > 0 {
                        self.work.notify_one();
                    }
                    deadline
                }
            };
            let until = deadline.map_or(LOOK, |at| at.saturating_sub(now.boot).min(LOOK));
            // A clock of coarser grain than the timer's must not spin.
            let until = until.max(Duration::from_millis(1));
            tokio::select! {
                biased;
                () = self.clockwork.notified() => {}
                () = sleep(until) => {}
            }
        }
    }

    // ---- trimming ----

    fn is_grown(&self) -> Result<bool, LogError> {
        let state = self.serving(|s| s.durable().size())? as u64;
        Ok(self.growth.lock().bytes > self.settings.trim_bytes.max(state.saturating_mul(4)))
    }

    /// Writes the state anew and gives up the log before it. While it runs nothing else is appended: the
    /// snapshot states the log up to where it stands, no more and no less.
    async fn snapshot(&self, epoch: Epoch) -> Result<(), LogError> {
        while !self.serving(|s| s.is_written())? {
            self.settled.notified().await;
        }
        let records = self.serving(|s| s.durable().records())?;
        let id = {
            let mut growth = self.growth.lock();
            growth.snapshots += 1;
            growth.bytes = 0;
            u64::from(epoch.0) << 32 | u64::from(growth.snapshots)
        };
        let begin = Record::slot(Value::SnapshotBegin);
        let end = Record::slot(Value::SnapshotEnd { records: records.len() as u64 });
        let mut pending = Vec::new();
        let all = std::iter::once(begin).chain(records).chain([end]);
        for batch in record::split(all, SNAPSHOT_BATCH) {
            pending.push(self.append(epoch, Some(id), batch).await?.1);
        }
        let mut start = None;
        for ticket in pending {
            let base = ticket.await?;
            start = start.or(Some(base));
        }
        if self.log.leads() != Some(epoch) {
            return Err(LogError::NotLeader);
        }
        self.growth.lock().trim_to = start;
        self.trim.notify_one();
        Ok(())
    }

    async fn run_trims(&self) -> LogError {
        loop {
            self.trim.notified().await;
            let Some(to) = self.growth.lock().trim_to.take() else { continue };
            match self.log.trim(to).await {
                Ok(()) => {}
                Err(LogError::NotLeader) => return LogError::NotLeader,
                // The next snapshot tries again; until then the log is longer than it need be.
                Err(e) => tracing::warn!(slot = self.index, "cannot trim the log of a group slot: {e}"),
            }
        }
    }
}

/// A task that panics must not leave behind groups that nobody drives.
struct LeaveOnDrop<'a>(&'a Slot);

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.leave(Phase::Stopped, ResponseError::NotCoordinator);
    }
}

/// What requests are told of a lost log.
fn told(lost: &LogError) -> ResponseError {
    match lost {
        LogError::NotLeader => ResponseError::NotCoordinator,
        LogError::Storage(_) | LogError::Damaged(_) => ResponseError::CoordinatorNotAvailable,
    }
}
