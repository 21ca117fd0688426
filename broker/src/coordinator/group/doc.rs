//! A group as the slot's log keeps it: enough for a restart or a takeover to go on without a rebalance.

use super::*;
use crate::coordinator::hex;
use crate::coordinator::record::json_len;
use serde::{Deserialize, Serialize};

/// A group's document. Byte strings are opaque to us and stand as hex digits, for the reader of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDoc {
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol_name: Option<String>,
    pub leader: Option<String>,
    /// Whether this generation's leader has handed in the assignments.
    pub assigned: bool,
    /// Milliseconds since the epoch at which the last member was gone.
    pub empty_since: Option<i64>,
    pub members: Vec<MemberDoc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberDoc {
    pub id: String,
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub session_ms: u64,
    pub rebalance_ms: u64,
    pub protocols: Vec<ProtocolDoc>,
    #[serde(with = "hex")]
    pub assignment: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolDoc {
    pub name: String,
    #[serde(with = "hex")]
    pub metadata: Bytes,
}

impl GroupDoc {
    /// At least as many bytes as it takes in the log.
    pub fn rough_size(&self) -> usize {
        let text = |s: &Option<String>| s.as_deref().map_or(0, json_len);
        let protocol = |p: &ProtocolDoc| json_len(&p.name) + 2 * p.metadata.len() + 40;
        let member = |m: &MemberDoc| {
            let texts =
                json_len(&m.id) + json_len(&m.client_id) + json_len(&m.client_host) + text(&m.instance);
            let protocols: usize = m.protocols.iter().map(protocol).sum();
            250 + texts + 2 * m.assignment.len() + protocols
        };
        let texts = text(&self.protocol_type) + text(&self.protocol_name) + text(&self.leader);
        250 + texts + self.members.iter().map(member).sum::<usize>()
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Group {
    /// The group as it is to be persisted.
    pub fn to_doc(&self) -> GroupDoc {
        let member = |(id, m): (&String, &Member)| MemberDoc {
            id: id.clone(),
            instance: m.instance.clone(),
            client_id: m.client_id.clone(),
            client_host: m.client_host.clone(),
            session_ms: millis(m.session),
            rebalance_ms: millis(m.rebalance),
            protocols: m
                .protocols
                .iter()
                .map(|(name, metadata)| ProtocolDoc { name: name.clone(), metadata: metadata.clone() })
                .collect(),
            assignment: m.assignment.clone(),
        };
        GroupDoc {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            leader: self.leader.clone(),
            assigned: self.state == State::Stable,
            empty_since: self.empty_since,
            members: self.members.iter().map(member).collect(),
        }
    }

    /// The group as it was persisted. Session timers start anew: a member is not to blame for the time that
    /// its coordinator was away. A generation without assignments waits for its leader's sync again.
    pub fn from_doc(doc: &GroupDoc, now: Now) -> Group {
        let mut group = Group::new();
        group.generation = doc.generation;
        group.protocol_type.clone_from(&doc.protocol_type);
        group.protocol_name.clone_from(&doc.protocol_name);
        group.leader.clone_from(&doc.leader);
        group.empty_since = doc.empty_since;
        for m in &doc.members {
            if let Some(instance) = &m.instance {
                group.statics.insert(instance.clone(), m.id.clone());
            }
            group.members.insert(m.id.clone(), Member::from_doc(m, now));
        }
        group.state = match (group.members.is_empty(), doc.assigned) {
            (true, _) => State::Empty,
            (false, true) => State::Stable,
            (false, false) => State::CompletingRebalance,
        };
        if group.state == State::CompletingRebalance {
            group.unsynced = group.members.keys().cloned().collect();
            group.sync_until = group.members.values().map(|m| now.boot + m.rebalance.max(m.session)).max();
        }
        group
    }
}

impl Member {
    fn from_doc(doc: &MemberDoc, now: Now) -> Member {
        let session = Duration::from_millis(doc.session_ms);
        Member {
            instance: doc.instance.clone(),
            client_id: doc.client_id.clone(),
            client_host: doc.client_host.clone(),
            session,
            rebalance: Duration::from_millis(doc.rebalance_ms),
            protocols: doc.protocols.iter().map(|p| (p.name.clone(), p.metadata.clone())).collect(),
            assignment: doc.assignment.clone(),
            joining: None,
            syncing: None,
            new: false,
            deadline: Some(now.boot + session),
        }
    }
}
