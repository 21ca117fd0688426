//! FindCoordinator (batched keys: KIP-699). This broker coordinates every group.
//!
//! Transactions are not served. The refusal is the one of InitProducerId, UNSUPPORTED_VERSION (35): not
//! retriable, so a client says so at once instead of looking for a coordinator until its time is up.

use super::RequestContext;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// From this version on, keys are batched.
const BATCHED: i16 = 4;

pub async fn handle(cx: &RequestContext, req: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let found = match req.key_type {
        GROUP => this_broker(cx),
        TRANSACTION => none(ResponseError::UnsupportedVersion, "transactions are not served"),
        _ => none(ResponseError::InvalidRequest, "unknown coordinator type"),
    };
    shape(cx.api_version, req.coordinator_keys, found)
}

fn this_broker(cx: &RequestContext) -> Coordinator {
    let (host, port) = &cx.broker.advertised;
    Coordinator::default()
        .with_node_id(BrokerId(cx.broker.cluster.broker_id().0))
        .with_host(StrBytes::from_string(host.clone()))
        .with_port(i32::from(*port))
}

fn none(error: ResponseError, why: &'static str) -> Coordinator {
    Coordinator::default()
        .with_node_id(BrokerId(-1))
        .with_port(-1)
        .with_error_code(error.code())
        .with_error_message(Some(StrBytes::from_static_str(why)))
}

/// One coordinator as the version has it.
fn shape(version: i16, keys: Vec<StrBytes>, found: Coordinator) -> FindCoordinatorResponse {
    if version >= BATCHED {
        let coordinators = keys.into_iter().map(|key| found.clone().with_key(key)).collect();
        return FindCoordinatorResponse::default().with_coordinators(coordinators);
    }
    FindCoordinatorResponse::default()
        .with_error_code(found.error_code)
        .with_error_message(found.error_message)
        .with_node_id(found.node_id)
        .with_host(found.host)
        .with_port(found.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn every_version_has_a_shape_that_encodes() {
        for version in 0..=4 {
            for found in [
                Coordinator::default().with_host(StrBytes::from_static_str("h")).with_port(1),
                none(ResponseError::UnsupportedVersion, "no"),
            ] {
                let response = shape(version, vec![StrBytes::from_static_str("g")], found);
                response.encode(&mut BytesMut::new(), version).unwrap();
                assert_eq!(response.coordinators.len(), usize::from(version >= BATCHED));
            }
        }
    }
}
