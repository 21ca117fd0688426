//! LeaveGroup (several members, and static ones by instance alone: KIP-345).

use super::group_terms::{code, optional_string};
use super::RequestContext;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};
use kafka_protocol::ResponseError;

/// From this version on, members stand in a list.
const LISTED: i16 = 3;

pub async fn handle(cx: &RequestContext, req: LeaveGroupRequest) -> LeaveGroupResponse {
    let members = match cx.api_version >= LISTED {
        true => req.members,
        false => vec![MemberIdentity::default().with_member_id(req.member_id)],
    };
    let named: Vec<_> = members
        .iter()
        .map(|m| (m.member_id.to_string(), optional_string(m.group_instance_id.clone())))
        .collect();
    let results = cx.broker.groups.leave(&req.group_id, &named).await;
    shape(cx.api_version, members, results)
}

fn shape(
    version: i16,
    members: Vec<MemberIdentity>,
    results: Result<Vec<Result<String, ResponseError>>, ResponseError>,
) -> LeaveGroupResponse {
    let response = LeaveGroupResponse::default();
    match results {
        Err(error) => response.with_error_code(error.code()),
        Ok(results) if version < LISTED => {
            response.with_error_code(code(results.into_iter().find_map(Result::err)))
        }
        Ok(results) => {
            let member = |(m, result): (MemberIdentity, Result<String, ResponseError>)| {
                MemberResponse::default()
                    .with_member_id(m.member_id)
                    .with_group_instance_id(m.group_instance_id)
                    .with_error_code(code(result.err()))
            };
            response.with_members(members.into_iter().zip(results).map(member).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn a_members_error_stands_where_the_version_has_it() {
        for version in 0..=5 {
            let members = vec![MemberIdentity::default()];
            let response = shape(version, members, Ok(vec![Err(ResponseError::UnknownMemberId)]));
            response.encode(&mut BytesMut::new(), version).unwrap();
            let listed = response.members.first().map(|m| m.error_code);
            match version >= LISTED {
                true => assert_eq!((response.error_code, listed), (0, Some(25))),
                false => assert_eq!((response.error_code, listed), (25, None)),
            }
        }
    }
}
