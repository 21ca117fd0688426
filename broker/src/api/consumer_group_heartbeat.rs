//! ConsumerGroupHeartbeat (KIP-848). What a member is told is durable when it is told.
//!
//! From version 1 on, the client makes the member id, and may subscribe by a regular expression that the coordinator
//! matches. Those are not served: INVALID_REGULAR_EXPRESSION says so. (Version 1 is listed because librdkafka speaks no other.)

use super::group_terms::{millis, optional_string, text};
use super::RequestContext;
use crate::coordinator::consumer::{ConsumerError, HeartbeatInput, HeartbeatReply, Partitions};
use crate::types::TopicId;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions as Owned;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use std::collections::BTreeMap;
use std::time::Duration;

/// From this version on, the client makes the member id.
const CLIENT_MADE_IDS: i16 = 1;

pub async fn handle(
    cx: &RequestContext,
    req: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let groups = &cx.broker.groups;
    let group = req.group_id.to_string();
    let result = match check(cx.api_version, &req) {
        Err(refusal) => Err(refusal),
        Ok(()) => groups.consumer_heartbeat(&group, input(cx, req)).await,
    };
    shape(result, groups.settings().consumer.heartbeat)
}

/// What is refused because of the version. An empty expression stands for none.
fn check(version: i16, req: &ConsumerGroupHeartbeatRequest) -> Result<(), ConsumerError> {
    if version >= CLIENT_MADE_IDS && req.member_id.is_empty() {
        return Err(ConsumerError::Invalid("the member id is empty: from version 1 on, the client makes it"));
    }
    match req.subscribed_topic_regex.as_ref().is_some_and(|regex| !regex.is_empty()) {
        true => Err(ConsumerError::Regex),
        false => Ok(()),
    }
}

fn input(cx: &RequestContext, req: ConsumerGroupHeartbeatRequest) -> HeartbeatInput {
    let names = req.subscribed_topic_names;
    HeartbeatInput {
        member_id: req.member_id.to_string(),
        epoch: req.member_epoch,
        instance: optional_string(req.instance_id),
        rack: optional_string(req.rack_id),
        client_id: cx.client_id.clone(),
        client_host: format!("/{}", cx.client_host),
        rebalance: (req.rebalance_timeout_ms >= 0).then(|| millis(req.rebalance_timeout_ms)),
        subscribed: names.map(|names| names.into_iter().map(|n| n.to_string()).collect()),
        assignor: optional_string(req.server_assignor),
        owned: req.topic_partitions.map(owned),
        fresh_id: String::new(),
    }
}

fn owned(topics: Vec<Owned>) -> Partitions {
    let places = |t: Owned| t.partitions.into_iter().map(move |p| (TopicId(t.topic_id), p));
    topics.into_iter().flat_map(places).collect()
}

fn shape(
    result: Result<HeartbeatReply, ConsumerError>,
    interval: Duration,
) -> ConsumerGroupHeartbeatResponse {
    let response = ConsumerGroupHeartbeatResponse::default();
    match result {
        Err(e) => response.with_error_code(e.error().code()).with_error_message(Some(text(e.to_string()))),
        Ok(reply) => response
            .with_member_id(Some(text(reply.member_id)))
            .with_member_epoch(reply.epoch)
            .with_heartbeat_interval_ms(i32::try_from(interval.as_millis()).unwrap_or(i32::MAX))
            .with_assignment(reply.assignment.map(assignment)),
    }
}

fn assignment(partitions: Partitions) -> Assignment {
    let mut topics: BTreeMap<TopicId, Vec<i32>> = BTreeMap::new();
    for (id, partition) in partitions {
        topics.entry(id).or_default().push(partition);
    }
    let topic = |(id, partitions): (TopicId, Vec<i32>)| {
        TopicPartitions::default().with_topic_id(id.0).with_partitions(partitions)
    };
    Assignment::default().with_topic_partitions(topics.into_iter().map(topic).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use kafka_protocol::protocol::{Decodable, Encodable};

    fn there_and_back(response: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse {
        let mut buf = BytesMut::new();
        response.encode(&mut buf, 1).unwrap();
        ConsumerGroupHeartbeatResponse::decode(&mut buf.freeze(), 1).unwrap()
    }

    #[test]
    fn version_1_has_ids_of_the_client_and_no_regular_expressions_yet() {
        let named = ConsumerGroupHeartbeatRequest::default().with_member_id(text("m"));
        let nameless = ConsumerGroupHeartbeatRequest::default();
        let with = |regex: &str| named.clone().with_subscribed_topic_regex(Some(text(regex)));
        assert_eq!(check(0, &nameless), Ok(()));
        assert!(matches!(check(1, &nameless), Err(ConsumerError::Invalid(_))));
        assert_eq!(check(1, &with("")), Ok(()));
        assert_eq!(check(1, &with("t.*")), Err(ConsumerError::Regex));
        assert_eq!(ConsumerError::Regex.error().code(), 128);
    }

    #[test]
    fn a_refusal_says_why_and_an_answer_what() {
        let interval = Duration::from_secs(5);
        let refused = there_and_back(shape(Err(ConsumerError::UnknownMember), interval));
        assert_eq!((refused.error_code, refused.assignment), (25, None));
        assert!(refused.error_message.is_some_and(|m| m.contains("join again")));

        let id = TopicId(uuid::Uuid::from_u128(7));
        let reply = |assignment| HeartbeatReply { member_id: "m".to_owned(), epoch: 3, assignment };
        let told = there_and_back(shape(Ok(reply(Some([(id, 1), (id, 0)].into()))), interval));
        assert_eq!((told.error_code, told.member_epoch, told.heartbeat_interval_ms), (0, 3, 5000));
        let topics = told.assignment.unwrap().topic_partitions;
        assert_eq!((topics.len(), topics[0].topic_id, &topics[0].partitions), (1, id.0, &vec![0, 1]));

        let nothing = there_and_back(shape(Ok(reply(Some(Partitions::new()))), interval));
        assert!(nothing.assignment.unwrap().topic_partitions.is_empty(), "nothing is not: as before");
        assert!(there_and_back(shape(Ok(reply(None)), interval)).assignment.is_none());
    }
}
