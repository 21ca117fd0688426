//! The queue of a leading partition: batches that have their offsets and wait to be written, and who waits for
//! them.
//!
//! Nothing here touches the volume. A batch is judged, placed and queued under the partition's lock, in the order in
//! which callers come.

use super::api::*;
use super::batch::{self, Header};
use super::committer;
use super::partition::{Incarnation, Life, Partition, Unavailable};
use super::producers::Producers;
use crate::config::TopicConfig;
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
        let base = leader.next;
        let end = base.plus(i64::from(header.count));
        let log_append = config.timestamp_type == crate::config::TimestampType::LogAppendTime;
        let append_time = log_append.then_some(now);
        leader.producers.record(header, base, now, durable);
        leader.queue.push_back(Pending {
            header: *header,
            bytes: batch::stamp(&req.records, base, leader.inc.epoch, append_time),
            base,
            end,
            size,
            max_timestamp: append_time.unwrap_or(header.max_timestamp),
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
            queue: VecDeque::new(),
            queued_bytes: 0,
            committing: false,
            gathering: None,
            draining: false,
            waiters: Vec::new(),
        }
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
