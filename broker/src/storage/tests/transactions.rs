//! Transactions in one partition: markers, the last stable offset, aborted lists, and what of them survives.

use super::bed::*;
use crate::storage::batch::testing;
use crate::storage::*;
use crate::types::Offset;
use bytes::{Bytes, BytesMut};

pub const ID: i64 = 1000;

pub fn batch(id: i64, epoch: i16, sequence: i32) -> Bytes {
    let mut b = BytesMut::from(&testing::raw(1, b"x", 1000, (id, epoch, sequence))[..]);
    b[22] |= 0x10;
    testing::seal(b)
}

pub fn marker(id: i64, epoch: i16, commit: bool, number: u64) -> Marker {
    let number = Some(number);
    Marker { producer_id: id, producer_epoch: epoch, commit, coordinator_epoch: 5, number }
}

impl Bed {
    /// As Produce does it: asks the coordinator first, if need be. It says that transaction `number` is going on.
    pub async fn write(&self, id: i64, epoch: i16, sequence: i32, number: u64) -> Result<i64, AppendError> {
        if let Some(q) = self.partition.needs_verification(id, epoch).await? {
            assert!(self.partition.verified(q, number));
        }
        self.append(batch(id, epoch, sequence)).await.map(|a| a.base_offset.0)
    }

    /// As the coordinator drives it: sends a marker again with what it was told.
    pub async fn drive(&self, m: Marker) -> Result<(), MarkerError> {
        match self.partition.write_marker(m, None).await {
            Err(MarkerError::Unverified { first }) => self.partition.write_marker(m, Some(first)).await,
            other => other,
        }
    }

    pub async fn lso(&self) -> i64 {
        self.partition.marks().await.unwrap().lso.0
    }

    /// What a reader of committed records is given from `from` on: offsets, and the aborted ones of (id, first offset).
    pub async fn committed(&self, from: i64) -> (Vec<i64>, Vec<(i64, i64)>) {
        let bound = Bound::LastStable;
        let req = ReadRequest { from: Offset(from), max_bytes: 1 << 20, at_least_one: true, bound };
        let read = self.partition.read(req).await.unwrap();
        let offsets = batches(&read.records).iter().map(|(h, _)| h.base_offset).collect();
        (offsets, read.aborted.iter().map(|a| (a.producer_id, a.first.0)).collect())
    }

    /// Every record that a consumer of committed records shows, as Kafka's does it.
    pub async fn shown(&self) -> Vec<i64> {
        let (mut at, mut shown) = (self.marks().await.0, Vec::new());
        loop {
            let bound = Bound::LastStable;
            let req = ReadRequest { from: Offset(at), max_bytes: 300, at_least_one: true, bound };
            let read = self.partition.read(req).await.unwrap();
            if read.records.is_empty() {
                return shown;
            }
            let mut waiting: Vec<(i64, i64)> =
                read.aborted.iter().map(|a| (a.first.0, a.producer_id)).collect();
            assert!(waiting.is_sorted(), "by first offset");
            let mut aborting = std::collections::BTreeSet::new();
            for (h, bytes) in batches(&read.records) {
                at = h.next_offset().0;
                while waiting.first().is_some_and(|(first, _)| *first <= h.base_offset) {
                    aborting.insert(waiting.remove(0).1);
                }
                if h.is_control() {
                    if !marker::Written::parse(&bytes, &h).unwrap().commit {
                        aborting.remove(&h.producer_id);
                    }
                } else if !(h.is_transactional() && aborting.contains(&h.producer_id)) {
                    shown.push(h.base_offset);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_committed_records_stop_at_an_open_transaction_until_its_marker_is_durable() {
    let bed = Bed::new();
    bed.put("before").await;
    assert_eq!(bed.write(ID, 0, 0, 1).await, Ok(1));
    bed.put("after").await;
    assert_eq!((bed.lso().await, bed.committed(0).await.0), (1, vec![0]));
    bed.drive(marker(ID, 0, true, 1)).await.unwrap();
    assert_eq!((bed.lso().await, bed.committed(0).await), (4, (vec![0, 1, 2, 3], vec![])));
    assert_eq!(bed.shown().await, [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn an_aborted_transaction_is_listed_to_those_who_read_a_part_of_it_through_every_death() {
    for way in 0..4 {
        let mut bed = Bed::with(
            Default::default(),
            small(),
            crate::config::TopicConfig { segment_bytes: 200, ..small_topic() },
        );
        bed.write(ID, 0, 0, 1).await.unwrap();
        bed.put("between, 1").await;
        bed.write(ID, 0, 1, 1).await.unwrap();
        bed.put("between, 2, in another segment").await;
        bed.drive(marker(ID, 0, false, 1)).await.unwrap();
        bed.put("after").await;
        bed = match way {
            0 => bed,
            1 => {
                bed.engine.shutdown().await;
                bed.kill()
            }
            2 => bed.kill(),
            _ => bed.power_cut(way),
        };
        assert_eq!(bed.lso().await, 6, "way {way}");
        assert_eq!(bed.shown().await, [1, 3, 5], "way {way}");
        for from in 0..5 {
            assert_eq!(bed.committed(from).await.1, [(ID, 0)], "way {way}, from {from}");
        }
        assert_eq!(bed.committed(5).await.1, [], "way {way}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_that_the_coordinator_did_not_confirm_is_refused() {
    let bed = Bed::new();
    assert_eq!(bed.append(batch(ID, 0, 0)).await, Err(AppendError::InvalidTxnState));
    let q = bed.partition.needs_verification(ID, 0).await.unwrap().unwrap();
    // A marker comes by while the coordinator is asked: what it answered may be of before.
    bed.drive(marker(ID, 0, false, 1)).await.unwrap();
    assert!(!bed.partition.verified(q, 1));
    assert_eq!(bed.append(batch(ID, 0, 0)).await, Err(AppendError::InvalidTxnState));
    bed.drive(marker(ID, 0, false, 1)).await.unwrap();
    assert_eq!(bed.marks().await.1, 1, "it ended nothing, and is remembered to have come by, once");
    bed.write(ID, 0, 0, 2).await.unwrap();
    let plain = testing::raw(1, b"x", 1000, (ID, 0, 1));
    assert_eq!(bed.append(plain).await, Err(AppendError::InvalidTxnState), "outside of its transaction");
    // Confirmed under one life, sent under the next.
    let q = bed.partition.needs_verification(ID + 1, 0).await.unwrap().unwrap();
    let bed = bed.kill();
    bed.marks().await;
    assert!(!bed.partition.verified(q, 1));
}

#[tokio::test(start_paused = true)]
async fn a_marker_ends_its_own_transaction_only() {
    let bed = Bed::new();
    bed.write(ID, 0, 0, 1).await.unwrap();
    bed.drive(marker(ID, 0, true, 1)).await.unwrap();
    bed.drive(marker(ID, 0, true, 1)).await.unwrap();
    assert_eq!(bed.marks().await.1, 2, "told twice, written once");
    bed.write(ID, 0, 1, 2).await.unwrap();
    // Delayed on its way, long done, and of the same producer epoch.
    bed.drive(marker(ID, 0, false, 1)).await.unwrap();
    assert_eq!((bed.marks().await.1, bed.lso().await), (3, 2), "the next transaction stays open");
    let early = bed.partition.write_marker(marker(ID, 0, true, 3), None).await;
    assert_eq!(early, Err(MarkerError::OfAnother { got: 3, open: 2 }));
    let deposed = Marker { coordinator_epoch: 4, ..marker(ID, 0, true, 2) };
    let fenced = Err(MarkerError::CoordinatorFenced { got: 4, current: 5 });
    assert_eq!(bed.partition.write_marker(deposed, None).await, fenced);
    // A stock admin tool ends what is open.
    bed.partition.write_marker(Marker { number: None, ..marker(ID, 0, false, 0) }, None).await.unwrap();
    assert_eq!((bed.lso().await, bed.shown().await), (4, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_only_he_who_drives_the_marker_can_end_the_transaction() {
    let bed = Bed::new();
    bed.write(ID, 0, 0, 1).await.unwrap();
    bed.drive(marker(ID, 0, true, 1)).await.unwrap();
    bed.write(ID, 0, 1, 2).await.unwrap();
    let bed = bed.kill();
    assert_eq!(bed.lso().await, 2);
    // Delayed copies of the first marker: it is known to have been written, and whoever drives one ends nothing.
    for first in [None, Some(Offset(0)), Some(Offset(2))] {
        assert_eq!(bed.partition.write_marker(marker(ID, 0, true, 1), first).await, Ok(()));
        assert_eq!((bed.marks().await.1, bed.lso().await), (3, 2), "the next transaction stays open");
    }
    let unknown = Err(MarkerError::Unverified { first: Offset(2) });
    assert_eq!(bed.partition.write_marker(marker(ID, 0, true, 2), None).await, unknown);
    // What he was told of the transaction before this one does not help.
    let stale = bed.partition.write_marker(marker(ID, 0, true, 2), Some(Offset(0))).await;
    assert_eq!(stale, unknown);
    bed.drive(marker(ID, 0, true, 2)).await.unwrap();
    assert_eq!((bed.lso().await, bed.shown().await), (4, vec![0, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_zombie_is_fenced_where_it_writes_also_after_a_crash() {
    let bed = Bed::new();
    bed.write(ID, 3, 0, 1).await.unwrap();
    bed.drive(marker(ID, 4, false, 1)).await.unwrap();
    let fenced = Err(AppendError::InvalidProducerEpoch { got: 3, current: 4 });
    assert_eq!(bed.write(ID, 3, 1, 1).await, fenced.clone());
    let bed = bed.kill();
    assert_eq!(bed.write(ID, 3, 1, 1).await, fenced);
    let late = Err(MarkerError::InvalidProducerEpoch { got: 3, current: 4 });
    assert_eq!(bed.partition.write_marker(marker(ID, 3, true, 1), None).await, late);
    let skips = bed.write(ID, 4, 7, 2).await;
    assert_eq!(skips, Err(AppendError::OutOfOrderSequence { got: 7, expected: 0 }));
    assert_eq!(bed.write(ID, 4, 0, 2).await, Ok(2), "sequences begin anew");
}

#[tokio::test(start_paused = true)]
async fn a_producer_with_an_open_transaction_is_never_forgotten() {
    let bed = Bed::new();
    bed.write(ID, 0, 0, 1).await.unwrap();
    bed.clock.wall.fetch_add(400 * 24 * 3600 * 1000, std::sync::atomic::Ordering::SeqCst);
    for _ in 0..200 {
        bed.put("filler that makes the log grow past a checkpoint or two, so that producers are swept").await;
    }
    bed.engine.shutdown().await;
    let bed = bed.kill();
    assert_eq!(bed.lso().await, 0);
    assert!(bed
        .partition
        .active_producers()
        .await
        .unwrap()
        .iter()
        .any(|p| p.transaction_start == Some(Offset(0))));
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_is_not_durable_decides_nothing_yet() {
    let bed = Bed::new();
    bed.write(ID, 0, 0, 1).await.unwrap();
    bed.volume.delay(crate::volume::Op::Sync, ".log", std::time::Duration::from_secs(10));
    let p = bed.partition.clone();
    let plain = tokio::spawn(async move {
        let req = AppendRequest { records: testing::plain(1, b"x"), acks: Acks::All };
        p.start_append(req).await.unwrap().wait().await
    });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let p = bed.partition.clone();
    let told = tokio::spawn(async move { p.write_marker(marker(ID, 0, false, 1), None).await });
    // The group before it is published while it waits for its own sync.
    plain.await.unwrap().unwrap();
    assert_eq!((bed.marks().await.1, bed.lso().await, told.is_finished()), (2, 0, false));
    assert_eq!(bed.committed(0).await, (vec![], vec![]));
    told.await.unwrap().unwrap();
    assert_eq!((bed.lso().await, bed.shown().await), (3, vec![1]));
}
