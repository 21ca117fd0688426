//! Transactions on the storage engine: what crashes and power cuts between any two steps leave.

use super::bed::*;
use super::transaction_bed::*;
use crate::config::StorageConfig;
use crate::coordinator::transactions::{Producer, TransactionSettings, TransactionState as S};
use crate::coordinator::{Groups, ProducerIds, Transactions};
use crate::metrics::StorageMetrics;
use crate::rt::SeededEntropy;
use crate::storage::{Engine, Unfenced};
use crate::types::BrokerId;
use crate::volume::MemVolume;
use kafka_protocol::ResponseError as E;
use std::sync::Arc;
use std::time::Duration;

/// A broker over a volume in memory.
struct Broker {
    volume: MemVolume,
    groups: Arc<Groups>,
    txns: Arc<Transactions>,
    world: Arc<World>,
}

impl Broker {
    async fn on(volume: MemVolume, leaders: Leaders) -> Broker {
        let env = env(volume.clone());
        let (fence, metrics) = (Arc::new(Unfenced), Arc::new(StorageMetrics::default()));
        let engine = Engine::new(env.clone(), fence.clone(), StorageConfig::default(), metrics);
        let groups = Groups::attach(env.clone(), &engine, topics(), settings());
        let ids = ProducerIds::new(&env, fence, BrokerId(1), Duration::from_secs(30));
        let txns = Transactions::new(groups.clone(), Arc::new(ids), TransactionSettings::default());
        let world = World::new();
        *world.leaders.lock() = leaders;
        *world.groups_away.lock() = leaders != Leaders::There;
        world.meet(&txns);
        for id in ["g", TXN] {
            ready(&groups, id).await;
        }
        Broker { volume, groups, txns, world }
    }

    /// The process, or for an odd seed the machine, dies and comes back.
    async fn die(self, seed: u64, leaders: Leaders) -> Broker {
        match seed % 2 {
            0 => self.volume.crash_process(),
            _ => self.volume.power_cut(&SeededEntropy::new(seed)),
        }
        Broker::on(self.volume.another_process(), leaders).await
    }

    async fn state(&self) -> S {
        patiently(|| self.txns.describe(TXN)).await.state
    }

    async fn until(&self, state: S) {
        for _ in 0..600 {
            if self.state().await == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?} and not {state:?}", self.state().await);
    }

    async fn told(&self) -> Vec<(i32, u64, bool)> {
        let mut told: Vec<_> =
            self.world.markers.lock().iter().map(|(p, m)| (*p, m.number.unwrap_or(0), m.commit)).collect();
        told.sort();
        told
    }
}

const AWAY: Leaders = Leaders::Refuse(E::NotLeaderOrFollower);

/// Holes 28 and 30: whatever dies, and between whichever steps, everybody hears of the one outcome.
#[test]
fn a_transaction_survives_a_death_after_every_step() {
    for seed in 0..6 {
        for commit in [true, false] {
            story(a_transaction_with_deaths(seed, commit));
        }
    }
}

async fn a_transaction_with_deaths(seed: u64, commit: bool) {
    let mut b = Broker::on(MemVolume::new(), AWAY).await;
    let first = b.txns.init_producer_id(TXN, TIMEOUT_MS, None).await.unwrap();
    b = b.die(seed, AWAY).await;
    let producer = b.txns.init_producer_id(TXN, TIMEOUT_MS, Some(first)).await.unwrap();
    assert_eq!(producer, Producer { epoch: 1, ..first });
    b = b.die(seed + 1, AWAY).await;
    b.txns.add_partitions(TXN, producer, vec![part(0)]).await.unwrap();
    b = b.die(seed, AWAY).await;
    assert_eq!(b.txns.verify(TXN, producer, part(1), true).await, Ok(1));
    b = b.die(seed + 1, AWAY).await;
    b.txns.commit_offsets("g", TXN, producer, input(0, 10), true).await.unwrap();
    b = b.die(seed, AWAY).await;
    assert_eq!(b.groups.offsets("g").await, Ok(vec![]));
    let next = b.txns.end(TXN, producer, commit, true).await.unwrap();
    assert_eq!(next, Producer { epoch: 2, ..first });
    for n in 0..3 {
        b = b.die(seed + n, AWAY).await;
        let decided = if commit { S::PrepareCommit } else { S::PrepareAbort };
        assert_eq!(b.state().await, decided, "nobody knows yet");
    }
    b = b.die(seed, Leaders::There).await;
    let over = if commit { S::CompleteCommit } else { S::CompleteAbort };
    b.until(over).await;
    assert_eq!(b.told().await, [(0, 1, commit), (1, 1, commit)]);
    b = b.die(seed + 1, Leaders::There).await;
    assert_eq!(b.state().await, over);
    let (offsets, unstable) = b.groups.offsets_and_unstable("g", None).await.unwrap();
    assert_eq!((offsets.len(), unstable.len()), (usize::from(commit), 0));
    assert_eq!(b.told().await, [], "it is over: nobody is told again");
    assert_eq!(b.txns.end(TXN, producer, commit, true).await, Ok(next));
    assert_eq!(b.txns.verify(TXN, next, part(0), true).await, Ok(2));
}

/// A death in the middle of a call: it happened or it did not, and either way the producer gets on.
#[test]
fn a_death_in_the_middle_of_an_end_leaves_one_outcome() {
    for seed in 0..10 {
        story(async {
            let b = Broker::on(MemVolume::new(), Leaders::There).await;
            let producer = b.txns.init_producer_id(TXN, TIMEOUT_MS, None).await.unwrap();
            b.txns.add_partitions(TXN, producer, vec![part(0), part(1)]).await.unwrap();
            let txns = b.txns.clone();
            let _lost = tokio::spawn(async move { txns.end(TXN, producer, true, true).await });
            for _ in 0..seed {
                tokio::task::yield_now().await;
            }
            let before = b.told().await;
            let b = b.die(seed, Leaders::There).await;
            if b.state().await == S::Ongoing {
                assert_eq!(before, [], "told of what was not durable");
                b.txns.end(TXN, producer, true, true).await.unwrap();
            }
            b.until(S::CompleteCommit).await;
            let next = b.txns.end(TXN, producer, true, true).await.unwrap();
            assert_eq!(next, Producer { epoch: 1, ..producer });
            let all = [before, b.told().await].concat();
            assert!(all.contains(&(0, 1, true)) && all.contains(&(1, 1, true)), "{all:?}");
        });
    }
}
