//! ConsumerGroupDescribe (KIP-848). A group that does not exist, or is of the classic protocol, is GROUP_ID_NOT_FOUND.

use super::group_terms::text;
use super::{operations, RequestContext};
use crate::cluster::ClusterImage;
use crate::coordinator::consumer::{ConsumerMemberDoc, Partitions};
use crate::coordinator::{ConsumerDescription, ConsumerLook};
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use kafka_protocol::messages::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::collections::BTreeMap;

pub async fn handle(cx: &RequestContext, req: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse {
    let operations = operations::on_group(req.include_authorized_operations);
    let mut groups = Vec::with_capacity(req.group_ids.len());
    for id in req.group_ids {
        let look = cx.broker.groups.look_at_consumer(&id).await;
        let image = cx.broker.cluster.image();
        groups.push(shape(&image, look, operations).with_group_id(id));
    }
    ConsumerGroupDescribeResponse::default().with_groups(groups)
}

fn shape(image: &ClusterImage, look: Result<ConsumerLook, ResponseError>, operations: i32) -> DescribedGroup {
    let refused = |error: ResponseError, why: &'static str| {
        let why = (!why.is_empty()).then(|| StrBytes::from_static_str(why));
        DescribedGroup::default()
            .with_authorized_operations(operations::NOT_ASKED)
            .with_error_code(error.code())
            .with_error_message(why)
    };
    match look {
        Err(error) => refused(error, ""),
        Ok(ConsumerLook::Missing) => refused(ResponseError::GroupIdNotFound, "there is no such group"),
        Ok(ConsumerLook::Classic) => refused(
            ResponseError::GroupIdNotFound,
            "the group is of the classic protocol, not a consumer group",
        ),
        Ok(ConsumerLook::Consumer(group)) => described(image, *group).with_authorized_operations(operations),
    }
}

fn described(image: &ClusterImage, group: ConsumerDescription) -> DescribedGroup {
    let doc = group.doc;
    DescribedGroup::default()
        .with_group_state(StrBytes::from_static_str(group.state.name()))
        .with_group_epoch(doc.epoch)
        .with_assignment_epoch(doc.assignment_epoch)
        .with_assignor_name(StrBytes::from_static_str(doc.assignor.name()))
        .with_members(doc.members.into_iter().map(|m| member(image, m)).collect())
}

fn member(image: &ClusterImage, m: ConsumerMemberDoc) -> Member {
    let subscribed = m.profile.subscribed.into_iter().map(|name| TopicName(text(name)));
    Member::default()
        .with_member_id(text(m.id))
        .with_instance_id(m.profile.instance.map(text))
        .with_rack_id(m.profile.rack.map(text))
        .with_member_epoch(m.epoch)
        .with_client_id(text(m.profile.client_id))
        .with_client_host(text(m.profile.client_host))
        .with_subscribed_topic_names(subscribed.collect())
        .with_assignment(assignment(image, &m.assigned))
        .with_target_assignment(assignment(image, &m.target))
}

/// Without topics that are gone: they have no name any more.
fn assignment(image: &ClusterImage, partitions: &Partitions) -> Assignment {
    let mut topics = BTreeMap::new();
    for (id, partition) in partitions {
        if let Some(topic) = image.topic_by_id(*id) {
            let of = topics.entry(*id).or_insert_with(|| (topic.name.clone(), Vec::new()));
            of.1.push(*partition);
        }
    }
    let topics = topics.into_iter().map(|(id, (name, partitions))| {
        TopicPartitions::default()
            .with_topic_id(id.0)
            .with_topic_name(TopicName(text(name)))
            .with_partitions(partitions)
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
