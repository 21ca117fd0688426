//! TxnOffsetCommit (KIP-98, KIP-447): offsets that become visible when their transaction commits. The group's coordinator
//! asks that of the transaction before it takes the first ones; from version 5 on (KIP-890) it makes the group take part.

use super::super::group_terms::caller;
use super::{producer, RequestContext};
use crate::coordinator::{CommitInput, Committed, Place};
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use kafka_protocol::ResponseError;

/// The first version that joins the transaction by itself, and whose clients know TRANSACTION_ABORTABLE.
const ADDS_SINCE: i16 = 5;

type Checked = Result<(Place, Committed), ResponseError>;

pub async fn handle(cx: &RequestContext, req: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse {
    let mut topics = Vec::with_capacity(req.topics.len());
    for topic in req.topics {
        let rows = topic.partitions.into_iter().map(|p| (p.partition_index, check(cx, &topic.name, p)));
        let rows = rows.collect::<Vec<_>>();
        topics.push((topic.name, rows));
    }
    let checked = topics.iter().flat_map(|(_, rows)| rows);
    let offsets: Vec<_> = checked.filter_map(|(_, result)| result.clone().ok()).collect();
    let whole = if offsets.is_empty() {
        Ok(())
    } else {
        let caller = caller(&req.member_id, req.group_instance_id, req.generation_id);
        let input = CommitInput { caller, names_epochs: true, offsets };
        let who = producer(req.producer_id, req.producer_epoch);
        let add = cx.api_version >= ADDS_SINCE;
        cx.broker.transactions.commit_offsets(&req.group_id, &req.transactional_id, who, input, add).await
    };
    let whole = whole.map_err(|e| match e {
        ResponseError::InvalidTxnState if cx.api_version >= ADDS_SINCE => ResponseError::TransactionAbortable,
        other => other,
    });
    let topics = topics.into_iter().map(|(name, rows)| {
        let rows = rows.into_iter().map(|(index, checked)| {
            let error = checked.err().or(whole.err());
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(error.map_or(0, |e| e.code()))
        });
        TxnOffsetCommitResponseTopic::default().with_name(name).with_partitions(rows.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}

fn check(cx: &RequestContext, topic: &str, asked: TxnOffsetCommitRequestPartition) -> Checked {
    let image = cx.broker.cluster.image();
    let topic = image.topic(topic).filter(|t| (0..t.partitions).contains(&asked.partition_index));
    let topic = topic.ok_or(ResponseError::UnknownTopicOrPartition)?;
    let metadata = asked.committed_metadata.unwrap_or_default().to_string();
    if metadata.len() > cx.broker.groups.settings().metadata_max {
        return Err(ResponseError::OffsetMetadataTooLarge);
    }
    let committed = Committed {
        topic: topic.name.clone(),
        offset: asked.committed_offset,
        leader_epoch: asked.committed_leader_epoch,
        metadata,
        committed_at: cx.broker.env.clock.wall_ms(),
        expires_at: None,
    };
    Ok(((topic.id, asked.partition_index), committed))
}
