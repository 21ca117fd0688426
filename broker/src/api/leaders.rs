//! Who leads a partition, as far as this broker knows: what Metadata shows, and what Produce and Fetch tell those who came to
//! the wrong broker, so that they need not ask (KIP-951).
//!
//! No lease is asked for: what is said is where to go, and who is there may refuse.

use super::members::{members, Member};
use super::partitions::Named;
use super::RequestContext;
use crate::cluster::TopicImage;
use crate::storage::{LifeName, PartitionStatus};
use crate::types::Epoch;
use kafka_protocol::messages::BrokerId;
use std::collections::BTreeMap;

/// Who leads a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub id: Option<BrokerId>,
    /// The leader epoch, once one is known.
    pub epoch: Option<Epoch>,
}

/// The leader of a partition, if it is one of `members`.
pub(super) fn of(cx: &RequestContext, members: &[Member], topic: &TopicImage, index: i32) -> Leader {
    let this = BrokerId(cx.broker.cluster.broker_id().0);
    let proposed = topic.leader(index).map(|id| BrokerId(id.0));
    let leader = proposed.filter(|id| members.iter().any(|m| m.id == *id));
    // Its epoch is shown also while this broker is not sure of its lease: it must not go back.
    let status = cx.broker.cluster.engine().get(topic.id, index).map(|p| p.status());
    let status = status.filter(|_| proposed == Some(this));
    decide(leader, topic.epoch(index), status.as_ref(), this)
}

/// `since` is the epoch of the assignment, `status` what this broker has of the partition if it is to lead it.
pub(super) fn decide(
    leader: Option<BrokerId>,
    since: Epoch,
    status: Option<&PartitionStatus>,
    this: BrokerId,
) -> Leader {
    // A closed partition opens when it is used, a stalled one by itself: both are found here.
    let led = |s: &PartitionStatus| !matches!(s.life, LifeName::Relinquished | LifeName::Abandoned);
    let id = leader.filter(|id| *id != this || status.is_some_and(led));
    // The leader itself may have opened it anew since. Clients never see a lower one from it than from others.
    let epoch = status.map(|s| s.epoch.max(since)).unwrap_or(since);
    Leader { id, epoch: Some(epoch).filter(|e| *e > Epoch::default()) }
}

/// The leaders that a response names, and where they are. Nothing is looked up before the first is asked for.
pub(super) struct Hints<'a> {
    cx: &'a RequestContext,
    members: Option<Vec<Member>>,
    named: BTreeMap<BrokerId, Member>,
}

impl<'a> Hints<'a> {
    pub fn new(cx: &'a RequestContext) -> Self {
        Hints { cx, members: None, named: BTreeMap::new() }
    }

    /// Leader and leader epoch of a partition, if both are known: clients follow what is later than what they know, and no other.
    pub fn leader(&mut self, topic: &Named<'_>, index: i32) -> Option<(BrokerId, i32)> {
        let members = self.members.get_or_insert_with(|| members(self.cx));
        let image = self.cx.broker.cluster.image();
        let leader = of(self.cx, members, topic.topic(&image).ok()?, index);
        let (id, epoch) = leader.id.zip(leader.epoch)?;
        let member = members.iter().find(|m| m.id == id)?;
        self.named.insert(id, member.clone());
        Some((id, epoch.wire()))
    }

    /// All that were named, each once.
    pub fn endpoints(self) -> impl Iterator<Item = Member> {
        self.named.into_values()
    }
}
