//! DescribeProducers (KIP-664): who writes to a partition, and whose transaction is open there.

use super::RequestContext;
use crate::api::partitions;
use crate::storage::ActiveProducer;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, ProducerId};
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: DescribeProducersRequest) -> DescribeProducersResponse {
    let mut topics = Vec::with_capacity(req.topics.len());
    for topic in req.topics {
        let mut rows = Vec::with_capacity(topic.partition_indexes.len());
        for index in topic.partition_indexes {
            let row = PartitionResponse::default().with_partition_index(index);
            rows.push(match active(cx, &topic.name, index).await {
                Ok(active) => row.with_active_producers(active.into_iter().map(shape).collect()),
                Err(error) => row.with_error_code(error.code()),
            });
        }
        topics.push(TopicResponse::default().with_name(topic.name).with_partitions(rows));
    }
    DescribeProducersResponse::default().with_topics(topics)
}

async fn active(cx: &RequestContext, topic: &str, index: i32) -> Result<Vec<ActiveProducer>, ResponseError> {
    let partition = partitions::find(cx, topic, index)?;
    partition.active_producers().await.map_err(|e| partitions::read_error(&e, -1))
}

fn shape(p: ActiveProducer) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(p.id))
        .with_producer_epoch(i32::from(p.epoch))
        .with_last_sequence(p.last_sequence)
        .with_last_timestamp(p.last_timestamp)
        .with_coordinator_epoch(p.coordinator_epoch)
        .with_current_txn_start_offset(p.transaction_start.map_or(-1, |at| at.0))
}
