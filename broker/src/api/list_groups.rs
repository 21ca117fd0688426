//! ListGroups (states: KIP-518, types: KIP-848). If part of the groups cannot be listed now, the rest is, with an error.

use super::group_terms::{code, text};
use super::RequestContext;
use crate::coordinator::Listed;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{GroupId, ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

/// From this version on, states are asked for and shown.
const STATES: i16 = 4;
/// From this version on, types are.
const TYPES: i16 = 5;

pub async fn handle(cx: &RequestContext, req: ListGroupsRequest) -> ListGroupsResponse {
    let cluster = &cx.broker.cluster;
    let (image, me) = (cluster.image(), cluster.broker_id());
    let is_elsewhere = |slot| image.coordinator(slot).is_some_and(|broker| broker != me);
    let (groups, error) = cx.broker.groups.list(is_elsewhere).await;
    let wanted = groups
        .into_iter()
        .filter(|g| matches(&req.states_filter, g.state) && matches(&req.types_filter, g.kind.name()));
    ListGroupsResponse::default()
        .with_error_code(code(error))
        .with_groups(wanted.map(|g| shape(cx.api_version, g)).collect())
}

/// An empty filter lets everything through.
fn matches(filter: &[StrBytes], what: &str) -> bool {
    filter.is_empty() || filter.iter().any(|f| f.eq_ignore_ascii_case(what))
}

fn shape(version: i16, group: Listed) -> ListedGroup {
    let mut listed = ListedGroup::default()
        .with_group_id(GroupId(text(group.id)))
        .with_protocol_type(text(group.protocol_type));
    if version >= STATES {
        listed.group_state = StrBytes::from_static_str(group.state);
    }
    if version >= TYPES {
        listed.group_type = StrBytes::from_static_str(group.kind.name());
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::GroupKind;
    use bytes::BytesMut;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn states_and_types_are_shown_where_the_version_knows_them() {
        for version in 0..=5 {
            let group = Listed {
                id: "g".into(),
                protocol_type: "consumer".into(),
                state: "Stable",
                kind: GroupKind::Consumer,
            };
            let response = ListGroupsResponse::default().with_groups(vec![shape(version, group)]);
            response.encode(&mut BytesMut::new(), version).unwrap();
            let shown = &response.groups[0];
            assert_eq!(shown.group_state.as_str(), if version >= STATES { "Stable" } else { "" });
            assert_eq!(shown.group_type.as_str(), if version >= TYPES { "consumer" } else { "" });
        }
    }

    #[test]
    fn a_filter_ignores_case_and_an_empty_one_lets_all_through() {
        assert!(matches(&[], "Stable"));
        assert!(matches(&["stable".to_owned().into(), "Empty".to_owned().into()], "Stable"));
        assert!(!matches(&["Empty".to_owned().into()], "Stable"));
        assert!(matches(&["Consumer".to_owned().into()], GroupKind::Consumer.name()));
    }
}
