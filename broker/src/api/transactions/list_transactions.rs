//! ListTransactions (KIP-664, KIP-994): those that this broker coordinates. Clients ask every broker.

use super::RequestContext;
use crate::api::group_terms::text;
use crate::coordinator::transactions::{ListFilter, TransactionState as State};
use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::{
    ListTransactionsRequest, ListTransactionsResponse, ProducerId, TransactionalId,
};

const ALL: [State; 6] = [
    State::Empty,
    State::Ongoing,
    State::PrepareCommit,
    State::PrepareAbort,
    State::CompleteCommit,
    State::CompleteAbort,
];

pub async fn handle(cx: &RequestContext, req: ListTransactionsRequest) -> ListTransactionsResponse {
    let is_state = |name: &str| ALL.iter().any(|state| state.name() == name);
    let unknown: Vec<_> = req.state_filters.iter().filter(|s| !is_state(s)).cloned().collect();
    let filter = ListFilter {
        states: req.state_filters.iter().map(|s| s.to_string()).collect(),
        producer_ids: req.producer_id_filters.iter().map(|id| id.0).collect(),
        min_duration_ms: if cx.api_version >= 1 { req.duration_filter } else { -1 },
    };
    let image = cx.broker.cluster.image();
    let this = cx.broker.cluster.broker_id();
    let is_elsewhere = |slot| image.coordinator(slot).is_some_and(|id| id != this);
    let (listed, missing) = cx.broker.transactions.list(&filter, is_elsewhere).await;
    let states = listed.into_iter().map(|txn| {
        TransactionState::default()
            .with_transactional_id(TransactionalId(text(txn.id)))
            .with_producer_id(ProducerId(txn.producer_id))
            .with_transaction_state(text(txn.state.name()))
    });
    ListTransactionsResponse::default()
        .with_error_code(missing.map_or(0, |e| e.code()))
        .with_unknown_state_filters(unknown)
        .with_transaction_states(states.collect())
}
