//! DescribeTransactions (KIP-664).

use super::RequestContext;
use crate::api::group_terms::text;
use crate::coordinator::transactions::Description;
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ProducerId, TopicName,
};
use std::collections::BTreeMap;

pub async fn handle(cx: &RequestContext, req: DescribeTransactionsRequest) -> DescribeTransactionsResponse {
    let mut states = Vec::with_capacity(req.transactional_ids.len());
    for id in req.transactional_ids {
        let state = match cx.broker.transactions.describe(&id).await {
            Ok(description) => shape(cx, description),
            Err(error) => TransactionState::default()
                .with_error_code(error.code())
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1)
                .with_transaction_start_time_ms(-1),
        };
        states.push(state.with_transactional_id(id));
    }
    DescribeTransactionsResponse::default().with_transaction_states(states)
}

fn shape(cx: &RequestContext, d: Description) -> TransactionState {
    let image = cx.broker.cluster.image();
    let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for (id, index) in d.partitions {
        if let Some(topic) = image.topic_by_id(id) {
            topics.entry(topic.name.clone()).or_default().push(index);
        }
    }
    let topics = topics.into_iter().map(|(name, indexes)| {
        TopicData::default().with_topic(TopicName(text(name))).with_partitions(indexes)
    });
    TransactionState::default()
        .with_transaction_state(text(d.state.name()))
        .with_transaction_timeout_ms(d.timeout_ms)
        .with_transaction_start_time_ms(d.started_at)
        .with_producer_id(ProducerId(d.producer.id))
        .with_producer_epoch(d.producer.epoch)
        .with_topics(topics.collect())
}
