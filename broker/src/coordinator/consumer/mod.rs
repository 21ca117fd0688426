//! The state machine of one group under the consumer protocol (KIP-848): the coordinator assigns, and members
//! come to it one by one.
//!
//! Inputs, the time and the topics go in; answers and the wish to be persisted come out. Nothing here waits,
//! reads a clock or draws a random number.
//!
//! Three epochs only rise. The *group epoch* says how often members, subscriptions or topics have changed. The
//! *assignment epoch* is the group epoch for which the target was computed: what each member shall have in the
//! end. A *member epoch* is the assignment epoch that the member has come to: it has given up all that the target
//! takes from it. On the way there:
//!
//! ```text
//!             target moved                           gave up all
//!  Stable ────────────────▶ Unrevoked ─────────────────────┐
//!    ▲  │                  (epoch stays)                   ▼
//!    │  └── nothing to give up, others hold some ──▶ Unreleased ──┐
//!    └────────────── the others let go ───────────────────────────┘
//! ```
//!
//! What it promises: a partition is held by one member at a time, where a member holds what it was told to
//! have, and what it was told to give up until it says that it has, or is out of the group; once members
//! behave, each has its target. What it does not: durability. It says *when* its state must be persisted
//! ([`super::group::Out::persist`]); the slot holds the answers back until that has happened.
//!
//! Kafka's state Dead has no value here: a dead group is one that no longer exists. Assigning has one and is not
//! seen: the target is computed with the change that asks for it.

pub mod assignor;
mod doc;
mod error;
mod heartbeat;
mod partitions;
mod reconcile;
mod target;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod stories;

pub use assignor::Assignor;
pub use doc::{ConsumerDoc, ConsumerMemberDoc};
pub use error::ConsumerError;
pub use partitions::Partitions;

use super::group::Now;
use crate::types::TopicId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The member epoch with which a member leaves for good.
pub const LEAVE: i32 = -1;
/// The member epoch with which a static member leaves to come back: its partitions wait for it.
pub const LEAVE_STATIC: i32 = -2;

/// Partitions that one group is assigned at most. The group's document must fit into one batch, and names each
/// twice: for who holds it and for who shall.
pub const MAX_PARTITIONS: usize = 150_000;

/// Where a group finds the topics that its members name.
pub trait Lookup: Send + Sync {
    /// Id and number of partitions of the topic that has this name now.
    fn topic(&self, name: &str) -> Option<Topic>;
}

/// A topic as a group knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    pub id: TopicId,
    pub partitions: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConsumerState {
    Empty,
    Assigning,
    Reconciling,
    Stable,
}

impl ConsumerState {
    /// As ConsumerGroupDescribe and ListGroups spell it.
    pub fn name(self) -> &'static str {
        match self {
            ConsumerState::Empty => "Empty",
            ConsumerState::Assigning => "Assigning",
            ConsumerState::Reconciling => "Reconciling",
            ConsumerState::Stable => "Stable",
        }
    }
}

/// What the broker's configuration says of consumer groups, under Kafka's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerLimits {
    /// `group.consumer.session.timeout.ms`
    pub session: Duration,
    /// `group.consumer.heartbeat.interval.ms`
    pub heartbeat: Duration,
    /// `group.consumer.max.size`
    pub max_size: usize,
    /// `group.consumer.assignors`; the first is for groups whose members have no wish.
    pub assignors: Vec<Assignor>,
}

/// A ConsumerGroupHeartbeat request. `None`: not said, which after a member's first request means unchanged.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatInput {
    /// May be empty at a join (version 0): then the coordinator makes one.
    pub member_id: String,
    /// 0 joins, [`LEAVE`] and [`LEAVE_STATIC`] leave.
    pub epoch: i32,
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance: Option<Duration>,
    pub subscribed: Option<BTreeSet<String>>,
    pub assignor: Option<String>,
    pub owned: Option<Partitions>,
    /// The id that the member gets if it needs one: fresh, never used before.
    pub fresh_id: String,
}

/// An answer to ConsumerGroupHeartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    pub member_id: String,
    pub epoch: i32,
    /// What the member may have, if that is news to it.
    pub assignment: Option<Partitions>,
}

/// What a member says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance: Duration,
    pub subscribed: BTreeSet<String>,
    /// The assignor that it would like; `None`: no wish.
    pub assignor: Option<Assignor>,
}

/// How far a member has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Stable,
    /// Has something to give up.
    Unrevoked,
    /// Waits for what others give up.
    Unreleased,
}

#[derive(Clone, Debug)]
pub struct Member {
    pub profile: Profile,
    /// [`LEAVE_STATIC`] while a static member is away.
    pub epoch: i32,
    /// The epoch before. A member whose answer was lost still speaks in it.
    pub previous: i32,
    /// What it was told that it may have.
    pub assigned: Partitions,
    /// What it was told to give up, and did not say that it has.
    pub revoking: Partitions,
    /// What it shall have.
    pub target: Partitions,
    /// When it counts as gone.
    session_until: Duration,
    /// When what it gives up must be given up.
    revoke_until: Option<Duration>,
}

/// One group.
#[derive(Clone, Debug)]
pub struct ConsumerGroup {
    epoch: i32,
    assignment_epoch: i32,
    /// By whom the target was computed.
    assignor: Assignor,
    members: BTreeMap<String, Member>,
    /// `group.instance.id` → member id
    statics: BTreeMap<String, String>,
    /// The topics that members subscribe to, as the group epoch knows them.
    topics: BTreeMap<String, Topic>,
    /// What any member holds: assigned, or not given up yet.
    held: Partitions,
    /// Wall time at which the group became empty.
    empty_since: Option<i64>,
}

impl ConsumerGroup {
    /// A group without members whose next epochs are above `epoch`: that of the group, of whichever protocol,
    /// whose place it takes.
    pub fn after(epoch: i32, empty_since: Option<i64>) -> Self {
        ConsumerGroup {
            epoch,
            assignment_epoch: epoch,
            assignor: Assignor::default(),
            members: BTreeMap::new(),
            statics: BTreeMap::new(),
            topics: BTreeMap::new(),
            held: Partitions::new(),
            empty_since,
        }
    }

    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    pub fn assignment_epoch(&self) -> i32 {
        self.assignment_epoch
    }

    pub fn assignor(&self) -> Assignor {
        self.assignor
    }

    pub fn members(&self) -> &BTreeMap<String, Member> {
        &self.members
    }

    pub fn is_deserted(&self) -> bool {
        self.members.is_empty()
    }

    pub fn empty_since(&self) -> Option<i64> {
        self.empty_since
    }

    pub fn state(&self) -> ConsumerState {
        let settled = |m: &Member| self.progress(m) == Progress::Stable;
        match () {
            () if self.members.is_empty() => ConsumerState::Empty,
            () if self.epoch > self.assignment_epoch => ConsumerState::Assigning,
            () if self.members.values().all(settled) => ConsumerState::Stable,
            () => ConsumerState::Reconciling,
        }
    }

    pub fn progress(&self, m: &Member) -> Progress {
        match () {
            () if !m.revoking.is_empty() => Progress::Unrevoked,
            () if m.epoch == self.assignment_epoch && m.assigned == m.target => Progress::Stable,
            () => Progress::Unreleased,
        }
    }

    /// Whether some member subscribes to the topic of this name.
    pub fn subscribes(&self, topic: &str) -> bool {
        self.members.values().any(|m| m.profile.subscribed.contains(topic))
    }

    /// Whether a member may commit or read offsets in this epoch (P8).
    ///
    /// # Errors
    /// UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH: it is to try again with the epoch of its next heartbeat.
    pub fn check_member(&self, member_id: &str, epoch: i32) -> Result<(), ConsumerError> {
        let member = self.members.get(member_id).ok_or(ConsumerError::UnknownMember)?;
        // Who is away has an epoch that is none.
        match member.epoch == epoch && epoch > 0 {
            true => Ok(()),
            false => Err(ConsumerError::StaleEpoch),
        }
    }

    /// The earliest time at which [`ConsumerGroup::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.members.values().flat_map(|m| m.revoke_until.into_iter().chain([m.session_until])).min()
    }
}
