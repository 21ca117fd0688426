//! Two producers under one transactional id, each of which takes the other for dead, while logs hang, fail and change
//! their leaders, and participants come and go. Whatever happens: a transaction has one outcome, that which its producer
//! was told; all its participants hear of it; and a group shows offsets of committed transactions alone.

use super::bed::*;
use super::transaction_bed::*;
use crate::coordinator::transactions::{Marker, Producer, TransactionSettings, TransactionState as S};
use crate::coordinator::GroupSettings;
use crate::rt::{Entropy, SeededEntropy};
use kafka_protocol::ResponseError as E;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const TRANSACTIONS: usize = 12;
const FAULTS: usize = 40;

#[derive(Default)]
struct Ledger {
    next_value: i64,
    /// Offsets whose transaction somebody asked to commit, and whose abort somebody was told of.
    may_show: BTreeSet<i64>,
    aborted: BTreeSet<i64>,
    /// What producers were told, by producer id and number: whether it commits, and the partitions in it.
    told: BTreeMap<(i64, u64), (bool, BTreeSet<i32>)>,
}

struct Chaos {
    t: TxnBed,
    rng: SeededEntropy,
    ledger: Mutex<Ledger>,
}

/// What a client tries again. The rest ends the session.
fn is_transient(e: E) -> bool {
    matches!(
        e,
        E::CoordinatorLoadInProgress
            | E::CoordinatorNotAvailable
            | E::NotCoordinator
            | E::ConcurrentTransactions
    )
}

impl Chaos {
    fn below(&self, n: u64) -> u64 {
        self.rng.u64() % n
    }

    async fn try_again<T, F: Future<Output = Result<T, E>>>(&self, ask: impl Fn() -> F) -> Result<T, E> {
        loop {
            match ask().await {
                Err(e) if is_transient(e) => sleep(Duration::from_millis(10 + self.below(50))).await,
                answer => return answer,
            }
        }
    }

    async fn produce(&self) {
        let mut holds = None;
        for _ in 0..TRANSACTIONS {
            // A session that was fenced, or a client that crashed, starts anew.
            if self.below(5) == 0 {
                holds = None;
            }
            holds = self.one_transaction(holds).await.ok();
            sleep(Duration::from_millis(self.below(100))).await;
        }
    }

    async fn one_transaction(&self, holds: Option<Producer>) -> Result<Producer, E> {
        let txns = &self.t.txns;
        let producer = match holds {
            Some(producer) if self.below(4) > 0 => producer,
            current => self.try_again(|| txns.init_producer_id(TXN, TIMEOUT_MS, current)).await?,
        };
        let mut partitions = BTreeSet::new();
        let mut number = 0;
        for _ in 0..1 + self.below(3) {
            let p = self.below(4) as i32;
            number = self.try_again(|| txns.verify(TXN, producer, part(p), true)).await?;
            partitions.insert(p);
        }
        let value = {
            let mut ledger = self.ledger.lock();
            ledger.next_value += 1;
            ledger.next_value
        };
        self.try_again(|| self.t.commit_offset(producer, 0, value)).await?;
        if self.below(8) == 0 {
            return Err(E::UnknownServerError);
        }
        let commit = self.below(2) == 0;
        if commit {
            self.ledger.lock().may_show.insert(value);
        }
        let next = self.try_again(|| self.t.end(producer, commit)).await?;
        let mut ledger = self.ledger.lock();
        assert!(ledger.told.insert((producer.id, number), (commit, partitions)).is_none(), "{number} twice");
        if !commit {
            ledger.aborted.insert(value);
        }
        Ok(next)
    }

    async fn fail_now_and_then(&self) {
        let mut epochs = BTreeMap::new();
        for _ in 0..FAULTS {
            sleep(Duration::from_millis(self.below(200))).await;
            let id = if self.below(2) == 0 { TXN } else { "g" };
            let log = self.t.bed.log_of(id);
            match self.below(8) {
                0 => log.hold(),
                1 => log.depose(),
                2 => log.fail(),
                3 => self.t.leaders(Leaders::Refuse(E::NotLeaderOrFollower)),
                4 => *self.t.world.groups_away.lock() = true,
                5 => *self.t.world.verify_takes.lock() = Duration::from_millis(self.below(300)),
                6 => self.heal(),
                _ => {
                    let epoch = epochs.entry(id).or_insert(1);
                    *epoch += 1;
                    log.lead(*epoch);
                }
            }
        }
        self.heal();
        for id in [TXN, "g"] {
            self.t.bed.log_of(id).lead(1000);
        }
    }

    fn heal(&self) {
        self.t.leaders(Leaders::There);
        *self.t.world.groups_away.lock() = false;
        *self.t.world.verify_takes.lock() = Duration::ZERO;
    }

    fn look(&self, offsets: &[(i32, i64)]) {
        let ledger = self.ledger.lock();
        for (_, value) in offsets {
            assert!(ledger.may_show.contains(value), "{value} shows, and nobody asked to commit it");
            assert!(!ledger.aborted.contains(value), "{value} shows, and was aborted");
        }
    }

    async fn read(&self) {
        loop {
            if let Ok(offsets) = offsets(&self.t.bed.groups, "g").await {
                self.look(&offsets);
            }
            sleep(Duration::from_millis(7)).await;
        }
    }

    /// All is over: everybody has heard what the producers were told, and nothing else.
    async fn settle(&self) {
        let last = self.try_again(|| self.t.txns.init_producer_id(TXN, TIMEOUT_MS, None)).await.unwrap();
        assert_eq!(self.t.state().await, S::Empty);
        let (offsets, unstable) = self.t.offsets().await;
        assert!(unstable.is_empty(), "undecided for ever: {unstable:?}");
        self.look(&offsets);
        let mut heard: BTreeMap<(i64, u64), (bool, BTreeSet<i32>)> = BTreeMap::new();
        for (partition, Marker { producer_id, number, commit, .. }) in self.t.world.markers.lock().iter() {
            let of = heard.entry((*producer_id, number.unwrap_or(0))).or_insert((*commit, BTreeSet::new()));
            assert_eq!(of.0, *commit, "two outcomes of {number:?}");
            of.1.insert(*partition);
        }
        for (number, (commit, partitions)) in &self.ledger.lock().told {
            let (was, who) = heard.get(number).unwrap_or_else(|| panic!("{number:?} was never told"));
            assert_eq!((was, who), (commit, partitions), "{number:?}");
        }
        // And it goes on.
        self.t.add(last, &[0]).await.unwrap();
        self.t.end(last, true).await.unwrap();
        self.t.until(S::CompleteCommit).await;
    }
}

#[test]
fn whatever_fails_a_transaction_has_one_outcome_that_everybody_hears_of() {
    let mut told = 0;
    for seed in 0..60 {
        told += story(async {
            let small = GroupSettings { trim_bytes: 4000, ..settings() };
            let t = TxnBed::with(small, TransactionSettings::default()).await;
            let chaos = Chaos { t, rng: SeededEntropy::new(seed), ledger: Mutex::default() };
            let work = async {
                tokio::join!(chaos.produce(), chaos.produce(), chaos.fail_now_and_then());
                chaos.settle().await;
            };
            tokio::select! {
                biased;
                done = timeout(Duration::from_secs(3600), work) => assert!(done.is_ok(), "seed {seed} hangs"),
                () = chaos.read() => {}
            }
            let told = chaos.ledger.lock().told.len();
            told
        });
    }
    assert!(told > 300, "only {told} transactions came to their end");
}
