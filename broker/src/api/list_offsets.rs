//! ListOffsets (KIP-79; versions 1–8): where a partition begins and ends, and which offset belongs to a
//! timestamp.
//!
//! Under `read_committed` nothing at or past the last stable offset is shown. The earliest offset comes
//! without a leader epoch (−1, "unknown"), which clients take as no epoch to validate by.

use super::patience::{Patience, SIDE_BY_SIDE};
use super::{partitions, RequestContext};
use crate::storage::{Partition, TimestampHit};
use crate::types::Offset;
use futures::stream::{self, StreamExt};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use kafka_protocol::ResponseError;
use std::collections::BTreeMap;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// KIP-734, from version 7.
const MAX_TIMESTAMP: i64 = -3;
/// KIP-405, from version 8. All that we have is local.
const EARLIEST_LOCAL: i64 = -4;

const READ_COMMITTED: i8 = 1;

pub async fn handle(cx: &RequestContext, req: ListOffsetsRequest) -> ListOffsetsResponse {
    let repeated = repeated(&req.topics);
    let patience = Patience::new(cx);
    let mut topics = Vec::with_capacity(req.topics.len());
    for topic in req.topics {
        let name = &topic.name;
        let (repeated, patience) = (&repeated, &patience);
        let rows = stream::iter(topic.partitions).map(|p| async move {
            let found = match repeated.contains_key(&(name.to_string(), p.partition_index)) {
                true => Err(ResponseError::InvalidRequest),
                false => look_up(cx, name, &p, req.isolation_level, patience).await,
            };
            row(cx.api_version, p.partition_index, found)
        });
        let rows = rows.buffered(SIDE_BY_SIDE).collect().await;
        topics.push(ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(rows));
    }
    ListOffsetsResponse::default().with_topics(topics)
}

/// Partitions that are named more than once; Kafka answers them with INVALID_REQUEST.
fn repeated(topics: &[ListOffsetsTopic]) -> BTreeMap<(String, i32), usize> {
    let mut seen = BTreeMap::new();
    for topic in topics {
        for p in &topic.partitions {
            *seen.entry((topic.name.to_string(), p.partition_index)).or_insert(0) += 1;
        }
    }
    seen.retain(|_, n| *n > 1);
    seen
}

/// What is shown of a partition. `None`: no record has such a timestamp.
struct Found {
    timestamp: i64,
    offset: i64,
    epoch: i32,
}

fn row(
    version: i16,
    index: i32,
    found: Result<Option<Found>, ResponseError>,
) -> ListOffsetsPartitionResponse {
    let row = ListOffsetsPartitionResponse::default().with_partition_index(index);
    match found {
        Err(code) => row.with_error_code(code.code()),
        Ok(None) => row,
        Ok(Some(found)) => {
            let row = row.with_timestamp(found.timestamp).with_offset(found.offset);
            // The field may not be set where the version lacks it.
            row.with_leader_epoch(if version >= 4 { found.epoch } else { -1 })
        }
    }
}

/// Whether a version knows a timestamp's special meaning.
fn is_known(timestamp: i64, version: i16) -> bool {
    match timestamp {
        MAX_TIMESTAMP => version >= 7,
        EARLIEST_LOCAL => version >= 8,
        t => t >= EARLIEST,
    }
}

async fn look_up(
    cx: &RequestContext,
    topic: &str,
    asked: &ListOffsetsPartition,
    isolation: i8,
    patience: &Patience,
) -> Result<Option<Found>, ResponseError> {
    if !is_known(asked.timestamp, cx.api_version) {
        return Err(ResponseError::UnsupportedVersion);
    }
    let partition = partitions::find(cx, topic, asked.partition_index)?;
    let believed = asked.current_leader_epoch;
    let failed = |e| partitions::read_error(&e, believed);
    let marks = patience.bound(partition.marks()).await.map_err(failed)?;
    partitions::check_epoch(believed, &marks)?;
    let end = if isolation == READ_COMMITTED { marks.lso } else { marks.hwm };
    match asked.timestamp {
        LATEST => Ok(Some(edge(end, marks.epoch.wire()))),
        EARLIEST | EARLIEST_LOCAL => Ok(Some(edge(marks.log_start, -1))),
        timestamp => patience.bound(search(&partition, timestamp, end)).await.map_err(failed),
    }
}

fn edge(offset: Offset, epoch: i32) -> Found {
    Found { timestamp: -1, offset: offset.0, epoch }
}

async fn search(
    partition: &std::sync::Arc<Partition>,
    timestamp: i64,
    end: Offset,
) -> Result<Option<Found>, crate::storage::ReadError> {
    let hit = match timestamp {
        MAX_TIMESTAMP => partition.max_timestamp().await?,
        t => partition.find_timestamp(t).await?,
    };
    Ok(hit.filter(|hit| hit.offset < end).map(|TimestampHit { offset, timestamp, epoch }| Found {
        timestamp,
        offset: offset.0,
        epoch: epoch.wire(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::protocol::StrBytes;

    #[test]
    fn special_timestamps_belong_to_versions() {
        assert!(is_known(LATEST, 1) && is_known(EARLIEST, 1) && is_known(0, 1) && is_known(i64::MAX, 1));
        assert!(!is_known(MAX_TIMESTAMP, 6) && is_known(MAX_TIMESTAMP, 7));
        assert!(!is_known(EARLIEST_LOCAL, 7) && is_known(EARLIEST_LOCAL, 8));
        assert!(!is_known(-5, 8) && !is_known(i64::MIN, 8));
    }

    #[test]
    fn a_partition_named_twice_is_found_across_topics() {
        let topic = |name: &'static str, indexes: &[i32]| {
            let partitions = indexes.iter().map(|i| ListOffsetsPartition::default().with_partition_index(*i));
            ListOffsetsTopic::default()
                .with_name(TopicName(StrBytes::from_static_str(name)))
                .with_partitions(partitions.collect())
        };
        let twice = repeated(&[topic("a", &[0, 1]), topic("b", &[0]), topic("a", &[1])]);
        assert_eq!(twice.into_keys().collect::<Vec<_>>(), [("a".to_owned(), 1)]);
    }

    #[test]
    fn no_leader_epoch_is_set_where_the_version_has_none() {
        let found = || Ok(Some(edge(Offset(3), 7)));
        assert_eq!(row(3, 0, found()).leader_epoch, -1);
        assert_eq!(row(4, 0, found()).leader_epoch, 7);
    }
}
