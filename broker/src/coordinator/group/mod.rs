//! The state machine of one group under the classic protocol (KIP-345, KIP-394, KIP-814 included).
//!
//! Inputs and the time go in; answers and the wish to be persisted come out. Nothing here waits, reads a
//! clock or draws a random number, so every interleaving can be tested as a plain sequence of calls.
//!
//! What it promises: the generation only rises; a member that is unknown, fenced or of another
//! generation changes nothing; a group with live members comes to [`State::Stable`] once they behave; and
//! every token that came in with a request comes out again exactly once, with its answer. What it does not:
//! durability. It says *when* its state must be persisted ([`Out::persist`]); the slot holds the
//! answers back until that has happened.
//!
//! Kafka's state Dead has no value here: a dead group is one that no longer exists.
//!
//! ```text
//!  Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
//!    ▲                │   ▲   ▲                                          │        │
//!    └──no one left───┘   │   └──join, leave, expiry, no sync in time────┘   leader's sync
//!                         └──join, leave, expiry── Stable ◀───────────────────────┘
//! ```

mod doc;
mod join;
mod live;
mod rebalance;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod stories;

pub use doc::{GroupDoc, MemberDoc};

use crate::coordinator::record::json_len;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Stands for a request that waits for its answer.
pub type Token = u64;

/// The two clocks, read once per input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Timeouts are measured with this one.
    pub boot: Duration,
    /// Milliseconds since the epoch: what an offset's age is measured with, across restarts.
    pub wall_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

impl State {
    /// As DescribeGroups and ListGroups spell it.
    pub fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }
}

/// What the broker's configuration says of groups, under Kafka's names.
#[derive(Clone, Debug)]
pub struct Limits {
    /// `group.min.session.timeout.ms`
    pub min_session: Duration,
    /// `group.max.session.timeout.ms`
    pub max_session: Duration,
    /// `group.initial.rebalance.delay.ms`
    pub initial_delay: Duration,
    /// `group.max.size`
    pub max_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            min_session: Duration::from_secs(6),
            max_session: Duration::from_secs(1800),
            initial_delay: Duration::from_secs(3),
            max_size: i32::MAX as usize,
        }
    }
}

/// How long a member that has never completed a join may wait for one (Kafka has the same five minutes):
/// such a member sends no heartbeats, so nothing else tells that its client is gone.
pub const NEW_MEMBER_JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// A JoinGroup request.
#[derive(Clone, Debug, Default)]
pub struct JoinInput {
    /// Empty for a member that has no id yet.
    pub member_id: String,
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub session: Duration,
    pub rebalance: Duration,
    pub protocol_type: String,
    /// By preference.
    pub protocols: Vec<(String, Bytes)>,
    /// KIP-394: a new dynamic member is first told its id and must come again with it (version 4 on).
    pub require_known_id: bool,
    /// KIP-814: the answer may tell the leader to skip the assignment (version 9).
    pub may_skip_assignment: bool,
    /// The id that the member gets if it needs one: fresh, never used before.
    pub fresh_id: String,
}

/// An answer to JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinReply {
    pub error: Option<ResponseError>,
    pub member_id: String,
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    pub leader: String,
    pub skip_assignment: bool,
    /// For the leader only.
    pub members: Vec<JoinedMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    pub id: String,
    pub instance: Option<String>,
    pub metadata: Bytes,
}

impl JoinReply {
    pub fn refused(error: ResponseError, member_id: String) -> Self {
        JoinReply {
            error: Some(error),
            member_id,
            generation: -1,
            protocol_type: None,
            protocol_name: None,
            leader: String::new(),
            skip_assignment: false,
            members: Vec::new(),
        }
    }
}

/// A SyncGroup request.
#[derive(Clone, Debug, Default)]
pub struct SyncInput {
    pub member_id: String,
    pub instance: Option<String>,
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    /// From the leader: member id and its assignment.
    pub assignments: Vec<(String, Bytes)>,
}

/// An answer to SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReply {
    pub error: Option<ResponseError>,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    pub assignment: Bytes,
}

impl SyncReply {
    pub fn refused(error: ResponseError) -> Self {
        SyncReply { error: Some(error), protocol_type: None, protocol_name: None, assignment: Bytes::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Join(JoinReply),
    Sync(SyncReply),
}

/// Who speaks, as heartbeats, commits and leaves say it.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub member_id: String,
    pub instance: Option<String>,
    pub generation: i32,
}

/// What one input led to.
#[derive(Debug, Default)]
pub struct Out {
    pub replies: Vec<(Token, Reply)>,
    /// The group's document changed: the replies, and all later ones, rest on it.
    pub persist: bool,
}

impl Out {
    fn refuse_join(&mut self, token: Token, error: ResponseError, member_id: &str) {
        self.replies.push((token, Reply::Join(JoinReply::refused(error, member_id.to_owned()))));
    }

    fn refuse_sync(&mut self, token: Token, error: ResponseError) {
        self.replies.push((token, Reply::Sync(SyncReply::refused(error))));
    }
}

#[derive(Clone, Debug)]
pub struct Member {
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    session: Duration,
    rebalance: Duration,
    protocols: Vec<(String, Bytes)>,
    pub assignment: Bytes,
    joining: Option<Token>,
    syncing: Option<Token>,
    /// Has never completed a join.
    new: bool,
    /// When the member counts as gone; `None` while it waits for our answer.
    deadline: Option<Duration>,
}

impl Member {
    fn speaks(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|(name, _)| name == protocol)
    }

    /// What the member says of itself under `protocol`.
    pub fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.iter().find(|(name, _)| name == protocol).map(|(_, m)| m.clone()).unwrap_or_default()
    }

    fn touch(&mut self, now: Now) {
        if self.joining.is_none() && self.syncing.is_none() {
            self.deadline = Some(now.boot + self.session);
        }
    }
}

/// What a rebalance in [`State::PreparingRebalance`] waits for.
#[derive(Clone, Copy, Debug)]
enum Gathering {
    /// The first members of an empty group: for a fixed time, longer if more keep coming (KIP-134).
    First { until: Duration, remaining: Duration, newcomers: bool },
    /// All members to rejoin, or the largest rebalance timeout to pass.
    Rejoin { until: Duration },
}

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    state: State,
    generation: i32,
    protocol_type: Option<String>,
    protocol_name: Option<String>,
    leader: Option<String>,
    members: BTreeMap<String, Member>,
    /// `group.instance.id` → member id
    statics: BTreeMap<String, String>,
    /// KIP-394: ids that were given out and did not join yet → when they lapse
    pending: BTreeMap<String, Duration>,
    gathering: Option<Gathering>,
    /// Members that did not sync in this generation, and when that is held against them.
    unsynced: BTreeSet<String>,
    sync_until: Option<Duration>,
    /// Wall time at which the group became empty.
    empty_since: Option<i64>,
}

impl Default for Group {
    fn default() -> Self {
        Group::new()
    }
}

impl Group {
    pub fn new() -> Self {
        Group {
            state: State::Empty,
            generation: 0,
            protocol_type: None,
            protocol_name: None,
            leader: None,
            members: BTreeMap::new(),
            statics: BTreeMap::new(),
            pending: BTreeMap::new(),
            gathering: None,
            unsynced: BTreeSet::new(),
            sync_until: None,
            empty_since: None,
        }
    }

    /// A group without members whose generations are above `generation`: the epoch of the consumer group whose
    /// place it takes.
    pub fn after(generation: i32, empty_since: Option<i64>) -> Self {
        Group { generation, empty_since, ..Group::new() }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn generation(&self) -> i32 {
        self.generation
    }

    pub fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    pub fn protocol_name(&self) -> Option<&str> {
        self.protocol_name.as_deref()
    }

    pub fn members(&self) -> &BTreeMap<String, Member> {
        &self.members
    }

    /// Neither members nor promised member ids.
    pub fn is_deserted(&self) -> bool {
        self.state == State::Empty && self.members.is_empty() && self.pending.is_empty()
    }

    pub fn empty_since(&self) -> Option<i64> {
        self.empty_since
    }

    /// Bytes that the group's document takes without assignments, if the member that asks is in it as it
    /// now describes itself.
    pub fn weight_with(&self, input: &JoinInput) -> usize {
        let same = |id: &str, m: &Member| {
            id == input.member_id || m.instance.is_some() && m.instance == input.instance
        };
        let mut doc = self.to_doc();
        doc.members.retain(|m| self.members.get(&m.id).is_some_and(|member| !same(&m.id, member)));
        doc.members.iter_mut().for_each(|m| m.assignment = Bytes::new());
        let texts = [&input.member_id, &input.fresh_id, &input.client_id, &input.client_host];
        let texts: usize = texts.iter().map(|t| json_len(t)).sum();
        let instance = input.instance.as_deref().map_or(0, json_len);
        let protocols: usize = input.protocols.iter().map(|(n, m)| json_len(n) + 2 * m.len() + 40).sum();
        doc.rough_size() + 250 + texts + instance + protocols + json_len(&input.protocol_type)
    }

    /// What the members subscribe to, by `parse` of their metadata. `None` if someone's cannot be read.
    pub fn subscribes(&self, parse: impl Fn(&[u8]) -> Option<Vec<String>>) -> Option<BTreeSet<String>> {
        let mut topics = BTreeSet::new();
        for (_, metadata) in self.members.values().flat_map(|m| &m.protocols) {
            topics.extend(parse(metadata)?);
        }
        Some(topics)
    }

    /// The earliest time at which [`Group::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let gathering = self.gathering.map(|g| match g {
            Gathering::First { until, .. } | Gathering::Rejoin { until } => until,
        });
        let members = self.members.values().filter_map(|m| m.deadline);
        members.chain(self.pending.values().copied()).chain(gathering).chain(self.sync_until).min()
    }

    /// Whether `caller` is a member of this group: 25 or 82 if not.
    fn identify(&self, member_id: &str, instance: Option<&str>) -> Result<(), ResponseError> {
        if let Some(instance) = instance {
            match self.statics.get(instance) {
                None => return Err(ResponseError::UnknownMemberId),
                Some(holder) if holder != member_id => return Err(ResponseError::FencedInstanceId),
                Some(_) => {}
            }
        }
        match self.members.contains_key(member_id) {
            true => Ok(()),
            false => Err(ResponseError::UnknownMemberId),
        }
    }
}
