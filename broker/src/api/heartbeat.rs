//! Heartbeat of a group member.

use super::group_terms::{caller, code};
use super::RequestContext;
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

pub async fn handle(cx: &RequestContext, req: HeartbeatRequest) -> HeartbeatResponse {
    let caller = caller(&req.member_id, req.group_instance_id, req.generation_id);
    let result = cx.broker.groups.heartbeat(&req.group_id, &caller).await;
    HeartbeatResponse::default().with_error_code(code(result.err()))
}
