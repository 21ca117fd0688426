//! AddOffsetsToTxn (KIP-98): a group's offsets join a transaction.

use super::{as_of, producer, RequestContext};
use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};

const FENCED_SINCE: i16 = 2;

pub async fn handle(cx: &RequestContext, req: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse {
    let who = producer(req.producer_id, req.producer_epoch);
    let added = cx.broker.transactions.add_offsets(&req.transactional_id, who, &req.group_id).await;
    let code = added.map_or_else(|e| as_of(cx.api_version, FENCED_SINCE, e).code(), |()| 0);
    AddOffsetsToTxnResponse::default().with_error_code(code)
}
