//! CreatePartitions (KIP-195): raises a topic's number of partitions, durably before it is answered.

use super::assignment::{check_replicas, refuse};
use super::deadline::Deadline;
use super::partition_budget::PartitionBudget;
use super::refusal::{code_and_text, Refusal};
use super::side_by_side::{side_by_side, Times};
use super::RequestContext;
use crate::cluster::ClusterImage;
use crate::types::BrokerId;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse};
use kafka_protocol::ResponseError;

pub async fn handle(cx: &RequestContext, req: CreatePartitionsRequest) -> CreatePartitionsResponse {
    let broker = &cx.broker;
    let image = broker.cluster.image();
    let deadline = Deadline::new(&broker.env.clock, req.timeout_ms);
    let mut budget = PartitionBudget::new(&broker.config, &image);
    let names: Vec<String> = req.topics.iter().map(|t| t.name.to_string()).collect();
    let mut times = Times::of(names);
    let mut work = Vec::with_capacity(req.topics.len());
    for topic in req.topics {
        let planned = match times.take(&topic.name.to_string()) {
            None => continue,
            Some(1) => added(&image, &topic, broker.cluster.broker_id()).and_then(|n| budget.take(n)),
            Some(_) => Err(Refusal::invalid_request("the topic stands more than once in the request")),
        };
        let deadline = &deadline;
        work.push(async move {
            let outcome = match planned {
                Ok(()) => create(cx, deadline, &topic, req.validate_only).await,
                Err(refusal) => Err(refusal),
            };
            let (code, text) = code_and_text(outcome);
            CreatePartitionsTopicResult::default()
                .with_name(topic.name)
                .with_error_code(code)
                .with_error_message(text)
        });
    }
    CreatePartitionsResponse::default().with_results(side_by_side(work).await)
}

async fn create(
    cx: &RequestContext,
    deadline: &Deadline,
    topic: &CreatePartitionsTopic,
    dry_run: bool,
) -> Result<(), Refusal> {
    let cluster = cx.broker.cluster.clone();
    let (name, total) = (topic.name.to_string(), topic.count);
    let work = async move { cluster.create_partitions(&name, total, dry_run).await.map_err(Refusal::from) };
    deadline.run(work).await
}

/// How many partitions the topic would gain.
fn added(image: &ClusterImage, topic: &CreatePartitionsTopic, this: BrokerId) -> Result<i32, Refusal> {
    let present = image.topic(&topic.name).ok_or_else(|| Refusal::unknown_topic(&topic.name))?.partitions;
    let added = topic.count.saturating_sub(present);
    if added <= 0 {
        let message = format!("the topic has {present} partitions, {} would not be an increase", topic.count);
        return Err(Refusal::new(ResponseError::InvalidPartitions, message));
    }
    let Some(assignments) = &topic.assignments else {
        return Ok(added);
    };
    if usize::try_from(added) != Ok(assignments.len()) {
        return refuse(format!("{added} partitions are added, {} are assigned", assignments.len()));
    }
    for (index, assignment) in (present..).zip(assignments) {
        check_replicas(index, &assignment.broker_ids, this)?;
    }
    Ok(added)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::TopicImage;
    use crate::types::TopicId;
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;
    use kafka_protocol::messages::{self, TopicName};
    use kafka_protocol::protocol::StrBytes;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn image() -> ClusterImage {
        let topic = TopicImage {
            leaders: Vec::new(),
            epochs: Vec::new(),
            disowned: Default::default(),
            name: "t".to_owned(),
            id: TopicId::default(),
            partitions: 2,
            overrides: BTreeMap::new(),
            config: Arc::default(),
        };
        let mut image = ClusterImage::default();
        image.topics.insert("t".to_owned(), Arc::new(topic));
        image
    }

    fn ask(name: &'static str, count: i32, assignments: Option<&[&[i32]]>) -> Result<i32, i16> {
        let assignments = assignments.map(|rows| {
            let row = |brokers: &&[i32]| {
                CreatePartitionsAssignment::default()
                    .with_broker_ids(brokers.iter().map(|b| messages::BrokerId(*b)).collect())
            };
            rows.iter().map(row).collect()
        });
        let topic = CreatePartitionsTopic::default()
            .with_name(TopicName(StrBytes::from_static_str(name)))
            .with_count(count)
            .with_assignments(assignments);
        added(&image(), &topic, BrokerId(7)).map_err(|r| r.code())
    }

    #[test]
    fn only_more_partitions_can_be_asked_for() {
        assert_eq!(ask("t", 5, None), Ok(3));
        for count in [2, 1, 0, -1, i32::MIN] {
            assert_eq!(ask("t", count, None), Err(37), "{count}");
        }
        assert_eq!(ask("other", 5, None), Err(3));
    }

    #[test]
    fn an_assignment_names_this_broker_for_every_new_partition() {
        assert_eq!(ask("t", 4, Some(&[&[7], &[7]])), Ok(2));
        assert_eq!(ask("t", 4, Some(&[&[7]])), Err(39));
        assert_eq!(ask("t", 4, Some(&[&[7], &[8]])), Err(39));
        assert_eq!(ask("t", 3, Some(&[&[]])), Err(39));
    }
}
