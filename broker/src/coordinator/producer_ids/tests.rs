//! No id is given out twice: names and blocks alone, then brokers on a volume that fails them.

use super::*;
use crate::rt::{Entropy, OsClock, SeededEntropy, SoloHost};
use crate::storage::Unfenced;
use crate::volume::{MemVolume, Op};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

const PATIENCE: Duration = Duration::from_secs(30);

fn entry(name: &str, kind: EntryKind) -> Entry {
    Entry { name: name.into(), kind }
}

#[test]
fn only_names_that_a_claim_makes_are_blocks() {
    let entries = [
        entry("0000000000000007.block", EntryKind::File),
        entry("00000000000000ff.block", EntryKind::File),
        entry("00000000000000FE.block", EntryKind::File),
        entry("fff.block", EntryKind::File),
        entry("+000000000000fff.block", EntryKind::File),
        entry(".nfs0000000000000fff", EntryKind::File),
        entry("0000000000000fff.block", EntryKind::Dir),
        entry("0000000000000fff.tmp", EntryKind::File),
    ];
    assert_eq!(block_numbers(&entries), [7, 255]);
}

#[test]
fn a_block_gives_a_thousand_ids_and_no_more() {
    let mut block = Block::new(1, 3).unwrap();
    let ids: Vec<i64> = std::iter::from_fn(|| block.take()).collect();
    assert_eq!(ids, (3000..4000).collect::<Vec<i64>>());
}

#[test]
fn blocks_end_where_the_ids_of_the_wire_end() {
    let last = (i64::MAX / BLOCK_IDS) as u64 - 1;
    assert!(Block::new(1, last).is_some());
    assert!(Block::new(1, last + 2).is_none());
    assert!(Block::new(1, u64::MAX).is_none());
    assert!(successor(Some(u64::MAX)).is_err());
}

/// A lease that a test ends and begins again, under another token.
#[derive(Default)]
struct HandFence(AtomicU64);

impl HandFence {
    /// Odd: between two leases.
    fn step(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Fence for HandFence {
    fn right(&self) -> Option<u64> {
        let n = self.0.load(Ordering::SeqCst);
        n.is_multiple_of(2).then_some(n)
    }
}

fn env(volume: &MemVolume) -> Env {
    Env {
        volume: Arc::new(volume.clone()),
        clock: Arc::new(OsClock),
        entropy: Arc::new(SeededEntropy::new(1)),
        host: Arc::new(SoloHost { name: "h".into(), boot: "b".into() }),
    }
}

fn ids_on(volume: &MemVolume, broker: i32) -> ProducerIds {
    ProducerIds::new(&env(volume), Arc::new(Unfenced), BrokerId(broker), PATIENCE)
}

async fn blocks_on(volume: &MemVolume) -> Vec<u64> {
    block_numbers(&volume.read_dir(DIR, Class::Control).await.unwrap())
}

#[tokio::test]
async fn ids_start_at_zero_and_a_block_serves_a_thousand_calls() {
    let volume = MemVolume::new();
    let ids = ids_on(&volume, 1);
    for expected in 0..1000 {
        assert_eq!(ids.next().await.unwrap(), expected);
    }
    assert_eq!(volume.counts_of(".block").syncs, 1);
    assert_eq!(ids.next().await.unwrap(), 1000);
    assert_eq!(blocks_on(&volume).await, [1], "the block that was used up is gone");
}

#[tokio::test]
async fn a_broker_that_was_killed_never_gives_its_ids_again() {
    let volume = MemVolume::new();
    assert_eq!(ids_on(&volume, 1).next().await.unwrap(), 0);
    volume.crash_process();
    assert_eq!(ids_on(&volume, 1).next().await.unwrap(), 1000);
}

#[tokio::test]
async fn an_id_is_not_given_out_before_its_block_is_durable() {
    for (op, path) in [(Op::Sync, ".block"), (Op::SyncDir, "producer-ids"), (Op::SyncDir, "__cluster")] {
        let volume = MemVolume::new();
        volume.fail(op, path, Errno::IO, 1);
        let ids = ids_on(&volume, 1);
        assert!(ids.next().await.is_err(), "{op:?} {path}");
        assert!(ids.next().await.is_ok(), "{op:?} {path}");
    }
}

#[tokio::test]
async fn a_lease_that_ends_during_the_sync_takes_the_block_with_it() {
    let volume = MemVolume::new();
    let fence = Arc::new(HandFence::default());
    let ids = Arc::new(ProducerIds::new(&env(&volume), fence.clone(), BrokerId(1), PATIENCE));
    let hang = volume.hang(Op::Sync, ".block");
    let call = tokio::spawn({
        let ids = ids.clone();
        async move { ids.next().await }
    });
    hang.caught(1).await;
    fence.step();
    fence.step();
    hang.release();

    assert!(matches!(call.await.unwrap(), Err(ProducerIdError::NoLease)));
    assert_eq!(ids.next().await.unwrap(), 1000);
    fence.step();
    assert!(matches!(ids.next().await, Err(ProducerIdError::NoLease)));
    fence.step();
    assert_eq!(ids.next().await.unwrap(), 2000, "a later lease starts a block of its own");
}

#[tokio::test]
async fn a_volume_that_hangs_fails_every_call_in_time() {
    let volume = MemVolume::new();
    let limit = Duration::from_millis(100);
    let ids = Arc::new(ProducerIds::new(&env(&volume), Arc::new(Unfenced), BrokerId(1), limit));
    let hang = volume.hang(Op::Sync, ".block");
    let calls = (0..5).map(|_| ids.next());
    let all = tokio::time::timeout(limit * 5, futures::future::join_all(calls)).await.unwrap();
    assert!(all.iter().all(|r| matches!(r, Err(ProducerIdError::TimedOut(_)))));
    hang.release();
    assert!(ids.next().await.unwrap() >= 1000);
}

#[tokio::test]
async fn a_block_below_one_that_others_made_meanwhile_is_given_up() {
    // Broker 1 has listed nothing and is about to create block 0, when others have claimed 0 and 1 and unlinked 0.
    let volume = MemVolume::new();
    let slow = ids_on(&volume.another_process(), 1);
    let hang = volume.hang(Op::Create, "0000000000000000.block");
    let call = tokio::spawn(async move { slow.next().await });
    hang.caught(1).await;
    let theirs = format!("{DIR}/{}", file_name(1));
    volume.create_new(&theirs, Class::Control).await.unwrap().sync().await.unwrap();
    volume.sync_dir(DIR, Class::Control).await.unwrap();
    hang.release();
    assert_eq!(call.await.unwrap().unwrap(), 2000);
}

#[tokio::test]
async fn a_volume_whose_ids_are_used_up_says_so() {
    let volume = MemVolume::new();
    ids_on(&volume, 1).next().await.unwrap();
    let last = format!("{DIR}/{}", file_name(u64::MAX));
    volume.create_new(&last, Class::Control).await.unwrap();
    assert!(matches!(ids_on(&volume, 1).next().await, Err(ProducerIdError::Exhausted)));
}

/// Three brokers draw ids; now and then one is killed, the power fails, or an operation does.
#[tokio::test]
async fn no_id_is_given_twice_whatever_fails() {
    for seed in 0..60 {
        let volume = MemVolume::new();
        let chance = SeededEntropy::new(seed);
        let views: Vec<MemVolume> = (0..3).map(|_| volume.another_process()).collect();
        let mut brokers: Vec<ProducerIds> = (0..3).map(|b| ids_on(&views[b], b as i32)).collect();
        let mut given = BTreeSet::new();
        for _ in 0..300 {
            let b = (chance.u64() % 3) as usize;
            match chance.u64() % 40 {
                0 => {
                    volume.power_cut(&chance);
                    brokers = (0..3).map(|b| ids_on(&views[b], b as i32)).collect();
                }
                1..=3 => {
                    views[b].crash_process();
                    brokers[b] = ids_on(&views[b], b as i32);
                }
                4 => {
                    let ops =
                        [Op::Create, Op::Sync, Op::SyncDir, Op::Unlink, Op::ReadDir, Op::Write, Op::Mkdir];
                    volume.fail(ops[(chance.u64() % 7) as usize], "__cluster", Errno::IO, 1);
                }
                _ => {
                    // The whole rest of a block goes at once now and then, so that blocks end.
                    let times = if chance.u64().is_multiple_of(20) { 990 } else { 3 };
                    for _ in 0..times {
                        if let Ok(id) = brokers[b].next().await {
                            assert!(given.insert(id), "seed {seed}: {id} was given twice");
                        }
                    }
                }
            }
        }
        assert!(given.len() > 300, "seed {seed}: only {} ids", given.len());
    }
}

/// Many brokers claim side by side, each step of one between steps of others.
#[tokio::test]
async fn brokers_that_race_get_blocks_of_their_own() {
    let volume = MemVolume::new();
    let brokers: Vec<ProducerIds> = (0..8).map(|b| ids_on(&volume.another_process(), b)).collect();
    let draws = brokers.iter().map(|ids| async move {
        let mut mine = Vec::new();
        for _ in 0..2500 {
            mine.push(ids.next().await.unwrap());
        }
        mine
    });
    let all: Vec<i64> = futures::future::join_all(draws).await.into_iter().flatten().collect();
    let distinct: BTreeSet<i64> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len());
}
