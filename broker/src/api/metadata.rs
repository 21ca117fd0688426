//! Metadata: brokers, topics, and who leads their partitions.
//!
//! Of topics, either all are shown or the ones asked for. "All" is an empty list in version 0 and null later on,
//! where an empty list asks for none. From version 10 on topics have ids (KIP-516), and may be asked for by id; an
//! unknown id is answered without a name (with an empty one before version 12, which has no null).
//!
//! A topic that is not there is created if the request allows it (always, before version 4), the broker does
//! (`auto.create.topics.enable`), and the name is legal. The answer waits for the creation, so that the client's
//! next request succeeds; LEADER_NOT_AVAILABLE is left for a volume that is slow or failing.
//!
//! The leader epoch is that of the assignment, or the one in which this broker leads, if that is higher. Never −1 once it
//! is known: clients take that for a broker that knows no epochs, and forget what they knew (librdkafka then follows
//! whatever leader it is told of last; KIP-320). No offset is shown here, so that no lease is asked for: what
//! a broker without one says is where to go, and there it will refuse.

use super::deadline::Deadline;
use super::leaders::{self, Leader};
use super::members::{self, Member};
use super::partition_budget::PartitionBudget;
use super::refusal::Refusal;
use super::side_by_side::side_by_side;
use super::{operations, RequestContext};
use crate::cluster::{check_topic_name, AdminError, ClusterImage, NewTopic, TopicImage};
use crate::types::{Epoch, TopicId};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NO_LEADER: BrokerId = BrokerId(-1);
const UNKNOWN_EPOCH: i32 = -1;
/// How long an answer waits for the topics that it creates.
const CREATION_MS: i32 = 15_000;

pub async fn handle(cx: &RequestContext, req: MetadataRequest) -> MetadataResponse {
    let cluster = &cx.broker.cluster;
    let this = BrokerId(cluster.broker_id().0);
    let show =
        Show { cx, this, members: members::members(cx), operations: req.include_topic_authorized_operations };
    let topics = match wanted(cx.api_version, req.topics) {
        None => cluster.image().topics.values().map(|t| show.topic(t)).collect(),
        Some(wanted) => {
            let may_create = cx.api_version < 4 || req.allow_auto_topic_creation;
            let made = create_missing(cx, &wanted, may_create).await;
            let image = cluster.image();
            wanted.iter().map(|w| show.wanted(w, &image, &made)).collect()
        }
    };
    let brokers = show.members.iter().map(|m| {
        MetadataResponseBroker::default()
            .with_node_id(m.id)
            .with_host(m.host.clone())
            .with_port(m.port)
            .with_rack(None)
    });
    MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_cluster_id(Some(StrBytes::from_string(cluster.cluster_id().to_owned())))
        .with_controller_id(members::controller(&cluster.image(), &show.members))
        .with_topics(topics)
        .with_cluster_authorized_operations(operations::on_cluster(req.include_cluster_authorized_operations))
}

/// A topic asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Name(String),
    Id(TopicId),
}

/// What is asked for, each once; `None` is everything.
fn wanted(version: i16, topics: Option<Vec<MetadataRequestTopic>>) -> Option<Vec<Wanted>> {
    let topics = topics?;
    if version == 0 && topics.is_empty() {
        return None;
    }
    let mut seen = BTreeSet::new();
    let wanted = topics.into_iter().map(|t| match (t.topic_id.is_nil(), t.name) {
        (false, _) => Wanted::Id(TopicId(t.topic_id)),
        (true, name) => Wanted::Name(name.map(|n| n.to_string()).unwrap_or_default()),
    });
    Some(wanted.filter(|w| seen.insert(w.clone())).collect())
}

/// Creates the topics that are not there, and says why one could not be.
async fn create_missing(
    cx: &RequestContext,
    wanted: &[Wanted],
    allowed: bool,
) -> BTreeMap<String, ResponseError> {
    if !allowed || !cx.broker.config.auto_create_topics {
        return BTreeMap::new();
    }
    let image = cx.broker.cluster.image();
    let deadline = Deadline::new(&cx.broker.env.clock, CREATION_MS);
    let mut budget = PartitionBudget::new(&cx.broker.config, &image);
    let names = wanted.iter().filter_map(|w| match w {
        Wanted::Name(name) => Some(name),
        Wanted::Id(_) => None,
    });
    let missing = names.filter(|n| image.topic(n).is_none() && check_topic_name(n).is_ok());
    let work = missing.map(|name| {
        let allowed = budget.take(cx.broker.config.num_partitions);
        let deadline = &deadline;
        async move {
            let outcome = match allowed {
                Ok(()) => create(cx, deadline, name).await,
                Err(refusal) => Err(refusal),
            };
            let refusal = outcome.err()?;
            tracing::warn!(topic = %name, reason = %refusal.message, "the topic could not be created when asked for");
            Some((name.clone(), shown_error(refusal.error)))
        }
    });
    let work: Vec<_> = work.collect();
    side_by_side(work).await.into_iter().flatten().collect()
}

async fn create(cx: &RequestContext, deadline: &Deadline, name: &str) -> Result<(), Refusal> {
    let new = NewTopic {
        name: name.to_owned(),
        partitions: cx.broker.config.num_partitions,
        overrides: BTreeMap::new(),
    };
    let cluster = cx.broker.cluster.clone();
    let work = async move {
        match cluster.create_topic(new, false).await {
            // Somebody else was faster, and it is there.
            Ok(_) | Err(AdminError::TopicExists(_)) => Ok(()),
            Err(e) => Err(Refusal::from(e)),
        }
    };
    deadline.run(work).await
}

/// The error of a topic whose creation failed: where trying again may help, one that makes clients do so.
fn shown_error(error: ResponseError) -> ResponseError {
    match error {
        ResponseError::NotController
        | ResponseError::KafkaStorageError
        | ResponseError::RequestTimedOut
        | ResponseError::UnknownServerError => ResponseError::LeaderNotAvailable,
        lasting => lasting,
    }
}

struct Show<'a> {
    cx: &'a RequestContext,
    this: BrokerId,
    members: Vec<Member>,
    /// Whether authorized operations are asked for.
    operations: bool,
}

impl Show<'_> {
    fn wanted(
        &self,
        wanted: &Wanted,
        image: &ClusterImage,
        failed: &BTreeMap<String, ResponseError>,
    ) -> MetadataResponseTopic {
        match wanted {
            Wanted::Name(name) => match image.topic(name) {
                Some(topic) => self.topic(topic),
                None => unknown_name(name, failed.get(name).copied()),
            },
            Wanted::Id(id) => match image.topic_by_id(*id) {
                Some(topic) => self.topic(topic),
                None => unknown_id(*id, self.cx.api_version),
            },
        }
    }

    fn topic(&self, topic: &Arc<TopicImage>) -> MetadataResponseTopic {
        let partitions = (0..topic.partitions)
            .map(|index| partition(index, leaders::of(self.cx, &self.members, topic, index), self.this));
        MetadataResponseTopic::default()
            .with_name(Some(topic_name(&topic.name)))
            .with_topic_id(topic.id.0)
            .with_partitions(partitions.collect())
            .with_topic_authorized_operations(operations::on_topic(self.operations))
    }
}

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

fn unknown_name(name: &str, creation: Option<ResponseError>) -> MetadataResponseTopic {
    let error = match (check_topic_name(name), creation) {
        (Err(_), _) => ResponseError::InvalidTopicException,
        (Ok(()), Some(error)) => error,
        (Ok(()), None) => ResponseError::UnknownTopicOrPartition,
    };
    MetadataResponseTopic::default().with_name(Some(topic_name(name))).with_error_code(error.code())
}

fn unknown_id(id: TopicId, version: i16) -> MetadataResponseTopic {
    MetadataResponseTopic::default()
        .with_name((version < 12).then(TopicName::default))
        .with_topic_id(id.0)
        .with_error_code(ResponseError::UnknownTopicId.code())
}

fn partition(index: i32, leader: Leader, this: BrokerId) -> MetadataResponsePartition {
    let shown = MetadataResponsePartition::default()
        .with_partition_index(index)
        .with_leader_epoch(leader.epoch.map_or(UNKNOWN_EPOCH, Epoch::wire));
    match leader.id {
        Some(id) => shown.with_leader_id(id).with_replica_nodes(vec![id]).with_isr_nodes(vec![id]),
        None => shown
            .with_leader_id(NO_LEADER)
            .with_replica_nodes(vec![this])
            .with_isr_nodes(vec![this])
            .with_error_code(ResponseError::LeaderNotAvailable.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{LifeName, PartitionStatus};
    use crate::types::Offset;
    use kafka_protocol::protocol::Encodable;
    use uuid::Uuid;

    const ID: Uuid = Uuid::from_u128(0xa000);
    const ME: BrokerId = BrokerId(7);

    fn named(name: &'static str) -> MetadataRequestTopic {
        MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_static_str(name))))
    }

    fn by_id(id: Uuid) -> MetadataRequestTopic {
        MetadataRequestTopic::default().with_name(None).with_topic_id(id)
    }

    #[test]
    fn all_is_said_in_two_ways() {
        assert_eq!(wanted(0, Some(vec![])), None);
        assert_eq!(wanted(1, Some(vec![])), Some(vec![]));
        for version in 1..=12 {
            assert_eq!(wanted(version, None), None);
        }
    }

    #[test]
    fn a_topic_is_answered_once_however_often_it_is_asked_for() {
        let asked = vec![named("b"), named("a"), by_id(ID), named("b"), by_id(ID)];
        let once = vec![Wanted::Name("b".into()), Wanted::Name("a".into()), Wanted::Id(TopicId(ID))];
        assert_eq!(wanted(12, Some(asked)), Some(once));
    }

    #[test]
    fn what_is_not_there_gets_the_error_that_fits() {
        assert_eq!(unknown_name("t", None).error_code, 3);
        assert_eq!(unknown_name("no/topic", None).error_code, 17);
        assert_eq!(unknown_name("", None).error_code, 17);
        assert_eq!(unknown_name("t", Some(ResponseError::LeaderNotAvailable)).error_code, 5);
        assert_eq!(unknown_id(TopicId(ID), 12).error_code, 100);
    }

    #[test]
    fn an_unknown_id_can_be_answered_in_every_version_that_asks_by_id() {
        for version in 10..=12 {
            let topic = unknown_id(TopicId(ID), version);
            let response = MetadataResponse::default().with_topics(vec![topic]);
            response.encode(&mut bytes::BytesMut::new(), version).unwrap();
        }
    }

    #[test]
    fn a_failed_creation_is_retried_by_clients_if_that_can_help() {
        for error in [ResponseError::NotController, ResponseError::RequestTimedOut] {
            assert_eq!(shown_error(error), ResponseError::LeaderNotAvailable);
        }
        assert_eq!(shown_error(ResponseError::PolicyViolation), ResponseError::PolicyViolation);
    }

    #[test]
    fn an_epoch_is_shown_once_it_is_known() {
        let status = |life, epoch| PartitionStatus {
            topic: "t".into(),
            index: 0,
            life,
            epoch: Epoch(epoch),
            log_start: Offset(0),
            hwm: Offset(0),
            leo: Offset(0),
            bytes: 0,
        };
        let told = |since, leader, status: Option<PartitionStatus>| {
            let leader = leaders::decide(leader, Epoch(since), status.as_ref(), ME);
            let p = partition(0, leader, ME);
            (p.error_code, p.leader_id.0, p.leader_epoch)
        };
        let shown = |status| told(0, Some(ME), status);
        assert_eq!(shown(Some(status(LifeName::Leading, 5))), (0, 7, 5));
        assert_eq!(shown(Some(status(LifeName::Closed, 0))), (0, 7, -1));
        assert_eq!(shown(Some(status(LifeName::Closed, 5))), (0, 7, 5));
        assert_eq!(shown(Some(status(LifeName::Stalled, 5))), (0, 7, 5));
        assert_eq!(shown(Some(status(LifeName::Relinquished, 5))), (5, -1, 5));
        assert_eq!(shown(None), (5, -1, -1));
        // As it was assigned, here or to another broker; the leader knows best.
        assert_eq!(told(4, Some(BrokerId(9)), None), (0, 9, 4));
        assert_eq!(told(4, None, None), (5, -1, 4));
        assert_eq!(told(4, Some(ME), Some(status(LifeName::Closed, 0))), (0, 7, 4));
        assert_eq!(told(4, Some(ME), Some(status(LifeName::Leading, 5))), (0, 7, 5));
    }
}
