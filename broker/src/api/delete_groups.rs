//! DeleteGroups (KIP-229): groups without members, with all their offsets.

use super::group_terms::code;
use super::RequestContext;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

pub async fn handle(cx: &RequestContext, req: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(req.groups_names.len());
    for id in req.groups_names {
        let result = cx.broker.groups.delete(&id).await;
        let error = code(result.err());
        results.push(DeletableGroupResult::default().with_group_id(id).with_error_code(error));
    }
    DeleteGroupsResponse::default().with_results(results)
}
