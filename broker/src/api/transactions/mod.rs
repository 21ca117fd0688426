//! The APIs of transactions (KIP-98, KIP-664, KIP-890), and how brokers speak to one another about them.
//!
//! Brokers use Kafka's own requests, with a tagged field for what these have no room for ([`wire`]).

pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod describe_producers;
pub mod describe_transactions;
pub mod end_txn;
pub mod list_transactions;
mod participants;
mod pool;
pub mod txn_offset_commit;
mod wire;
pub mod write_txn_markers;

pub use participants::Peers;

use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::coordinator::transactions::{Participant, Producer};
use kafka_protocol::messages::ProducerId;
use kafka_protocol::ResponseError;

/// The partition under the id that the topic has now.
fn partition(image: &ClusterImage, topic: &str, index: i32) -> Result<Participant, ResponseError> {
    let topic = image.topic(topic).filter(|t| (0..t.partitions).contains(&index));
    let topic = topic.ok_or(ResponseError::UnknownTopicOrPartition)?;
    Ok(Participant::Partition(topic.id, index))
}

fn producer(id: ProducerId, epoch: i16) -> Producer {
    Producer { id: id.0, epoch }
}

/// PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients of a version below `since`, which do not know it (KIP-588).
pub(super) fn as_of(version: i16, since: i16, error: ResponseError) -> ResponseError {
    match error {
        ResponseError::ProducerFenced if version < since => ResponseError::InvalidProducerEpoch,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_know_producer_fenced_is_told_invalid_producer_epoch() {
        assert_eq!(as_of(1, 2, ResponseError::ProducerFenced), ResponseError::InvalidProducerEpoch);
        assert_eq!(as_of(2, 2, ResponseError::ProducerFenced), ResponseError::ProducerFenced);
        assert_eq!(as_of(1, 2, ResponseError::NotCoordinator), ResponseError::NotCoordinator);
    }
}
