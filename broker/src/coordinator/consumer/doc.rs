//! A consumer group as the slot's log keeps it: all that members were told, so that a restart or a takeover goes
//! on where they are.

use super::partitions::{read, Ranges, Table};
use super::*;
use crate::coordinator::record::{json_len, MAX_GROUP_BYTES};

/// A group's document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct ConsumerDoc {
    pub epoch: i32,
    pub assignment_epoch: i32,
    pub assignor: Assignor,
    /// The subscribed topics as of `epoch`.
    pub topics: BTreeMap<String, Topic>,
    /// Milliseconds since the epoch at which the last member was gone.
    pub empty_since: Option<i64>,
    pub members: Vec<ConsumerMemberDoc>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMemberDoc {
    pub id: String,
    pub profile: Profile,
    pub epoch: i32,
    pub previous: i32,
    pub assigned: Partitions,
    pub revoking: Partitions,
    pub target: Partitions,
}

/// As it stands in the log.
#[derive(Clone, Serialize, Deserialize)]
struct Written {
    epoch: i32,
    assignment_epoch: i32,
    assignor: Assignor,
    topics: BTreeMap<String, Topic>,
    empty_since: Option<i64>,
    /// What the members' partitions are of.
    ids: Vec<TopicId>,
    members: Vec<WrittenMember>,
}

#[derive(Clone, Serialize, Deserialize)]
struct WrittenMember {
    id: String,
    instance: Option<String>,
    rack: Option<String>,
    client_id: String,
    client_host: String,
    rebalance_ms: u64,
    subscribed: BTreeSet<String>,
    assignor: Option<Assignor>,
    epoch: i32,
    previous: i32,
    assigned: Ranges,
    #[serde(default, skip_serializing_if = "Ranges::is_empty")]
    revoking: Ranges,
    target: Ranges,
}

impl From<ConsumerDoc> for Written {
    fn from(doc: ConsumerDoc) -> Written {
        let mut table = Table::default();
        let mut member = |m: ConsumerMemberDoc| WrittenMember {
            assigned: table.write(&m.assigned),
            revoking: table.write(&m.revoking),
            target: table.write(&m.target),
            id: m.id,
            instance: m.profile.instance,
            rack: m.profile.rack,
            client_id: m.profile.client_id,
            client_host: m.profile.client_host,
            rebalance_ms: u64::try_from(m.profile.rebalance.as_millis()).unwrap_or(u64::MAX),
            subscribed: m.profile.subscribed,
            assignor: m.profile.assignor,
            epoch: m.epoch,
            previous: m.previous,
        };
        let members = doc.members.into_iter().map(&mut member).collect();
        Written {
            epoch: doc.epoch,
            assignment_epoch: doc.assignment_epoch,
            assignor: doc.assignor,
            topics: doc.topics,
            empty_since: doc.empty_since,
            ids: table.into_ids(),
            members,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("member {0} has partitions that nobody wrote so")]
struct Unreadable(String);

impl TryFrom<Written> for ConsumerDoc {
    type Error = Unreadable;

    fn try_from(written: Written) -> Result<ConsumerDoc, Unreadable> {
        let ids = &written.ids;
        let member = |m: WrittenMember| {
            let read = |ranges| read(ids, ranges).ok_or_else(|| Unreadable(m.id.clone()));
            Ok(ConsumerMemberDoc {
                assigned: read(&m.assigned)?,
                revoking: read(&m.revoking)?,
                target: read(&m.target)?,
                profile: Profile {
                    instance: m.instance,
                    rack: m.rack,
                    client_id: m.client_id,
                    client_host: m.client_host,
                    rebalance: Duration::from_millis(m.rebalance_ms),
                    subscribed: m.subscribed,
                    assignor: m.assignor,
                },
                epoch: m.epoch,
                previous: m.previous,
                id: m.id,
            })
        };
        Ok(ConsumerDoc {
            epoch: written.epoch,
            assignment_epoch: written.assignment_epoch,
            assignor: written.assignor,
            topics: written.topics,
            empty_since: written.empty_since,
            members: written.members.into_iter().map(member).collect::<Result<_, _>>()?,
        })
    }
}

/// Bytes of a topic in the document at most, beside its name.
const TOPIC: usize = 120;
/// Bytes of a partition at most: its number, and the topic's index if it is the only one of it.
const PARTITION: usize = 30;

fn profile_size(id: &str, p: &Profile) -> usize {
    let text = |s: &Option<String>| s.as_deref().map_or(4, json_len);
    let subscribed: usize = p.subscribed.iter().map(|name| json_len(name) + 3).sum();
    let texts =
        json_len(id) + text(&p.instance) + text(&p.rack) + json_len(&p.client_id) + json_len(&p.client_host);
    400 + texts + subscribed
}

fn topics_size<'a>(names: impl Iterator<Item = &'a String>) -> usize {
    names.map(|name| json_len(name) + TOPIC).sum()
}

impl ConsumerDoc {
    /// At least as many bytes as it takes in the log.
    pub fn rough_size(&self) -> usize {
        let mut ids = BTreeSet::new();
        let member = |m: &ConsumerMemberDoc| {
            let all = [&m.assigned, &m.revoking, &m.target];
            ids.extend(all.into_iter().flatten().map(|(id, _)| *id));
            profile_size(&m.id, &m.profile) + PARTITION * all.into_iter().map(BTreeSet::len).sum::<usize>()
        };
        let members: usize = self.members.iter().map(member).sum();
        250 + topics_size(self.topics.keys()) + members + TOPIC * ids.len()
    }
}

impl ConsumerGroup {
    /// Whether the group's document has room for what a request says; partitions are bounded by themselves.
    pub(super) fn check_weight(&self, input: &HeartbeatInput) -> Result<(), ConsumerError> {
        let Some(subscribed) = &input.subscribed else { return Ok(()) };
        let others = self.members.iter().filter(|(id, _)| **id != input.member_id);
        let others: usize = others.map(|(id, m)| profile_size(id, &m.profile)).sum();
        let said = Profile {
            instance: input.instance.clone(),
            rack: input.rack.clone(),
            client_id: input.client_id.clone(),
            client_host: input.client_host.clone(),
            subscribed: subscribed.clone(),
            ..Profile::default()
        };
        let id = if input.member_id.is_empty() { &input.fresh_id } else { &input.member_id };
        let topics = topics_size(self.topics.keys().chain(subscribed));
        match others + profile_size(id, &said) + topics > MAX_GROUP_BYTES {
            true => Err(ConsumerError::Full),
            false => Ok(()),
        }
    }

    /// The group as it is to be persisted.
    pub fn to_doc(&self) -> ConsumerDoc {
        let member = |(id, m): (&String, &Member)| ConsumerMemberDoc {
            id: id.clone(),
            profile: m.profile.clone(),
            epoch: m.epoch,
            previous: m.previous,
            assigned: m.assigned.clone(),
            revoking: m.revoking.clone(),
            target: m.target.clone(),
        };
        ConsumerDoc {
            epoch: self.epoch,
            assignment_epoch: self.assignment_epoch,
            assignor: self.assignor,
            topics: self.topics.clone(),
            empty_since: self.empty_since,
            members: self.members.iter().map(member).collect(),
        }
    }

    /// The group as it was persisted. Timers start anew: a member is not to blame for the time that its
    /// coordinator was away.
    pub fn from_doc(doc: &ConsumerDoc, limits: &ConsumerLimits, now: Now) -> ConsumerGroup {
        let mut group = ConsumerGroup::after(doc.epoch, doc.empty_since);
        group.assignment_epoch = doc.assignment_epoch;
        group.assignor = doc.assignor;
        group.topics.clone_from(&doc.topics);
        for m in &doc.members {
            group.held.extend(m.assigned.iter().chain(&m.revoking));
            if let Some(instance) = &m.profile.instance {
                group.statics.insert(instance.clone(), m.id.clone());
            }
            let member = Member {
                profile: m.profile.clone(),
                epoch: m.epoch,
                previous: m.previous,
                assigned: m.assigned.clone(),
                revoking: m.revoking.clone(),
                target: m.target.clone(),
                session_until: now.boot + limits.session,
                revoke_until: (!m.revoking.is_empty()).then_some(now.boot + m.profile.rebalance),
            };
            group.members.insert(m.id.clone(), member);
        }
        group
    }
}
