//! Crashes: what was acknowledged is there afterwards, at its offset, byte for byte.

use super::bed::*;
use crate::storage::batch::testing;

#[tokio::test]
async fn what_is_acknowledged_is_read_back_after_a_kill_and_after_a_power_cut() {
    let mut bed = Bed::new();
    let mut want = Vec::new();
    for life in 0..6 {
        for i in 0..20 {
            let body = format!("life {life} record {i}");
            let at = bed.put(&body).await;
            assert_eq!(at, want.len() as i64, "dense offsets");
            want.push((at, body));
        }
        bed = if life % 2 == 0 { bed.kill() } else { bed.power_cut(life) };
        assert_eq!(bed.bodies(0).await, want);
        assert_eq!(bed.marks().await, (0, want.len() as i64));
        assert_eq!(bed.epoch().await, life as u32 + 2);
    }
}

#[tokio::test]
async fn a_clean_stop_is_followed_by_an_open_that_reads_nothing_of_the_log() {
    let bed = Bed::new();
    for i in 0..500 {
        bed.put(&format!("record {i}")).await;
    }
    bed.engine.shutdown().await;
    let bed = bed.kill();
    bed.volume.reset_counts();
    assert_eq!(bed.marks().await, (0, 500));
    assert_eq!(bed.volume.counts_of(".log").bytes_read, 0);
    assert_eq!(bed.put("next").await, 500);
    assert_eq!(bed.bodies(0).await.len(), 501);
}

#[tokio::test]
async fn many_appends_share_a_sync() {
    let bed = Bed::new();
    bed.put("open").await;
    bed.volume.reset_counts();
    let mut tickets = Vec::new();
    for _ in 0..8 {
        let req = crate::storage::AppendRequest {
            records: testing::plain(1, b"x"),
            acks: crate::storage::Acks::All,
        };
        tickets.push(bed.partition.start_append(req).await.unwrap());
    }
    for t in tickets {
        t.wait().await.unwrap();
    }
    let c = bed.volume.counts_of(".log");
    assert!(c.syncs <= 2 && c.writes <= 2, "{c:?}");
}

use crate::config::TopicConfig;
use crate::rt::{Entropy, SeededEntropy};
use crate::storage::{Acks, AppendError, AppendRequest};
use crate::types::Offset;
use crate::volume::{MemVolume, Op};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// What a client knows: everything acknowledged, everything ever read, the highest marks seen.
#[derive(Default)]
struct Ledger {
    acked: BTreeMap<i64, String>,
    read: BTreeMap<i64, String>,
    start: i64,
    hwm: i64,
}

impl Ledger {
    /// Compares what is there with all that was promised (P1, P2, P3, P6).
    async fn check(&mut self, bed: &Bed, context: &str) {
        let (start, hwm) = loop {
            match bed.partition.marks().await {
                Ok(m) => break (m.log_start.0, m.hwm.0),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        };
        assert!(
            start >= self.start && hwm >= self.hwm,
            "{context}: marks {start}..{hwm} after {}..{}",
            self.start,
            self.hwm
        );
        (self.start, self.hwm) = (start, hwm);
        let now: BTreeMap<i64, String> = bed.bodies(start).await.into_iter().collect();
        assert!(now.keys().copied().eq(start..now.len() as i64 + start), "{context}: offsets are not dense");
        for (promise, known) in [("acknowledged", &self.acked), ("read", &self.read)] {
            for (at, body) in known.range(start..) {
                assert_eq!(now.get(at), Some(body), "{context}: {promise} at {at}");
            }
        }
        self.read = now;
    }
}

/// A life of one partition: appends, rolls, purges, failing and torn writes, kills and power cuts, drawn by
/// the seed.
async fn life(seed: u64) {
    let dice = SeededEntropy::new(seed);
    let roll = |n: u64| dice.u64() % n;
    let topic = TopicConfig { segment_bytes: 300 + roll(3000), ..small_topic() };
    let mut config = small();
    config.group_bytes = 100 + roll(2000);
    config.checkpoint_bytes = 200 + roll(3000);
    let mut bed = Bed::with(MemVolume::new(), config, topic);
    let mut ledger = Ledger::default();
    let mut n = 0;
    for step in 0..60 {
        let context = format!("seed {seed} step {step}");
        match roll(12) {
            0 => bed = bed.kill(),
            1 => bed = bed.power_cut(seed * 1000 + step),
            2 => {
                bed.engine.shutdown().await;
                bed = if roll(2) == 0 { bed.kill() } else { bed.power_cut(seed + step) };
            }
            3 => {
                let (start, hwm) = (ledger.start, ledger.hwm);
                let to = start + roll((hwm - start + 1) as u64) as i64;
                if let Ok(at) = bed.partition.delete_records(Some(Offset(to))).await {
                    ledger.start = ledger.start.max(at.0);
                }
            }
            4 => bed.volume.fail([Op::Sync, Op::Write, Op::Create][roll(3) as usize], ".log", Errno::IO, 1),
            5 => bed.volume.short_writes(".log", 1 + roll(80) as usize, 1),
            6 => bed.volume.fail([Op::Rename, Op::SyncDir, Op::Sync][roll(3) as usize], "t/", Errno::IO, 1),
            _ => {
                let mut tickets = Vec::new();
                for _ in 0..1 + roll(8) {
                    n += 1;
                    let body = format!("{n}{}", "x".repeat(roll(120) as usize));
                    let acks = if roll(4) == 0 { Acks::Written } else { Acks::All };
                    let records = testing::plain(1, body.as_bytes());
                    match bed.partition.start_append(AppendRequest { records, acks }).await {
                        Ok(t) => tickets.push((t, body, acks)),
                        Err(AppendError::Storage(_) | AppendError::NotLeader) => {}
                        Err(e) => panic!("{context}: {e}"),
                    }
                }
                // Sometimes the crash comes while they are on their way.
                for _ in 0..roll(6) {
                    tokio::task::yield_now().await;
                }
                if roll(5) == 0 {
                    bed = if roll(2) == 0 { bed.kill() } else { bed.power_cut(seed ^ step) };
                }
                for (t, body, acks) in tickets {
                    if let (Ok(a), Acks::All) = (t.wait().await, acks) {
                        ledger.acked.insert(a.base_offset.0, body);
                    }
                }
            }
        }
        bed.volume.heal();
        ledger.check(&bed, &context).await;
    }
}

#[tokio::test(start_paused = true)]
async fn random_lives_keep_every_promise() {
    for seed in 0..150 {
        life(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_crash_is_answered_with_the_first_place_and_the_next_batch_is_taken() {
    for cut in [false, true] {
        for clean in [false, true] {
            let mut bed = Bed::new();
            for seq in 0..12 {
                let batch = testing::raw(1, format!("{seq}").as_bytes(), 1000, (77, 0, seq));
                assert_eq!(bed.append(batch.clone()).await.unwrap().base_offset.0, seq as i64);
                if clean {
                    bed.engine.shutdown().await;
                }
                bed = if cut { bed.power_cut(seq as u64) } else { bed.kill() };
                let again = bed.append(batch).await.unwrap();
                assert_eq!(again.base_offset.0, seq as i64, "hole 14: appended twice");
            }
            let gap = testing::raw(1, b"gap", 1000, (77, 0, 20));
            assert!(matches!(bed.append(gap).await, Err(AppendError::OutOfOrderSequence { .. })));
            assert_eq!(bed.bodies(0).await.len(), 12);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_dial_above_one_only_the_unflushed_is_lost_and_the_log_stays_clean() {
    let topic = TopicConfig { flush_messages: 10, ..small_topic() };
    let mut lost = 0;
    for seed in 0..40 {
        let bed = Bed::with(MemVolume::new(), small(), topic.clone());
        for i in 0..25 {
            bed.put(&format!("{i}")).await;
            assert_eq!(bed.marks().await.1, i + 1, "the high watermark is the log end");
        }
        let bed = bed.power_cut(seed);
        let left = bed.bodies(0).await;
        assert!(left.len() >= 20, "what was flushed stays");
        assert!(left.iter().enumerate().all(|(i, b)| b.0 == i as i64 && b.1 == format!("{i}")));
        lost += 25 - left.len();
        bed.put("goes on").await;
    }
    assert!(lost > 0, "a dial above 1 must be able to lose something, or this tests nothing");
}

#[tokio::test(start_paused = true)]
async fn case_04_a_rolled_segment_and_a_replaced_file_keep_their_names_through_a_power_cut() {
    for seed in 0..40 {
        // Every second batch rolls, every one moves the checkpoint.
        let topic = TopicConfig { segment_bytes: 150, ..small_topic() };
        let config = crate::config::StorageConfig { checkpoint_bytes: 1, ..small() };
        let bed = Bed::with(MemVolume::new(), config, topic);
        let n = 1 + seed as i64 % 9;
        for i in 0..n {
            bed.put(&format!("{i}")).await;
        }
        let to = bed.partition.delete_records(Some(Offset(n / 2))).await.unwrap().0;
        let bed = bed.power_cut(seed);
        assert_eq!(bed.marks().await, (to, n), "seed {seed}");
        assert_eq!(bed.bodies(to).await.len() as i64, n - to, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn giving_up_the_whole_log_does_not_forget_its_producers() {
    for way in 0..4 {
        // Longer than the sweep's leap in time: who is silent for long is forgotten by right.
        let producer_expiry = std::time::Duration::from_secs(30 * 24 * 3600);
        let config = crate::config::StorageConfig { producer_expiry, ..small() };
        let topic = TopicConfig { segment_bytes: 300, ..small_topic() };
        let mut bed = Bed::with(MemVolume::new(), config, topic);
        let batch = |seq: i32| testing::raw(1, b"x", 1000, (1000, 0, seq));
        for seq in 0..20 {
            bed.append(batch(seq)).await.unwrap();
        }
        if way % 2 == 1 {
            bed.engine.shutdown().await;
            bed = bed.kill();
            for seq in 20..23 {
                bed.append(batch(seq)).await.unwrap();
            }
        }
        let n = bed.marks().await.1;
        if way < 2 {
            bed.partition.delete_records(None).await.unwrap();
        } else {
            bed.clock.wall.fetch_add(8 * 24 * 3600 * 1000, std::sync::atomic::Ordering::SeqCst);
            bed.engine.sweep().await;
        }
        assert_eq!(bed.marks().await, (n, n), "way {way}");
        let bed = bed.power_cut(way);
        let again = bed.append(batch(n as i32 - 1)).await;
        assert_eq!(again.map(|a| a.base_offset.0), Ok(n - 1), "way {way}: a retry is known");
        assert_eq!(bed.append(batch(n as i32)).await.unwrap().base_offset.0, n, "way {way}");
    }
}
