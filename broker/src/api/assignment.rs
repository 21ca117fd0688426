//! Manual replica assignments. The volume holds the one copy of a partition, and this broker leads them all:
//! an assignment is accepted if it says just that.

use super::refusal::Refusal;
use crate::types::BrokerId;
use kafka_protocol::messages;
use kafka_protocol::ResponseError;

/// Whether `replicas` is one replica on this broker.
pub(super) fn check_replicas(
    partition: i32,
    replicas: &[messages::BrokerId],
    this: BrokerId,
) -> Result<(), Refusal> {
    match replicas {
        [one] if one.0 == this.0 => Ok(()),
        [one] => refuse(format!("partition {partition}: there is no broker {}, only {this}", one.0)),
        many => refuse(format!(
            "partition {partition}: {} replicas; the volume keeps a partition once, so that exactly one \
             broker, {this}, can be assigned",
            many.len()
        )),
    }
}

pub(super) fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(ResponseError::InvalidReplicaAssignment, message))
}
