//! What the API handlers of the consumer protocol (KIP-848) call.

use super::consumer::{ConsumerDoc, ConsumerError, ConsumerState, HeartbeatInput, HeartbeatReply};
use super::groups::{valid_id, Groups};
use super::serving::Serving;
use kafka_protocol::ResponseError;

/// What ConsumerGroupDescribe shows of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerDescription {
    pub state: ConsumerState,
    pub doc: ConsumerDoc,
}

/// What stands under a group id, to those who ask for a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerLook {
    Missing,
    /// Of the classic protocol, or offsets without members.
    Classic,
    Consumer(Box<ConsumerDescription>),
}

impl Groups {
    /// ConsumerGroupHeartbeat. `input.fresh_id` is filled in here. When it returns, what the member is told is
    /// durable.
    ///
    /// # Errors
    /// As ConsumerGroupHeartbeat has them.
    pub async fn consumer_heartbeat(
        &self,
        group: &str,
        mut input: HeartbeatInput,
    ) -> Result<HeartbeatReply, ConsumerError> {
        if group.is_empty() {
            return Err(ConsumerError::Invalid("the group id is empty"));
        }
        if input.epoch == 0 && input.member_id.is_empty() {
            input.fresh_id = self.fresh_id();
        }
        let slot = self.slot(group)?;
        let (epoch, (result, gate)) =
            slot.with(|s, now| s.consumer_heartbeat(group, now, &slot.terms(), &input))?;
        slot.pass(gate).await?;
        slot.confirm(epoch).await?;
        result
    }

    /// # Errors
    /// INVALID_GROUP_ID, or that the coordinator is not here or not ready.
    pub async fn look_at_consumer(&self, group: &str) -> Result<ConsumerLook, ResponseError> {
        valid_id(group)?;
        let slot = self.slot(group)?;
        let (epoch, (look, gate)) = slot.with(|s, _| (look(s, group), s.group_gate(group)))?;
        slot.pass(gate).await?;
        slot.confirm(epoch).await?;
        Ok(look)
    }
}

fn look(s: &Serving, id: &str) -> ConsumerLook {
    match s.group(id).map(|g| g.consumer()) {
        None if !s.knows(id) => ConsumerLook::Missing,
        None | Some(None) => ConsumerLook::Classic,
        Some(Some(group)) => {
            let description = ConsumerDescription { state: group.state(), doc: group.to_doc() };
            ConsumerLook::Consumer(Box::new(description))
        }
    }
}
