//! Volumes that fail, hang or are full, and leases that end: nothing hangs, nothing wrong is acknowledged, and it
//! comes back by itself.

use super::bed::*;
use crate::config::StorageConfig;
use crate::storage::batch::testing;
use crate::storage::*;
use crate::types::Offset;
use crate::volume::{Hang, MemVolume, Op};
use rustix::io::Errno;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

async fn start(bed: &Bed, body: &str, acks: Acks) -> Ticket {
    let req = AppendRequest { records: testing::plain(1, body.as_bytes()), acks };
    bed.partition.start_append(req).await.unwrap()
}

/// Appends until it is taken again.
async fn put_when_back(bed: &Bed, body: &str) -> i64 {
    for _ in 0..1000 {
        if let Ok(a) = bed.append(testing::plain(1, body.as_bytes())).await {
            return a.base_offset.0;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the partition does not come back");
}

#[tokio::test(start_paused = true)]
async fn a_hung_sync_fails_its_waiters_in_time_and_the_partition_heals_under_a_new_epoch() {
    let bed = Bed::new();
    bed.put("acked").await;
    let epoch = bed.epoch().await;
    let hang = bed.volume.hang(Op::Sync, ".log");
    let before = tokio::time::Instant::now();
    let stuck = start(&bed, "stuck", Acks::All).await;
    assert!(matches!(stuck.wait().await, Err(AppendError::Storage(_))));
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(30) && waited <= Duration::from_secs(31), "{waited:?}");
    // The next ones fail fast, the durable part can be read.
    let before = tokio::time::Instant::now();
    assert!(matches!(bed.append(testing::plain(1, b"x")).await, Err(AppendError::Storage(_))));
    assert_eq!(bed.bodies(0).await, [(0, "acked".to_string())]);
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(bed.metrics.stalled_partitions.get(), 1);
    hang.release();
    put_when_back(&bed, "after").await;
    assert!(bed.epoch().await > epoch);
    assert_eq!(bed.metrics.stalled_partitions.get(), 0);
    let bed = bed.power_cut(3);
    let all = bed.bodies(0).await;
    assert_eq!(all.first().map(|b| b.1.as_str()), Some("acked"));
    assert_eq!(all.last().map(|b| b.1.as_str()), Some("after"));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_behind_several_slow_groups_is_answered_in_time_as_well() {
    // Each of them is fast enough for the watchdog.
    let bed = Bed::new();
    bed.put("acked").await;
    let first = bed.volume.hang(Op::Sync, ".log");
    let slow = start(&bed, "slow", Acks::All).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let behind = start(&bed, "behind", Acks::All).await;
    let before = tokio::time::Instant::now();
    let stages = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        first.release();
        let second = bed.volume.hang(Op::Sync, ".log");
        tokio::time::sleep(Duration::from_secs(20)).await;
        second.release();
    };
    let answered = async {
        let answer = behind.wait().await;
        assert!(matches!(answer, Err(AppendError::Storage(_))), "{answer:?}");
        before.elapsed()
    };
    let (slow, waited, ()) = futures::join!(slow.wait(), answered, stages);
    slow.expect("nothing was wrong with it");
    assert!(waited >= Duration::from_secs(30) && waited <= Duration::from_secs(31), "{waited:?}");
    // The partition led on all the time, and what was too late for its sender is there.
    let bodies: Vec<String> = bed.bodies(0).await.into_iter().map(|b| b.1).collect();
    assert_eq!(bodies, ["acked", "slow", "behind"]);
    assert_eq!(bed.metrics.stalled_partitions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_room_in_the_queue_is_answered_in_time_as_well() {
    let cramped = StorageConfig { queue_bytes: 1, ..small() };
    let bed = Bed::with(MemVolume::new(), cramped, small_topic());
    bed.put("acked").await;
    let hang = bed.volume.hang(Op::Sync, ".log");
    // One is with the volume, one in the queue; the others find no room, and when there is some only one of them gets it.
    let _slow = start(&bed, "slow", Acks::All).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let _queued = start(&bed, "queued", Acks::All).await;
    let before = tokio::time::Instant::now();
    let slow_groups = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        hang.release();
        let second = bed.volume.hang(Op::Sync, ".log");
        tokio::time::sleep(Duration::from_secs(20)).await;
        second.release();
    };
    let waits = || async {
        let answer = bed.append(testing::plain(1, b"waits")).await;
        assert!(matches!(answer, Err(AppendError::Storage(_))), "{answer:?}");
        before.elapsed()
    };
    let (one, other, ()) = futures::join!(waits(), waits(), slow_groups);
    for waited in [one, other] {
        assert!(waited >= Duration::from_secs(30) && waited <= Duration::from_secs(31), "{waited:?}");
    }
    assert_eq!(bed.metrics.stalled_partitions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_hung_partition_does_not_hold_up_another() {
    let bed = Bed::new();
    let other = bed.engine.attach(PartitionSpec {
        index: 1,
        dir: DIR.replace("/0", "/1"),
        ..bed.partition.spec().clone()
    });
    bed.put("a").await;
    let _hang = bed.volume.hang(Op::Sync, &format!("{DIR}/"));
    let _stuck = start(&bed, "b", Acks::All).await;
    let req = AppendRequest { records: testing::plain(1, b"c"), acks: Acks::All };
    let before = tokio::time::Instant::now();
    other.start_append(req).await.unwrap().wait().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn case_03_nothing_is_served_before_it_is_durable() {
    let bed = Bed::new();
    bed.put("x").await;
    let hang = bed.volume.hang(Op::Sync, ".log");
    let y = start(&bed, "y", Acks::Written).await;
    hang.caught(1).await;
    y.wait().await.expect("acks=1 is answered after the write");
    let got = bed.fetch(1, 1000).await.unwrap();
    assert!(
        got.records.is_empty() && got.marks.hwm.0 == 1,
        "case 34: the un-durable middle is empty, no error"
    );
    assert!(matches!(bed.fetch(3, 1000).await, Err(ReadError::OutOfRange(_))));
    for seed in 0..20 {
        // What a reader saw is what is there after the power went, whatever else survived.
        let bed2 = {
            bed.lease.0.store(0, SeqCst);
            bed.volume.power_cut(&crate::rt::SeededEntropy::new(seed));
            Bed::with(bed.volume.another_process(), bed.config.clone(), bed.topic.clone())
        };
        bed.volume.heal();
        let all = bed2.bodies(0).await;
        assert_eq!(all[0], (0, "x".into()));
    }
}

#[tokio::test]
async fn a_lease_that_ends_during_the_sync_takes_the_ack_with_it() {
    let bed = Bed::new();
    bed.put("a").await;
    let hang = bed.volume.hang(Op::Sync, ".log");
    let t = start(&bed, "b", Acks::All).await;
    hang.caught(1).await;
    bed.lease.0.store(0, SeqCst);
    hang.release();
    assert_eq!(t.wait().await, Err(AppendError::NotLeader));
    assert!(
        matches!(bed.fetch(0, 100).await, Err(ReadError::NotLeader)),
        "no marks are shown without a lease"
    );
    bed.lease.0.store(2, SeqCst);
    assert!(bed.epoch().await > 1, "led again only under a new epoch");
    assert_eq!(bed.bodies(0).await[0].1, "a");
}

#[tokio::test(start_paused = true)]
async fn a_stall_of_everything_fails_waiters_when_the_lease_ends_not_when_the_watchdog_does() {
    let bed = Bed::new();
    bed.put("a").await;
    let everything: Vec<Hang> = [Op::Sync, Op::Write, Op::Open].map(|op| bed.volume.hang(op, "")).into();
    let t = start(&bed, "b", Acks::All).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    bed.lease.0.store(0, SeqCst);
    bed.engine.drop_all();
    assert_eq!(t.wait().await, Err(AppendError::NotLeader));
    everything.iter().for_each(Hang::release);
    bed.lease.0.store(2, SeqCst);
    put_when_back(&bed, "c").await;
}

#[tokio::test(start_paused = true)]
async fn case_16_a_short_write_then_an_error_never_leads_to_an_append_after_an_unknown_tail() {
    for errno in [Errno::IO, Errno::TIMEDOUT] {
        let bed = Bed::new();
        bed.put("a").await;
        bed.volume.short_writes(".log", 30, 1);
        assert_eq!(bed.put("whole in two writes").await, 1);
        bed.volume.short_writes(".log", 30, 1);
        let t = start(&bed, "half", Acks::All).await;
        t.wait().await.unwrap();
        bed.volume.fail(Op::Write, ".log", errno, 1);
        let epoch = bed.epoch().await;
        assert!(matches!(start(&bed, "none", Acks::All).await.wait().await, Err(AppendError::Storage(_))));
        put_when_back(&bed, "after").await;
        assert!(bed.epoch().await > epoch);
        let bed = bed.kill();
        let bodies: Vec<String> = bed.bodies(0).await.into_iter().map(|b| b.1).collect();
        assert_eq!(bodies[..3], ["a", "whole in two writes", "half"]);
        assert_eq!(bodies.last().unwrap(), "after");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_is_never_retried_on_the_same_file() {
    let bed = Bed::new();
    bed.put("a").await;
    bed.volume.fail(Op::Sync, ".log", Errno::IO, 1);
    let lost = start(&bed, "in doubt", Acks::All).await;
    assert!(matches!(lost.wait().await, Err(AppendError::Storage(_))));
    let after = put_when_back(&bed, "after").await;
    // EIO left clean pages that are not on disk: a power cut now must not take what came later.
    for seed in 0..10 {
        bed.lease.0.store(0, SeqCst);
        bed.volume.power_cut(&crate::rt::SeededEntropy::new(seed));
        let b = Bed::with(bed.volume.another_process(), bed.config.clone(), bed.topic.clone());
        let all = b.bodies(0).await;
        assert_eq!(all[0].1, "a");
        assert!(all.contains(&(after, "after".into())), "{all:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn case_17_a_full_volume_refuses_serves_reads_and_recovers() {
    let bed = Bed::new();
    for i in 0..5 {
        bed.put(&format!("{i}")).await;
    }
    bed.volume.set_capacity(0);
    let mut refused = 0;
    for _ in 0..20 {
        let r = bed.append(testing::plain(1, &[b'x'; 5000])).await;
        refused += i32::from(matches!(r, Err(AppendError::Storage(_))));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(refused > 15);
    let kept: Vec<String> = bed.bodies(0).await.into_iter().map(|b| b.1).take(5).collect();
    assert_eq!(kept, ["0", "1", "2", "3", "4"]);
    bed.volume.set_capacity(1 << 30);
    put_when_back(&bed, "space again").await;
    let bed = bed.power_cut(1);
    let all = bed.bodies(0).await;
    assert_eq!(all[4].1, "4");
    assert_eq!(all.last().unwrap().1, "space again");
    for e in crate::volume::Volume::read_dir(&bed.volume, DIR, crate::volume::Class::Data).await.unwrap() {
        if e.name.ends_with(".json") {
            let f = crate::storage::docs::read_file(&bed.volume, &format!("{DIR}/{}", e.name)).await.unwrap();
            assert!(!f.is_empty(), "{} is empty", e.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn case_13_transient_errors_at_every_step_of_an_open_only_delay_it() {
    let ops =
        [Op::Open, Op::Create, Op::Read, Op::Len, Op::Rename, Op::ReadDir, Op::Sync, Op::SyncDir, Op::Write];
    for op in ops {
        for errno in [Errno::NOENT, Errno::STALE, Errno::IO, Errno::BUSY] {
            let mut bed = Bed::new();
            for i in 0..10 {
                bed.put(&format!("{i}")).await;
            }
            bed = bed.kill();
            bed.volume.fail(op, DIR, errno, 3);
            let mut tries = 0;
            let marks = loop {
                tries += 1;
                assert!(tries < 100, "{op:?} {errno:?} strands the open");
                match bed.partition.marks().await {
                    Ok(m) => break m,
                    Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            };
            assert_eq!(marks.hwm.0, 10, "{op:?} {errno:?}");
            assert_eq!(bed.bodies(0).await.len(), 10, "{op:?} {errno:?}");
        }
    }
}

#[tokio::test]
async fn case_12_epochs_only_rise_though_the_lease_comes_and_goes() {
    let bed = Bed::new();
    let mut last = 0;
    for lease in 2..10 {
        bed.put("x").await;
        let e = bed.epoch().await;
        assert!(e > last);
        last = e;
        bed.engine.drop_all();
        bed.lease.0.store(lease, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_comes_too_late_seals_nobody_off() {
    for op in [Op::ReadDir, Op::Create, Op::Write] {
        let bed = Bed::new();
        bed.put("a").await;
        bed.engine.drop_all();
        let hang = bed.volume.hang(op, &DIR[..DIR.len() - 2]);
        let late = bed.partition.clone();
        let late = tokio::spawn(async move { late.marks().await });
        hang.caught(1).await;
        // The lease ends; another broker leads and acknowledges.
        bed.lease.0.store(0, SeqCst);
        bed.engine.drop_all();
        let other = Bed::with(bed.volume.another_process(), bed.config.clone(), bed.topic.clone());
        let served = tokio::spawn(async move {
            let at = put_when_back(&other, "b").await;
            (other, at)
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        hang.release();
        let (other, at) = served.await.unwrap();
        drop(late.await);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(put_when_back(&other, "c").await, at + 1, "{op:?}");
        let after = other.kill();
        let bodies: Vec<String> = after.bodies(0).await.into_iter().map(|b| b.1).collect();
        assert_eq!(bodies, ["a", "b", "c"], "{op:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_topic_is_deleted_while_its_directory_is_made_claims_nothing() {
    let bed = Bed::new();
    let hang = bed.volume.hang(Op::Mkdir, DIR);
    let opener = bed.partition.clone();
    let opening = tokio::spawn(async move { opener.marks().await });
    hang.caught(1).await;
    bed.engine.abandon_topic(bed.partition.spec().topic_id).await;
    hang.release();
    drop(opening.await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let left = crate::volume::Volume::read_dir(&bed.volume, DIR, crate::volume::Class::Data).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_partition_is_counted_until_it_leads_again() {
    let bed = Bed::new();
    bed.put("a").await;
    bed.volume.set_capacity(0);
    assert!(bed.append(testing::plain(1, &[b'x'; 5000])).await.is_err());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bed.metrics.stalled_partitions.get(), 1);
    assert_eq!(bed.bodies(0).await[0].1, "a", "and its durable part is read");
    bed.volume.set_capacity(1 << 30);
    put_when_back(&bed, "b").await;
    assert_eq!(bed.metrics.stalled_partitions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn attempts_on_a_full_volume_leave_nothing_behind_that_keeps_it_full() {
    let bed = Bed::new();
    for i in 0..10 {
        bed.put(&format!("{i}{}", "x".repeat(80))).await;
    }
    let used = |bed: &Bed| {
        let v = bed.volume.clone();
        async move { crate::volume::Volume::read_dir(&v, DIR, crate::volume::Class::Data).await.unwrap() }
    };
    bed.volume.fail(Op::Write, ".log", Errno::NOSPC, 50);
    assert!(bed.append(testing::plain(1, b"refused")).await.is_err());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let names: Vec<String> = used(&bed).await.into_iter().map(|e| e.name).collect();
    let logs = names.iter().filter(|n| n.ends_with(".log")).count();
    assert!(logs <= 2 && !names.iter().any(|n| n.ends_with(".tmp")), "{names:?}");
}

/// A log whose file is being opened for a reader, and will be until the hang is released.
async fn with_an_open_that_hangs() -> (Bed, crate::volume::Hang, tokio::task::JoinHandle<()>) {
    let bed = Bed::new();
    bed.put("a").await;
    let bed = bed.kill();
    bed.partition.marks().await.unwrap();
    let hang = bed.volume.hang(Op::Open, "/00000002-0");
    let reader = bed.partition.clone();
    let bound = Bound::HighWatermark;
    let req = ReadRequest { from: Offset(0), max_bytes: 1000, at_least_one: true, bound };
    let read = tokio::spawn(async move { drop(reader.read(req).await) });
    hang.caught(1).await;
    (bed, hang, read)
}

#[tokio::test(start_paused = true)]
async fn a_file_that_was_being_opened_when_its_partition_ended_does_not_stay_open() {
    let (bed, hang, read) = with_an_open_that_hangs().await;
    let append = start(&bed, "b", Acks::All).await;
    hang.caught(2).await;
    bed.engine.abandon_topic(bed.partition.spec().topic_id).await;
    hang.release();
    assert!(append.wait().await.is_err());
    read.await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bed.metrics.open_files.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_was_being_opened_when_it_was_given_up_does_not_stay_open() {
    let (bed, hang, read) = with_an_open_that_hangs().await;
    let unlink = bed.volume.hang(Op::Unlink, "/00000002-0");
    let partition = bed.partition.clone();
    let purge = tokio::spawn(async move { partition.delete_records(None).await });
    // It was closed for the sake of this, and is opened only now.
    unlink.caught(1).await;
    hang.release();
    read.await.unwrap();
    assert_eq!(bed.metrics.open_files.get(), 0);
    unlink.release();
    purge.await.unwrap().unwrap();
}
