//! A broker in memory that does transactions as Kafka does, for tests of the clients and the checkers: what honest
//! brokers do must never be held against them, and each of the faults that can be planted must be found.
//!
//! It keeps nothing, has no group protocol worth the name (who joins last is the only member), and loses answers now and then.

mod groups;
mod logs;
mod serve;
mod transactions;

mod tests;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// What is wrong with the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// One marker of several says the opposite.
    TornMarker,
    /// No epoch is ever checked where records are written.
    ZombiesWrite,
    /// What is open is no bound for readers.
    OpenIsShown,
    /// Nobody is told what was aborted.
    AbortedIsShown,
    /// Offsets of a transaction are there at once.
    OffsetsEarly,
    /// Whose time is over is forgotten, and not ended.
    NoMarkerAtTimeout,
    /// An end hits whatever transaction is open.
    AnyEndEnds,
    /// A takeover of a transactional id leaves the open transaction to its successor.
    SuccessorInherits,
    /// Offsets of a transaction are lost.
    OffsetsLost,
    /// Who asks for stable offsets is given any.
    StableIsIgnored,
    /// Whoever was a member of a group once may commit.
    AnyMemberCommits,
    /// A transaction is said to be complete before its markers are there.
    CompleteFirst,
    /// A marker arrives once more, long after.
    MarkerAgain,
    /// A batch is appended as often as it is sent.
    RetriesAppended,
}

pub type Line = (String, i32);

pub struct Broker {
    pub flaw: Flaw,
    pub rng: SmallRng,
    pub topics: BTreeMap<String, (Uuid, i32)>,
    pub logs: BTreeMap<Line, logs::Log>,
    pub txns: BTreeMap<String, transactions::Txn>,
    pub groups: BTreeMap<String, groups::Group>,
    pub next_id: i64,
}

pub type Shared = Arc<parking_lot::Mutex<Broker>>;

impl Broker {
    pub fn new(flaw: Flaw, seed: u64) -> Broker {
        Broker {
            flaw,
            rng: SmallRng::seed_from_u64(seed),
            topics: BTreeMap::new(),
            logs: BTreeMap::new(),
            txns: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_id: 1000,
        }
    }

    /// A moment that something takes.
    pub fn moment(&mut self) -> Duration {
        Duration::from_micros(self.rng.gen_range(100..20_000))
    }
}
