//! What a read_committed consumer is shown of a fetch response, as Kafka's own consumers go about it (KIP-98,
//! *Consumer Client*): the broker sends everything up to the last stable offset, and says which producers aborted
//! from which offset on.

use crate::history::BatchInfo;
use std::collections::BTreeSet;

/// A control record's type.
const ABORT: i16 = 0;

/// The base offsets of the batches that a consumer is shown. `aborted`: producer id and first offset, sorted by the latter, as
/// the response has them; consumers do not sort it again.
pub fn visible(batches: &[BatchInfo], aborted: &[(i64, i64)]) -> Vec<i64> {
    let mut still = aborted.iter().peekable();
    let mut aborting: BTreeSet<i64> = BTreeSet::new();
    let mut shown = Vec::new();
    for batch in batches {
        while let Some((id, _)) = still.next_if(|(_, first)| *first < batch.end()) {
            aborting.insert(*id);
        }
        match batch.control {
            Some(ABORT) => drop(aborting.remove(&batch.producer_id)),
            Some(_) => {}
            None if batch.is_transactional() && aborting.contains(&batch.producer_id) => {}
            None => shown.push(batch.base),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::records::{batch, marker, transactional, Identity};
    use bytes::Bytes;

    fn by(id: i64) -> Identity {
        Identity { id, epoch: 0, sequence: 0 }
    }

    fn log(parts: Vec<Bytes>) -> Vec<BatchInfo> {
        let parse =
            |(base, bytes): (i64, Bytes)| BatchInfo { base, ..BatchInfo::parse(&bytes).expect("whole") };
        (0..).zip(parts).map(parse).collect()
    }

    fn data(id: i64) -> Bytes {
        transactional(by(id), 0, &[Bytes::from_static(b"v")])
    }

    #[test]
    fn what_was_aborted_is_not_shown_and_what_its_producer_did_next_is() {
        let plain = batch(Identity::NONE, 0, &[Bytes::from_static(b"p")]);
        let log = log(vec![
            data(1),
            data(2),
            plain,
            marker(by(1), 0, false),
            data(1),
            marker(by(2), 0, true),
            marker(by(1), 0, true),
        ]);
        assert_eq!(visible(&log, &[(1, 0)]), [1, 2, 4]);
        assert_eq!(visible(&log, &[]), [0, 1, 2, 4]);
    }

    #[test]
    fn a_read_from_the_middle_of_an_aborted_transaction_on_shows_none_of_it() {
        let all = log(vec![data(1), data(1), marker(by(1), 0, false), data(1), marker(by(1), 0, false)]);
        assert_eq!(visible(&all[1..], &[(1, 0), (1, 3)]), [0i64; 0]);
    }
}
