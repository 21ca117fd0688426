//! WriteTxnMarkers (KIP-98): how a transaction ended, told to those who lead its partitions. What is answered without an
//! error is durable.
//!
//! A coordinator of this broker's kind says which transaction it means, of which incarnation of a topic, and tells groups,
//! too ([`super::wire`]). Without that it is an administrator who ends what hangs (`kafka-transactions.sh --abort`,
//! KIP-664): then it is whichever transaction of the producer's is open.

use super::participants::marker_error;
use super::wire::{self, TAG};
use super::RequestContext;
use crate::api::group_terms::code;
use crate::api::partitions;
use crate::api::side_by_side::side_by_side;
use crate::coordinator::transactions::Marker;
use crate::reached;
use crate::storage::{MarkerError, Partition};
use crate::types::{Offset, TopicId};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use kafka_protocol::ResponseError;
use std::sync::Arc;

pub async fn handle(cx: &RequestContext, req: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse {
    let markers = side_by_side(req.markers.into_iter().map(|m| one(cx, m))).await;
    WriteTxnMarkersResponse::default().with_markers(markers)
}

async fn one(cx: &RequestContext, row: WritableTxnMarker) -> WritableTxnMarkerResult {
    let result = WritableTxnMarkerResult::default().with_producer_id(row.producer_id);
    let said = wire::read_marker(&row.unknown_tagged_fields);
    let marker = Marker {
        producer_id: row.producer_id.0,
        producer_epoch: row.producer_epoch,
        commit: row.transaction_result,
        coordinator_epoch: row.coordinator_epoch,
        number: said.as_ref().ok().and_then(|s| s.as_ref()).map(|(number, _)| *number),
    };
    if let Ok(Some((_, Some(group)))) = &said {
        let applied = cx.broker.transactions.apply_group_marker(group, marker).await;
        return result.with_unknown_tagged_field(TAG, wire::outcome(code(applied.err())));
    }
    let refused = said.err().map(|_| ResponseError::InvalidRequest);
    let topics = side_by_side(row.topics.into_iter().map(|t| topic(cx, &marker, t, refused))).await;
    result.with_topics(topics)
}

async fn topic(
    cx: &RequestContext,
    marker: &Marker,
    mut topic: WritableTxnMarkerTopic,
    refused: Option<ResponseError>,
) -> WritableTxnMarkerTopicResult {
    let incarnation = wire::read_marker_topic(&topic.unknown_tagged_fields);
    let to = match (refused, incarnation) {
        (Some(e), _) => Err(e),
        (None, Ok(Some((id, first)))) => Ok(To::Incarnation(id, first)),
        (None, Ok(None)) => Ok(To::Name),
        (None, Err(_)) => Err(ResponseError::InvalidRequest),
    };
    let indexes = std::mem::take(&mut topic.partition_indexes);
    let (to, name) = (&to, &topic.name);
    let rows = indexes.into_iter().map(|index| async move {
        let result = WritableTxnMarkerPartitionResult::default().with_partition_index(index);
        let written = match to {
            Ok(to) => write(cx, marker, name, index, to).await,
            Err(e) => Err(Failure::from(*e)),
        };
        match written {
            Ok(()) => result,
            Err(Failure { error, first: None }) => result.with_error_code(error.code()),
            Err(Failure { error, first: Some(first) }) => {
                result.with_error_code(error.code()).with_unknown_tagged_field(TAG, wire::first(first))
            }
        }
    });
    let rows = side_by_side(rows).await;
    WritableTxnMarkerTopicResult::default().with_name(name.clone()).with_partitions(rows)
}

/// Which partition is meant.
enum To {
    /// That of this incarnation; with what the marker was sent back before.
    Incarnation(TopicId, Option<Offset>),
    /// That of the topic that has the name now.
    Name,
}

struct Failure {
    error: ResponseError,
    /// The marker is to be sent again with that, if it is still to be driven.
    first: Option<Offset>,
}

impl From<ResponseError> for Failure {
    fn from(error: ResponseError) -> Self {
        Failure { error, first: None }
    }
}

async fn write(cx: &RequestContext, marker: &Marker, name: &str, index: i32, to: &To) -> Result<(), Failure> {
    let (partition, first): (Arc<Partition>, _) = match to {
        To::Incarnation(id, first) => {
            let partition = cx.broker.cluster.engine().get(*id, index);
            (partition.ok_or(ResponseError::NotLeaderOrFollower)?, *first)
        }
        To::Name => {
            reached!("marker-of-an-administrator");
            (partitions::find(cx, name, index)?, None)
        }
    };
    partition.write_marker(*marker, first).await.map_err(|e| {
        let first = match &e {
            MarkerError::Unverified { first } => Some(*first),
            _ => None,
        };
        Failure { error: marker_error(&e), first }
    })
}
