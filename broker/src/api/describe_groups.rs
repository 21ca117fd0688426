//! DescribeGroups (KIP-345, KIP-430). A group that does not exist is "Dead", without an error.

use super::group_terms::text;
use super::{operations, RequestContext};
use crate::coordinator::group::{MemberDoc, State};
use crate::coordinator::Description;
use bytes::Bytes;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: DescribeGroupsRequest) -> DescribeGroupsResponse {
    let mut groups = Vec::with_capacity(req.groups.len());
    for id in req.groups {
        let result = cx.broker.groups.describe(&id).await;
        groups.push(shape(result, req.include_authorized_operations).with_group_id(id));
    }
    DescribeGroupsResponse::default().with_groups(groups)
}

fn shape(result: Result<Option<Description>, ResponseError>, operations_asked: bool) -> DescribedGroup {
    let group = DescribedGroup::default().with_authorized_operations(operations::NOT_ASKED);
    let described = match result {
        Err(error) => return group.with_error_code(error.code()),
        Ok(described) => described,
    };
    let group = group.with_authorized_operations(operations::on_group(operations_asked));
    let Some(described) = described else {
        return group.with_group_state(StrBytes::from_static_str("Dead"));
    };
    // Between two generations no protocol is in force, and so no metadata under it.
    let stable = described.state == State::Stable;
    let protocol = if stable { described.protocol_name } else { String::new() };
    let members = described.members.into_iter().map(|m| member(m, &protocol)).collect();
    group
        .with_group_state(StrBytes::from_static_str(described.state.name()))
        .with_protocol_type(text(described.protocol_type))
        .with_protocol_data(text(protocol))
        .with_members(members)
}

fn member(m: MemberDoc, protocol: &str) -> DescribedGroupMember {
    let metadata = m.protocols.into_iter().find(|p| p.name == protocol).map_or(Bytes::new(), |p| p.metadata);
    DescribedGroupMember::default()
        .with_member_id(text(m.id))
        .with_group_instance_id(m.instance.map(text))
        .with_client_id(text(m.client_id))
        .with_client_host(text(m.client_host))
        .with_member_metadata(metadata)
        .with_member_assignment(m.assignment)
}
