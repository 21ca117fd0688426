//! DescribeGroups (KIP-345, KIP-430): groups of the classic protocol. A group that does not exist, or is of another
//! protocol, is "Dead": without an error up to version 5, from then on with GROUP_ID_NOT_FOUND (KIP-1043).

use super::group_terms::text;
use super::{operations, RequestContext};
use crate::coordinator::group::{MemberDoc, State};
use crate::coordinator::Description;
use bytes::Bytes;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

/// From this version on, a missing group is an error, which comes with a message.
const MISSING: i16 = 6;

pub async fn handle(cx: &RequestContext, req: DescribeGroupsRequest) -> DescribeGroupsResponse {
    let mut groups = Vec::with_capacity(req.groups.len());
    for id in req.groups {
        let result = cx.broker.groups.describe(&id).await;
        groups.push(shape(cx.api_version, result, req.include_authorized_operations).with_group_id(id));
    }
    DescribeGroupsResponse::default().with_groups(groups)
}

fn shape(
    version: i16,
    result: Result<Option<Description>, ResponseError>,
    operations_asked: bool,
) -> DescribedGroup {
    let group = DescribedGroup::default().with_authorized_operations(operations::NOT_ASKED);
    let described = match result {
        Err(error) => return group.with_error_code(error.code()),
        Ok(described) => described,
    };
    let group = group.with_authorized_operations(operations::on_group(operations_asked));
    let Some(described) = described else {
        let dead = group.with_group_state(StrBytes::from_static_str("Dead"));
        return match version >= MISSING {
            true => dead.with_error_code(ResponseError::GroupIdNotFound.code()).with_error_message(Some(
                StrBytes::from_static_str("there is no group of the classic protocol under this id"),
            )),
            false => dead,
        };
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
