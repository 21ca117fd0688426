//! DeleteRecords (KIP-107): moves a partition's log start up, durably before it is answered.
//!
//! Offset −1 means the high watermark. An offset below the log start changes nothing and answers the present log
//! start; one past the high watermark, or another negative one, is OFFSET_OUT_OF_RANGE (1). A topic that is only
//! compacted refuses with POLICY_VIOLATION (44): what compaction keeps, a reader may count on.

use super::deadline::Deadline;
use super::refusal::Refusal;
use super::{partitions, RequestContext};
use crate::config::CleanupPolicy;
use crate::storage::DeleteRecordsError;
use crate::types::Offset;
use futures::{stream, StreamExt};
use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use kafka_protocol::ResponseError;

const HIGH_WATERMARK: i64 = -1;
const UNKNOWN: i64 = -1;
/// Partitions of one request that are worked on at a time.
const AT_ONCE: usize = 16;

pub async fn handle(cx: &RequestContext, req: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let deadline = Deadline::new(&cx.broker.env.clock, req.timeout_ms);
    let mut topics = Vec::with_capacity(req.topics.len());
    for topic in req.topics {
        let partitions = stream::iter(topic.partitions)
            .map(|p| one(cx, &deadline, &topic.name, p))
            .buffered(AT_ONCE)
            .collect()
            .await;
        topics.push(DeleteRecordsTopicResult::default().with_name(topic.name).with_partitions(partitions));
    }
    DeleteRecordsResponse::default().with_topics(topics)
}

async fn one(
    cx: &RequestContext,
    deadline: &Deadline,
    topic: &str,
    asked: DeleteRecordsPartition,
) -> DeleteRecordsPartitionResult {
    let result = DeleteRecordsPartitionResult::default().with_partition_index(asked.partition_index);
    match delete(cx, deadline, topic, &asked).await {
        Ok(log_start) => result.with_low_watermark(log_start.0),
        Err(error) => result.with_low_watermark(UNKNOWN).with_error_code(error.code()),
    }
}

async fn delete(
    cx: &RequestContext,
    deadline: &Deadline,
    topic: &str,
    asked: &DeleteRecordsPartition,
) -> Result<Offset, ResponseError> {
    let partition = partitions::find(cx, topic, asked.partition_index)?;
    let target = target(asked.offset, partition.config().cleanup_policy)?;
    let work = async move { partition.delete_records(target).await.map_err(refusal) };
    deadline.run(work).await.map_err(|refusal| refusal.error)
}

/// Up to where (`None`: the high watermark).
fn target(offset: i64, policy: CleanupPolicy) -> Result<Option<Offset>, ResponseError> {
    if !policy.delete {
        return Err(ResponseError::PolicyViolation);
    }
    match offset {
        HIGH_WATERMARK => Ok(None),
        0.. => Ok(Some(Offset(offset))),
        _ => Err(ResponseError::OffsetOutOfRange),
    }
}

fn refusal(e: DeleteRecordsError) -> Refusal {
    let error = match &e {
        DeleteRecordsError::NotLeader => ResponseError::NotLeaderOrFollower,
        DeleteRecordsError::OutOfRange(_) => ResponseError::OffsetOutOfRange,
        DeleteRecordsError::Storage(_) => ResponseError::KafkaStorageError,
    };
    Refusal::new(error, e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELETE: CleanupPolicy = CleanupPolicy { delete: true, compact: false };
    const COMPACT: CleanupPolicy = CleanupPolicy { delete: false, compact: true };
    const BOTH: CleanupPolicy = CleanupPolicy { delete: true, compact: true };

    #[test]
    fn minus_one_is_the_high_watermark_and_no_other_negative_offset_is_anything() {
        assert_eq!(target(-1, DELETE), Ok(None));
        assert_eq!(target(0, DELETE), Ok(Some(Offset(0))));
        assert_eq!(target(i64::MAX, BOTH), Ok(Some(Offset(i64::MAX))));
        assert_eq!(target(-2, DELETE), Err(ResponseError::OffsetOutOfRange));
        assert_eq!(target(i64::MIN, DELETE), Err(ResponseError::OffsetOutOfRange));
    }

    #[test]
    fn a_compact_only_topic_keeps_its_records() {
        for offset in [-2, -1, 0, 5] {
            assert_eq!(target(offset, COMPACT), Err(ResponseError::PolicyViolation));
        }
    }
}
