//! Lists of aborted transactions, and what recovery makes of transactions: through rolls, crashes at each step, damage and
//! retention.

use super::bed::*;
use super::transactions::{batch, marker, ID};
use crate::config::{StorageConfig, TopicConfig};
use crate::storage::docs::{self, Checkpoint, Sealed};
use crate::storage::names::{self, FileName, SegmentName};
use crate::storage::recovery::ProducerSnapshot;
use crate::storage::*;
use crate::types::{Epoch, Offset, Pos, TopicId};
use crate::volume::{Class, MemVolume, Op, Volume};
use bytes::Bytes;
use rustix::io::Errno;

fn tiny_segments() -> Bed {
    Bed::with(MemVolume::new(), small(), TopicConfig { segment_bytes: 300, ..small_topic() })
}

async fn lists(bed: &Bed) -> Vec<SegmentName> {
    let entries = bed.volume.read_dir(DIR, Class::Data).await.unwrap();
    let list = |name: &str| match FileName::parse(name) {
        Some(FileName::Aborted(s)) => Some(s),
        _ => None,
    };
    let mut lists: Vec<SegmentName> = entries.iter().filter_map(|e| list(&e.name)).collect();
    lists.sort();
    lists
}

async fn findings(bed: &Bed) -> Vec<verify::Finding> {
    verify::partition(&bed.volume, DIR, (TopicId(uuid::Uuid::from_u128(7)), 0)).await.unwrap().findings
}

/// Aborted transactions of three records each, with a plain one between, in many segments. Returns what a reader of
/// committed records is to be shown.
async fn aborts(bed: &Bed, from: u64, n: u64) -> Vec<i64> {
    let mut shown = Vec::new();
    for number in from..from + n {
        for i in 0..3 {
            bed.write(ID, 0, (number * 3 + i) as i32, number).await.unwrap();
        }
        shown.push(bed.put("plain").await);
        bed.drive(marker(ID, 0, false, number)).await.unwrap();
    }
    shown
}

/// Two transactions that take turns, one of them open over several segments.
#[tokio::test(start_paused = true)]
async fn a_transaction_over_several_segments_is_listed_once_and_found_from_each_of_them() {
    for way in 0..3 {
        let mut bed = tiny_segments();
        bed.write(ID + 1, 0, 0, 1).await.unwrap();
        aborts(&bed, 0, 6).await;
        let last = bed.write(ID + 1, 0, 1, 1).await.unwrap();
        assert_eq!(bed.lso().await, 0, "the oldest one is open");
        bed.drive(marker(ID + 1, 0, false, 1)).await.unwrap();
        bed = match way {
            0 => bed,
            1 => bed.kill(),
            _ => bed.power_cut(7),
        };
        assert!(lists(&bed).await.len() > 2, "way {way}");
        for from in 0..=last {
            let found = bed.committed(from).await.1;
            let long = found.iter().filter(|a| **a == (ID + 1, 0)).count();
            assert_eq!(long, 1, "way {way}, from {from}: {found:?}");
        }
        assert_eq!(bed.committed(last + 1).await.1, [(ID + 1, 0)], "its marker is there, too");
        assert_eq!(bed.committed(last + 2).await.1, []);
        assert_eq!(findings(&bed).await, [], "way {way}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_of_closed_segments_scans_none_of_them() {
    let bed = tiny_segments();
    let shown = aborts(&bed, 0, 8).await;
    bed.engine.shutdown().await;
    let bed = bed.kill();
    bed.volume.reset_counts();
    assert_eq!(bed.lso().await, 40);
    assert_eq!(bed.volume.counts_of(".log").bytes_read, 0, "a clean stop leaves nothing to scan");
    assert_eq!(bed.committed(0).await.1.first(), Some(&(ID, 0)));
    let counts = bed.volume.counts_of("-00000000000000000000.log");
    assert_eq!(bed.volume.counts_of(".log").bytes_read, counts.bytes_read, "the one that was asked for");
    assert_eq!(bed.shown().await, shown);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_missing_or_wrong_is_found_and_changes_nothing() {
    let bed = tiny_segments();
    let shown = aborts(&bed, 0, 8).await;
    bed.engine.shutdown().await;
    let mut bed = bed.kill();
    bed.marks().await;
    for damage in 0..4 {
        for list in lists(&bed).await {
            let path = format!("{DIR}/{}", list.aborted());
            let f = bed.volume.open_write(&path, Class::Data).await.unwrap();
            match damage {
                0 => f.truncate(7).await.unwrap(),
                1 => drop(f.write_at(16, vec![Bytes::from(vec![0xff; 8])]).await.unwrap()),
                2 => f.truncate(0).await.unwrap(),
                _ => bed.volume.unlink(&path).await.unwrap(),
            }
        }
        assert!(!findings(&bed).await.is_empty(), "damage {damage}");
        assert_eq!(bed.shown().await, shown, "damage {damage}");
        bed.engine.shutdown().await;
        bed = bed.kill();
        assert_eq!(bed.shown().await, shown, "damage {damage}, the next leader");
    }
}

#[tokio::test(start_paused = true)]
async fn each_step_of_closing_a_segment_may_fail() {
    for op in [Op::Create, Op::Write, Op::Sync, Op::Rename] {
        for cut in [false, true] {
            let bed = tiny_segments();
            bed.put("open").await;
            bed.volume.fail(op, ".aborted", Errno::IO, 1);
            let mut ended = 0;
            for number in 0..8 {
                // A failed roll takes the batch in line with it; the producer tries again.
                let mut sequence = 0;
                while sequence < 2 {
                    match bed.write(ID + number as i64, 0, sequence, number).await {
                        Ok(_) => sequence += 1,
                        Err(AppendError::Storage(_) | AppendError::NotLeader) => {
                            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                        }
                        Err(e) => panic!("{op:?}: {e}"),
                    }
                }
                while bed.drive(marker(ID + number as i64, 0, false, number)).await.is_err() {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                ended += 1;
            }
            assert!(bed.epoch().await > 1, "{op:?}: the failure was met");
            let bed = if cut { bed.power_cut(3) } else { bed.kill() };
            assert_eq!((bed.shown().await, ended), (vec![0], 8), "{op:?}, power cut {cut}");
            assert_eq!(findings(&bed).await, [], "{op:?}, power cut {cut}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lists_go_with_their_segments_and_with_the_epochs_that_are_given_up() {
    let bed = tiny_segments();
    aborts(&bed, 0, 8).await;
    let mut bed = bed.kill();
    let to = bed.marks().await.1 - 6;
    for _ in 0..3 {
        // The one segment that is left open is listed anew by each leader.
        aborts(&bed, 8, 1).await;
        bed = bed.kill();
        bed.marks().await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert!(lists(&bed).await.len() > 3);
    bed.partition.delete_records(Some(Offset(to))).await.unwrap();
    let left = lists(&bed).await;
    let view = bed.partition.view.load_full().unwrap();
    let named: Vec<SegmentName> = view.segments.iter().filter_map(|s| s.sealed.aborted_name()).collect();
    assert!(left.iter().all(|l| named.contains(l)) && named.len() == left.len(), "{left:?} for {named:?}");
    bed.partition.delete_records(None).await.unwrap();
    assert_eq!(lists(&bed).await, []);
    let end = bed.marks().await.1;
    assert_eq!((bed.lso().await, bed.shown().await), (end, vec![]));
    let bed = bed.kill();
    assert_eq!((bed.lso().await, bed.shown().await, lists(&bed).await), (end, vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn records_of_an_open_transaction_may_be_deleted_and_it_still_ends() {
    for way in 0..3 {
        let bed = tiny_segments();
        bed.write(ID, 0, 0, 1).await.unwrap();
        for _ in 0..6 {
            bed.put("behind it").await;
        }
        bed.partition.delete_records(Some(Offset(5))).await.unwrap();
        assert_eq!((bed.marks().await, bed.lso().await), ((5, 7), 5), "the log start is decided");
        let bed = match way {
            0 => bed,
            1 => bed.kill(),
            _ => bed.power_cut(1),
        };
        assert_eq!((bed.marks().await, bed.lso().await), ((5, 7), 5), "way {way}");
        bed.drive(marker(ID, 0, false, 1)).await.unwrap();
        assert_eq!((bed.lso().await, bed.shown().await), (8, vec![5, 6]), "way {way}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_dial_never_takes_a_marker_back() {
    for seed in 0..30 {
        let topic = TopicConfig { flush_messages: 1000, ..small_topic() };
        let bed = Bed::with(MemVolume::new(), small(), topic);
        bed.write(ID, 0, 0, 1).await.unwrap();
        bed.put("plain").await;
        bed.drive(marker(ID, 0, true, 1)).await.unwrap();
        bed.put("may be lost").await;
        let bed = bed.power_cut(seed);
        assert_eq!(
            bed.shown().await[..2],
            [0, 1],
            "seed {seed}: the coordinator was told that it is durable"
        );
        bed.drive(marker(ID, 0, true, 1)).await.unwrap();
        assert!(bed.marks().await.1 <= 4, "seed {seed}: written once");
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_of_an_open_transaction_is_in_the_snapshot() {
    let bed = Bed::new();
    bed.write(ID, 0, 0, 4).await.unwrap();
    bed.engine.shutdown().await;
    let bed = bed.kill();
    let other = bed.partition.write_marker(marker(ID, 0, true, 5), None).await;
    assert_eq!(other, Err(MarkerError::OfAnother { got: 5, open: 4 }));
    assert_eq!(bed.partition.write_marker(marker(ID, 0, true, 3), None).await, Ok(()), "of before");
    assert_eq!(bed.lso().await, 0);
    bed.partition.write_marker(marker(ID, 0, true, 4), None).await.unwrap();
    assert_eq!((bed.lso().await, bed.shown().await), (2, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_from_beyond_the_log_is_not_believed() {
    let bed = Bed::new();
    bed.put("plain").await;
    bed.write(ID, 0, 0, 1).await.unwrap();
    bed.drive(marker(ID, 0, false, 1)).await.unwrap();
    bed.write(ID, 0, 1, 2).await.unwrap();
    let epoch = Epoch(bed.epoch().await);
    bed.engine.shutdown().await;
    let bed = bed.kill();
    let path = format!("{DIR}/{}", names::producers(epoch));
    let mut s: ProducerSnapshot = docs::read(&bed.volume, &path).await.unwrap();
    assert_eq!(s.producers[0].standing.open.map(|o| o.first), Some(Offset(3)));
    // It says that the open transaction ended, at an offset that the log does not have.
    s.offset = s.offset.plus(3);
    (s.producers[0].standing.open, s.producers[0].standing.ended) = (None, Some(2));
    docs::replace(&bed.volume, DIR, &names::producers(epoch), 77, docs::encode(&s)).await.unwrap();
    assert_eq!((bed.lso().await, bed.shown().await), (3, vec![0]));
    bed.drive(marker(ID, 0, true, 2)).await.unwrap();
    assert_eq!(bed.shown().await, [0, 3]);
}

/// What the version before transactions wrote.
#[test]
fn documents_of_before_transactions_are_read() {
    let sealed = r#"{"epoch":1,"base":0,"end":9,"end_pos":900}"#;
    let s: Sealed = serde_json::from_str(sealed).unwrap();
    assert_eq!((s.end_pos, s.aborted), (Pos(900), None));
    assert_eq!(serde_json::to_string(&s).unwrap(), sealed, "and those of no transactions stay as they were");
    let id = uuid::Uuid::from_u128(7);
    let c = format!(
        r#"{{"format":1,"topic_id":"{id}","epoch":2,"segment":0,"pos":10,"offset":1,"closed":[{sealed}],"has_producers":true}}"#
    );
    let c: Checkpoint = serde_json::from_str(&c).unwrap();
    assert_eq!((c.offset, c.aborted, c.closed), (Offset(1), vec![], vec![s]));
    let s = format!(
        r#"{{"format":1,"topic_id":"{id}","epoch":2,"offset":1,"producers":[{{"id":7,"seen":5,"batches":[
        {{"epoch":0,"first_sequence":0,"last_sequence":0,"base":0,"last":0,"timestamp":3}}]}}]}}"#
    );
    let s: ProducerSnapshot = serde_json::from_str(&s).unwrap();
    assert!(s.producers[0].standing.is_default());
}

/// Whatever becomes of the process while a marker is on its way: told again, it is there, and once.
#[tokio::test(start_paused = true)]
async fn a_marker_that_a_crash_met_on_its_way_is_written_once() {
    for steps in 0..40 {
        for cut in [false, true] {
            let config = StorageConfig { checkpoint_bytes: 1, ..small() };
            let topic = TopicConfig { segment_bytes: 200, ..small_topic() };
            let bed = Bed::with(MemVolume::new(), config, topic);
            bed.put("plain").await;
            bed.write(ID, 0, 0, 1).await.unwrap();
            bed.put("plain").await;
            let p = bed.partition.clone();
            let on_its_way = tokio::spawn(async move { p.write_marker(marker(ID, 0, false, 1), None).await });
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            let was_done = on_its_way.is_finished();
            let bed = if cut { bed.power_cut(steps) } else { bed.kill() };
            drop(on_its_way);
            let stable = bed.lso().await;
            assert!(!was_done || stable == 4, "{steps} steps: what was durable is so");
            bed.drive(marker(ID, 0, false, 1)).await.unwrap();
            bed.drive(marker(ID, 0, false, 1)).await.unwrap();
            let context = format!("{steps} steps, power cut {cut}");
            assert_eq!((bed.marks().await.1, bed.lso().await), (4, 4), "{context}");
            assert_eq!(bed.shown().await, [0, 2], "{context}");
            assert_eq!(bed.append(batch(ID, 0, 1)).await, Err(AppendError::InvalidTxnState), "{context}");
            assert_eq!(findings(&bed).await, [], "{context}");
        }
    }
}
