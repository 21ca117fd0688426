//! FindCoordinator (batched keys: KIP-699). The coordinator of a group or transactional id is whoever has its slot.

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
/// From this version on, keys are batched.
const BATCHED: i16 = 4;

pub async fn handle(cx: &RequestContext, req: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let members = members(cx);
    let image = cx.broker.cluster.image();
    let find = |key: &StrBytes| match req.key_type {
        GROUP | TRANSACTION => of_slot(&image, &members, key),
        _ => none(ResponseError::InvalidRequest, "unknown coordinator type"),
    };
    if cx.api_version < BATCHED {
        return shape(cx.api_version, vec![find(&req.key)]);
    }
    let found = req.coordinator_keys.iter().map(|key| find(key).with_key(key.clone()));
    shape(cx.api_version, found.collect())
}

/// Whoever has the slot of a group or transactional id, if that broker may be there.
fn of_slot(image: &ClusterImage, members: &[Member], id: &str) -> Coordinator {
    let coordinator = image.coordinator(slot_of(id)).map(|id| BrokerId(id.0));
    match members.iter().find(|m| Some(m.id) == coordinator) {
        Some(m) => Coordinator::default().with_node_id(m.id).with_host(m.host.clone()).with_port(m.port),
        None => none(ResponseError::CoordinatorNotAvailable, "no broker coordinates it now"),
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
    fn every_version_has_a_shape_that_encodes() {
        for version in 0..=5 {
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
