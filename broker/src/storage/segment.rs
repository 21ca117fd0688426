//! One segment: a run of batches in one file, written by one leader epoch.

use super::aborted::Aborted;
use super::docs::Sealed;
use super::index::Index;
use super::names::SegmentName;
use super::scan::{Step, Walker};
use crate::types::{Offset, Pos};
use crate::volume::{self, VolumeFile};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::Arc;

/// "No timestamp", as in Kafka's batches.
const NO_TIMESTAMP: i64 = -1;

/// A segment that takes no more batches.
#[derive(Debug)]
pub struct Segment {
    pub sealed: Sealed,
    index: RwLock<Option<Arc<Index>>>,
    aborted: RwLock<Option<Arc<Vec<Aborted>>>>,
}

/// The segment that takes batches now.
#[derive(Debug)]
pub struct Active {
    pub name: SegmentName,
    /// Wall time (ms) of its creation.
    pub created: i64,
    pub index: RwLock<Index>,
    /// Aborted transactions with a marker in here, in the order of the markers.
    pub aborted: RwLock<Vec<Aborted>>,
    max_timestamp: AtomicI64,
    first_timestamp: AtomicI64,
}

impl Segment {
    /// What is not known here is read, or rebuilt, when it is needed.
    pub fn new(sealed: Sealed, index: Option<Index>, aborted: Option<Vec<Aborted>>) -> Arc<Segment> {
        let (index, aborted) = (index.map(Arc::new), aborted.map(Arc::new));
        Arc::new(Segment { sealed, index: RwLock::new(index), aborted: RwLock::new(aborted) })
    }

    pub fn known_aborted(&self) -> Option<Arc<Vec<Aborted>>> {
        self.aborted.read().clone()
    }

    pub fn learn_aborted(&self, entries: Vec<Aborted>) -> Arc<Vec<Aborted>> {
        let entries = Arc::new(entries);
        *self.aborted.write() = Some(entries.clone());
        entries
    }

    pub fn known_index(&self) -> Option<Arc<Index>> {
        self.index.read().clone()
    }

    /// Takes an index loaded from its file (or nothing) and walks what it does not cover.
    pub async fn complete_index(
        &self,
        loaded: Option<Index>,
        file: Arc<dyn VolumeFile>,
        interval: u64,
    ) -> volume::Result<Arc<Index>> {
        let mut index = loaded.unwrap_or_default();
        let s = &self.sealed;
        // The last entry is a batch of known offset: go on from there.
        let (rel, from) = index.lookup(i64::MAX);
        let mut walk = Walker::new(file, from, s.end_pos, s.base.plus(rel));
        if index.covered() >= s.end_pos {
            let index = Arc::new(index);
            *self.index.write() = Some(index.clone());
            return Ok(index);
        }
        loop {
            match walk.step().await? {
                Step::Batch(h, at) => {
                    let rel = h.base_offset.saturating_sub(s.base.0);
                    index.note(rel, at, at.plus(h.size), interval);
                }
                Step::Damaged(at) => {
                    if !walk.skip_to(at.plus(1)).await? {
                        break;
                    }
                }
                Step::End => break,
            }
        }
        let index = Arc::new(index);
        *self.index.write() = Some(index.clone());
        Ok(index)
    }
}

impl Active {
    pub fn new(name: SegmentName, created: i64) -> Active {
        Active {
            name,
            created,
            index: RwLock::default(),
            aborted: RwLock::default(),
            max_timestamp: AtomicI64::new(NO_TIMESTAMP),
            first_timestamp: AtomicI64::new(NO_TIMESTAMP),
        }
    }

    /// Notes the timestamps of a batch that was written.
    pub fn saw(&self, batch_max: i64) {
        self.max_timestamp.fetch_max(batch_max, Relaxed);
        if self.first_timestamp.load(Relaxed) == NO_TIMESTAMP {
            self.first_timestamp.store(batch_max, Relaxed);
        }
    }

    pub fn max_timestamp(&self) -> Option<i64> {
        Some(self.max_timestamp.load(Relaxed)).filter(|t| *t >= 0)
    }

    pub fn first_timestamp(&self) -> Option<i64> {
        Some(self.first_timestamp.load(Relaxed)).filter(|t| *t >= 0)
    }

    /// The description with which this segment is closed. One whose records have no timestamps is dated
    /// by `now` (wall ms), so that it has an age at all.
    pub fn seal(&self, end: Offset, end_pos: Pos, now: i64) -> Sealed {
        Sealed {
            epoch: self.name.epoch,
            base: self.name.base,
            end,
            end_pos,
            max_timestamp: self.max_timestamp().or(Some(now)),
            first_timestamp: self.first_timestamp(),
            damage: Vec::new(),
            aborted: None,
        }
    }
}
