//! What arrived at the partitions of a long poll since it looked.

use super::pass::Row;
use crate::storage::{Partition, WatchGuard};
use std::sync::Arc;
use tokio::sync::Notify;

/// Keeps the long poll registered with its partitions.
pub(super) struct Arrivals {
    sources: Vec<Source>,
    /// Sum at the last call of [`Arrivals::warrant_a_look`].
    seen: u64,
}

struct Source {
    partition: Arc<Partition>,
    at_start: u64,
    /// More than this in one partition would not be returned.
    max_bytes: u64,
    _guard: WatchGuard,
}

impl Arrivals {
    /// To be called before the partitions are read.
    pub fn watch(rows: &[Row], notify: &Arc<Notify>) -> Self {
        let sources = rows.iter().filter_map(|row| {
            let partition = row.partition.as_ref().ok()?.clone();
            let guard = partition.watch(notify);
            Some(Source {
                at_start: partition.visible_bytes(),
                max_bytes: u64::try_from(row.asked.partition_max_bytes).unwrap_or(0),
                partition,
                _guard: guard,
            })
        });
        Arrivals { sources: sources.collect(), seen: 0 }
    }

    /// After a notification: whether at least `missing` bytes arrived, or something else happened (a new
    /// epoch, a lost lease, a deleted topic), which is taken from a notification without bytes.
    pub fn warrant_a_look(&mut self, missing: usize) -> bool {
        let mut sum = 0u64;
        for s in &self.sources {
            // The counter only grows, over all lives of the partition.
            let arrived = s.partition.visible_bytes().saturating_sub(s.at_start);
            sum = sum.saturating_add(arrived.min(s.max_bytes.max(1)));
        }
        let was = std::mem::replace(&mut self.seen, sum);
        sum >= missing as u64 || sum <= was
    }
}
