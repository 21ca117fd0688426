//! WriteTxnMarkers (KIP-98): a coordinator, or an administrator who ends a hanging transaction (KIP-664), has markers
//! written where they belong. Answered once they are durable.

use super::{tags, RequestContext};
use crate::api::partitions;
use crate::coordinator::transactions;
use crate::storage::{Marker, MarkerError};
use crate::types::Offset;
use futures::future::join_all;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse {
    let results = join_all(req.markers.into_iter().map(|m| one(cx, m))).await;
    WriteTxnMarkersResponse::default().with_markers(results)
}

async fn one(cx: &RequestContext, asked: WritableTxnMarker) -> WritableTxnMarkerResult {
    let known = &asked.unknown_tagged_fields;
    let result = WritableTxnMarkerResult::default().with_producer_id(asked.producer_id);
    let marker = Marker {
        producer_id: asked.producer_id.0,
        producer_epoch: asked.producer_epoch,
        commit: asked.transaction_result,
        coordinator_epoch: asked.coordinator_epoch,
        number: tags::int(known, tags::NUMBER),
        first: tags::int(known, tags::FIRST).and_then(|at| i64::try_from(at).ok()).map(Offset),
    };
    if let Some(group) = tags::text(known, tags::GROUP) {
        let applied = cx.broker.transactions.apply_group_marker(&group, to_group(&marker)).await;
        let code = applied.map_or_else(|e| u64::from(e.code().unsigned_abs()), |()| 0);
        return result.with_unknown_tagged_field(tags::ERROR, tags::of_int(code));
    }
    let mut topics = Vec::with_capacity(asked.topics.len());
    for topic in asked.topics {
        let name = &topic.name;
        let rows = topic.partition_indexes.iter().map(|index| write(cx, name, *index, marker));
        let rows = join_all(rows).await;
        topics.push(WritableTxnMarkerTopicResult::default().with_name(topic.name).with_partitions(rows));
    }
    result.with_topics(topics)
}

fn to_group(m: &Marker) -> transactions::Marker {
    transactions::Marker {
        producer_id: m.producer_id,
        producer_epoch: m.producer_epoch,
        commit: m.commit,
        coordinator_epoch: m.coordinator_epoch,
        number: m.number,
    }
}

async fn write(
    cx: &RequestContext,
    topic: &str,
    index: i32,
    marker: Marker,
) -> WritableTxnMarkerPartitionResult {
    let row = WritableTxnMarkerPartitionResult::default().with_partition_index(index);
    let partition = match partitions::find(cx, topic, index) {
        Ok(partition) => partition,
        Err(error) => return row.with_error_code(error.code()),
    };
    match partition.write_marker(marker).await {
        Ok(()) => row,
        Err(MarkerError::Unverified { first }) => row
            .with_error_code(marker_error(&MarkerError::Unverified { first }).code())
            .with_unknown_tagged_field(tags::FIRST, tags::of_int(first.0.unsigned_abs())),
        Err(error) => row.with_error_code(marker_error(&error).code()),
    }
}

/// What a marker that was not written is answered with.
pub(super) fn marker_error(error: &MarkerError) -> ResponseError {
    match error {
        MarkerError::NotLeader => ResponseError::NotLeaderOrFollower,
        MarkerError::Storage(_) => ResponseError::KafkaStorageError,
        MarkerError::CoordinatorFenced { .. } => ResponseError::TransactionCoordinatorFenced,
        MarkerError::InvalidProducerEpoch { .. } => ResponseError::InvalidProducerEpoch,
        MarkerError::Unverified { .. } | MarkerError::OfAnother { .. } => ResponseError::InvalidTxnState,
    }
}
