//! OffsetDelete (KIP-496): offsets of topics to which no member of the group subscribes.

use super::group_terms::code;
use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::coordinator::Place;
use kafka_protocol::messages::offset_delete_request::OffsetDeleteRequestTopic;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: OffsetDeleteRequest) -> OffsetDeleteResponse {
    let image = cx.broker.cluster.image();
    let find = |topic: &OffsetDeleteRequestTopic| {
        let name = topic.name.to_string();
        let indexes: Vec<i32> = topic.partitions.iter().map(|p| p.partition_index).collect();
        indexes.into_iter().filter_map(|p| Some((place(&image, &name, p)?, name.clone()))).collect::<Vec<_>>()
    };
    let places: Vec<_> = req.topics.iter().flat_map(find).collect();
    let deletion = match cx.broker.groups.delete_offsets(&req.group_id, &places).await {
        Ok(deletion) => deletion,
        Err(error) => return OffsetDeleteResponse::default().with_error_code(error.code()),
    };
    let topics = req.topics.into_iter().map(|topic| {
        let subscribed = deletion.subscribed.contains(topic.name.as_str());
        let error = |p| match place(&image, &topic.name, p) {
            None => Some(ResponseError::UnknownTopicOrPartition),
            Some(_) if subscribed => Some(ResponseError::GroupSubscribedToTopic),
            Some(_) => None,
        };
        let partition = |p: i32| {
            OffsetDeleteResponsePartition::default().with_partition_index(p).with_error_code(code(error(p)))
        };
        let partitions = topic.partitions.iter().map(|p| partition(p.partition_index)).collect();
        OffsetDeleteResponseTopic::default().with_name(topic.name.clone()).with_partitions(partitions)
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}

fn place(image: &ClusterImage, topic: &str, partition: i32) -> Option<Place> {
    let topic = image.topic(topic).filter(|t| (0..t.partitions).contains(&partition))?;
    Some((topic.id, partition))
}
