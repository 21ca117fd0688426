//! EndTxn (KIP-98). Answered once the decision is durable; the markers follow. From version 5 on (KIP-890) every end raises
//! the producer's epoch, and the answer says to what.

use super::{as_of, producer, RequestContext};
use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse, ProducerId};

const FENCED_SINCE: i16 = 2;
const RAISES_EPOCH_SINCE: i16 = 5;

pub async fn handle(cx: &RequestContext, req: EndTxnRequest) -> EndTxnResponse {
    let who = producer(req.producer_id, req.producer_epoch);
    let raises = cx.api_version >= RAISES_EPOCH_SINCE;
    match cx.broker.transactions.end(&req.transactional_id, who, req.committed, raises).await {
        Ok(next) if raises => {
            EndTxnResponse::default().with_producer_id(ProducerId(next.id)).with_producer_epoch(next.epoch)
        }
        Ok(_) => EndTxnResponse::default(),
        Err(e) => EndTxnResponse::default()
            .with_error_code(as_of(cx.api_version, FENCED_SINCE, e).code())
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1),
    }
}
