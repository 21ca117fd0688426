//! What arrived at the partitions of a long poll since it looked.
//!
//! A reader of committed records sees bytes when a transaction ends, long after they came: for it, each move of a last stable
//! offset that an open transaction held back is worth a look.

use super::pass::Row;
use crate::storage::{Partition, WatchGuard};
use crate::types::Offset;
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
    /// The last stable offset that held a reader of committed records back.
    held_at: Option<Offset>,
    _guard: WatchGuard,
}

impl Arrivals {
    /// To be called before the partitions are read.
    pub fn watch(rows: &[Row], notify: &Arc<Notify>, committed: bool) -> Self {
        let sources = rows.iter().filter_map(|row| {
            let partition = row.partition.as_ref().ok()?.clone();
            let guard = partition.watch(notify);
            let held = partition.last_marks().filter(|m| committed && m.lso < m.hwm);
            Some(Source {
                at_start: partition.visible_bytes(),
                max_bytes: u64::try_from(row.asked.partition_max_bytes).unwrap_or(0),
                held_at: held.map(|m| m.lso),
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
        if self.sources.iter().any(Source::is_released) {
            return true;
        }
        sum >= missing as u64 || sum <= was
    }
}

impl Source {
    fn is_released(&self) -> bool {
        self.held_at.is_some_and(|at| self.partition.last_marks().is_none_or(|m| m.lso > at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::tests::bed::Bed;
    use crate::storage::tests::transactions::{marker, ID};
    use kafka_protocol::messages::fetch_request::FetchPartition;

    /// Much was written, in a transaction, before the readers came; its end is a hundred bytes.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_transaction_wakes_those_who_read_what_is_committed() {
        for committed in [true, false] {
            let bed = Bed::new();
            bed.write(ID, 0, 0, 1).await.unwrap();
            let asked = FetchPartition::default().with_partition_max_bytes(1 << 20);
            let rows = [Row { asked, partition: Ok(bed.partition.clone()) }];
            let notify = Arc::new(Notify::new());
            let mut arrivals = Arrivals::watch(&rows, &notify, committed);
            bed.put("plain").await;
            assert!(!arrivals.warrant_a_look(5000));
            bed.partition.write_marker(marker(ID, 0, true, 1), None).await.unwrap();
            assert_eq!(arrivals.warrant_a_look(5000), committed);
            // Nothing holds anybody back now: bytes are what counts.
            let mut arrivals = Arrivals::watch(&rows, &notify, committed);
            bed.put("plain").await;
            assert!(!arrivals.warrant_a_look(5000));
        }
    }
}
