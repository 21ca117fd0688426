//! Partitions.

use super::{Broker, Flaw, Line};
use crate::client::records::{marker, Identity};
use crate::history::BatchInfo;
use bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Log {
    pub batches: Vec<(BatchInfo, Bytes)>,
    /// Epoch, the sequence that is next, and the batches so far.
    producers: BTreeMap<i64, (i16, i32, BTreeMap<i32, i64>)>,
    /// Of open transactions, the first offset.
    pub open: BTreeMap<i64, i64>,
    pub aborted: Vec<(i64, i64)>,
}

impl Log {
    pub fn end(&self) -> i64 {
        self.batches.last().map_or(0, |(b, _)| b.end())
    }

    pub fn stable_end(&self) -> i64 {
        self.open.values().copied().min().unwrap_or(self.end())
    }

    fn push(&mut self, bytes: &[u8]) -> i64 {
        let base = self.end();
        let mut stored = bytes.to_vec();
        stored[..8].copy_from_slice(&base.to_be_bytes());
        stored[12..16].copy_from_slice(&1i32.to_be_bytes());
        let batch = BatchInfo::parse(&stored).expect("a batch");
        self.batches.push((batch, stored.into()));
        base
    }

    pub fn mark(&mut self, id: i64, epoch: i16, commit: bool) {
        let bytes = marker(Identity { id, epoch, sequence: -1 }, 0, commit);
        self.push(&bytes);
        if let Some(first) = self.open.remove(&id).filter(|_| !commit) {
            self.aborted.push((id, first));
            self.aborted.sort_by_key(|(_, first)| *first);
        }
        let known = self.producers.entry(id).or_default();
        if known.0 < epoch {
            *known = (epoch, 0, BTreeMap::new());
        }
    }
}

impl Broker {
    /// The base offset, or why not.
    pub fn append(&mut self, txn: Option<&str>, line: &Line, bytes: &[u8], adds: bool) -> Result<i64, i16> {
        let batch = BatchInfo::parse(bytes).ok_or(2i16)?;
        let (id, epoch) = (batch.producer_id, batch.producer_epoch);
        let checks = self.flaw != Flaw::ZombiesWrite;
        let log = self.logs.get(line).ok_or(3i16)?;
        // One of an older epoch is being ended.
        let is_open = log.open.contains_key(&id) && log.producers.get(&id).is_some_and(|p| p.0 == epoch);
        if let (Some(txn), false) = (txn, is_open) {
            if checks {
                self.verify(txn, (id, epoch), line, adds)?;
            }
        }
        let log = self.logs.get_mut(line).ok_or(3i16)?;
        if id >= 0 {
            let known = log.producers.entry(id).or_insert((epoch, 0, BTreeMap::new()));
            if epoch < known.0 && checks {
                return Err(47);
            }
            let again = known.2.get(&batch.base_sequence).filter(|_| epoch == known.0);
            match again {
                Some(_) if self.flaw == Flaw::RetriesAppended => return Ok(log.push(bytes)),
                Some(base) => return Ok(*base),
                None => {}
            }
            if epoch > known.0 {
                *known = (epoch, 0, BTreeMap::new());
            }
            if batch.base_sequence != known.1 && checks {
                return Err(45);
            }
            known.1 = batch.base_sequence + batch.last_delta + 1;
        }
        let base = log.push(bytes);
        if let Some(known) = log.producers.get_mut(&id) {
            known.2.insert(batch.base_sequence, base);
        }
        if txn.is_some() {
            log.open.entry(id).or_insert(base);
        }
        Ok(base)
    }
}
