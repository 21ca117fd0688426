//! OffsetFetch (several groups: KIP-709). A partition without a committed offset has offset -1 and no error.
//!
//! A member of a consumer group says its id and epoch (version 9, KIP-848), and is told STALE_MEMBER_EPOCH if that is not the
//! present one: whoever had its partitions in between may have committed.
//!
//! `require_stable` (KIP-447): an offset that an open transaction may yet move is UNSTABLE_OFFSET_COMMIT (88), and clients
//! ask again; without it they get the last one that stands.

use super::group_terms::text;
use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::coordinator::{Committed, Place};
use crate::types::TopicId;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};

/// From this version on, an error of the group stands once, and not at each partition.
const GROUP_ERROR: i16 = 2;
/// From this version on, groups are batched.
const BATCHED: i16 = 8;

pub async fn handle(cx: &RequestContext, req: OffsetFetchRequest) -> OffsetFetchResponse {
    if cx.api_version >= BATCHED {
        let mut groups = Vec::with_capacity(req.groups.len());
        for group in req.groups {
            groups.push(one_of_many(cx, group, req.require_stable).await);
        }
        return OffsetFetchResponse::default().with_groups(groups);
    }
    let asked: Option<Vec<Asked>> =
        req.topics.map(|topics| topics.into_iter().map(|t| (t.name, t.partition_indexes)).collect());
    match fetch(cx, &req.group_id, None, (asked.as_deref(), req.require_stable)).await {
        Ok(found) => {
            OffsetFetchResponse::default().with_topics(found.into_iter().map(single_topic).collect())
        }
        Err(error) if cx.api_version >= GROUP_ERROR => {
            OffsetFetchResponse::default().with_error_code(error.code())
        }
        Err(error) => {
            let all = asked
                .unwrap_or_default()
                .into_iter()
                .map(|(name, partitions)| (name, partitions.into_iter().map(|p| (p, Err(error))).collect()));
            OffsetFetchResponse::default().with_topics(all.map(single_topic).collect())
        }
    }
}

async fn one_of_many(
    cx: &RequestContext,
    group: OffsetFetchRequestGroup,
    stable: bool,
) -> OffsetFetchResponseGroup {
    let asked: Option<Vec<Asked>> =
        group.topics.map(|topics| topics.into_iter().map(|t| (t.name, t.partition_indexes)).collect());
    // An administrator says neither.
    let reader = group.member_id.as_deref().map(|id| (id, group.member_epoch));
    let found = fetch(cx, &group.group_id, reader, (asked.as_deref(), stable)).await;
    let response = OffsetFetchResponseGroup::default().with_group_id(group.group_id);
    match found {
        Ok(found) => response.with_topics(found.into_iter().map(batched_topic).collect()),
        Err(error) => response.with_error_code(error.code()),
    }
}

type Asked = (TopicName, Vec<i32>);
/// `Ok(None)`: nothing was committed.
type Found = (TopicName, Vec<(i32, Result<Option<Committed>, ResponseError>)>);

async fn fetch(
    cx: &RequestContext,
    group: &str,
    reader: Option<(&str, i32)>,
    (asked, stable): (Option<&[Asked]>, bool),
) -> Result<Vec<Found>, ResponseError> {
    let (offsets, unstable) = cx.broker.groups.offsets_and_unstable(group, reader).await?;
    let unstable = if stable { unstable } else { BTreeSet::new() };
    let image = cx.broker.cluster.image();
    Ok(match asked {
        Some(asked) => pick(&image, &offsets.into_iter().collect(), &unstable, asked),
        None => all(&image, offsets, &unstable),
    })
}

/// By the id that the name has now: a recreated topic inherits nothing.
fn pick(
    image: &ClusterImage,
    offsets: &BTreeMap<Place, Committed>,
    unstable: &BTreeSet<Place>,
    asked: &[Asked],
) -> Vec<Found> {
    let find = |id: Option<TopicId>, p: i32| match id.map(|id| (id, p)) {
        Some(place) if unstable.contains(&place) => Err(ResponseError::UnstableOffsetCommit),
        place => Ok(place.and_then(|place| offsets.get(&place)).cloned()),
    };
    let topic = |(name, partitions): &Asked| {
        let id = image.topic(name).map(|t| t.id);
        (name.clone(), partitions.iter().map(|p| (*p, find(id, *p))).collect())
    };
    asked.iter().map(topic).collect()
}

/// Places that have no offset yet, but may get one from an open transaction, are listed, too: for who asks for what is stable,
/// their absence would say that nothing was committed, even after the transaction's commit was answered. (Kafka leaves them out.)
fn all(image: &ClusterImage, offsets: Vec<(Place, Committed)>, unstable: &BTreeSet<Place>) -> Vec<Found> {
    let mut found: BTreeMap<Place, Result<Option<Committed>, ResponseError>> =
        offsets.into_iter().map(|(place, committed)| (place, Ok(Some(committed)))).collect();
    found.extend(unstable.iter().map(|place| (*place, Err(ResponseError::UnstableOffsetCommit))));
    let mut topics: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for ((id, partition), found) in found {
        if let Some(topic) = image.topic_by_id(id) {
            topics.entry(topic.name.clone()).or_default().push((partition, found));
        }
    }
    topics.into_iter().map(|(name, found)| (TopicName(text(name)), found)).collect()
}

/// Offset, leader epoch, metadata, error.
fn columns(found: Result<Option<Committed>, ResponseError>) -> (i64, i32, StrBytes, i16) {
    match found {
        Ok(Some(c)) => (c.offset, c.leader_epoch, text(c.metadata), 0),
        Ok(None) => (-1, -1, StrBytes::default(), 0),
        Err(error) => (-1, -1, StrBytes::default(), error.code()),
    }
}

fn single_topic((name, found): Found) -> OffsetFetchResponseTopic {
    let partition = |(index, found)| {
        let (offset, epoch, metadata, error) = columns(found);
        OffsetFetchResponsePartition::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(epoch)
            .with_metadata(Some(metadata))
            .with_error_code(error)
    };
    let partitions = found.into_iter().map(partition).collect();
    OffsetFetchResponseTopic::default().with_name(name).with_partitions(partitions)
}

fn batched_topic((name, found): Found) -> OffsetFetchResponseTopics {
    let partition = |(index, found)| {
        let (offset, epoch, metadata, error) = columns(found);
        OffsetFetchResponsePartitions::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(epoch)
            .with_metadata(Some(metadata))
            .with_error_code(error)
    };
    let partitions = found.into_iter().map(partition).collect();
    OffsetFetchResponseTopics::default().with_name(name).with_partitions(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TopicImage;
    use std::sync::Arc;

    fn image(name: &str, id: TopicId) -> ClusterImage {
        let topic = TopicImage {
            leaders: Vec::new(),
            epochs: Vec::new(),
            disowned: Default::default(),
            name: name.to_owned(),
            id,
            partitions: 1,
            overrides: BTreeMap::new(),
            config: Arc::default(),
        };
        let mut image = ClusterImage::default();
        image.topics.insert(name.to_owned(), Arc::new(topic));
        image.names.insert(id, name.to_owned());
        image
    }

    #[test]
    fn a_place_with_nothing_but_a_pending_offset_is_unstable_in_a_list_of_all() {
        let id = TopicId(uuid::Uuid::from_u128(1));
        let unstable = BTreeSet::from([(id, 0)]);
        let found = all(&image("t", id), Vec::new(), &unstable);
        assert_eq!(found.len(), 1);
        assert_eq!(columns(found[0].1[0].1.clone()).3, ResponseError::UnstableOffsetCommit.code());
        assert!(all(&image("t", id), Vec::new(), &BTreeSet::new()).is_empty());
    }

    #[test]
    fn a_recreated_topic_inherits_no_offsets() {
        let (old, new) = (TopicId(uuid::Uuid::from_u128(1)), TopicId(uuid::Uuid::from_u128(2)));
        let committed = Committed {
            topic: "t".to_owned(),
            offset: 42,
            leader_epoch: -1,
            metadata: String::new(),
            committed_at: 0,
            expires_at: None,
        };
        let offsets = vec![((old, 0), committed)];
        let asked = [(TopicName(StrBytes::from_static_str("t")), vec![0])];
        let of = |image: &ClusterImage| {
            let found = pick(image, &offsets.clone().into_iter().collect(), &BTreeSet::new(), &asked);
            columns(found[0].1[0].1.clone()).0
        };
        assert_eq!(of(&image("t", old)), 42);
        assert_eq!(of(&image("t", new)), -1);
        assert_eq!(all(&image("t", old), offsets.clone(), &BTreeSet::new()).len(), 1);
        assert_eq!(all(&image("t", new), offsets.clone(), &BTreeSet::new()), vec![]);
    }
}
