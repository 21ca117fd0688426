//! SyncGroup (KIP-345, KIP-559). Answers when the leader's assignment is durable.

use super::group_terms::{code, optional_string, own, text};
use super::RequestContext;
use crate::coordinator::group::{SyncInput, SyncReply};
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: SyncGroupRequest) -> SyncGroupResponse {
    let group = req.group_id.to_string();
    let input = SyncInput {
        member_id: req.member_id.to_string(),
        instance: optional_string(req.group_instance_id),
        generation: req.generation_id,
        protocol_type: optional_string(req.protocol_type),
        protocol_name: optional_string(req.protocol_name),
        assignments: req
            .assignments
            .into_iter()
            .map(|a| (a.member_id.to_string(), own(&a.assignment)))
            .collect(),
    };
    let reply = tokio::select! {
        biased;
        () = cx.broker.closing.heard() => SyncReply::refused(ResponseError::NotCoordinator),
        reply = cx.broker.groups.sync(&group, input) => reply,
    };
    SyncGroupResponse::default()
        .with_error_code(code(reply.error))
        .with_protocol_type(reply.protocol_type.map(text))
        .with_protocol_name(reply.protocol_name.map(text))
        .with_assignment(reply.assignment)
}
