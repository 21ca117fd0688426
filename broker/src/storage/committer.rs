//! Group commit: what waits in a partition's queue becomes one vectored write and one sync.
//!
//! One task per partition, alive only while there is work. The next group is not written before this
//! group's sync returned: then only the last group is ever in doubt, and a successor copies no more than
//! that. Batches that arrive during a sync form the next group.
//!
//! Order within a group, and why: fence (else a deposed leader would write for nothing) → roll if the segment is
//! full, the new file's name durable before anything in it is acknowledged → write → sync → fence again (the
//! sync may have outlasted the lease, and a successor may have recovered without this group) → publish the
//! high watermark → answer. A failure anywhere ends this incarnation: the file is never written or synced again.

use super::aborted::{self, Aborted};
use super::docs::{self, Sealed};
use super::guarded::{contained, guarded, Failure};
use super::names::SegmentName;
use super::pace::Pace;
use super::partition::{Incarnation, Life, Partition, View};
use super::queue::Pending;
use super::segment::{Active, Segment};
use crate::config::TopicConfig;
use crate::reached;
use crate::types::{Offset, Pos};
use crate::volume::{write_all_at, Class, VolumeFile};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Largest offset or position difference inside one segment: what an index entry can hold.
const SEGMENT_SPAN: i64 = i32::MAX as i64;

/// The writing side of a partition's log.
pub(super) struct LogWriter {
    pub active: Option<Arc<Active>>,
    /// Held while there are unsynced bytes, so that nobody closes a dirty file.
    pub dirty: Option<Arc<dyn VolumeFile>>,
    /// End of what was written.
    pub pos: Pos,
    pub end: Offset,
    /// Records written since the last sync.
    pub unflushed: u64,
    /// Bytes of the active segment that the checkpoint covers.
    pub checkpointed: Pos,
    /// Segments that this epoch closed.
    pub closed: Vec<Sealed>,
    /// A timed flush (`flush.ms`) is scheduled.
    pub flush_timer: bool,
    pub pace: Pace,
    /// When the watchdog ends what is being done now: one limit for all of a group's steps.
    pub deadline: tokio::time::Instant,
}

impl LogWriter {
    /// Begins a piece of work that must end within `limit`.
    pub fn begin(&mut self, limit: std::time::Duration) {
        self.deadline = tokio::time::Instant::now() + limit;
    }

    /// What is left of it.
    fn left(&self) -> std::time::Duration {
        self.deadline.saturating_duration_since(tokio::time::Instant::now())
    }
}

struct Group {
    batches: Vec<Pending>,
    bytes: u64,
    roll: bool,
}

/// `woken`: when the first batch came that this run is for (the clock's `boot`).
pub(super) async fn run(p: Arc<Partition>, inc: Arc<Incarnation>, woken: Duration) {
    idled(&p, woken);
    loop {
        let mut log = inc.log.lock().await;
        let config = p.config();
        if config.durable() {
            gather(&p, &inc, &mut log).await;
        }
        let Some(group) = take_group(&p, &inc, &log, &config) else { return };
        if let Err(failure) = contained(commit(&p, &inc, &mut log, group, &config)).await {
            drop(log);
            p.fail(&inc, failure);
            return;
        }
    }
}

/// Waits for more batches where that pays (see [`super::pace`]).
async fn gather(p: &Partition, inc: &Incarnation, log: &mut LogWriter) {
    if p.queued(inc) == 0 || p.wants_early_answer() {
        return;
    }
    let Some(wait) = log.pace.wait() else { return };
    let began = p.shared.clock.boot();
    let enough = tokio::time::timeout(wait.at_most, p.await_queued(inc, wait.batches)).await.is_ok();
    log.pace.waited(enough);
    idled(p, began);
}

/// Counts the time since `since` as one in which batches waited and the committer did nothing.
fn idled(p: &Partition, since: Duration) {
    let idle = p.shared.clock.boot().saturating_sub(since);
    p.shared.metrics.commit_idle_seconds.inc_by(idle.as_secs_f64());
}

/// The next group: as many batches as fit the group limit and the segment.
fn take_group(p: &Partition, inc: &Incarnation, log: &LogWriter, config: &TopicConfig) -> Option<Group> {
    let mut state = p.state.lock();
    if state.generation != inc.generation {
        return None;
    }
    let Life::Leading(leader) = &mut state.life else { return None };
    let mut group = Group { batches: Vec::new(), bytes: 0, roll: false };
    let now = p.shared.clock.wall_ms();
    let (mut base, mut pos) = log.active.as_ref().map_or((log.end, Pos::ZERO), |a| (a.name.base, log.pos));
    while let Some(next) = leader.queue.front() {
        let full = pos.0 + next.size > config.segment_bytes.min(SEGMENT_SPAN as u64)
            || next.end.0.saturating_sub(base.0) > SEGMENT_SPAN;
        let aged =
            group.batches.is_empty() && log.active.as_ref().is_some_and(|a| due_by_age(a, next, config, now));
        if pos > Pos::ZERO && (full || aged) {
            if !group.batches.is_empty() {
                break;
            }
            group.roll = true;
            (base, pos) = (next.base, Pos::ZERO);
        }
        if !group.batches.is_empty() && group.bytes + next.size > p.shared.config.group_bytes {
            break;
        }
        let Some(next) = leader.queue.pop_front() else { break };
        pos = pos.plus(next.size);
        group.bytes += next.size;
        group.batches.push(next);
    }
    leader.queued_bytes -= group.bytes;
    if group.batches.is_empty() {
        leader.committing = false;
        return None;
    }
    drop(state);
    // There is room in the queue again.
    p.changed.notify_waiters();
    Some(group)
}

/// Kafka's rule for `segment.ms`: the age of the segment as its records' timestamps tell it, or since its
/// creation where they have none.
fn due_by_age(active: &Active, next: &Pending, config: &TopicConfig, now: i64) -> bool {
    let limit = i64::try_from(config.segment_ms.as_millis()).unwrap_or(i64::MAX);
    match active.first_timestamp() {
        Some(first) if next.max_timestamp >= 0 => next.max_timestamp.saturating_sub(first) > limit,
        _ => now.saturating_sub(active.created) > limit,
    }
}

async fn commit(
    p: &Arc<Partition>,
    inc: &Arc<Incarnation>,
    log: &mut LogWriter,
    group: Group,
    config: &TopicConfig,
) -> Result<(), Failure> {
    let m = &p.shared.metrics;
    log.begin(p.shared.config.sync_timeout);
    p.check_fence(inc)?;
    let relaxed = !config.durable();
    if relaxed {
        // A checkpoint that is stuck holds what this needs.
        match tokio::time::timeout(log.left(), p.declare_relaxed(inc)).await {
            Ok(done) => done?,
            Err(_) => return Err(Failure::stuck()),
        }
    }
    if group.roll {
        roll(p, inc, log).await?;
    }
    let (active, file) = writable(p, inc, log, &group).await?;
    let at = log.pos;
    let end = group.batches.last().map_or(log.end, |b| b.end);
    let records: u64 = group.batches.iter().map(|b| b.header.count.max(0) as u64).sum();
    let bufs: Vec<Bytes> = group.batches.iter().flat_map(|b| b.bytes.iter().cloned()).collect();
    log.unflushed += records;
    // Whoever has a marker written relies on it, whatever the dial.
    let has_marker = group.batches.iter().any(|b| b.header.is_control());
    let sync_due = !relaxed || has_marker || log.unflushed >= config.flush_messages;
    m.log_writes.inc();
    let began = p.shared.clock.boot();
    if sync_due && !p.wants_early_answer() {
        let f = file.clone();
        guarded(log.left(), async move { f.write_sync(at.0, bufs).await }).await?;
    } else {
        let f = file.clone();
        guarded(log.left(), async move { write_all_at(&*f, at.0, bufs).await }).await?;
        p.check_fence(inc)?;
        p.answer_written(inc, end);
        if sync_due {
            let f = file.clone();
            guarded(log.left(), async move { f.sync().await }).await?;
        } else {
            log.dirty = Some(file);
        }
    }
    if sync_due {
        log.dirty = None;
        log.unflushed = 0;
        m.log_syncs.inc();
        let took = p.shared.clock.boot().saturating_sub(began);
        log.pace.synced(took, group.batches.len(), p.queued(inc));
        m.sync_seconds.observe(took.as_secs_f64());
        m.batches_per_sync.observe(group.batches.len() as f64);
    }
    // The sync may have taken longer than the lease had left: what is not acknowledged before it ended never is.
    if let Err(fenced) = p.check_fence(inc) {
        reached!("fenced-after-sync");
        return Err(fenced);
    }
    note(&active, &group, at, config.index_interval_bytes);
    log.pos = at.plus(group.bytes);
    log.end = end;
    m.batches_in.inc_by(group.batches.len() as u64);
    m.bytes_in.inc_by(group.bytes);
    let (active_end, active) = (log.pos, log.active.clone());
    if !p.publish(inc, group.bytes, true, |v| View { hwm: end, active, active_end, ..v.clone() }) {
        return Ok(());
    }
    if sync_due && log.pos.0 - log.checkpointed.0 >= p.shared.config.checkpoint_bytes {
        p.start_checkpoint(inc, log);
    }
    if !sync_due {
        schedule_flush(p, inc, log, config);
    }
    Ok(())
}

/// Tells the segment's index, timestamps and aborted transactions of what was written.
fn note(active: &Active, group: &Group, mut at: Pos, interval: u64) {
    let mut index = active.index.write();
    for b in &group.batches {
        let end = at.plus(b.size);
        index.note(b.base.0 - active.name.base.0, at, end, interval);
        active.saw(b.max_timestamp);
        active.aborted.write().extend(b.aborted);
        at = end;
    }
}

/// The active segment's file, opened or created as need be.
async fn writable(
    p: &Arc<Partition>,
    inc: &Arc<Incarnation>,
    log: &mut LogWriter,
    group: &Group,
) -> Result<(Arc<Active>, Arc<dyn VolumeFile>), Failure> {
    if let Some(active) = log.active.clone() {
        if let Some(f) = &log.dirty {
            return Ok((active, f.clone()));
        }
        let path = p.path(&active.name.log());
        if let Some(f) = p.shared.handles.writer(&path) {
            return Ok((active, f));
        }
        let (v, name) = (p.shared.volume.clone(), path.clone());
        let f = guarded(log.left(), async move { v.open_write(&name, Class::Data).await }).await?;
        p.shared.handles.keep_writer(&path, f.clone(), || p.is_leading(inc));
        return Ok((active, f));
    }
    let base = group.batches.first().map_or(log.end, |b| b.base);
    create_segment(p, inc, log, base).await
}

async fn create_segment(
    p: &Arc<Partition>,
    inc: &Arc<Incarnation>,
    log: &mut LogWriter,
    base: Offset,
) -> Result<(Arc<Active>, Arc<dyn VolumeFile>), Failure> {
    let name = SegmentName { base, epoch: inc.epoch };
    let path = p.path(&name.log());
    let (v, dir, file) = (p.shared.volume.clone(), p.spec.dir.clone(), path.clone());
    let f = guarded(log.left(), async move {
        let f = v.create_new(&file, Class::Data).await?;
        // A synced file without a durable name is gone after a power cut.
        v.sync_dir(&dir, Class::Data).await?;
        Ok(f)
    })
    .await?;
    p.shared.handles.keep_writer(&path, f.clone(), || p.is_leading(inc));
    let active = Arc::new(Active::new(name, p.shared.clock.wall_ms()));
    log.active = Some(active.clone());
    log.pos = Pos::ZERO;
    log.checkpointed = Pos::ZERO;
    if !log.closed.is_empty() {
        // The checkpoint must name the last segment, or a recovery scans all of it.
        p.start_checkpoint(inc, log);
    }
    Ok((active, f))
}

/// Closes the active segment; the next append begins another. All of it is durable afterwards.
pub(super) async fn roll(
    p: &Arc<Partition>,
    inc: &Arc<Incarnation>,
    log: &mut LogWriter,
) -> Result<(), Failure> {
    let Some(active) = log.active.clone() else { return Ok(()) };
    if log.pos == Pos::ZERO {
        return Ok(());
    }
    flush(p, inc, log).await?;
    let mut sealed = active.seal(log.end, log.pos, p.shared.clock.wall_ms());
    let index = active.index.read().clone();
    let aborted = active.aborted.read().clone();
    if !aborted.is_empty() {
        write_aborted(p, inc, log, active.name, &aborted).await?;
        sealed.aborted = Some(inc.epoch);
    }
    log.closed.push(sealed.clone());
    log.active = None;
    let segment = Segment::new(sealed, Some(index.clone()), Some(aborted));
    let mut log_start = Offset::ZERO;
    p.publish(inc, 0, true, |v| {
        log_start = v.log_start;
        let mut segments = (*v.segments).clone();
        segments.push(segment);
        View { segments: Arc::new(segments), active: None, active_end: Pos::ZERO, ..v.clone() }
    });
    log.closed.retain(|s| s.end > log_start);
    p.start_index_write(inc, active.name, index);
    log.pos = Pos::ZERO;
    log.checkpointed = Pos::ZERO;
    Ok(())
}

/// Lists the aborted transactions of a segment that is being closed: durable before it is closed, so that whoever finds
/// it closed finds the list.
async fn write_aborted(
    p: &Arc<Partition>,
    inc: &Incarnation,
    log: &LogWriter,
    name: SegmentName,
    entries: &[Aborted],
) -> Result<(), Failure> {
    p.check_fence(inc)?;
    let (v, dir, nonce) = (p.shared.volume.clone(), p.spec.dir.clone(), p.shared.entropy.u64());
    let bytes = aborted::encode(entries);
    guarded(log.left(), async move {
        docs::replace(&*v, &dir, &name.aborted(), nonce, bytes).await?;
        v.sync_dir(&dir, Class::Data).await
    })
    .await?;
    p.check_fence(inc)
}

/// Syncs what a relaxed dial left unsynced.
pub(super) async fn flush(
    p: &Arc<Partition>,
    inc: &Arc<Incarnation>,
    log: &mut LogWriter,
) -> Result<(), Failure> {
    let Some(f) = log.dirty.clone() else { return Ok(()) };
    p.check_fence(inc)?;
    guarded(log.left(), async move { f.sync().await }).await?;
    p.check_fence(inc)?;
    p.shared.metrics.log_syncs.inc();
    log.dirty = None;
    log.unflushed = 0;
    Ok(())
}

/// `flush.ms`: syncs what is unsynced that long after it was written, though nothing more arrives.
fn schedule_flush(p: &Arc<Partition>, inc: &Arc<Incarnation>, log: &mut LogWriter, config: &TopicConfig) {
    let Some(after) = config.flush_ms.filter(|_| !log.flush_timer) else { return };
    log.flush_timer = true;
    let (p, inc) = (p.clone(), inc.clone());
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        let mut log = inc.log.lock().await;
        log.flush_timer = false;
        log.begin(p.shared.config.sync_timeout);
        if let Err(failure) = flush(&p, &inc, &mut log).await {
            drop(log);
            p.fail(&inc, failure);
        }
    });
}

impl Partition {
    pub(super) fn check_fence(&self, inc: &Incarnation) -> Result<(), Failure> {
        if self.shared.fence.holds(inc.token) {
            Ok(())
        } else {
            Err(Failure::Fenced)
        }
    }
}
