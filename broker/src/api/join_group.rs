//! JoinGroup (KIP-62, KIP-345, KIP-394, KIP-559, KIP-814). Answers when the rebalance completes.

use super::group_terms::{code, millis, optional_string, own, text};
use super::RequestContext;
use crate::coordinator::group::{JoinInput, JoinReply, JoinedMember};
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use kafka_protocol::ResponseError;

/// Rebalance timeouts stand in the request from this version on (KIP-62).
const REBALANCE_TIMEOUT: i16 = 1;
const MEMBER_ID_REQUIRED: i16 = 4;
const NULL_PROTOCOL: i16 = 7;
const SKIP_ASSIGNMENT: i16 = 9;

pub async fn handle(cx: &RequestContext, req: JoinGroupRequest) -> JoinGroupResponse {
    let group = req.group_id.to_string();
    let input = input(cx, req);
    let member_id = input.member_id.clone();
    let reply = tokio::select! {
        biased;
        () = cx.broker.closing.heard() => JoinReply::refused(ResponseError::NotCoordinator, member_id),
        reply = cx.broker.groups.join(&group, input) => reply,
    };
    shape(cx.api_version, reply)
}

fn input(cx: &RequestContext, req: JoinGroupRequest) -> JoinInput {
    let session = millis(req.session_timeout_ms);
    let rebalance = match cx.api_version >= REBALANCE_TIMEOUT && req.rebalance_timeout_ms >= 0 {
        true => millis(req.rebalance_timeout_ms),
        false => session,
    };
    JoinInput {
        member_id: req.member_id.to_string(),
        instance: optional_string(req.group_instance_id),
        client_id: cx.client_id.clone(),
        client_host: format!("/{}", cx.client_host),
        session,
        rebalance,
        protocol_type: req.protocol_type.to_string(),
        protocols: req.protocols.into_iter().map(|p| (p.name.to_string(), own(&p.metadata))).collect(),
        require_known_id: cx.api_version >= MEMBER_ID_REQUIRED,
        may_skip_assignment: cx.api_version >= SKIP_ASSIGNMENT,
        fresh_id: String::new(),
    }
}

fn shape(version: i16, reply: JoinReply) -> JoinGroupResponse {
    let name = reply.protocol_name.map(text);
    let name = if version >= NULL_PROTOCOL { name } else { Some(name.unwrap_or_default()) };
    JoinGroupResponse::default()
        .with_error_code(code(reply.error))
        .with_generation_id(reply.generation)
        .with_protocol_type(reply.protocol_type.map(text))
        .with_protocol_name(name)
        .with_leader(text(reply.leader))
        .with_skip_assignment(reply.skip_assignment)
        .with_member_id(text(reply.member_id))
        .with_members(reply.members.into_iter().map(member).collect())
}

fn member(m: JoinedMember) -> JoinGroupResponseMember {
    JoinGroupResponseMember::default()
        .with_member_id(text(m.id))
        .with_group_instance_id(m.instance.map(text))
        .with_metadata(m.metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use kafka_protocol::protocol::{Decodable, Encodable};

    /// Up to version 6 the protocol name is not nullable, and clients of that age crash on a null.
    #[test]
    fn a_refusal_encodes_in_every_version_and_has_a_name_where_null_is_none() {
        for version in 0..=9 {
            let refused = JoinReply::refused(ResponseError::MemberIdRequired, "m".to_owned());
            let mut buf = BytesMut::new();
            shape(version, refused).encode(&mut buf, version).unwrap();
            let back = JoinGroupResponse::decode(&mut buf.freeze(), version).unwrap();
            assert_eq!(back.error_code, 79);
            assert_eq!(back.member_id.as_str(), "m");
            assert_eq!(back.protocol_name.is_some(), version < NULL_PROTOCOL, "version {version}");
        }
    }
}
