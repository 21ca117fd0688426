//! What the stories of transactions need: participants that do what a test says.

use super::bed::*;
use crate::coordinator::fake_log::FakeLog;
use crate::coordinator::transactions::{
    Marker, Participant, Participants, Producer, TransactionSettings, TransactionState,
};
use crate::coordinator::{CommitInput, GroupSettings, ProducerIds, Transactions};
use crate::storage::Unfenced;
use crate::types::{BrokerId, TopicId};
use crate::volume::MemVolume;
use async_trait::async_trait;
use kafka_protocol::ResponseError as E;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::sleep;

/// The transactional id of the stories, and their producers' timeout.
pub const TXN: &str = "payments";
pub const TIMEOUT_MS: i32 = 60_000;

/// What happens to markers for partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaders {
    There,
    /// The marker is not written.
    Refuse(E),
    /// The marker is written, and the answer never comes.
    Mute,
}

/// All partition leaders and other brokers.
pub struct World {
    pub markers: Mutex<Vec<(i32, Marker)>>,
    pub leaders: Mutex<Leaders>,
    /// Group markers do not arrive.
    pub groups_away: Mutex<bool>,
    /// How long the transaction's coordinator takes to answer the group's.
    pub verify_takes: Mutex<Duration>,
    /// All coordinators are on one broker here.
    txns: OnceLock<Weak<Transactions>>,
}

impl World {
    /// Everybody is there.
    pub fn new() -> Arc<World> {
        Arc::new(World {
            markers: Mutex::default(),
            leaders: Mutex::new(Leaders::There),
            groups_away: Mutex::new(false),
            verify_takes: Mutex::default(),
            txns: OnceLock::new(),
        })
    }

    /// This is the broker that coordinates.
    pub fn meet(self: &Arc<World>, txns: &Arc<Transactions>) {
        self.txns.set(Arc::downgrade(txns)).expect("the first");
        txns.start(self.clone());
    }

    fn txns(&self) -> Arc<Transactions> {
        self.txns.get().and_then(Weak::upgrade).expect("the coordinator lives")
    }
}

#[async_trait]
impl Participants for World {
    async fn write_marker(&self, _: TopicId, partition: i32, marker: Marker) -> Result<(), E> {
        let leaders = *self.leaders.lock();
        if let Leaders::Refuse(error) = leaders {
            return Err(error);
        }
        self.markers.lock().push((partition, marker));
        if leaders == Leaders::Mute {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn write_group_marker(&self, group: &str, marker: Marker) -> Result<(), E> {
        if *self.groups_away.lock() {
            return Err(E::NotCoordinator);
        }
        self.txns().apply_group_marker(group, marker).await
    }

    async fn verify_group(&self, id: &str, producer: Producer, group: &str, add: bool) -> Result<u64, E> {
        let takes = *self.verify_takes.lock();
        let answer = self.txns().verify(id, producer, Participant::Group(group.into()), add).await;
        sleep(takes).await;
        answer
    }
}

/// Coordinators of transactions and groups on logs that do what a test says.
pub struct TxnBed {
    pub bed: Bed,
    pub txns: Arc<Transactions>,
    pub world: Arc<World>,
}

impl TxnBed {
    pub async fn new() -> TxnBed {
        TxnBed::with(settings(), TransactionSettings::default()).await
    }

    pub async fn with(groups: GroupSettings, settings: TransactionSettings) -> TxnBed {
        let bed = Bed::with(groups).await;
        let env = env(MemVolume::new());
        let ids = ProducerIds::new(&env, Arc::new(Unfenced), BrokerId(1), Duration::from_secs(30));
        let txns = Transactions::new(bed.groups.clone(), Arc::new(ids), settings);
        let world = World::new();
        world.meet(&txns);
        TxnBed { bed, txns, world }
    }

    /// The log of the transactional id.
    pub fn log(&self) -> &FakeLog {
        self.bed.log_of(TXN)
    }

    pub async fn init(&self) -> Producer {
        patiently(|| self.txns.init_producer_id(TXN, TIMEOUT_MS, None)).await
    }

    /// The producer has written to these partitions.
    pub async fn add(&self, producer: Producer, partitions: &[i32]) -> Result<(), E> {
        self.txns.add_partitions(TXN, producer, partitions.iter().map(|p| part(*p)).collect()).await
    }

    pub async fn end(&self, producer: Producer, commit: bool) -> Result<Producer, E> {
        self.txns.end(TXN, producer, commit, true).await
    }

    pub async fn state(&self) -> TransactionState {
        patiently(|| self.txns.describe(TXN)).await.state
    }

    /// Waits until the transactional id is in this state, for two minutes at most.
    pub async fn until(&self, state: TransactionState) {
        for _ in 0..1200 {
            if self.state().await == state {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?} and not {state:?}", self.state().await);
    }

    /// Partition, number, whether it commits, and the coordinator's epoch, of all markers so far.
    pub fn told(&self) -> Vec<(i32, u64, bool, i32)> {
        let told = |(p, m): &(i32, Marker)| (*p, m.number.unwrap_or(0), m.commit, m.coordinator_epoch);
        let mut all: Vec<_> = self.world.markers.lock().iter().map(told).collect();
        all.sort_by_key(|(p, number, _, epoch)| (*number, *epoch, *p));
        all
    }

    pub fn leaders(&self, are: Leaders) {
        *self.world.leaders.lock() = are;
    }

    /// TxnOffsetCommit 5 of a producer that names no member.
    pub async fn commit_offset(&self, producer: Producer, partition: i32, offset: i64) -> Result<(), E> {
        self.txns.commit_offsets("g", TXN, producer, input(partition, offset), true).await
    }

    /// Committed offsets of group "g", and the partitions whose offset is not decided.
    pub async fn offsets(&self) -> (Vec<(i32, i64)>, Vec<i32>) {
        let (offsets, unstable) = patiently(|| self.bed.groups.offsets_and_unstable("g", None)).await;
        let offsets = offsets.into_iter().map(|((_, p), c)| (p, c.offset)).collect();
        (offsets, unstable.into_iter().map(|(_, p)| p).collect())
    }
}

pub fn part(partition: i32) -> Participant {
    Participant::Partition(topic(1), partition)
}

pub fn input(partition: i32, offset: i64) -> CommitInput {
    CommitInput {
        caller: simple(),
        names_epochs: true,
        offsets: vec![((topic(1), partition), committed(offset))],
    }
}
