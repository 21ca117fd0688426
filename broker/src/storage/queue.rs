//! The queue of a leading partition: batches that have their offsets and wait to be written, and who waits for
//! them.
//!
//! Nothing here touches the volume. A batch is judged, placed and queued under the partition's lock, in the order in
//! which callers come.

use super::aborted::Aborted;
use super::api::*;
use super::batch::{self, Header};
use super::committer;
use super::partition::{Incarnation, Life, Partition, Unavailable};
use super::producers::Producers;
use super::transactions::{Marker, MarkerError, Question, Verdict, Verifications};
use crate::config::TopicConfig;
use crate::reached;
use crate::types::Offset;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, Notify};
use tokio::time::{timeout, Instant};

/// One batch on its way to the log.
pub(super) struct Pending {
    pub header: Header,
    pub bytes: [Bytes; 2],
    pub base: Offset,
    pub end: Offset,
    pub size: u64,
    /// The timestamp the log sees: the append time under LogAppendTime.
    pub max_timestamp: i64,
    /// Of a marker, the transaction that it aborts.
    pub aborted: Option<Aborted>,
}

pub(super) struct Waiter {
    end: Offset,
    pub acks: Acks,
    pub done: oneshot::Sender<Result<(), AppendError>>,
}

/// What a partition holds in memory while it leads.
pub(super) struct Leader {
    pub inc: Arc<Incarnation>,
    pub next: Offset,
    pub producers: Producers,
    pub verifications: Verifications,
    pub queue: VecDeque<Pending>,
    pub queued_bytes: u64,
    pub committing: bool,
    /// Who is to be told when enough waits in the queue.
    gathering: Option<Gathering>,
    /// Accept nothing more: a clean stop is under way.
    pub draining: bool,
    pub waiters: Vec<Waiter>,
}

struct Gathering {
    batches: usize,
    told: Arc<Notify>,
}

/// A promise that [`Partition::start_append`] gave: the batch has its place in the queue.
pub struct Ticket {
    appended: Appended,
    done: Option<oneshot::Receiver<Result<(), AppendError>>>,
    until: Instant,
}

type Done = oneshot::Receiver<Result<(), AppendError>>;

/// What a waiter waits longer than the watchdog, which knows better what went wrong.
const BEYOND_WATCHDOG: Duration = Duration::from_millis(500);

impl Ticket {
    /// Waits until the batch is as durable as its `acks` asked.
    ///
    /// Not for much longer than the watchdog: one group after another may be slow, each of them fast enough for it. The batch
    /// may then become durable all the same, as with any answer that is lost.
    pub async fn wait(self) -> Result<Appended, AppendError> {
        let Some(done) = self.done else { return Ok(self.appended) };
        match timeout(left(self.until), done).await {
            // A dropped sender is a partition that went away with its waiters.
            Ok(done) => done.unwrap_or(Err(AppendError::NotLeader)).map(|()| self.appended),
            Err(_) => Err(too_late()),
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn too_late() -> AppendError {
    AppendError::Storage("the volume was too slow for what waits before it".into())
}

impl Partition {
    /// Validates and queues one batch. Waits while the partition opens, and a little longer than the watchdog while its queue
    /// is full. Batches get their offsets in the order in which calls to this return.
    pub async fn start_append(self: &Arc<Self>, req: AppendRequest) -> Result<Ticket, AppendError> {
        let until = Instant::now() + self.shared.config.sync_timeout + BEYOND_WATCHDOG;
        // First come, first served: a batch that came later, of the same producer perhaps, must not slip in where there is room.
        let _turn = timeout(left(until), self.line.lock()).await.map_err(|_| too_late())?;
        self.append_in_turn(req, until).await
    }

    /// The same, but waits for a partition that still opens for so long only, and no longer than that in the line behind others
    /// who wait for it.
    ///
    /// # Errors
    /// [`AppendError::NotLeader`] then: clients look again who leads.
    pub async fn start_append_soon(
        self: &Arc<Self>,
        req: AppendRequest,
        opening: Duration,
    ) -> Result<Ticket, AppendError> {
        let now = Instant::now();
        let (opens_until, until) = (now + opening, now + self.shared.config.sync_timeout + BEYOND_WATCHDOG);
        // First come, first served: a batch that came later, of the same producer perhaps, must not slip in where there is room.
        let _turn = timeout(left(until), self.line.lock()).await.map_err(|_| too_late())?;
        if !self.is_readable() {
            // Why it did not open, if it did not, the append says.
            let opened = timeout(left(opens_until), self.marks()).await;
            drop(opened.map_err(|_| AppendError::NotLeader)?);
        }
        self.append_in_turn(req, until).await
    }

    async fn append_in_turn(
        self: &Arc<Self>,
        req: AppendRequest,
        until: Instant,
    ) -> Result<Ticket, AppendError> {
        let config = self.config();
        let now = self.shared.clock.wall_ms();
        let header = batch::validate(&req.records, &config, now)?;
        if config.cleanup_policy.compact {
            super::records::require_keys(&req.records, &header, &self.shared.metrics)?;
        }
        loop {
            // Registered before looking, so that no change is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.lead().await.map_err(|e| match e {
                Unavailable::NotLeader => AppendError::NotLeader,
                Unavailable::Storage(why) => AppendError::Storage(why),
            })?;
            if let Some(answer) = self.enqueue(&req, &header, &config, (now, until)) {
                return answer;
            }
            if timeout(left(until), changed).await.is_err() {
                return Err(too_late());
            }
        }
    }

    /// `None`: no room, or the life changed; try again.
    fn enqueue(
        self: &Arc<Self>,
        req: &AppendRequest,
        header: &Header,
        config: &TopicConfig,
        (now, until): (i64, Instant),
    ) -> Option<Result<Ticket, AppendError>> {
        let mut state = self.state.lock();
        let Life::Leading(leader) = &mut state.life else { return None };
        if leader.draining || !self.shared.fence.holds(leader.inc.token) {
            return Some(Err(AppendError::NotLeader));
        }
        let size = header.size;
        if leader.queued_bytes > 0 && leader.queued_bytes + size > self.shared.config.queue_bytes {
            return None;
        }
        let durable = self.view.load().as_ref().map_or(Offset::ZERO, |v| v.hwm);
        let log_start = self.view.load().as_ref().map_or(Offset::ZERO, |v| v.log_start);
        match leader.producers.judge(header) {
            Err(e) => return Some(Err(e)),
            Ok(Some(b)) => {
                let time = header.is_log_append_time().then_some(b.timestamp);
                let appended =
                    Appended { base_offset: b.base, last_offset: b.last, log_append_time: time, log_start };
                // The first try may still be on its way: the retry waits for the same sync.
                let done = (b.last >= durable).then(|| leader.wait(b.last.plus(1), req.acks));
                return Some(Ok(Ticket { appended, done, until }));
            }
            Ok(None) => {}
        }
        let number = match leader.admit(header) {
            Ok(number) => number,
            Err(e) => return Some(Err(e)),
        };
        let base = leader.next;
        let end = base.plus(i64::from(header.count));
        let log_append = config.timestamp_type == crate::config::TimestampType::LogAppendTime;
        let append_time = log_append.then_some(now);
        leader.producers.record(header, base, now, durable, number);
        leader.queue.push_back(Pending {
            header: *header,
            bytes: batch::stamp(&req.records, base, leader.inc.epoch, append_time),
            base,
            end,
            size,
            max_timestamp: append_time.unwrap_or(header.max_timestamp),
            aborted: None,
        });
        leader.queued_bytes += size;
        leader.next = end;
        self.leo.store(end.0, Relaxed);
        let appended = Appended {
            base_offset: base,
            last_offset: Offset(end.0 - 1),
            log_append_time: append_time,
            log_start,
        };
        let done = Some(leader.wait(end, req.acks));
        self.wake_committer(leader);
        Some(Ok(Ticket { appended, done, until }))
    }

    /// Writes a marker; it is durable when this returns. Done before, it is not written twice. `first`: what
    /// [`MarkerError::Unverified`] said when it was sent before.
    ///
    /// # Errors
    /// [`MarkerError`]. After `Storage` and `NotLeader` it may have been written, and may be asked for again.
    pub async fn write_marker(
        self: &Arc<Self>,
        marker: Marker,
        first: Option<Offset>,
    ) -> Result<(), MarkerError> {
        let until = Instant::now() + self.shared.config.sync_timeout + BEYOND_WATCHDOG;
        let slow = || MarkerError::Storage("the volume was too slow for what waits before it".into());
        let turn = timeout(left(until), self.line.lock()).await.map_err(|_| slow())?;
        let done = loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.lead().await.map_err(|e| match e {
                Unavailable::NotLeader => MarkerError::NotLeader,
                Unavailable::Storage(why) => MarkerError::Storage(why),
            })?;
            if let Some(placed) = self.place_marker(&marker, first) {
                break placed?;
            }
            timeout(left(until), changed).await.map_err(|_| slow())?;
        };
        drop(turn);
        let Some(done) = done else { return Ok(()) };
        match timeout(left(until), done).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(AppendError::NotLeader)) | Err(_)) => Err(MarkerError::NotLeader),
            Ok(Ok(Err(e))) => Err(MarkerError::Storage(e.to_string())),
            Err(_) => Err(slow()),
        }
    }

    /// `None`: no room, or the life changed; try again. `Some(Ok(None))`: it is durable already, or needs no writing.
    fn place_marker(
        self: &Arc<Self>,
        m: &Marker,
        first: Option<Offset>,
    ) -> Option<Result<Option<Done>, MarkerError>> {
        let now = self.shared.clock.wall_ms();
        let mut state = self.state.lock();
        let Life::Leading(leader) = &mut state.life else { return None };
        if leader.draining || !self.shared.fence.holds(leader.inc.token) {
            return Some(Err(MarkerError::NotLeader));
        }
        let durable = self.view.load().as_ref().map_or(Offset::ZERO, |v| v.hwm);
        let verdict = match leader.producers.judge_marker(m, first) {
            Ok(verdict) => verdict,
            Err(e) => return Some(Err(e)),
        };
        // Whatever the coordinator said of the producer, it said before this.
        leader.verifications.forget(m.producer_id);
        if let Verdict::Done(last) = verdict {
            reached!("marker-not-needed");
            let last = last.filter(|last| *last >= durable);
            return Some(Ok(last.map(|last| leader.wait(last.plus(1), Acks::All))));
        }
        let base = leader.next;
        let end = base.plus(1);
        let marker = leader.producers.marker_at(m, base);
        let bytes = marker.encode(now);
        let size = bytes.len() as u64;
        if leader.queued_bytes > 0 && leader.queued_bytes + size > self.shared.config.queue_bytes {
            return None;
        }
        let Some(header) = Header::parse(&bytes) else {
            return Some(Err(MarkerError::Storage("the marker cannot be encoded".into())));
        };
        leader.producers.record_marker(&marker, now, durable);
        leader.queue.push_back(Pending {
            header,
            bytes: batch::stamp(&bytes, base, leader.inc.epoch, None),
            base,
            end,
            size,
            max_timestamp: now,
            aborted: marker.aborted(),
        });
        leader.queued_bytes += size;
        leader.next = end;
        self.leo.store(end.0, Relaxed);
        let done = leader.wait(end, Acks::All);
        self.wake_committer(leader);
        Some(Ok(Some(done)))
    }

    /// What must be asked of a transaction's coordinator before a batch of it is appended; `None` if it is open here, or
    /// the coordinator has confirmed it already (KIP-890). An append that is not preceded by this is refused.
    pub async fn needs_verification(
        self: &Arc<Self>,
        producer_id: i64,
        producer_epoch: i16,
    ) -> Result<Option<Question>, AppendError> {
        self.lead().await.map_err(|e| match e {
            Unavailable::NotLeader => AppendError::NotLeader,
            Unavailable::Storage(why) => AppendError::Storage(why),
        })?;
        let mut state = self.state.lock();
        let generation = state.generation;
        let Life::Leading(leader) = &mut state.life else { return Err(AppendError::NotLeader) };
        let open = leader.producers.standing(producer_id).open;
        if open.is_some_and(|open| open.epoch == producer_epoch)
            || leader.verifications.granted(producer_id, producer_epoch).is_some()
        {
            return Ok(None);
        }
        let nonce = leader.verifications.ask(producer_id, producer_epoch);
        Ok(Some(Question { producer_id, producer_epoch, generation, nonce }))
    }

    /// Whether a batch of the producer under this epoch is remembered: then the partition tells by itself what comes too early.
    pub fn remembers(&self, producer_id: i64, producer_epoch: i16) -> bool {
        match &self.state.lock().life {
            Life::Leading(leader) => leader.producers.remembers(producer_id, producer_epoch),
            _ => false,
        }
    }

    /// The coordinator confirmed that transaction `number` is going on. `false`: a marker came by since the question was
    /// asked, or the partition opened anew; ask again.
    pub fn verified(&self, question: Question, number: u64) -> bool {
        let mut state = self.state.lock();
        let current = state.generation == question.generation;
        let Life::Leading(leader) = &mut state.life else { return false };
        current && leader.verifications.grant(&question, number)
    }

    /// The producers that the partition knows, for DescribeProducers (KIP-664).
    pub async fn active_producers(self: &Arc<Self>) -> Result<Vec<ActiveProducer>, ReadError> {
        self.readable().await?;
        let state = self.state.lock();
        let Life::Leading(leader) = &state.life else { return Err(ReadError::NotLeader) };
        let active = leader.producers.all().map(|p| ActiveProducer {
            id: p.id,
            epoch: p.epoch(),
            last_sequence: p.batches.back().map_or(-1, |b| b.last_sequence),
            last_timestamp: p.batches.back().map_or(-1, |b| b.timestamp),
            coordinator_epoch: p.standing.coordinator_epoch,
            transaction_start: p.standing.open.map(|open| open.first),
        });
        Ok(active.collect())
    }

    fn wake_committer(self: &Arc<Self>, leader: &mut Leader) {
        if !leader.committing {
            leader.committing = true;
            tokio::spawn(committer::run(self.clone(), leader.inc.clone(), self.shared.clock.boot()));
        }
        let group_bytes = self.shared.config.group_bytes;
        if leader.gathering.as_ref().is_some_and(|g| leader.has_waiting(g.batches, group_bytes)) {
            if let Some(g) = leader.gathering.take() {
                g.told.notify_one();
            }
        }
    }

    /// Batches that wait for the committer.
    pub(super) fn queued(&self, inc: &Incarnation) -> usize {
        let state = self.state.lock();
        match &state.life {
            Life::Leading(leader) if state.generation == inc.generation => leader.queue.len(),
            _ => 0,
        }
    }

    /// Ends once so many batches, or a full group, wait for the committer. May never end: give it a time limit.
    pub(super) async fn await_queued(&self, inc: &Incarnation, batches: usize) {
        let told = Arc::new(Notify::new());
        {
            let mut state = self.state.lock();
            let current = state.generation == inc.generation;
            let Life::Leading(leader) = &mut state.life else { return };
            if !current || leader.draining || leader.has_waiting(batches, self.shared.config.group_bytes) {
                return;
            }
            leader.gathering = Some(Gathering { batches, told: told.clone() });
        }
        told.notified().await;
    }
}

impl Leader {
    pub fn new(inc: Arc<Incarnation>, next: Offset, producers: Producers) -> Leader {
        Leader {
            inc,
            next,
            producers,
            verifications: Verifications::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            committing: false,
            gathering: None,
            draining: false,
            waiters: Vec::new(),
        }
    }

    /// Whether the batch may be written where the producer's transactions stand. `Some`: it begins this one.
    fn admit(&mut self, h: &Header) -> Result<Option<u64>, AppendError> {
        if !h.has_producer() {
            return Ok(None);
        }
        let open = self.producers.standing(h.producer_id).open;
        match (h.is_transactional(), open) {
            (false, None) => Ok(None),
            (true, Some(open)) if open.epoch == h.producer_epoch => Ok(None),
            (true, None) => {
                let granted = self.verifications.granted(h.producer_id, h.producer_epoch);
                let number = granted.ok_or(AppendError::InvalidTxnState)?;
                self.verifications.forget(h.producer_id);
                Ok(Some(number))
            }
            // Under a later epoch than that of the open transaction: its marker is on its way.
            (true, Some(_)) | (false, Some(_)) => Err(AppendError::InvalidTxnState),
        }
    }

    /// The last stable offset when the log is durable up to `hwm`.
    pub fn stable(&mut self, hwm: Offset, log_start: Offset) -> Offset {
        self.producers.first_unstable(hwm).map_or(hwm, |first| first.min(hwm).max(log_start))
    }

    fn has_waiting(&self, batches: usize, bytes: u64) -> bool {
        self.queue.len() >= batches || self.queued_bytes >= bytes
    }

    fn wait(&mut self, end: Offset, acks: Acks) -> oneshot::Receiver<Result<(), AppendError>> {
        let (done, wait) = oneshot::channel();
        self.waiters.push(Waiter { end, acks, done });
        wait
    }

    /// Answers waiters up to `end`: all of them if that is durable, else those who asked for less.
    pub fn answer(&mut self, end: Offset, all: bool) {
        let waiters = std::mem::take(&mut self.waiters);
        for w in waiters {
            if w.end <= end && (all || w.acks == Acks::Written) {
                // A client that has gone away is not an error.
                drop(w.done.send(Ok(())));
            } else {
                self.waiters.push(w);
            }
        }
    }
}
