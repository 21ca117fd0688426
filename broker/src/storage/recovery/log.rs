//! What the predecessor's log amounts to: where each segment ends, what may not be durable, who produced.

use super::{Copied, Inherited, OpenArgs, OpenError};
use crate::reached;
use crate::storage::aborted::Aborted;
use crate::storage::batch::Header;
use crate::storage::docs::{Checkpoint, Manifest, Sealed};
use crate::storage::index::Index;
use crate::storage::marker::Written;
use crate::storage::names::SegmentName;
use crate::storage::producers::Producers;
use crate::storage::scan::{self, Step, Walker};
use crate::types::{Epoch, Offset, Pos};
use crate::volume::{write_all_at, Class};
use bytes::Bytes;

/// Bytes between index entries of a copied tail (Kafka's default of `index.interval.bytes`).
const INDEX_INTERVAL: u64 = 4096;

/// The predecessor's log after recovery.
pub(super) struct Log {
    pub segments: Vec<Sealed>,
    pub end: Offset,
    /// Position in the last segment from which on durability is in doubt, with the offset there.
    pub doubt: Option<(Pos, Offset)>,
    pub scanned: u64,
    /// Aborted transactions with a marker in a segment that has no list of them yet, in the order of the markers.
    pub aborted: Vec<Aborted>,
}

impl Log {
    /// Notes what a batch says of aborted transactions, if it is a marker.
    fn note_marker(&mut self, h: &Header, batch: &Bytes) {
        self.aborted.extend(Written::parse(batch, h).and_then(|m| m.aborted()));
    }
}

pub(super) async fn recover(a: &OpenArgs, inherited: &Inherited) -> Result<Log, OpenError> {
    let Some(m) = &inherited.manifest else {
        return Ok(Log {
            segments: Vec::new(),
            end: Offset::ZERO,
            doubt: None,
            scanned: 0,
            aborted: Vec::new(),
        });
    };
    let mut log =
        Log { segments: m.segments.clone(), end: m.start, doubt: None, scanned: 0, aborted: Vec::new() };
    // What lies wholly below the log start was given up; some of it may still be there.
    let gone = |s: &SegmentName, next: &SegmentName| s.base < next.base && next.base <= m.log_start;
    let below =
        inherited.own.iter().zip(inherited.own.iter().skip(1)).take_while(|(s, next)| gone(s, next)).count();
    let own = inherited.own.get(below..).unwrap_or_default();
    if let Some(first) = own.first().filter(|s| s.base != m.start && s.base > m.log_start) {
        return Err(
            a.inconsistent(format!("the segment at {} is missing, the next is at {}", m.start, first.base))
        );
    }
    if let Some((last, closed)) = own.split_last() {
        for (name, next) in closed.iter().zip(own.iter().skip(1)) {
            let sealed = closed_segment(a, inherited, *name, next.base, &mut log).await?;
            log.segments.push(sealed);
        }
        last_segment(a, m, inherited, *last, &mut log).await?;
    }
    log.segments.retain(|s| s.end > m.log_start && s.end > s.base);
    // Records may have been deleted up to an end that the log itself no longer shows.
    log.end = log.end.max(m.log_start);
    Ok(log)
}

/// A segment of the predecessor that it had closed: complete and durable, since its successor was
/// created after its last sync.
async fn closed_segment(
    a: &OpenArgs,
    inherited: &Inherited,
    name: SegmentName,
    end: Offset,
    log: &mut Log,
) -> Result<Sealed, OpenError> {
    let known =
        inherited.checkpoint.iter().flat_map(|c| &c.closed).find(|s| s.name() == name && s.end == end);
    if let Some(s) = known {
        return Ok(s.clone());
    }
    let file = a.open_log(name).await?;
    let len = Pos(file.len().await?);
    let mut walk = Walker::new(file, Pos::ZERO, len, name.base);
    let mut s = empty_seal(name);
    s.end = end;
    let (mut reached, mut damaged) = (name.base, false);
    loop {
        match walk.step().await? {
            Step::Batch(h, _) if h.base_offset >= end.0 => break,
            Step::Batch(h, at) => {
                reached = h.next_offset();
                note_batch(&mut s, &h, at);
                if h.is_control() {
                    walk.whole().await?.iter().for_each(|b| log.note_marker(&h, b));
                }
            }
            Step::Damaged(at) => {
                damaged = true;
                if !walk.skip_to(at.plus(1)).await? {
                    break;
                }
            }
            Step::End => break,
        }
    }
    log.scanned += walk.bytes_read();
    if reached < end && !damaged {
        return Err(a.inconsistent(format!("the segment at {reached} is missing, the next is at {end}")));
    }
    s.max_timestamp = s.max_timestamp.or(Some(a.now));
    Ok(s)
}

fn empty_seal(name: SegmentName) -> Sealed {
    Sealed {
        epoch: name.epoch,
        base: name.base,
        end: name.base,
        end_pos: Pos::ZERO,
        max_timestamp: None,
        first_timestamp: None,
        damage: Vec::new(),
        aborted: None,
    }
}

fn note_batch(s: &mut Sealed, h: &Header, at: Pos) {
    s.end_pos = at.plus(h.size);
    if h.max_timestamp >= 0 {
        s.max_timestamp = s.max_timestamp.max(Some(h.max_timestamp));
        s.first_timestamp = s.first_timestamp.or(Some(h.max_timestamp));
    }
}

/// The predecessor's last segment: scanned from the checkpoint if that can be believed, else from 0.
async fn last_segment(
    a: &OpenArgs,
    m: &Manifest,
    inherited: &Inherited,
    name: SegmentName,
    log: &mut Log,
) -> Result<(), OpenError> {
    let file = a.open_log(name).await?;
    let len = Pos(file.len().await?);
    let mut s = empty_seal(name);
    let (mut from, mut expected) = (Pos::ZERO, name.base);
    if let Some(c) = inherited.checkpoint.as_ref().filter(|c| c.segment == name.base && c.pos <= len) {
        (from, expected) = (c.pos, c.offset);
        (s.max_timestamp, s.first_timestamp) = (c.max_timestamp, c.first_timestamp);
        s.damage.clone_from(&c.damage);
        log.aborted.extend(&c.aborted);
    }
    match (&inherited.checkpoint, from) {
        (Some(_), Pos::ZERO) => reached!("checkpoint-disbelieved"),
        (Some(_), _) => reached!("recovered-from-checkpoint"),
        (None, _) => {}
    }
    s.end_pos = from;
    // The last batches, as far back as one group reaches: where the doubtful part may begin.
    let mut tail: std::collections::VecDeque<(Pos, Offset)> = Default::default();
    // Under a relaxed dial nothing says that what lies further back was synced: then a bad batch is a torn tail,
    // wherever it is.
    let relaxed = m.relaxed;
    let group = if relaxed { u64::MAX } else { m.group_bytes };
    let found = scan::recover(file, from, len, expected, group, |h, at, batch| {
        note_batch(&mut s, h, at);
        log.note_marker(h, batch);
        tail.push_back((at, Offset(h.base_offset)));
        let end = at.plus(h.size);
        while tail.len() > 1 && tail.front().is_some_and(|(p, _)| end.0 - p.0 > group) {
            tail.pop_front();
        }
    })
    .await?;
    if !found.damage.is_empty() {
        tracing::error!(dir = %a.spec.dir, segment = %name.log(), damage = ?found.damage, "damaged bytes inside the log; keeping what lies around them");
    }
    // Between two damaged places there may be less than a group: what is in doubt begins behind the last.
    if let Some((_, sound)) = found.damage.last() {
        tail.retain(|(at, _)| at >= sound);
    }
    s.damage.extend(found.damage);
    // Records without timestamps are dated by the recovery, so that they have an age.
    s.max_timestamp = s.max_timestamp.or(Some(a.now));
    s.end = found.end;
    s.end_pos = found.end_pos;
    if found.end_pos < len {
        reached!("torn-tail-cut");
    }
    log.scanned += found.bytes_read;
    log.end = found.end;
    log.doubt = tail.front().copied();
    log.segments.push(s);
    Ok(())
}

/// Brings the producer snapshot up to the log's end, from batch heads. Without a believable snapshot the
/// whole log is walked: slow, and never a wrong answer.
pub(super) async fn replay_producers(a: &OpenArgs, i: &Inherited, log: &Log) -> Result<Producers, OpenError> {
    let Some(m) = &i.manifest else { return Ok(Producers::default()) };
    let promised = m.has_producers || i.checkpoint.as_ref().is_some_and(|c| c.has_producers);
    // A checkpoint that recovery did not begin from says nothing here, either: what it calls accounted for may not be.
    let is_last = |c: &&Checkpoint| i.own.last().is_some_and(|last| last.base == c.segment);
    // One that names a closed segment was outrun by rolls: that segment is durable to its end.
    let is_closed = |c: &&Checkpoint| {
        let closed = log.segments.iter().find(|s| s.epoch == c.epoch && s.base == c.segment);
        closed.is_some_and(|s| c.pos <= s.end_pos && c.offset <= s.end)
    };
    let believed =
        i.checkpoint.as_ref().filter(|c| is_last(c) || is_closed(c)).filter(|c| c.offset <= log.end);
    // A snapshot past the recovered end speaks of batches that do not exist.
    let snapshot = i.snapshot.as_ref().filter(|s| s.offset <= log.end);
    if i.snapshot.is_some() && snapshot.is_none() {
        reached!("snapshot-past-the-end");
    }
    let (mut producers, from) = match snapshot {
        Some(s) => (Producers::restore(s.producers.clone()), s.offset),
        None if promised => (Producers::default(), m.log_start),
        // No producer was known at the last checkpoint (or at the open, if there was none).
        None => (Producers::default(), believed.map_or(m.start, |c| c.offset)),
    };
    for s in log.segments.iter().filter(|s| s.end > from) {
        let file = a.open_log(s.name()).await?;
        // The checkpoint's position is a batch boundary at a known offset: begin there if it helps.
        let near = believed
            .filter(|c| s.epoch == c.epoch && s.base == c.segment && c.offset <= from && c.pos <= s.end_pos);
        let (pos, expected) = near.map_or((Pos::ZERO, s.base), |c| (c.pos, c.offset));
        let mut walk = Walker::new(file, pos, s.end_pos, expected);
        loop {
            match walk.step().await? {
                Step::Batch(h, _) if Offset(h.base_offset) >= from && h.is_control() => {
                    match walk.whole().await?.and_then(|b| Written::parse(&b, &h)) {
                        Some(marker) => producers.record_marker(&marker, a.now, log.end),
                        // The transaction stays open then: nobody can say how it ended.
                        None => {
                            tracing::error!(dir = %a.spec.dir, offset = h.base_offset, "a damaged transaction marker")
                        }
                    }
                }
                Step::Batch(h, _) if Offset(h.base_offset) >= from => {
                    producers.record(&h, Offset(h.base_offset), a.now, log.end, None);
                }
                Step::Batch(..) => {}
                Step::Damaged(at) => {
                    if !walk.skip_to(at.plus(1)).await? {
                        break;
                    }
                }
                Step::End => break,
            }
        }
    }
    producers.expire(a.now.saturating_sub(a.config.producer_expiry.as_millis() as i64), log.end);
    Ok(producers)
}

/// Copies the doubtful tail into a first segment of the new epoch. Returns what remains of the older ones.
pub(super) async fn copy_doubtful(
    a: &OpenArgs,
    epoch: Epoch,
    i: &Inherited,
    log: &Log,
) -> Result<(Vec<Sealed>, Option<Copied>), OpenError> {
    let mut segments = log.segments.clone();
    let (Some((from, base)), Some(m)) = (log.doubt, &i.manifest) else { return Ok((segments, None)) };
    let Some(last) = segments.last_mut().filter(|s| s.epoch == m.epoch && s.end_pos > from && s.end > base)
    else {
        return Ok((segments, None));
    };
    let name = SegmentName { base, epoch };
    let copied = copy_tail(a, last, from, name).await;
    if copied.is_err() {
        // Nothing names this file yet. Left behind, one per attempt, such files would keep a full volume full.
        let _ = a.volume.unlink(&format!("{}/{}", a.spec.dir, name.log())).await;
    }
    let copied = copied?;
    last.end = base;
    last.end_pos = from;
    if last.end <= last.base {
        segments.pop();
    }
    Ok((segments, Some(copied)))
}

/// Gives each segment that has aborted transactions and no list of them one of this epoch. Returns the lists.
pub(super) fn list_aborted(
    epoch: Epoch,
    segments: &mut [Sealed],
    found: &[Aborted],
) -> Vec<(SegmentName, Vec<Aborted>)> {
    let mut lists = Vec::new();
    for s in segments.iter_mut().filter(|s| s.aborted.is_none()) {
        let within: Vec<Aborted> =
            found.iter().filter(|a| (s.base..s.end).contains(&a.last)).copied().collect();
        if !within.is_empty() {
            s.aborted = Some(epoch);
            lists.push((SegmentName { base: s.base, epoch }, within));
        }
    }
    lists
}

/// Copies the batches of `last` from `from` on into a new segment, and syncs it.
async fn copy_tail(a: &OpenArgs, last: &Sealed, from: Pos, name: SegmentName) -> Result<Copied, OpenError> {
    let base = name.base;
    let source = a.open_log(last.name()).await?;
    let target = a.volume.create_new(&format!("{}/{}", a.spec.dir, name.log()), Class::Data).await?;
    let mut window = scan::Window::new(source, last.end_pos, 1 << 20);
    let (mut pos, mut to, mut expected) = (from, Pos::ZERO, base);
    let mut copy = empty_seal(name);
    let (mut index, mut aborted) = (Index::default(), Vec::new());
    while pos < last.end_pos {
        // Checked again: a writer that is not dead yet may have changed what the scan saw.
        let Some((h, bytes)) = window.batch(pos.0, expected).await? else {
            return Err(a.inconsistent(format!("{} changed at {pos} while it was copied", last.name().log())));
        };
        note_batch(&mut copy, &h, to);
        index.note(h.base_offset - base.0, to, copy.end_pos, INDEX_INTERVAL);
        aborted.extend(Written::parse(&bytes, &h).and_then(|m| m.aborted()));
        pos = pos.plus(h.size);
        expected = h.next_offset();
        write_all_at(&*target, to.0, vec![bytes]).await?;
        to = copy.end_pos;
    }
    target.sync().await?;
    Ok(Copied {
        name,
        index,
        aborted,
        end_pos: to,
        max_timestamp: copy.max_timestamp.or(Some(a.now)),
        first_timestamp: copy.first_timestamp,
    })
}
