//! Checking a partition's directory, without writing to it and beside a running broker.
//!
//! Promises to name the file, and the byte where there is one, of everything that is not as the engine left it:
//! batches, checksums, gaps, index entries, manifest, checkpoint, producer snapshot. What an unclean stop leaves, or a
//! running broker is writing at this moment, is not an error: bytes after the last whole batch of the newest
//! segment, files of older epochs that await deletion. It does not open records.

use super::docs::{self, Checkpoint, DocError, Manifest, Sealed};
use super::index::Index;
use super::names::{self, FileName, SegmentName};
use super::recovery::ProducerSnapshot;
use super::scan;
use crate::types::{Offset, Pos, TopicId};
use crate::volume::{Class, Volume, VolumeError};
use std::collections::BTreeMap;
use std::fmt;

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

/// Checks one partition (or slot) directory. `identity`: the topic id and partition that it must be of.
pub async fn partition(v: &dyn Volume, dir: &str, identity: (TopicId, i32)) -> Result<Report, VolumeError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut check = Check { v, dir, report: Report::default() };
        match check.run(identity).await {
            Ok(()) => return Ok(check.report),
            // A file that was listed is gone: a running broker deleted it. Look again.
            Err(e) if e.is_not_found() && tries < TRIES => {}
            Err(e) => return Err(e),
        }
    }
}

struct Check<'a> {
    v: &'a dyn Volume,
    dir: &'a str,
    report: Report,
}

/// Boundaries of batches in one segment: position → offset.
type Boundaries = BTreeMap<Pos, Offset>;

impl Check<'_> {
    fn find(&mut self, file: &str, byte: Option<u64>, what: impl Into<String>) {
        let path = format!("{}/{file}", self.dir);
        self.report.findings.push(Finding { path, byte, what: what.into() });
    }

    async fn run(&mut self, identity: (TopicId, i32)) -> Result<(), VolumeError> {
        let names: Vec<String> =
            self.v.read_dir(self.dir, Class::Data).await?.into_iter().map(|e| e.name).collect();
        let files: Vec<FileName> = names.iter().filter_map(|n| FileName::parse(n)).collect();
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
        let mut bounds: BTreeMap<SegmentName, Boundaries> = BTreeMap::new();
        let mut expected = None;
        for s in &m.segments {
            if expected.is_some_and(|e: Offset| e > s.base) {
                self.find(&name, None, format!("the segment at {} overlaps the one before", s.base));
            }
            expected = Some(s.end);
            bounds.insert(s.name(), self.sealed(s).await?);
        }
        let mut own: Vec<SegmentName> = files
            .iter()
            .filter_map(|f| if let FileName::Log(s) = f { Some(*s) } else { None })
            .filter(|s| s.epoch == epoch)
            .collect();
        own.sort();
        let mut end = m.start;
        for (i, s) in own.iter().enumerate() {
            let next = own.get(i + 1).map(|n| n.base);
            let (found, at) = self.own_segment(*s, next, &m).await?;
            end = at;
            bounds.insert(*s, found);
        }
        self.report.log_end = end.max(m.log_start);
        self.checkpoint(&m, &bounds).await?;
        self.snapshot(&m).await?;
        for f in files {
            if let FileName::Index(s) = f {
                if let Some(b) = bounds.get(&s) {
                    self.index(s, b).await?;
                }
            }
        }
        Ok(())
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

    /// A segment whose end a manifest fixes: all of it must be there and sound.
    async fn sealed(&mut self, s: &Sealed) -> Result<Boundaries, VolumeError> {
        let name = s.name().log();
        let file = match self.v.open(&format!("{}/{name}", self.dir), Class::Data).await {
            Err(e) if e.is_not_found() => {
                // A manifest that was replaced meanwhile may have given it up.
                return Err(e);
            }
            r => r?,
        };
        let len = Pos(file.len().await?);
        if len < s.end_pos {
            self.find(&name, Some(len.0), format!("ends here; its manifest says {}", s.end_pos));
        }
        let (bounds, end, at) = self.walk(&name, file, s.end_pos.min(len), s.base).await?;
        if len >= s.end_pos && (at != s.end_pos || end != s.end) {
            let what = format!(
                "the log ends here at offset {end}; its manifest says byte {} offset {}",
                s.end_pos, s.end
            );
            self.find(&name, Some(at.0), what);
        }
        Ok(bounds)
    }

    /// A segment of the present epoch. The newest one may end in bytes that are no batch yet.
    async fn own_segment(
        &mut self,
        s: SegmentName,
        next: Option<Offset>,
        m: &Manifest,
    ) -> Result<(Boundaries, Offset), VolumeError> {
        let name = s.log();
        let file = self.v.open(&format!("{}/{name}", self.dir), Class::Data).await?;
        let len = Pos(file.len().await?);
        let group = if m.relaxed { u64::MAX } else { m.group_bytes };
        let limit = if next.is_some() { 0 } else { group };
        let mut bounds = Boundaries::new();
        let mut batches = 0;
        let r = scan::recover(file, Pos::ZERO, len, s.base, limit, |h, at| {
            batches += 1;
            bounds.insert(at, Offset(h.base_offset));
        })
        .await?;
        bounds.insert(r.end_pos, r.end);
        self.report.segments += 1;
        self.report.batches += batches;
        self.report.bytes += r.end_pos.0;
        for (from, to) in &r.damage {
            self.find(&name, Some(from.0), format!("damaged up to byte {to}"));
        }
        match next {
            Some(n) if r.end != n || r.torn > 0 => {
                self.find(
                    &name,
                    Some(r.end_pos.0),
                    format!("ends at offset {}, the next segment begins at {n}", r.end),
                );
            }
            Some(_) => {}
            None => self.report.unfinished += r.torn,
        }
        Ok((bounds, r.end))
    }

    /// Walks sealed bytes; every batch must be sound and follow the one before.
    async fn walk(
        &mut self,
        name: &str,
        file: std::sync::Arc<dyn crate::volume::VolumeFile>,
        end: Pos,
        base: Offset,
    ) -> Result<(Boundaries, Offset, Pos), VolumeError> {
        let mut bounds = Boundaries::new();
        let mut batches = 0;
        // A group limit of 0: whatever is bad in here is damage, since all of it was durable.
        let r = scan::recover(file, Pos::ZERO, end, base, 0, |h, at| {
            batches += 1;
            bounds.insert(at, Offset(h.base_offset));
        })
        .await?;
        bounds.insert(r.end_pos, r.end);
        self.report.segments += 1;
        self.report.batches += batches;
        self.report.bytes += r.end_pos.0;
        for (from, to) in &r.damage {
            self.find(name, Some(from.0), format!("damaged up to byte {to}"));
        }
        if r.torn > 0 {
            self.find(name, Some(r.end_pos.0), format!("{} damaged bytes before its end", r.torn));
        }
        Ok((bounds, r.end, r.end_pos))
    }

    async fn checkpoint(
        &mut self,
        m: &Manifest,
        bounds: &BTreeMap<SegmentName, Boundaries>,
    ) -> Result<(), VolumeError> {
        let name = names::checkpoint(m.epoch);
        let c = match self.document::<Checkpoint>(&name).await {
            Err(e) if e.is_not_found() => return Ok(()),
            r => r?,
        };
        let Some(c) = c else { return Ok(()) };
        if c.epoch != m.epoch || c.topic_id != m.topic_id {
            self.find(&name, None, "is of another epoch or topic");
            return Ok(());
        }
        let segment = SegmentName { base: c.segment, epoch: c.epoch };
        match bounds.get(&segment) {
            // Retention may have deleted the segment since.
            None if c.offset <= m.log_start => {}
            None => self.find(&name, None, format!("names {}, which is not there", segment.log())),
            Some(b) if b.get(&c.pos) == Some(&c.offset) => {}
            Some(_) => {
                let what = format!("names offset {} here, where no batch begins or ends so", c.offset);
                self.find(&segment.log(), Some(c.pos.0), format!("its checkpoint {what}"));
            }
        }
        Ok(())
    }

    async fn snapshot(&mut self, m: &Manifest) -> Result<(), VolumeError> {
        let name = names::producers(m.epoch);
        let s = match self.document::<ProducerSnapshot>(&name).await {
            Err(e) if e.is_not_found() && !m.has_producers => return Ok(()),
            Err(e) if e.is_not_found() => {
                self.find(&name, None, "is missing, and the manifest relies on it");
                return Ok(());
            }
            r => r?,
        };
        let Some(s) = s else { return Ok(()) };
        if s.offset > self.report.log_end {
            self.find(
                &name,
                None,
                format!("is at offset {}, past the log's end {}", s.offset, self.report.log_end),
            );
        }
        for p in &s.producers {
            if p.batches.iter().any(|b| b.last >= s.offset) {
                self.find(&name, None, format!("producer {} has batches past the snapshot's offset", p.id));
            }
        }
        Ok(())
    }

    async fn index(&mut self, s: SegmentName, bounds: &Boundaries) -> Result<(), VolumeError> {
        let name = s.index();
        let bytes = match docs::read_file(self.v, &format!("{}/{name}", self.dir)).await {
            Err(e) if e.is_not_found() => return Ok(()),
            r => r?,
        };
        let end = bounds.keys().next_back().copied().unwrap_or(Pos::ZERO);
        // Written at a later end than this reader saw of a growing segment: not judged.
        let Some(index) = Index::decode(&bytes, Pos(u64::MAX)) else {
            self.find(&name, None, "is damaged; it is rebuilt from the log when it is needed");
            return Ok(());
        };
        let wrong =
            index.entries().find(|(rel, pos)| *pos < end && bounds.get(pos) != Some(&s.base.plus(*rel)));
        if let Some((rel, pos)) = wrong {
            self.find(
                &name,
                None,
                format!("has offset {} at byte {pos}, where no such batch begins", s.base.plus(rel)),
            );
        }
        Ok(())
    }
}
