//! AddPartitionsToTxn (KIP-98): partitions join a transaction before anything is written to them; all of a request or
//! none. From version 4 on it is for brokers, too (KIP-890): they verify, or add, on behalf of producers.

use super::{as_of, producer, tags, RequestContext};
use crate::coordinator::transactions::{Participant, Producer};
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use kafka_protocol::ResponseError;

/// The first version with several transactions in a request.
const BATCHED: i16 = 4;
const FENCED_SINCE: i16 = 2;
/// The first version whose senders know TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_SINCE: i16 = 5;

pub async fn handle(cx: &RequestContext, req: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse {
    if cx.api_version < BATCHED {
        let who = producer(req.v3_and_below_producer_id, req.v3_and_below_producer_epoch);
        let id = &req.v3_and_below_transactional_id;
        let topics = add(cx, id, who, req.v3_and_below_topics).await;
        return AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics);
    }
    let mut results = Vec::with_capacity(req.transactions.len());
    for txn in req.transactions {
        results.push(one(cx, txn).await);
    }
    AddPartitionsToTxnResponse::default().with_results_by_transaction(results)
}

async fn one(cx: &RequestContext, txn: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult {
    let who = producer(txn.producer_id, txn.producer_epoch);
    let id = txn.transactional_id.clone();
    let result = AddPartitionsToTxnResult::default().with_transactional_id(txn.transactional_id);
    if let Some(group) = tags::text(&txn.unknown_tagged_fields, tags::GROUP) {
        let verified =
            cx.broker.transactions.verify(&id, who, Participant::Group(group), !txn.verify_only).await;
        return numbered(result, verified);
    }
    let wants_number = txn.unknown_tagged_fields.contains_key(&tags::NUMBER);
    if !txn.verify_only && !wants_number {
        return result.with_topic_results(add(cx, &id, who, txn.topics).await);
    }
    let mut number = Err(ResponseError::InvalidRequest);
    let mut topics = Vec::with_capacity(txn.topics.len());
    for topic in txn.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for index in topic.partitions {
            number = match participant(cx, &topic.name, index) {
                Ok(p) => cx.broker.transactions.verify(&id, who, p, !txn.verify_only).await,
                Err(error) => Err(error),
            };
            let error = match number.err() {
                // Who asks for the number tells its client in its own words.
                Some(ResponseError::InvalidTxnState)
                    if !wants_number && cx.api_version >= ABORTABLE_SINCE =>
                {
                    Some(ResponseError::TransactionAbortable)
                }
                other => other,
            };
            partitions.push(row(index, error));
        }
        topics.push(
            AddPartitionsToTxnTopicResult::default()
                .with_name(topic.name)
                .with_results_by_partition(partitions),
        );
    }
    let result = result.with_topic_results(topics);
    if wants_number {
        numbered(result, number)
    } else {
        result
    }
}

fn numbered(
    result: AddPartitionsToTxnResult,
    number: Result<u64, ResponseError>,
) -> AddPartitionsToTxnResult {
    match number {
        Ok(number) => result.with_unknown_tagged_field(tags::NUMBER, tags::of_int(number)),
        Err(error) => {
            let code = u64::from(error.code().unsigned_abs());
            result.with_unknown_tagged_field(tags::ERROR, tags::of_int(code))
        }
    }
}

async fn add(
    cx: &RequestContext,
    id: &str,
    who: Producer,
    topics: Vec<AddPartitionsToTxnTopic>,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let all = || topics.iter().flat_map(|t| t.partitions.iter().map(|p| (&t.name, *p)));
    let found: Vec<_> = all().map(|(name, index)| participant(cx, name, index)).collect();
    let known: Result<Vec<_>, _> = found.iter().cloned().collect();
    let outcome = match known {
        Ok(participants) => cx.broker.transactions.add_partitions(id, who, participants).await,
        Err(_) => Err(ResponseError::OperationNotAttempted),
    };
    let outcome = outcome.map_err(|e| as_of(cx.api_version, FENCED_SINCE, e));
    let mut errors = found.into_iter().map(|found| found.err().or(outcome.err()));
    let mut results = Vec::with_capacity(topics.len());
    for topic in topics {
        let rows = topic.partitions.iter().map(|p| row(*p, errors.next().flatten()));
        let rows = rows.collect();
        results.push(
            AddPartitionsToTxnTopicResult::default().with_name(topic.name).with_results_by_partition(rows),
        );
    }
    results
}

fn participant(cx: &RequestContext, topic: &str, index: i32) -> Result<Participant, ResponseError> {
    let image = cx.broker.cluster.image();
    let topic = image.topic(topic).filter(|t| (0..t.partitions).contains(&index));
    topic.map(|t| Participant::Partition(t.id, index)).ok_or(ResponseError::UnknownTopicOrPartition)
}

fn row(index: i32, error: Option<ResponseError>) -> AddPartitionsToTxnPartitionResult {
    AddPartitionsToTxnPartitionResult::default()
        .with_partition_index(index)
        .with_partition_error_code(error.map_or(0, |e| e.code()))
}
