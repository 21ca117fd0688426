//! OffsetForLeaderEpoch (KIP-101, KIP-320; versions 2–4): where the records of a leader epoch end, by which a
//! consumer finds out that what it read was truncated. (Under the default flush dial, never.)
//!
//! As Kafka answers: an epoch newer than the leader's is not known (−1, −1); one older than all records ends
//! where the log starts. Nothing past the high watermark is shown, which Kafka would show to followers only.

use super::patience::{Patience, SIDE_BY_SIDE};
use super::{partitions, RequestContext};
use crate::types::Epoch;
use futures::stream::{self, StreamExt};
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
    let patience = Patience::new(cx);
    let mut topics = Vec::with_capacity(req.topics.len());
    for topic in req.topics {
        let (name, patience) = (&topic.topic, &patience);
        let rows = stream::iter(topic.partitions).map(|p| async move {
            let row = EpochEndOffset::default().with_partition(p.partition);
            match end_of(cx, name, &p, patience).await {
                Ok(Some((epoch, end))) => row.with_leader_epoch(epoch).with_end_offset(end),
                Ok(None) => row,
                Err(code) => row.with_error_code(code.code()),
            }
        });
        let rows = rows.buffered(SIDE_BY_SIDE).collect().await;
        topics.push(OffsetForLeaderTopicResult::default().with_topic(topic.topic).with_partitions(rows));
    }
    OffsetForLeaderEpochResponse::default().with_topics(topics)
}

async fn end_of(
    cx: &RequestContext,
    topic: &str,
    asked: &OffsetForLeaderPartition,
    patience: &Patience,
) -> Result<Option<(i32, i64)>, ResponseError> {
    let partition = partitions::find(cx, topic, asked.partition)?;
    let believed = asked.current_leader_epoch;
    let failed = |e| partitions::read_error(&e, believed);
    let marks = patience.bound(partition.marks()).await.map_err(failed)?;
    partitions::check_epoch(believed, &marks)?;
    let Ok(epoch) = u32::try_from(asked.leader_epoch) else { return Ok(None) };
    if asked.leader_epoch > marks.epoch.wire() {
        return Ok(None);
    }
    let end = patience.bound(partition.epoch_end(Epoch(epoch))).await.map_err(failed)?;
    Ok(Some(match end {
        Some((epoch, end)) => (epoch.wire(), end.min(marks.hwm).0),
        None => (asked.leader_epoch, marks.log_start.0),
    }))
}
