//! InitProducerId (KIP-98, KIP-360) for idempotent producers: a fresh id with epoch 0.
//!
//! As in Kafka, a producer without a transactional id that brings its old id and epoch (version 3 and up) gets a
//! new id: nothing but the producer itself knows what it had written.
//!
//! With a transactional id it is the transaction's coordinator that answers: whoever had that id before is fenced, and what
//! he left open is aborted first.

use super::transactions::as_of;
use super::RequestContext;
use crate::coordinator::transactions::Producer;
use crate::coordinator::ProducerIdError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use kafka_protocol::ResponseError;

const NONE: i64 = -1;
const FENCED_SINCE: i16 = 4;

pub async fn handle(cx: &RequestContext, req: InitProducerIdRequest) -> InitProducerIdResponse {
    if let Err(error) = check(&req) {
        tracing::info!(client = %cx.client_id, %error, "InitProducerId is refused");
        return refuse(error);
    }
    if let Some(id) = &req.transactional_id {
        return transactional(cx, id, &req).await;
    }
    match cx.broker.producer_ids.next().await {
        Ok(id) => InitProducerIdResponse::default().with_producer_id(ProducerId(id)).with_producer_epoch(0),
        Err(e) => {
            tracing::warn!(error = %e, "no producer id could be given out");
            refuse(error_of(&e))
        }
    }
}

async fn transactional(cx: &RequestContext, id: &str, req: &InitProducerIdRequest) -> InitProducerIdResponse {
    let has_current = req.producer_id.0 != NONE;
    let current = has_current.then_some(Producer { id: req.producer_id.0, epoch: req.producer_epoch });
    match cx.broker.transactions.init_producer_id(id, req.transaction_timeout_ms, current).await {
        Ok(given) => InitProducerIdResponse::default()
            .with_producer_id(ProducerId(given.id))
            .with_producer_epoch(given.epoch),
        Err(e) => refuse(as_of(cx.api_version, FENCED_SINCE, e)),
    }
}

fn refuse(error: ResponseError) -> InitProducerIdResponse {
    InitProducerIdResponse::default()
        .with_error_code(error.code())
        .with_producer_id(ProducerId(NONE))
        .with_producer_epoch(NONE as i16)
}

fn check(req: &InitProducerIdRequest) -> Result<(), ResponseError> {
    if let Some(transactional_id) = &req.transactional_id {
        if transactional_id.0.is_empty() {
            return Err(ResponseError::InvalidRequest);
        }
    }
    let has_id = req.producer_id.0 != NONE;
    let has_epoch = i64::from(req.producer_epoch) != NONE;
    if has_id != has_epoch {
        return Err(ResponseError::InvalidRequest);
    }
    Ok(())
}

/// COORDINATOR_LOAD_IN_PROGRESS is what Kafka, too, answers while a block of ids is not there yet: all clients
/// try again on the same connection. (NOT_COORDINATOR would send some looking for a coordinator of no
/// transactional id.)
fn error_of(e: &ProducerIdError) -> ResponseError {
    match e {
        ProducerIdError::NoLease
        | ProducerIdError::TimedOut(_)
        | ProducerIdError::Volume(_)
        | ProducerIdError::Contended => ResponseError::CoordinatorLoadInProgress,
        ProducerIdError::Exhausted => ResponseError::UnknownServerError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::TransactionalId;
    use kafka_protocol::protocol::StrBytes;

    fn request(transactional_id: Option<&'static str>, id: i64, epoch: i16) -> InitProducerIdRequest {
        InitProducerIdRequest::default()
            .with_transactional_id(transactional_id.map(|t| TransactionalId(StrBytes::from_static_str(t))))
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(epoch)
    }

    #[test]
    fn an_idempotent_producer_is_served_with_and_without_an_old_id() {
        assert_eq!(check(&request(None, -1, -1)), Ok(()));
        assert_eq!(check(&request(None, 7, 3)), Ok(()));
    }

    #[test]
    fn half_an_old_id_is_no_request() {
        assert_eq!(check(&request(None, 7, -1)), Err(ResponseError::InvalidRequest));
        assert_eq!(check(&request(None, -1, 0)), Err(ResponseError::InvalidRequest));
    }

    #[test]
    fn an_empty_transactional_id_is_no_request() {
        assert_eq!(check(&request(Some("t"), -1, -1)), Ok(()));
        assert_eq!(check(&request(Some(""), -1, -1)), Err(ResponseError::InvalidRequest));
    }
}
