//! FindCoordinator (batched keys: KIP-699). A group's coordinator is whoever has its slot.
//!
//! Transactions are not served, and the refusal says so in its message. Its code depends on the version, which
//! tells the family of clients. From version 3 on it is that of InitProducerId, UNSUPPORTED_VERSION (35): the
//! Java client, franz-go and kafka-python give up at once and show the message. librdkafka asks in version 2 at
//! most, and goes on looking until its time is up (then reporting nothing but that) on every code but two; so up
//! to version 2 the code is TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53), which ends `init_transactions()` at once,
//! fatally, with the message beside it.

use super::members::{members, Member};
use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::coordinator::slot_of;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// The first flexible version; no librdkafka asks in it.
const FLEXIBLE: i16 = 3;
/// From this version on, keys are batched.
const BATCHED: i16 = 4;

pub async fn handle(cx: &RequestContext, req: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let members = members(cx);
    let image = cx.broker.cluster.image();
    let find = |key: &StrBytes| match req.key_type {
        GROUP => of_group(&image, &members, key),
        TRANSACTION => none(refusal(cx.api_version), "transactions are not served"),
        _ => none(ResponseError::InvalidRequest, "unknown coordinator type"),
    };
    if cx.api_version < BATCHED {
        return shape(cx.api_version, vec![find(&req.key)]);
    }
    let found = req.coordinator_keys.iter().map(|key| find(key).with_key(key.clone()));
    shape(cx.api_version, found.collect())
}

/// Whoever has the group's slot, if that broker may be there.
fn of_group(image: &ClusterImage, members: &[Member], group: &str) -> Coordinator {
    let id = image.coordinator(slot_of(group)).map(|id| BrokerId(id.0));
    match members.iter().find(|m| Some(m.id) == id) {
        Some(m) => Coordinator::default().with_node_id(m.id).with_host(m.host.clone()).with_port(m.port),
        None => none(ResponseError::CoordinatorNotAvailable, "no broker coordinates this group now"),
    }
}

/// What a transactional producer is told in this version.
fn refusal(version: i16) -> ResponseError {
    if version < FLEXIBLE {
        ResponseError::TransactionalIdAuthorizationFailed
    } else {
        ResponseError::UnsupportedVersion
    }
}

fn none(error: ResponseError, why: &'static str) -> Coordinator {
    Coordinator::default()
        .with_node_id(BrokerId(-1))
        .with_port(-1)
        .with_error_code(error.code())
        .with_error_message(Some(StrBytes::from_static_str(why)))
}

/// Coordinators as the version has them; before version 4 there is one.
fn shape(version: i16, found: Vec<Coordinator>) -> FindCoordinatorResponse {
    if version >= BATCHED {
        return FindCoordinatorResponse::default().with_coordinators(found);
    }
    let found = found.into_iter().next().unwrap_or_default();
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
    fn a_transactional_producer_is_refused_with_what_its_client_takes_as_final() {
        for version in 0..=2 {
            assert_eq!(refusal(version), ResponseError::TransactionalIdAuthorizationFailed);
        }
        for version in 3..=4 {
            assert_eq!(refusal(version), ResponseError::UnsupportedVersion);
        }
    }

    #[test]
    fn every_version_has_a_shape_that_encodes() {
        for version in 0..=4 {
            for found in [
                Coordinator::default().with_host(StrBytes::from_static_str("h")).with_port(1),
                none(ResponseError::UnsupportedVersion, "no"),
            ] {
                let response = shape(version, vec![found]);
                response.encode(&mut BytesMut::new(), version).unwrap();
                assert_eq!(response.coordinators.len(), usize::from(version >= BATCHED));
            }
        }
    }
}
