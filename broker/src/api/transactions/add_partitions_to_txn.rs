//! AddPartitionsToTxn (KIP-98; batched and with verification: KIP-890). All partitions of a transaction are added or none:
//! if some do not exist, the others are told OPERATION_NOT_ATTEMPTED.
//!
//! Versions 0–3 are what clients send. From version 4 on brokers ask each other, and say more than Kafka does in a
//! tagged field ([`super::wire`]): which incarnation of a topic is meant, that a group is; and the answer has the
//! transaction's number.

use super::wire::{self, TAG};
use super::{as_of, partition, producer, RequestContext};
use crate::api::group_terms::code;
use crate::api::side_by_side::side_by_side;
use crate::coordinator::transactions::{Participant, Producer};
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionalId};
use kafka_protocol::ResponseError;

/// From this version on, transactions are batched, and brokers ask.
const BATCHED: i16 = 4;
const FENCED_SINCE: i16 = 2;

pub async fn handle(cx: &RequestContext, req: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse {
    if cx.api_version >= BATCHED {
        let results = side_by_side(req.transactions.into_iter().map(|t| one_of_many(cx, t))).await;
        return AddPartitionsToTxnResponse::default().with_results_by_transaction(results);
    }
    let producer = producer(req.v3_and_below_producer_id, req.v3_and_below_producer_epoch);
    let topics = add(cx, &req.v3_and_below_transactional_id, producer, req.v3_and_below_topics).await;
    AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics)
}

async fn one_of_many(cx: &RequestContext, asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult {
    let result = AddPartitionsToTxnResult::default().with_transactional_id(asked.transactional_id.clone());
    let question = Question {
        cx,
        txn_id: &asked.transactional_id,
        producer: producer(asked.producer_id, asked.producer_epoch),
        add: !asked.verify_only,
    };
    match wire::read_group(&asked.unknown_tagged_fields) {
        Ok(None) => {}
        Ok(Some(group)) => {
            let said = question.ask(Participant::Group(group.to_string())).await;
            let answer = wire::group_answer(code(said.err()), said.unwrap_or_default());
            return result.with_unknown_tagged_field(TAG, answer);
        }
        Err(e) => {
            tracing::warn!("{e}");
            return result.with_topic_results(refuse(asked.topics, ResponseError::InvalidRequest));
        }
    }
    let is_question = |t: &AddPartitionsToTxnTopic| t.unknown_tagged_fields.contains_key(&TAG);
    if !asked.verify_only && !asked.topics.iter().any(is_question) {
        let topics = add(cx, &asked.transactional_id, question.producer, asked.topics).await;
        return result.with_topic_results(topics);
    }
    let mut topics = Vec::with_capacity(asked.topics.len());
    for topic in asked.topics {
        topics.push(question.topic(topic).await);
    }
    result.with_topic_results(topics)
}

/// Adds all, or none.
async fn add(
    cx: &RequestContext,
    txn_id: &TransactionalId,
    producer: Producer,
    topics: Vec<AddPartitionsToTxnTopic>,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let image = cx.broker.cluster.image();
    let find = |t: &AddPartitionsToTxnTopic| {
        let name = t.name.clone();
        t.partitions.iter().map(|p| partition(&image, &name, *p)).collect::<Vec<_>>()
    };
    let found: Vec<_> = topics.iter().map(find).collect();
    let participants: Result<Vec<Participant>, _> = found.iter().flatten().cloned().collect();
    let Ok(participants) = participants else {
        let rows = topics.into_iter().zip(found).map(|(topic, found)| {
            let errors = found.into_iter().map(|f| f.err().unwrap_or(ResponseError::OperationNotAttempted));
            let rows = topic.partitions.iter().zip(errors).map(|(p, e)| row(*p, Some(e)));
            AddPartitionsToTxnTopicResult::default()
                .with_name(topic.name)
                .with_results_by_partition(rows.collect())
        });
        return rows.collect();
    };
    let added = cx.broker.transactions.add_partitions(txn_id, producer, participants).await;
    let error = added.err().map(|e| as_of(cx.api_version, FENCED_SINCE, e));
    all_rows(topics, error)
}

fn refuse(topics: Vec<AddPartitionsToTxnTopic>, error: ResponseError) -> Vec<AddPartitionsToTxnTopicResult> {
    all_rows(topics, Some(error))
}

fn all_rows(
    topics: Vec<AddPartitionsToTxnTopic>,
    error: Option<ResponseError>,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let topic = |t: AddPartitionsToTxnTopic| {
        AddPartitionsToTxnTopicResult::default()
            .with_name(t.name)
            .with_results_by_partition(t.partitions.iter().map(|p| row(*p, error)).collect())
    };
    topics.into_iter().map(topic).collect()
}

fn row(index: i32, error: Option<ResponseError>) -> AddPartitionsToTxnPartitionResult {
    AddPartitionsToTxnPartitionResult::default()
        .with_partition_index(index)
        .with_partition_error_code(code(error))
}

/// What a partition's leader or a group's coordinator wants to know.
struct Question<'a> {
    cx: &'a RequestContext,
    txn_id: &'a TransactionalId,
    producer: Producer,
    add: bool,
}

impl Question<'_> {
    async fn ask(&self, participant: Participant) -> Result<u64, ResponseError> {
        let transactions = &self.cx.broker.transactions;
        let said = transactions.verify(self.txn_id, self.producer, participant, self.add).await;
        said.map_err(|e| match e {
            // As Kafka says it here.
            ResponseError::InvalidTxnState => ResponseError::TransactionAbortable,
            e => e,
        })
    }

    async fn topic(&self, mut topic: AddPartitionsToTxnTopic) -> AddPartitionsToTxnTopicResult {
        let id = wire::read_topic(&topic.unknown_tagged_fields);
        let image = self.cx.broker.cluster.image();
        let find = |index| match &id {
            // Its leader knows it, whether or not it is known here yet.
            Ok(Some(id)) => Ok(Participant::Partition(*id, index)),
            Ok(None) => partition(&image, &topic.name, index),
            Err(_) => Err(ResponseError::InvalidRequest),
        };
        let indexes = std::mem::take(&mut topic.partitions);
        let found: Vec<_> = indexes.into_iter().map(|index| (index, find(index))).collect();
        let rows = found.into_iter().map(|(index, found)| async move {
            let said = match found {
                Ok(participant) => self.ask(participant).await,
                Err(e) => Err(e),
            };
            match said {
                Ok(number) => row(index, None).with_unknown_tagged_field(TAG, wire::number(number)),
                Err(e) => row(index, Some(e)),
            }
        });
        let rows = side_by_side(rows).await;
        AddPartitionsToTxnTopicResult::default().with_name(topic.name.clone()).with_results_by_partition(rows)
    }
}
