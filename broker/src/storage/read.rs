//! Reading: from a published view, never from the append path.
//!
//! Promises: whole batches, the one that holds the asked-for offset first; never past the high watermark
//! (or last stable offset) of the view; every batch's checksum checked, a damaged one answered as such, again and
//! again, and never skipped; not more read than asked for, but for the way from the nearest index entry.

use super::api::*;
use super::batch::{crc_matches, Header, HEADER_LEN};
use super::docs;
use super::index::Index;
use super::partition::{Partition, View};
use super::scan::{Step, Walker};
use super::segment::Segment;
use crate::types::{Epoch, Offset, Pos};
use crate::volume::{VolumeError, VolumeFile};
use bytes::Bytes;
use std::sync::Arc;

/// Read beyond what was asked, to get from an index entry to the offset (Kafka: `index.interval.bytes`).
const SLACK: usize = 4096 + HEADER_LEN;

/// A segment as a reader sees it, closed or active.
#[derive(Clone)]
struct Source {
    base: Offset,
    end: Offset,
    end_pos: Pos,
    path: String,
    closed: Option<Arc<Segment>>,
}

/// Where a read found itself.
enum Place {
    At(Pos),
    Damaged,
    End,
}

impl From<VolumeError> for ReadError {
    fn from(e: VolumeError) -> ReadError {
        ReadError::Storage(e.to_string())
    }
}

impl Partition {
    pub async fn read(self: &Arc<Self>, req: ReadRequest) -> Result<ReadOk, ReadError> {
        let view = self.readable().await?;
        let marks = view.marks();
        let bound = match req.bound {
            Bound::HighWatermark => marks.hwm,
            Bound::LastStable => marks.lso,
        };
        if req.from < marks.log_start || req.from > self.log_end().max(marks.hwm) {
            return Err(ReadError::OutOfRange(marks));
        }
        let mut records = Bytes::new();
        if req.from < bound {
            for source in self.sources(&view, req.from) {
                // `None`: a hole reaches to the segment's end, the next batch is in a later one.
                if let Some(b) =
                    self.read_source(&source, &req, bound).await.map_err(|e| self.lost(&view, e))?
                {
                    records = b;
                    break;
                }
            }
        }
        // Asked again: what is answered was visible under a lease that stands.
        if !self.shared.fence.holds(view.token) {
            return Err(ReadError::NotLeader);
        }
        self.shared.metrics.bytes_out.inc_by(records.len() as u64);
        self.shared.metrics.batches_out.inc_by(count(&records));
        let aborted = match req.bound {
            Bound::LastStable => {
                let end = end_of(&records).unwrap_or(req.from);
                self.aborted(&view, req.from, end).await.map_err(|e| self.lost(&view, e))?
            }
            Bound::HighWatermark => Vec::new(),
        };
        Ok(ReadOk { records, marks, aborted })
    }

    /// A file that vanished under a reader was deleted by retention, or the topic is gone.
    fn lost(&self, view: &View, e: ReadError) -> ReadError {
        match self.view.load_full() {
            Some(now) if now.log_start > view.log_start => ReadError::OutOfRange(now.marks()),
            None => ReadError::NotLeader,
            _ => e,
        }
    }

    /// A segment's file. It stays open only if a view still names it: retention, an opening or the partition's end may
    /// have closed it meanwhile.
    async fn file(&self, s: &Source) -> Result<Arc<dyn VolumeFile>, VolumeError> {
        let is_named = || {
            // A life ends, and closes its files, under this lock.
            let _state = self.state.lock();
            let view = self.view.load_full();
            view.is_some_and(|v| self.sources(&v, s.base).next().is_some_and(|first| first.path == s.path))
        };
        self.shared.handles.read(&s.path, is_named).await
    }

    /// The segments that have something at or after `from`, in order. Lazy: a read needs one, of perhaps thousands.
    fn sources<'a>(&'a self, view: &'a View, from: Offset) -> impl Iterator<Item = Source> + Send + 'a {
        let first = view.segments.partition_point(|s| s.sealed.end <= from);
        let closed = view.segments.iter().skip(first).map(|s| Source {
            base: s.sealed.base,
            end: s.sealed.end,
            end_pos: s.sealed.end_pos,
            path: self.path(&s.sealed.name().log()),
            closed: Some(s.clone()),
        });
        let active = view.active.iter().filter(move |_| view.hwm > from).map(|a| Source {
            base: a.name.base,
            end: view.hwm,
            end_pos: view.active_end,
            path: self.path(&a.name.log()),
            closed: None,
        });
        closed.chain(active)
    }

    /// From where to walk towards `offset`: a batch's position, and the offset it begins with.
    async fn start_of(
        &self,
        s: &Source,
        offset: Offset,
        file: &Arc<dyn VolumeFile>,
    ) -> Result<(Pos, Offset), ReadError> {
        let rel = offset.0.saturating_sub(s.base.0);
        let found = |(rel, pos): (i64, Pos)| (pos, s.base.plus(rel));
        match &s.closed {
            Some(segment) => Ok(found(self.index_of(segment, file).await?.lookup(rel))),
            None => {
                let view = self.view.load();
                let active = view.as_ref().and_then(|v| v.active.clone()).filter(|a| a.name.base == s.base);
                Ok(active.map_or((Pos::ZERO, s.base), |a| found(a.index.read().lookup(rel))))
            }
        }
    }

    async fn index_of(
        &self,
        segment: &Arc<Segment>,
        file: &Arc<dyn VolumeFile>,
    ) -> Result<Arc<Index>, ReadError> {
        if let Some(i) = segment.known_index() {
            return Ok(i);
        }
        let path = self.path(&segment.sealed.name().index());
        let loaded = match docs::read_file(&*self.shared.volume, &path).await {
            Ok(b) => Index::decode(&b, segment.sealed.end_pos),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e.into()),
        };
        Ok(segment.complete_index(loaded, file.clone(), self.config().index_interval_bytes).await?)
    }

    async fn read_source(
        &self,
        s: &Source,
        req: &ReadRequest,
        bound: Offset,
    ) -> Result<Option<Bytes>, ReadError> {
        let file = self.file(s).await?;
        let (from, first) = self.start_of(s, req.from, &file).await?;
        let want = req.max_bytes.saturating_add(SLACK);
        let room = usize::try_from(s.end_pos.0.saturating_sub(from.0)).unwrap_or(usize::MAX);
        let chunk = file.read_at(from.0, want.min(room)).await?;
        if let Found::At(i) = find_in(&chunk, req.from, first) {
            match self.take_from(s, req, bound, &file, from.plus(i as u64), chunk.slice(i..)).await {
                // What claims to hold the offset is damaged, and so may the claim be.
                Err(ReadError::Corrupt(_)) => {}
                answer => return answer.map(Some),
            }
        }
        match self.walk_to(s, &file, (from, first), req.from).await? {
            Place::End => Ok(None),
            Place::Damaged => Err(ReadError::Corrupt(req.from)),
            Place::At(p) => {
                let room = usize::try_from(s.end_pos.0.saturating_sub(p.0)).unwrap_or(usize::MAX);
                let chunk = file.read_at(p.0, req.max_bytes.max(HEADER_LEN).min(room)).await?;
                self.take_from(s, req, bound, &file, p, chunk).await.map(Some)
            }
        }
    }

    /// The answer to a read that begins with the batch at `at`; `chunk` is what has been read from there.
    async fn take_from(
        &self,
        s: &Source,
        req: &ReadRequest,
        bound: Offset,
        file: &Arc<dyn VolumeFile>,
        at: Pos,
        chunk: Bytes,
    ) -> Result<Bytes, ReadError> {
        let corrupt = ReadError::Corrupt(req.from);
        match take_whole(&chunk, req.max_bytes, bound) {
            Taken::Batches(n) => Ok(chunk.slice(..n)),
            Taken::Nothing => Ok(Bytes::new()),
            Taken::Corrupt => Err(corrupt),
            Taken::FirstTooLarge(size) if at.0.saturating_add(size) > s.end_pos.0 => Err(corrupt),
            Taken::FirstTooLarge(size) if !req.at_least_one && size > req.max_bytes as u64 => {
                Ok(Bytes::new())
            }
            Taken::FirstTooLarge(size) => {
                let b = file.read_at(at.0, usize::try_from(size).unwrap_or(usize::MAX)).await?;
                match Header::parse(&b) {
                    Some(h) if crc_matches(&b, &h) && h.next_offset() <= bound => Ok(b),
                    _ => Err(corrupt),
                }
            }
        }
    }

    /// Walks head by head to the batch that holds `offset`, around damage. The way for when the short one failed.
    async fn walk_to(
        &self,
        s: &Source,
        file: &Arc<dyn VolumeFile>,
        (from, first): (Pos, Offset),
        offset: Offset,
    ) -> Result<Place, ReadError> {
        let mut walk = Walker::new(file.clone(), from, s.end_pos, first);
        let mut damaged = false;
        loop {
            let bad = match walk.step().await? {
                Step::Batch(h, _) if h.next_offset() <= offset => {
                    damaged = false;
                    continue;
                }
                // Behind damage, an offset that no batch before and no batch after holds was in the damage.
                Step::Batch(h, at) if walk.confirm().await? => {
                    let lost = damaged && h.base_offset > offset.0;
                    return Ok(if lost { Place::Damaged } else { Place::At(at) });
                }
                Step::Batch(_, at) | Step::Damaged(at) => at,
                // The segment is known to hold the offset: what should lead to it is damaged.
                Step::End if offset < s.end => return Ok(Place::Damaged),
                Step::End => return Ok(Place::End),
            };
            damaged = true;
            if !walk.skip_to(bad.plus(1)).await? {
                return Ok(Place::Damaged);
            }
        }
    }

    /// The first record at or after `timestamp` (ms). The batch that holds it is opened (P9 allows it here).
    pub async fn find_timestamp(self: &Arc<Self>, timestamp: i64) -> Result<Option<TimestampHit>, ReadError> {
        let view = self.readable().await?;
        let hit = self.first_at(&view, timestamp).await.map_err(|e| self.lost(&view, e))?;
        self.still_leading(&view, hit)
    }

    /// The record with the largest timestamp (KIP-734); the first of them if several have it.
    pub async fn max_timestamp(self: &Arc<Self>) -> Result<Option<TimestampHit>, ReadError> {
        let view = self.readable().await?;
        let closed = view.segments.iter().filter_map(|s| s.sealed.max_timestamp).max();
        let newest = closed.max(view.active.as_ref().and_then(|a| a.max_timestamp()));
        let hit = match newest {
            Some(t) => self.first_at(&view, t).await.map_err(|e| self.lost(&view, e))?,
            None => None,
        };
        self.still_leading(&view, hit)
    }

    fn still_leading<T>(&self, view: &View, answer: T) -> Result<T, ReadError> {
        if self.shared.fence.holds(view.token) {
            Ok(answer)
        } else {
            Err(ReadError::NotLeader)
        }
    }

    async fn first_at(&self, view: &View, timestamp: i64) -> Result<Option<TimestampHit>, ReadError> {
        for s in self.sources(view, view.log_start) {
            let newest = match &s.closed {
                Some(segment) => segment.sealed.max_timestamp,
                None => view.active.as_ref().and_then(|a| a.max_timestamp()),
            };
            if newest.is_none_or(|t| t < timestamp) {
                continue;
            }
            let file = self.file(&s).await?;
            let mut walk = Walker::new(file.clone(), Pos::ZERO, s.end_pos, s.base);
            loop {
                let (h, at) = match walk.step().await? {
                    Step::Batch(h, at) => (h, at),
                    // What is damaged may hold the answer: a later one would be wrong.
                    Step::Damaged(_) => return Err(ReadError::Corrupt(walk.expected())),
                    Step::End => break,
                };
                if h.max_timestamp < timestamp || h.next_offset() <= view.log_start {
                    continue;
                }
                if let Some(hit) = self.open_for(view, &file, &h, at, timestamp).await? {
                    return Ok(Some(hit));
                }
            }
        }
        Ok(None)
    }

    async fn open_for(
        &self,
        view: &View,
        file: &Arc<dyn VolumeFile>,
        h: &Header,
        at: Pos,
        timestamp: i64,
    ) -> Result<Option<TimestampHit>, ReadError> {
        let epoch = Epoch(u32::try_from(h.leader_epoch).unwrap_or(0));
        let hit =
            |offset: i64, timestamp: i64| Some(TimestampHit { offset: Offset(offset), timestamp, epoch });
        if h.is_log_append_time() {
            return Ok(hit(h.base_offset.max(view.log_start.0), h.max_timestamp));
        }
        let bytes = file.read_at(at.0, usize::try_from(h.size).unwrap_or(usize::MAX)).await?;
        if !crc_matches(&bytes, h) {
            return Err(ReadError::Corrupt(Offset(h.base_offset)));
        }
        let found = super::records::first_at(&bytes, h, timestamp, view.log_start, &self.shared.metrics);
        match found {
            Ok(Some((offset, t))) => Ok(hit(offset, t)),
            Ok(None) => Ok(None),
            // The client's records do not open: its batch is the closest that can be said.
            Err(_) => Ok(hit(h.base_offset.max(view.log_start.0), h.max_timestamp)),
        }
    }

    /// The largest epoch ≤ `epoch` that has records, and the offset where it ends (KIP-320). `None` if
    /// the epoch is later than any here.
    pub async fn epoch_end(self: &Arc<Self>, epoch: Epoch) -> Result<Option<(Epoch, Offset)>, ReadError> {
        let view = self.readable().await?;
        let answer = if epoch > view.epoch {
            None
        } else {
            let known = &view.leader_epochs;
            match known.partition_point(|(e, _)| *e <= epoch).checked_sub(1) {
                // Older than all that is left: everything of it ended where the log starts.
                None => Some((epoch, view.log_start)),
                Some(i) => {
                    let end = known.get(i + 1).map_or(view.hwm, |(_, start)| *start);
                    known.get(i).map(|(e, _)| (*e, end.max(view.log_start)))
                }
            }
        };
        self.still_leading(&view, answer)
    }
}

enum Found {
    /// The batch that holds the offset, or the first after it, begins here.
    At(usize),
    /// All batches in the chunk end before the offset, or something in it is not a batch.
    No,
}

fn find_in(chunk: &[u8], offset: Offset, first: Offset) -> Found {
    let (mut at, mut expected) = (0usize, first);
    loop {
        let Some(rest) = chunk.get(at..).filter(|r| r.len() >= HEADER_LEN) else { return Found::No };
        let Some(h) = Header::parse(rest).filter(|h| h.follows(expected)) else { return Found::No };
        if h.next_offset() > offset {
            return Found::At(at);
        }
        expected = h.next_offset();
        let Some(next) = usize::try_from(h.size).ok().and_then(|n| at.checked_add(n)) else {
            return Found::No;
        };
        at = next;
    }
}

enum Taken {
    /// So many bytes of whole, sound batches.
    Batches(usize),
    FirstTooLarge(u64),
    Corrupt,
    Nothing,
}

/// Takes whole, sound batches from the beginning of `bytes`, up to `max` and `bound`.
/// How many whole batches these are.
fn count(mut batches: &[u8]) -> u64 {
    let mut n = 0;
    while let Some(h) = Header::parse(batches) {
        n += 1;
        batches = usize::try_from(h.size).ok().and_then(|size| batches.get(size..)).unwrap_or_default();
    }
    n
}

/// The offset after the last batch.
fn end_of(mut batches: &[u8]) -> Option<Offset> {
    let mut end = None;
    while let Some(h) = Header::parse(batches) {
        end = Some(h.next_offset());
        batches = usize::try_from(h.size).ok().and_then(|size| batches.get(size..)).unwrap_or_default();
    }
    end
}

fn take_whole(bytes: &[u8], max: usize, bound: Offset) -> Taken {
    let mut n = 0usize;
    let mut expected = None;
    while let Some(rest) = bytes.get(n..) {
        let first = n == 0;
        let Some(h) = Header::parse(rest).filter(|_| rest.len() >= HEADER_LEN) else {
            return match first {
                true if rest.len() >= HEADER_LEN => Taken::Corrupt,
                true => Taken::Nothing,
                false => Taken::Batches(n),
            };
        };
        if expected.is_some_and(|e| !h.follows(e)) {
            return Taken::Batches(n);
        }
        let size = usize::try_from(h.size).unwrap_or(usize::MAX);
        if size > rest.len() || n.saturating_add(size) > max {
            return if first { Taken::FirstTooLarge(h.size) } else { Taken::Batches(n) };
        }
        if !crc_matches(rest, &h) {
            return if first { Taken::Corrupt } else { Taken::Batches(n) };
        }
        // After the checksum: a damaged head may claim to reach past the bound.
        if h.next_offset() > bound {
            return if first { Taken::Nothing } else { Taken::Batches(n) };
        }
        n += size;
        expected = Some(h.next_offset());
    }
    Taken::Batches(n)
}
