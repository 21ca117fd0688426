//! Groups as administrators and metrics see them: DescribeGroups, ListGroups, DeleteGroups, OffsetDelete, and lags.
//!
//! What is shown is confirmed by a live lease, as every answer; but for [`Groups::lag_snapshot`], which proves nothing.

use super::any::AnyGroup;
use super::consumer::ConsumerState;
use super::durable::{Kept, Place};
use super::group::{Group, MemberDoc, State};
use super::groups::{valid_id, Groups};
use super::record::Committed;
use super::serving::{Gate, Serving};
use super::slot::Slot;
use crate::types::TopicId;
use kafka_protocol::messages::ConsumerProtocolSubscription;
use kafka_protocol::protocol::Decodable;
use kafka_protocol::ResponseError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What DescribeGroups shows of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub state: State,
    pub protocol_type: String,
    pub protocol_name: String,
    pub members: Vec<MemberDoc>,
}

/// Which protocol a group is of (KIP-848).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    Classic,
    Consumer,
}

impl GroupKind {
    /// As ListGroups spells it.
    pub fn name(self) -> &'static str {
        match self {
            GroupKind::Classic => "classic",
            GroupKind::Consumer => "consumer",
        }
    }
}

/// What ListGroups shows of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    pub protocol_type: String,
    /// The name of the state, in the group's protocol.
    pub state: &'static str,
    pub kind: GroupKind,
}

impl Listed {
    fn new(id: String, group: Option<&AnyGroup>) -> Listed {
        match group {
            Some(AnyGroup::Consumer(group)) => Listed {
                id,
                // As Kafka: what the classic protocol's consumers call themselves.
                protocol_type: "consumer".to_owned(),
                state: ConsumerState::name(group.state()),
                kind: GroupKind::Consumer,
            },
            classic => {
                let group = classic.and_then(AnyGroup::classic);
                Listed {
                    id,
                    protocol_type: group.and_then(Group::protocol_type).unwrap_or_default().to_owned(),
                    state: group.map_or(State::Empty, Group::state).name(),
                    kind: GroupKind::Classic,
                }
            }
        }
    }
}

/// What became of the offsets that OffsetDelete named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetDeletion {
    /// Names of topics that the group's members subscribe to: their offsets stay.
    pub subscribed: BTreeSet<String>,
}

/// A committed offset, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    pub group: String,
    pub topic: String,
    pub topic_id: TopicId,
    pub partition: i32,
    pub offset: i64,
}

impl Groups {
    /// `None`: no such group of the classic protocol (Kafka: Dead).
    pub async fn describe(&self, group: &str) -> Result<Option<Description>, ResponseError> {
        valid_id(group)?;
        let slot = self.slot(group)?;
        let (epoch, description) = slot.with(|s, _| describe(s, group))?;
        slot.confirm(epoch).await?;
        Ok(description)
    }

    /// All groups of the slots that this broker coordinates, by slot and id, and an error if some slot could not answer.
    /// `is_elsewhere`: whether another broker coordinates the slot, and lists it; clients ask all brokers.
    pub async fn list(&self, is_elsewhere: impl Fn(u32) -> bool) -> (Vec<Listed>, Option<ResponseError>) {
        let mut all = Vec::new();
        let mut missing = None;
        for (index, slot) in (0u32..).zip(self.slots()) {
            match list(slot).await {
                Ok(listed) => all.extend(listed),
                Err(ResponseError::NotCoordinator) if is_elsewhere(index) => {}
                Err(error) => missing = Some(error),
            }
        }
        (all, missing)
    }

    pub async fn delete(&self, group: &str) -> Result<(), ResponseError> {
        valid_id(group)?;
        let slot = self.slot(group)?;
        let (epoch, gate) = slot.with(|s, _| s.delete_group(group))?;
        slot.pass(gate?).await?;
        slot.confirm(epoch).await
    }

    /// Every committed offset as it is in memory. Never waits, and proves nothing: for metrics.
    pub fn lag_snapshot(&self) -> Vec<CommittedOffset> {
        let of_group = |(group, kept): (&String, &Kept)| {
            let offset = |(place, c): (&Place, &Committed)| CommittedOffset {
                group: group.clone(),
                topic: c.topic.clone(),
                topic_id: place.0,
                partition: place.1,
                offset: c.offset,
            };
            kept.offsets().map(offset).collect::<Vec<_>>()
        };
        let of_slot = |slot: &Arc<Slot>| {
            slot.peek(|durable| durable.groups().iter().flat_map(of_group).collect::<Vec<_>>())
        };
        self.slots().iter().filter_map(of_slot).flatten().collect()
    }

    /// OffsetDelete: places with the names of their topics.
    pub async fn delete_offsets(
        &self,
        group: &str,
        places: &[(Place, String)],
    ) -> Result<OffsetDeletion, ResponseError> {
        valid_id(group)?;
        let slot = self.slot(group)?;
        let (epoch, deletion) = slot.with(|s, _| delete_offsets(s, group, places))?;
        let (subscribed, gate) = deletion?;
        slot.pass(gate).await?;
        slot.confirm(epoch).await?;
        Ok(OffsetDeletion { subscribed })
    }
}

fn describe(s: &Serving, id: &str) -> Option<Description> {
    let Some(group) = s.group(id).map(AnyGroup::classic) else {
        return s.knows(id).then(|| Description {
            state: State::Empty,
            protocol_type: String::new(),
            protocol_name: String::new(),
            members: Vec::new(),
        });
    };
    let group = group?;
    Some(Description {
        state: group.state(),
        protocol_type: group.protocol_type().unwrap_or_default().to_owned(),
        protocol_name: group.protocol_name().unwrap_or_default().to_owned(),
        members: group.to_doc().members,
    })
}

async fn list(slot: &Slot) -> Result<Vec<Listed>, ResponseError> {
    let listed = |s: &mut Serving| {
        let ids = s.ids().into_iter();
        ids.map(|id| Listed::new(id.clone(), s.group(id))).collect()
    };
    let (epoch, groups) = slot.with(|s, _| listed(s))?;
    slot.confirm(epoch).await?;
    Ok(groups)
}

fn delete_offsets(
    s: &mut Serving,
    id: &str,
    places: &[(Place, String)],
) -> Result<(BTreeSet<String>, Gate), ResponseError> {
    if !s.knows(id) {
        return Err(ResponseError::GroupIdNotFound);
    }
    let named = || places.iter().map(|(_, name)| name.clone()).collect::<BTreeSet<_>>();
    let subscribed = match s.group(id) {
        Some(AnyGroup::Consumer(group)) => {
            named().into_iter().filter(|name| group.subscribes(name)).collect()
        }
        Some(AnyGroup::Classic(group)) if !group.members().is_empty() => {
            if group.protocol_type() != Some("consumer") {
                return Err(ResponseError::NonEmptyGroup);
            }
            // A subscription that we cannot read may be to anything.
            let topics = group.subscribes(subscription);
            named().into_iter().filter(|name| topics.as_ref().is_none_or(|t| t.contains(name))).collect()
        }
        _ => BTreeSet::new(),
    };
    let free = places.iter().filter(|(_, name)| !subscribed.contains(name));
    let free: Vec<Place> = free.map(|(place, _)| *place).collect();
    let gate = s.delete_offsets(id, &free);
    Ok((subscribed, gate))
}

/// The topics in a consumer's subscription (ConsumerProtocolSubscription): the field that every version has.
fn subscription(metadata: &[u8]) -> Option<Vec<String>> {
    let mut body = bytes::Bytes::copy_from_slice(metadata.get(2..)?);
    // Version 0's fields lead every later version.
    let decoded = ConsumerProtocolSubscription::decode(&mut body, 0).ok()?;
    Some(decoded.topics.iter().map(|t| t.to_string()).collect())
}
