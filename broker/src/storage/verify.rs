//! Checking a partition's directory, without writing to it and beside a running broker.
//!
//! Promises to name the file, and the byte where there is one, of everything that is not as the engine left it:
//! batches, checksums, gaps, index entries, lists of aborted transactions, manifest, checkpoint, producer snapshot. What an unclean stop leaves, or a
//! running broker is writing at this moment, is not an error: bytes after the last whole batch of the newest
//! segment, files of older epochs that await deletion. It looks into no claim, whose name is what counts and whose
//! content is never synced, and opens no records itself; a caller may ([`partition_with`]).

use super::aborted::{self, Aborted};
use super::batch::Header;
use super::docs::{self, Checkpoint, DocError, Manifest, Sealed};
use super::index::{self, Index};
use super::marker::Written;
use super::names::{self, FileName, SegmentName};
use super::recovery::ProducerSnapshot;
use super::scan::{self, Recovered};
use crate::types::{Epoch, Offset, Pos, TopicId};
use crate::volume::{Class, EntryKind, Volume, VolumeError, VolumeFile};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Something that is not sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Relative to the volume's root.
    pub path: String,
    /// Where in the file, if it is one place.
    pub byte: Option<u64>,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.byte {
            Some(b) => write!(f, "{} byte {b}: {}", self.path, self.what),
            None => write!(f, "{}: {}", self.path, self.what),
        }
    }
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub segments: u64,
    pub batches: u64,
    pub bytes: u64,
    /// Bytes after the last whole batch: torn, or being written.
    pub unfinished: u64,
    pub log_start: Offset,
    pub log_end: Offset,
    pub findings: Vec<Finding>,
}

/// Times that a directory which changes under the reader is looked at again.
const TRIES: u32 = 5;

/// Looks into a sound batch; returns what is wrong with its content.
pub type Look<'a> = &'a mut (dyn FnMut(&Header, &Bytes) -> Option<String> + Send);

/// Checks one partition (or slot) directory. `identity`: the topic id and partition that it must be of.
pub async fn partition(v: &dyn Volume, dir: &str, identity: (TopicId, i32)) -> Result<Report, VolumeError> {
    partition_with(v, dir, identity, &mut |_, _| None).await
}

/// As [`partition`], and looks into the batches too. `look` may see a batch more than once.
///
/// # Errors
/// What the volume says. Not found with the path `dir`: the directory does not exist.
pub async fn partition_with(
    v: &dyn Volume,
    dir: &str,
    identity: (TopicId, i32),
    look: Look<'_>,
) -> Result<Report, VolumeError> {
    let mut before = None;
    let mut tries = 0;
    loop {
        tries += 1;
        let mut check = Check { v, dir, look: &mut *look, report: Report::default() };
        match check.run(identity).await {
            // A running broker adds, replaces and deletes files between one look and the next: what is wrong
            // is so twice in a row.
            Ok(()) => {
                let report = check.report;
                let stands = report.findings.is_empty() || before.as_ref() == Some(&report.findings);
                if stands || tries >= TRIES {
                    return Ok(report);
                }
                before = Some(report.findings);
            }
            Err(e) if e.is_not_found() && e.path != dir && tries < TRIES => before = None,
            Err(e) => return Err(e),
        }
    }
}

struct Check<'a> {
    v: &'a dyn Volume,
    dir: &'a str,
    look: Look<'a>,
    report: Report,
}

/// Where other files say that a batch begins, or the log ends: struck off as the walk comes by.
#[derive(Default)]
struct Named {
    /// With the entry's place in the index file.
    index: BTreeMap<Pos, (Offset, u64)>,
    checkpoint: Option<(Pos, Offset)>,
    /// The aborted transactions with a marker in it, and the file that says so; known of closed segments.
    aborted: Option<(String, Vec<Aborted>)>,
}

impl Named {
    fn strike(&mut self, pos: Pos, offset: Offset) {
        if self.index.get(&pos).is_some_and(|(o, _)| *o == offset) {
            self.index.remove(&pos);
        }
        self.checkpoint = self.checkpoint.filter(|c| *c != (pos, offset));
    }
}

impl Check<'_> {
    fn find(&mut self, file: &str, byte: Option<u64>, what: impl Into<String>) {
        let path = format!("{}/{file}", self.dir);
        self.report.findings.push(Finding { path, byte, what: what.into() });
    }

    async fn run(&mut self, identity: (TopicId, i32)) -> Result<(), VolumeError> {
        let files = self.files().await?;
        let newest =
            files.iter().filter_map(|f| matches!(f, FileName::Manifest(_)).then_some(f.epoch())).max();
        // Not opened yet, or its first opening did not finish: there is nothing that it promises.
        let Some(epoch) = newest else { return Ok(()) };
        let name = names::manifest(epoch);
        let Some(m) = self.document::<Manifest>(&name).await? else { return Ok(()) };
        if m.epoch != epoch || (m.topic_id, m.partition) != identity {
            self.find(&name, None, "is of another epoch or partition");
            return Ok(());
        }
        self.report.log_start = m.log_start;
        // Read before the log is: what these name was there when they were written, while the log grows on.
        let checkpoint = self.checkpoint(&m).await?;
        let snapshot = self.snapshot(&m).await?;
        self.inherited(&name, &m).await?;
        let (end, seen) = self.own(&m, &files, checkpoint.as_ref()).await?;
        self.report.log_end = end.max(m.log_start);
        // Retention may have deleted the segment since.
        if let Some(c) = checkpoint.filter(|c| !seen && c.offset > m.log_start) {
            let segment = SegmentName { base: c.segment, epoch: c.epoch }.log();
            self.find(&names::checkpoint(epoch), None, format!("names {segment}, which is not there"));
        }
        if let Some(s) = snapshot.filter(|s| s.offset > self.report.log_end) {
            let what = format!("is at offset {}, past the log's end {}", s.offset, self.report.log_end);
            self.find(&names::producers(epoch), None, what);
        }
        Ok(())
    }

    /// The names that are ours.
    async fn files(&mut self) -> Result<Vec<FileName>, VolumeError> {
        let mut files = Vec::new();
        for e in self.v.read_dir(self.dir, Class::Data).await? {
            let Some(file) = FileName::parse(&e.name) else { continue };
            if e.kind == EntryKind::File {
                files.push(file);
            } else {
                self.find(&e.name, None, "is not a file");
            }
        }
        Ok(files)
    }

    /// The segments that the manifest lists. Offsets are dense: each begins where the one before ends.
    async fn inherited(&mut self, manifest: &str, m: &Manifest) -> Result<(), VolumeError> {
        let mut expected = None;
        for s in &m.segments {
            if expected.is_some_and(|e: Offset| e != s.base) {
                self.find(
                    manifest,
                    None,
                    format!("the segment at {} does not follow the one before", s.base),
                );
            }
            expected = Some(s.end);
            self.sealed(s, m).await?;
        }
        if expected.is_some_and(|e| e != m.start) {
            self.find(manifest, None, format!("its segments do not end at its start, {}", m.start));
        }
        Ok(())
    }

    /// The segments that the present epoch wrote. Returns where the log ends, and whether the one that the
    /// checkpoint names is among them.
    async fn own(
        &mut self,
        m: &Manifest,
        files: &[FileName],
        checkpoint: Option<&Checkpoint>,
    ) -> Result<(Offset, bool), VolumeError> {
        let log = |f: &FileName| if let FileName::Log(s) = f { Some(*s) } else { None };
        let mut own: Vec<SegmentName> = files.iter().filter_map(log).filter(|s| s.epoch == m.epoch).collect();
        own.sort();
        let mut end = m.start;
        let mut seen = m.segments.iter().any(|s| checkpoint.is_some_and(|c| c.offset == s.end));
        if let Some(first) = own.first().filter(|s| s.base > m.start.max(m.log_start)) {
            let what =
                format!("begins the log at {}, which starts at {}", first.base, m.start.max(m.log_start));
            self.find(&first.log(), None, what);
        }
        for (i, s) in own.iter().enumerate() {
            let named = checkpoint.filter(|c| c.segment == s.base).map(|c| (c.pos, c.offset));
            seen |= named.is_some();
            let next = own.get(i + 1).map(|n| n.base);
            end = self.own_segment(*s, next, m, named).await?;
        }
        Ok((end, seen))
    }

    async fn document<T: serde::de::DeserializeOwned>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, VolumeError> {
        match docs::read(self.v, &format!("{}/{name}", self.dir)).await {
            Ok(d) => Ok(Some(d)),
            Err(DocError::Volume(e)) => Err(e),
            Err(DocError::Damaged { reason, .. }) => {
                self.find(name, None, reason);
                Ok(None)
            }
        }
    }

    /// Opens a segment. One that is missing is a finding.
    async fn segment(&mut self, name: &str) -> Result<Option<(Arc<dyn VolumeFile>, Pos)>, VolumeError> {
        let file = match self.v.open(&format!("{}/{name}", self.dir), Class::Data).await {
            Err(e) if e.is_not_found() => {
                self.find(name, None, "is missing");
                return Ok(None);
            }
            r => r?,
        };
        let len = Pos(file.len().await?);
        Ok(Some((file, len)))
    }

    /// A segment whose end a manifest fixes: all of it must be there and sound.
    async fn sealed(&mut self, s: &Sealed, m: &Manifest) -> Result<(), VolumeError> {
        let name = s.name().log();
        let aborted = match s.aborted_name() {
            Some(list) => self.aborted(list, s.end, true).await?,
            None => Some((names::manifest(m.epoch), Vec::new())),
        };
        let named = Named { index: self.index(s.name()).await?, checkpoint: None, aborted };
        let Some((file, len)) = self.segment(&name).await? else { return Ok(()) };
        if len < s.end_pos {
            self.find(&name, Some(len.0), format!("ends here; its manifest says {}", s.end_pos));
        }
        // A group limit of 0: whatever is bad in here is damage, since all of it was durable.
        let r = self.walk(s.name(), file, s.end_pos.min(len), 0, m, named).await?;
        if r.torn > 0 {
            self.find(&name, Some(r.end_pos.0), format!("{} damaged bytes before its end", r.torn));
        }
        if len >= s.end_pos && (r.end_pos != s.end_pos || r.end != s.end) {
            let what = format!(
                "the log ends here at offset {}; its manifest says byte {} offset {}",
                r.end, s.end_pos, s.end
            );
            self.find(&name, Some(r.end_pos.0), what);
        }
        Ok(())
    }

    /// A segment of the present epoch. The newest one may end in bytes that are no batch yet.
    async fn own_segment(
        &mut self,
        s: SegmentName,
        next: Option<Offset>,
        m: &Manifest,
        checkpoint: Option<(Pos, Offset)>,
    ) -> Result<Offset, VolumeError> {
        let name = s.log();
        let mut named = Named { index: self.index(s).await?, checkpoint, aborted: None };
        if let Some(next) = next {
            named.aborted = self.aborted(s, next, false).await?;
        }
        let Some((file, len)) = self.segment(&name).await? else { return Ok(next.unwrap_or(s.base)) };
        let group = if m.relaxed { u64::MAX } else { m.group_bytes };
        let limit = if next.is_some() { 0 } else { group };
        let r = self.walk(s, file, len, limit, m, named).await?;
        match next {
            Some(n) if r.end != n || r.torn > 0 => {
                let what = format!("ends at offset {}, the next segment begins at {n}", r.end);
                self.find(&name, Some(r.end_pos.0), what);
            }
            Some(_) => {}
            None => self.report.unfinished += r.torn,
        }
        Ok(r.end)
    }

    /// Walks a segment: every batch must be sound and follow the one before, and begin where others say.
    async fn walk(
        &mut self,
        s: SegmentName,
        file: Arc<dyn VolumeFile>,
        len: Pos,
        limit: u64,
        m: &Manifest,
        mut named: Named,
    ) -> Result<Recovered, VolumeError> {
        let name = s.log();
        let (mut batches, mut wrong) = (0, Vec::new());
        let mut found: Vec<Aborted> = Vec::new();
        let look = &mut *self.look;
        let r = scan::recover(file, Pos::ZERO, len, s.base, limit, |h, at, bytes| {
            batches += 1;
            let offset = Offset(h.base_offset);
            named.strike(at, offset);
            if let Some(epoch) = epoch_at(m, offset).filter(|e| e.wire() != h.leader_epoch) {
                wrong.push((
                    at,
                    format!("the batch says leader epoch {}, it is of {}", h.leader_epoch, epoch.wire()),
                ));
            }
            if !h.is_control() {
                wrong.extend(look(h, bytes).map(|what| (at, what)));
                return;
            }
            match Written::parse(bytes, h) {
                Some(marker) => found.extend(marker.aborted()),
                None => wrong.push((at, "a control batch that is no marker".into())),
            }
        })
        .await?;
        named.strike(r.end_pos, r.end);
        self.report.segments += 1;
        self.report.batches += batches;
        self.report.bytes += r.end_pos.0;
        for (from, to) in &r.damage {
            self.find(&name, Some(from.0), format!("damaged up to byte {to}"));
        }
        for (at, what) in wrong {
            self.find(&name, Some(at.0), what);
        }
        if let Some((pos, offset)) = named.checkpoint {
            let what = format!("its checkpoint names offset {offset} here, where no batch begins or ends so");
            self.find(&name, Some(pos.0), what);
        }
        if let Some((file, said)) = named.aborted.filter(|(_, said)| *said != found) {
            let what = format!(
                "lists {} aborted transactions; the markers of {name} tell of {}",
                said.len(),
                found.len()
            );
            self.find(&file, None, what);
        }
        // What lies past the end may be of a tail that was lost or copied.
        if let Some((pos, (offset, byte))) = named.index.into_iter().find(|(pos, _)| *pos < r.end_pos) {
            let what = format!("has offset {offset} at byte {pos} of the log, where no such batch begins");
            self.find(&s.index(), Some(byte), what);
        }
        Ok(r)
    }

    /// The checkpoint of the present epoch, if there is one.
    async fn checkpoint(&mut self, m: &Manifest) -> Result<Option<Checkpoint>, VolumeError> {
        let name = names::checkpoint(m.epoch);
        let c = match self.document::<Checkpoint>(&name).await {
            Err(e) if e.is_not_found() => return Ok(None),
            r => r?,
        };
        let Some(c) = c else { return Ok(None) };
        if c.epoch != m.epoch || c.topic_id != m.topic_id {
            self.find(&name, None, "is of another epoch or topic");
            return Ok(None);
        }
        Ok(Some(c))
    }

    async fn snapshot(&mut self, m: &Manifest) -> Result<Option<ProducerSnapshot>, VolumeError> {
        let name = names::producers(m.epoch);
        let s = match self.document::<ProducerSnapshot>(&name).await {
            Err(e) if e.is_not_found() && !m.has_producers => return Ok(None),
            Err(e) if e.is_not_found() => {
                self.find(&name, None, "is missing, and the manifest relies on it");
                return Ok(None);
            }
            r => r?,
        };
        let Some(s) = s else { return Ok(None) };
        if s.epoch != m.epoch || s.topic_id != m.topic_id {
            self.find(&name, None, "is of another epoch or topic");
        }
        for p in &s.producers {
            let open = p.standing.open.is_some_and(|open| open.first >= s.offset);
            if open || p.batches.iter().any(|b| b.last >= s.offset) {
                self.find(&name, None, format!("producer {} has batches past the snapshot's offset", p.id));
            }
        }
        Ok(Some(s))
    }

    /// What the file `list` says of the aborted transactions of a segment from its base to `end`. It must be there if it `is_named`
    /// by the manifest.
    async fn aborted(
        &mut self,
        list: SegmentName,
        end: Offset,
        is_named: bool,
    ) -> Result<Option<(String, Vec<Aborted>)>, VolumeError> {
        let name = list.aborted();
        let bytes = match docs::read_file(self.v, &format!("{}/{name}", self.dir)).await {
            Err(e) if e.is_not_found() && !is_named => return Ok(Some((name, Vec::new()))),
            Err(e) if e.is_not_found() => {
                self.find(&name, None, "is missing; it is rebuilt from the log when it is needed");
                return Ok(None);
            }
            r => r?,
        };
        let entries = aborted::decode(&bytes, list.base, end);
        if entries.is_none() {
            self.find(&name, None, "is damaged; it is rebuilt from the log when it is needed");
        }
        Ok(entries.map(|entries| (name, entries)))
    }

    /// What the index of a segment says, with the place of each entry in its file.
    async fn index(&mut self, s: SegmentName) -> Result<BTreeMap<Pos, (Offset, u64)>, VolumeError> {
        let name = s.index();
        let bytes = match docs::read_file(self.v, &format!("{}/{name}", self.dir)).await {
            Err(e) if e.is_not_found() => return Ok(BTreeMap::new()),
            r => r?,
        };
        let Some(index) = Index::decode(&bytes, Pos(u64::MAX)) else {
            self.find(&name, None, "is damaged; it is rebuilt from the log when it is needed");
            return Ok(BTreeMap::new());
        };
        let place = (index::HEAD as u64..).step_by(index::ENTRY);
        Ok(place.zip(index.entries()).map(|(at, (rel, pos))| (pos, (s.base.plus(rel), at))).collect())
    }
}

/// The leader epoch under which the batch at `offset` was written, as far as the manifest tells.
fn epoch_at(m: &Manifest, offset: Offset) -> Option<Epoch> {
    m.leader_epochs.iter().rev().find(|(_, start)| *start <= offset).map(|(epoch, _)| *epoch)
}
