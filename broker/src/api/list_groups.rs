//! ListGroups (states: KIP-518). If part of the groups cannot be listed now, the rest is, with an error.

use super::group_terms::{code, text};
use super::RequestContext;
use crate::coordinator::Listed;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{GroupId, ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

/// From this version on, states are asked for and shown.
const STATES: i16 = 4;

pub async fn handle(cx: &RequestContext, req: ListGroupsRequest) -> ListGroupsResponse {
    let (groups, error) = cx.broker.groups.list().await;
    let wanted = groups.into_iter().filter(|g| matches(&req.states_filter, g));
    ListGroupsResponse::default()
        .with_error_code(code(error))
        .with_groups(wanted.map(|g| shape(cx.api_version, g)).collect())
}

fn matches(states: &[StrBytes], group: &Listed) -> bool {
    states.is_empty() || states.iter().any(|s| s.eq_ignore_ascii_case(group.state.name()))
}

fn shape(version: i16, group: Listed) -> ListedGroup {
    let listed = ListedGroup::default()
        .with_group_id(GroupId(text(group.id)))
        .with_protocol_type(text(group.protocol_type));
    match version >= STATES {
        true => listed.with_group_state(StrBytes::from_static_str(group.state.name())),
        false => listed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::group::State;
    use bytes::BytesMut;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn states_are_shown_and_filtered_where_the_version_knows_them() {
        let group = || Listed { id: "g".into(), protocol_type: "consumer".into(), state: State::Stable };
        for version in 0..=4 {
            let response = ListGroupsResponse::default().with_groups(vec![shape(version, group())]);
            response.encode(&mut BytesMut::new(), version).unwrap();
        }
        assert!(matches(&[], &group()));
        assert!(matches(&["stable".to_owned().into(), "Empty".to_owned().into()], &group()));
        assert!(!matches(&["Empty".to_owned().into()], &group()));
    }
}
