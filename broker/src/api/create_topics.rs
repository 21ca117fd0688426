//! CreateTopics (KIP-4; broker defaults, KIP-464; configs in the answer, KIP-525; topic ids, KIP-516).
//!
//! A topic is durable before it is answered. Replication is the volume's affair: the replication factor is 1, and
//! −1 means 1. Each topic of a request succeeds or fails by itself.

use super::assignment::{check_replicas, refuse};
use super::config_view;
use super::deadline::Deadline;
use super::partition_budget::PartitionBudget;
use super::refusal::Refusal;
use super::side_by_side::side_by_side;
use super::RequestContext;
use crate::cluster::{check_topic_name, ClusterImage, NewTopic, TopicImage};
use crate::types::BrokerId;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BROKER_DEFAULT: i32 = -1;
const REPLICATION: i16 = 1;

pub async fn handle(cx: &RequestContext, req: CreateTopicsRequest) -> CreateTopicsResponse {
    let broker = &cx.broker;
    let image = broker.cluster.image();
    let deadline = Deadline::new(&broker.env.clock, req.timeout_ms);
    let mut budget = PartitionBudget::new(&broker.config, &image);
    let dry_run = req.validate_only;
    let work = distinct(req.topics).into_iter().map(|(topic, repeated)| {
        let planned = if repeated {
            Err(Refusal::invalid_request("the topic stands more than once in the request"))
        } else {
            plan(&image, &topic, broker.cluster.broker_id(), broker.config.num_partitions)
        };
        let planned = planned.and_then(|new| budget.take(new.partitions).map(|()| new));
        let deadline = &deadline;
        async move {
            let outcome = match planned {
                Ok(new) => create(cx, deadline, new, dry_run).await,
                Err(refusal) => Err(refusal),
            };
            result(cx, topic, outcome, dry_run)
        }
    });
    let work: Vec<_> = work.collect();
    CreateTopicsResponse::default().with_topics(side_by_side(work).await)
}

/// The topics, each name once, and whether it stood there more than once.
fn distinct(topics: Vec<CreatableTopic>) -> Vec<(CreatableTopic, bool)> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut out: Vec<(CreatableTopic, bool)> = Vec::with_capacity(topics.len());
    for topic in topics {
        match seen.get(topic.name.as_str()).and_then(|at| out.get_mut(*at)) {
            Some((_, repeated)) => *repeated = true,
            None => {
                seen.insert(topic.name.to_string(), out.len());
                out.push((topic, false));
            }
        }
    }
    out
}

async fn create(
    cx: &RequestContext,
    deadline: &Deadline,
    new: NewTopic,
    dry_run: bool,
) -> Result<Arc<TopicImage>, Refusal> {
    let cluster = cx.broker.cluster.clone();
    deadline.run(async move { cluster.create_topic(new, dry_run).await.map_err(Refusal::from) }).await
}

/// What is to be created, as far as the request alone can be judged. Configs are checked by the cluster.
fn plan(
    image: &ClusterImage,
    topic: &CreatableTopic,
    this: BrokerId,
    default_partitions: i32,
) -> Result<NewTopic, Refusal> {
    check_topic_name(&topic.name)?;
    if image.topic(&topic.name).is_some() {
        let message = format!("topic {} already exists", topic.name.as_str());
        return Err(Refusal::new(ResponseError::TopicAlreadyExists, message));
    }
    let partitions = if topic.assignments.is_empty() {
        check_replication(topic.replication_factor)?;
        partition_count(topic.num_partitions, default_partitions)?
    } else {
        if topic.num_partitions != BROKER_DEFAULT || i32::from(topic.replication_factor) != BROKER_DEFAULT {
            return Err(Refusal::invalid_request(
                "with a replica assignment, partition count and replication factor must be -1",
            ));
        }
        assigned_count(&topic.assignments, this)?
    };
    Ok(NewTopic { name: topic.name.to_string(), partitions, overrides: overrides(topic)? })
}

fn check_replication(factor: i16) -> Result<(), Refusal> {
    if factor == REPLICATION || i32::from(factor) == BROKER_DEFAULT {
        return Ok(());
    }
    let message = format!(
        "replication factor {factor}: the volume keeps a partition once; use 1, or -1 for the default"
    );
    Err(Refusal::new(ResponseError::InvalidReplicationFactor, message))
}

fn partition_count(asked: i32, default: i32) -> Result<i32, Refusal> {
    match asked {
        BROKER_DEFAULT => Ok(default),
        1.. => Ok(asked),
        _ => {
            let message = format!("{asked} partitions: use a positive number, or -1 for the default");
            Err(Refusal::new(ResponseError::InvalidPartitions, message))
        }
    }
}

fn assigned_count(assignments: &[CreatableReplicaAssignment], this: BrokerId) -> Result<i32, Refusal> {
    let indexes: BTreeSet<i32> = assignments.iter().map(|a| a.partition_index).collect();
    if indexes.len() != assignments.len() {
        return refuse("a partition is assigned more than once");
    }
    let count = i32::try_from(assignments.len()).unwrap_or(i32::MAX);
    if !indexes.iter().copied().eq(0..count) {
        return refuse("the assigned partitions must be numbered from 0 without a gap");
    }
    for a in assignments {
        check_replicas(a.partition_index, &a.broker_ids, this)?;
    }
    Ok(count)
}

fn overrides(topic: &CreatableTopic) -> Result<BTreeMap<String, String>, Refusal> {
    let invalid = |message| Err(Refusal::new(ResponseError::InvalidConfig, message));
    let mut overrides = BTreeMap::new();
    for config in &topic.configs {
        let name = config.name.to_string();
        let Some(value) = &config.value else {
            return invalid(format!("{name} has no value"));
        };
        if overrides.insert(name, value.to_string()).is_some() {
            return invalid(format!("{} is set more than once", config.name.as_str()));
        }
    }
    Ok(overrides)
}

fn result(
    cx: &RequestContext,
    asked: CreatableTopic,
    outcome: Result<Arc<TopicImage>, Refusal>,
    dry_run: bool,
) -> CreatableTopicResult {
    let result = CreatableTopicResult::default().with_name(asked.name);
    match outcome {
        Ok(topic) => {
            // What is only tried has no id that means anything.
            let id = if dry_run { uuid::Uuid::nil() } else { topic.id.0 };
            let configs = config_view::of_created_topic(&cx.broker.config, &topic.overrides);
            result
                .with_error_message(None)
                .with_topic_id(id)
                .with_num_partitions(topic.partitions)
                .with_replication_factor(REPLICATION)
                .with_configs(Some(configs))
        }
        Err(refusal) => result.with_error_code(refusal.code()).with_error_message(refusal.text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::create_topics_request::CreatableTopicConfig;
    use kafka_protocol::messages::{self, TopicName};
    use kafka_protocol::protocol::StrBytes;

    const ME: BrokerId = BrokerId(7);

    fn topic(name: &str, partitions: i32, replication: i16) -> CreatableTopic {
        CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_string(name.to_owned())))
            .with_num_partitions(partitions)
            .with_replication_factor(replication)
    }

    fn assigned(rows: &[(i32, &[i32])]) -> CreatableTopic {
        let rows = rows.iter().map(|(index, brokers)| {
            CreatableReplicaAssignment::default()
                .with_partition_index(*index)
                .with_broker_ids(brokers.iter().map(|b| messages::BrokerId(*b)).collect())
        });
        topic("t", -1, -1).with_assignments(rows.collect())
    }

    fn planned(topic: &CreatableTopic) -> Result<i32, i16> {
        plan(&ClusterImage::default(), topic, ME, 3).map(|new| new.partitions).map_err(|r| r.code())
    }

    #[test]
    fn minus_one_is_the_brokers_default() {
        assert_eq!(planned(&topic("t", -1, -1)), Ok(3));
        assert_eq!(planned(&topic("t", 5, 1)), Ok(5));
    }

    #[test]
    fn what_is_out_of_range_gets_kafkas_error() {
        assert_eq!(planned(&topic("t", 0, 1)), Err(37));
        assert_eq!(planned(&topic("t", -2, 1)), Err(37));
        for factor in [0, 2, 3, -2, i16::MAX] {
            assert_eq!(planned(&topic("t", 1, factor)), Err(38), "{factor}");
        }
        for name in ["", ".", "..", "../../x", "a b", "__cluster"] {
            assert_eq!(planned(&topic(name, 1, 1)), Err(17), "{name}");
        }
    }

    #[test]
    fn an_assignment_is_accepted_if_it_names_this_broker_for_every_partition() {
        assert_eq!(planned(&assigned(&[(1, &[7]), (0, &[7])])), Ok(2));
        assert_eq!(planned(&assigned(&[(0, &[7]), (2, &[7])])), Err(39));
        assert_eq!(planned(&assigned(&[(0, &[7]), (0, &[7])])), Err(39));
        assert_eq!(planned(&assigned(&[(-1, &[7])])), Err(39));
        assert_eq!(planned(&assigned(&[(0, &[8])])), Err(39));
        assert_eq!(planned(&assigned(&[(0, &[])])), Err(39));
        assert_eq!(planned(&assigned(&[(0, &[7, 7])])), Err(39));
        assert_eq!(planned(&assigned(&[(0, &[7])]).with_num_partitions(1)), Err(42));
        assert_eq!(planned(&assigned(&[(0, &[7])]).with_replication_factor(1)), Err(42));
    }

    #[test]
    fn a_config_has_one_value() {
        let config = |name: &'static str, value: Option<&'static str>| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(value.map(StrBytes::from_static_str))
        };
        let with = |configs| planned(&topic("t", 1, 1).with_configs(configs));
        assert_eq!(with(vec![config("retention.ms", Some("1"))]), Ok(1));
        assert_eq!(with(vec![config("retention.ms", None)]), Err(40));
        assert_eq!(with(vec![config("a", Some("1")), config("a", Some("2"))]), Err(40));
    }

    #[test]
    fn a_name_that_stands_twice_is_answered_once() {
        let got = distinct(vec![topic("a", 1, 1), topic("b", 1, 1), topic("a", 2, 1), topic("a", 3, 1)]);
        let got: Vec<_> = got.iter().map(|(t, repeated)| (t.name.to_string(), *repeated)).collect();
        assert_eq!(got, [("a".to_owned(), true), ("b".to_owned(), false)]);
    }
}
