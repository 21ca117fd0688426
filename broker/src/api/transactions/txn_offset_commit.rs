//! TxnOffsetCommit (KIP-98, KIP-447): offsets that become visible when the transaction commits. What is answered without an
//! error is durable. From version 5 on (transaction.version 2, KIP-890) it also adds the group to the transaction.
//!
//! Partitions that do not exist and metadata that is too long are refused one by one; the rest is taken together or not
//! at all.

use super::{producer, RequestContext};
use crate::api::group_terms::{caller, code};
use crate::api::offset_commit::{Checked, Terms};
use crate::coordinator::{CommitInput, Committed, Place};
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TopicName, TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use kafka_protocol::ResponseError;

/// Clients before this version may crash when they are told that the coordinator loads (KAFKA-7296).
const KNOWS_LOADING: i16 = 2;
/// The first version with TRANSACTION_ABORTABLE.
const ABORTABLE: i16 = 4;
/// From this version on, the group is added.
const ADDS: i16 = 5;

pub async fn handle(cx: &RequestContext, mut req: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse {
    let image = cx.broker.cluster.image();
    let terms = Terms {
        image: &image,
        metadata_max: cx.broker.groups.settings().metadata_max,
        now: cx.broker.env.clock.wall_ms(),
        retention_ms: -1,
    };
    let checked: Vec<_> = std::mem::take(&mut req.topics).into_iter().map(|t| check(&terms, t)).collect();
    let offsets: Vec<_> =
        checked.iter().flat_map(|(_, rows)| rows).filter_map(|(_, row)| row.clone().ok()).collect();
    let whole = match offsets.is_empty() {
        true => Ok(()),
        false => commit(cx, req, offsets).await,
    };
    let topics = checked.into_iter().map(|(name, rows)| {
        let partition = |(index, row): (i32, Checked)| {
            let error = row.err().or(whole.err());
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(code(error))
        };
        TxnOffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(rows.into_iter().map(partition).collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}

type Rows = Vec<(i32, Checked)>;

fn check(terms: &Terms<'_>, topic: TxnOffsetCommitRequestTopic) -> (TopicName, Rows) {
    let rows = topic.partitions.into_iter().map(|p| {
        let checked = terms.check(
            &topic.name,
            p.partition_index,
            p.committed_offset,
            p.committed_leader_epoch,
            p.committed_metadata,
        );
        (p.partition_index, checked)
    });
    let rows = rows.collect();
    (topic.name, rows)
}

async fn commit(
    cx: &RequestContext,
    req: TxnOffsetCommitRequest,
    offsets: Vec<(Place, Committed)>,
) -> Result<(), ResponseError> {
    let producer = producer(req.producer_id, req.producer_epoch);
    let caller = caller(&req.member_id, req.group_instance_id, req.generation_id);
    let input = CommitInput { caller, names_epochs: true, offsets };
    let add = cx.api_version >= ADDS;
    let (transactions, id) = (&cx.broker.transactions, &req.transactional_id);
    let done = transactions.commit_offsets(&req.group_id, id, producer, input, add).await;
    done.map_err(|e| spell(e, cx.api_version))
}

/// An error of the group's coordinator or the transaction's, as the version's clients take it.
fn spell(error: ResponseError, version: i16) -> ResponseError {
    match error {
        // Clients try again as they are, without looking for a coordinator; so does Kafka (KAFKA-15653).
        ResponseError::ConcurrentTransactions | ResponseError::NetworkException
            if version >= KNOWS_LOADING =>
        {
            ResponseError::CoordinatorLoadInProgress
        }
        ResponseError::ConcurrentTransactions
        | ResponseError::NetworkException
        | ResponseError::CoordinatorLoadInProgress
            if version < KNOWS_LOADING =>
        {
            ResponseError::CoordinatorNotAvailable
        }
        ResponseError::InvalidTxnState | ResponseError::TransactionAbortable => match version >= ABORTABLE {
            true => ResponseError::TransactionAbortable,
            false => ResponseError::InvalidTxnState,
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_called_what_the_versions_clients_try_again_on() {
        for passing in [ResponseError::ConcurrentTransactions, ResponseError::NetworkException] {
            assert_eq!(spell(passing, 1), ResponseError::CoordinatorNotAvailable);
            assert_eq!(spell(passing, 2), ResponseError::CoordinatorLoadInProgress);
            assert_eq!(spell(passing, 5), ResponseError::CoordinatorLoadInProgress);
        }
        assert_eq!(
            spell(ResponseError::CoordinatorLoadInProgress, 0),
            ResponseError::CoordinatorNotAvailable
        );
        assert_eq!(spell(ResponseError::NotCoordinator, 3), ResponseError::NotCoordinator);
    }

    #[test]
    fn a_group_that_takes_no_part_is_an_abortable_error_to_those_who_know_it() {
        assert_eq!(spell(ResponseError::InvalidTxnState, 3), ResponseError::InvalidTxnState);
        assert_eq!(spell(ResponseError::InvalidTxnState, 4), ResponseError::TransactionAbortable);
        assert_eq!(spell(ResponseError::TransactionAbortable, 3), ResponseError::InvalidTxnState);
    }
}
