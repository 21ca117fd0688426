//! A group of whichever protocol.
//!
//! One id is one group. While it is empty it may change from one protocol to the other; its epoch or generation
//! goes on rising, so that nobody who was in it before can pass for somebody who is in it now (P8).

use super::consumer::{ConsumerDoc, ConsumerGroup, ConsumerLimits, Lookup};
use super::group::{Caller, Group, GroupDoc, Limits, Now, Out};
use super::record::Value;
use kafka_protocol::ResponseError;
use std::time::Duration;

/// What decides beside the request: configuration and topics.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    pub limits: &'a Limits,
    pub consumer: &'a ConsumerLimits,
    pub topics: &'a dyn Lookup,
}

#[derive(Clone, Debug)]
pub enum AnyGroup {
    Classic(Group),
    Consumer(ConsumerGroup),
}

/// What is persisted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doc {
    Classic(GroupDoc),
    Consumer(ConsumerDoc),
}

impl Doc {
    pub fn value(self) -> Value {
        match self {
            Doc::Classic(doc) => Value::Group(doc),
            Doc::Consumer(doc) => Value::ConsumerGroup(doc),
        }
    }
}

impl AnyGroup {
    pub fn from_doc(doc: &Doc, limits: &ConsumerLimits, now: Now) -> AnyGroup {
        match doc {
            Doc::Classic(doc) => AnyGroup::Classic(Group::from_doc(doc, now)),
            Doc::Consumer(doc) => AnyGroup::Consumer(ConsumerGroup::from_doc(doc, limits, now)),
        }
    }

    pub fn to_doc(&self) -> Doc {
        match self {
            AnyGroup::Classic(group) => Doc::Classic(group.to_doc()),
            AnyGroup::Consumer(group) => Doc::Consumer(group.to_doc()),
        }
    }

    /// As a classic group; `None` if it has members of the other protocol. An empty one becomes classic.
    pub fn become_classic(&mut self) -> Option<&mut Group> {
        if let AnyGroup::Consumer(group) = self {
            if !group.is_deserted() {
                return None;
            }
            *self = AnyGroup::Classic(Group::after(group.epoch(), group.empty_since()));
        }
        match self {
            AnyGroup::Classic(group) => Some(group),
            AnyGroup::Consumer(_) => None,
        }
    }

    /// As a consumer group; `None` if it has members of the other protocol. An empty one becomes a consumer group.
    pub fn become_consumer(&mut self) -> Option<&mut ConsumerGroup> {
        if let AnyGroup::Classic(group) = self {
            if !group.is_deserted() {
                return None;
            }
            *self = AnyGroup::Consumer(ConsumerGroup::after(group.generation(), group.empty_since()));
        }
        match self {
            AnyGroup::Consumer(group) => Some(group),
            AnyGroup::Classic(_) => None,
        }
    }

    pub fn classic(&self) -> Option<&Group> {
        match self {
            AnyGroup::Classic(group) => Some(group),
            AnyGroup::Consumer(_) => None,
        }
    }

    pub fn consumer(&self) -> Option<&ConsumerGroup> {
        match self {
            AnyGroup::Consumer(group) => Some(group),
            AnyGroup::Classic(_) => None,
        }
    }

    pub fn has_members(&self) -> bool {
        match self {
            AnyGroup::Classic(group) => !group.members().is_empty(),
            AnyGroup::Consumer(group) => !group.members().is_empty(),
        }
    }

    /// Neither members nor promised member ids.
    pub fn is_deserted(&self) -> bool {
        match self {
            AnyGroup::Classic(group) => group.is_deserted(),
            AnyGroup::Consumer(group) => group.is_deserted(),
        }
    }

    pub fn empty_since(&self) -> Option<i64> {
        match self {
            AnyGroup::Classic(group) => group.empty_since(),
            AnyGroup::Consumer(group) => group.empty_since(),
        }
    }

    /// The generation, or the group epoch.
    pub fn generation(&self) -> i32 {
        match self {
            AnyGroup::Classic(group) => group.generation(),
            AnyGroup::Consumer(group) => group.epoch(),
        }
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        match self {
            AnyGroup::Classic(group) => group.next_deadline(),
            AnyGroup::Consumer(group) => group.next_deadline(),
        }
    }

    pub fn tick(&mut self, now: Now, terms: &Terms<'_>, out: &mut Out) {
        match self {
            AnyGroup::Classic(group) => group.tick(now, terms.limits, out),
            AnyGroup::Consumer(group) => group.tick(now, terms.consumer, terms.topics, out),
        }
    }

    /// Whether `caller` may commit offsets now (P8). `names_epochs`: its request can say a member epoch
    /// (OffsetCommit 9 on). A negative epoch is a client without a group protocol, which may commit only
    /// while nobody else consumes.
    ///
    /// # Errors
    /// As the group's protocol has them.
    pub fn may_commit(&mut self, now: Now, caller: &Caller, names_epochs: bool) -> Result<(), ResponseError> {
        let group = match self {
            AnyGroup::Classic(group) => return group.may_commit(now, caller),
            AnyGroup::Consumer(group) => group,
        };
        if caller.generation < 0 && group.is_deserted() {
            return Ok(());
        }
        if group.members().contains_key(&caller.member_id) && !names_epochs {
            return Err(ResponseError::UnsupportedVersion);
        }
        group.check_member(&caller.member_id, caller.generation).map_err(|e| e.error())
    }
    /// As [`AnyGroup::may_commit`], for TxnOffsetCommit: of a producer that does not say which member it works for
    /// nothing is asked (versions up to 2), and a rebalance does not bar it: the transaction's own fence does.
    ///
    /// # Errors
    /// As TxnOffsetCommit has them in either protocol.
    pub fn may_commit_in_transaction(&mut self, now: Now, caller: &Caller) -> Result<(), ResponseError> {
        if caller.generation < 0 && caller.member_id.is_empty() && caller.instance.is_none() {
            return Ok(());
        }
        let group = match self {
            AnyGroup::Classic(group) => return group.may_commit_in_transaction(now, caller),
            AnyGroup::Consumer(group) => group,
        };
        if caller.generation < 0 && group.is_deserted() {
            return Ok(());
        }
        let checked = group.check_member(&caller.member_id, caller.generation).map_err(|e| e.error());
        checked.map_err(|e| match e {
            ResponseError::StaleMemberEpoch => ResponseError::IllegalGeneration,
            e => e,
        })
    }
}
