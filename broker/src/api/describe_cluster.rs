//! DescribeCluster (KIP-700; endpoint types, KIP-919): the brokers and the controller.

use super::{members, operations, RequestContext};
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

pub async fn handle(cx: &RequestContext, req: DescribeClusterRequest) -> DescribeClusterResponse {
    let response = DescribeClusterResponse::default();
    if let Some((error, message)) = refusal(req.endpoint_type) {
        return response
            .with_error_code(error.code())
            .with_error_message(Some(StrBytes::from_static_str(message)));
    }
    let broker = &cx.broker;
    let members = members::members(cx);
    let brokers = members.iter().map(|m| {
        DescribeClusterBroker::default()
            .with_broker_id(m.id)
            .with_host(m.host.clone())
            .with_port(m.port)
            .with_rack(None)
    });
    response
        .with_error_message(None)
        .with_cluster_id(StrBytes::from_string(broker.cluster.cluster_id().to_owned()))
        .with_controller_id(members::controller(&broker.cluster.image(), &members))
        .with_brokers(brokers.collect())
        .with_cluster_authorized_operations(operations::on_cluster(req.include_cluster_authorized_operations))
}

fn refusal(endpoint_type: i8) -> Option<(ResponseError, &'static str)> {
    match endpoint_type {
        BROKERS => None,
        CONTROLLERS => Some((
            ResponseError::MismatchedEndpointType,
            "this is a broker's listener; there is no listener of controllers",
        )),
        _ => Some((ResponseError::UnsupportedEndpointType, "unknown endpoint type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brokers_are_listed_here() {
        assert_eq!(refusal(1), None);
        assert_eq!(refusal(2).unwrap().0.code(), 114);
        assert_eq!(refusal(0).unwrap().0.code(), 115);
        assert_eq!(refusal(-1).unwrap().0.code(), 115);
    }
}
