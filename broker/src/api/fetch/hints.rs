//! Who leads the partitions that a fetch did not find here (KIP-951).

use crate::api::leaders::Hints;
use crate::api::partitions::Named;
use crate::api::RequestContext;
use kafka_protocol::messages::fetch_response::{LeaderIdAndEpoch, NodeEndpoint};
use kafka_protocol::messages::FetchResponse;
use kafka_protocol::ResponseError;

/// The first version with the addresses of leaders.
const SINCE: i16 = 16;

/// The response with the leader of each partition that is led elsewhere, or in a later epoch, in versions that have it.
pub(super) fn added(cx: &RequestContext, mut response: FetchResponse) -> FetchResponse {
    if cx.api_version < SINCE {
        return response;
    }
    let mut hints = Hints::new(cx);
    for topic in &mut response.responses {
        let named = Named::in_version(cx.api_version, &topic.topic, topic.topic_id);
        for row in topic.partitions.iter_mut().filter(|row| is_moved(row.error_code)) {
            if let Some((id, epoch)) = hints.leader(&named, row.partition_index) {
                row.current_leader = LeaderIdAndEpoch::default().with_leader_id(id).with_leader_epoch(epoch);
            }
        }
    }
    let endpoints = hints.endpoints().map(|m| {
        NodeEndpoint::default().with_node_id(m.id).with_host(m.host).with_port(m.port).with_rack(None)
    });
    response.with_node_endpoints(endpoints.collect())
}

fn is_moved(code: i16) -> bool {
    code == ResponseError::NotLeaderOrFollower.code() || code == ResponseError::FencedLeaderEpoch.code()
}
