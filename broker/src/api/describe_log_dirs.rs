//! DescribeLogDirs (KIP-113; space, KIP-827): what the partitions take on the volume.
//!
//! There is one log directory, this broker's view of the volume. A partition's size is that of its log without
//! what lies past a seal; its `offset_lag` is 0, since there is no replica that could lag.

use super::RequestContext;
use crate::storage::PartitionStatus;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};

pub async fn handle(cx: &RequestContext, req: DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    let broker = &cx.broker;
    let mut result = DescribeLogDirsResult::default()
        .with_log_dir(StrBytes::from_string(broker.config.data.display().to_string()));
    // The sizes are known without the volume; a volume that does not answer must not hang the call.
    match tokio::time::timeout(broker.config.storage.sync_timeout, broker.env.volume.space()).await {
        Ok(Ok(space)) => {
            result = result
                .with_total_bytes(clamp(space.total))
                .with_usable_bytes(clamp(space.free))
                .with_topics(topics(statuses(cx), req.topics.as_deref()));
        }
        Ok(Err(e)) => {
            tracing::warn!(error = %e, "the volume does not say how full it is");
            result = result.with_error_code(ResponseError::KafkaStorageError.code());
        }
        Err(_) => result = result.with_error_code(ResponseError::KafkaStorageError.code()),
    }
    DescribeLogDirsResponse::default().with_results(vec![result])
}

/// The partitions of topics; what else the engine keeps (groups) is no client's partition.
fn statuses(cx: &RequestContext) -> Vec<PartitionStatus> {
    let cluster = &cx.broker.cluster;
    let image = cluster.image();
    let ids = image.topics.values().flat_map(|t| (0..t.partitions).map(|index| (t.id, index)));
    ids.filter_map(|(id, index)| cluster.engine().get(id, index)).map(|p| p.status()).collect()
}

fn clamp(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The partitions asked for (`None`: all), by topic. Unknown ones are left out, as in Kafka.
fn topics(
    statuses: Vec<PartitionStatus>,
    asked: Option<&[DescribableLogDirTopic]>,
) -> Vec<DescribeLogDirsTopic> {
    let asked = asked.map(|topics| {
        topics
            .iter()
            .flat_map(|t| t.partitions.iter().map(|p| (t.topic.0.as_str(), *p)))
            .collect::<BTreeSet<_>>()
    });
    let mut by_topic: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for s in statuses {
        if asked.as_ref().is_some_and(|a| !a.contains(&(s.topic.as_str(), s.index))) {
            continue;
        }
        let partition = DescribeLogDirsPartition::default()
            .with_partition_index(s.index)
            .with_partition_size(clamp(s.bytes));
        by_topic.entry(s.topic).or_default().push(partition);
    }
    by_topic
        .into_iter()
        .map(|(name, partitions)| {
            DescribeLogDirsTopic::default()
                .with_name(TopicName(StrBytes::from_string(name)))
                .with_partitions(partitions)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::LifeName;
    use crate::types::{Epoch, Offset};

    fn status(topic: &str, index: i32, bytes: u64) -> PartitionStatus {
        PartitionStatus {
            topic: topic.to_owned(),
            index,
            life: LifeName::Leading,
            epoch: Epoch(1),
            log_start: Offset(0),
            hwm: Offset(0),
            leo: Offset(0),
            bytes,
        }
    }

    fn shown(topics: &[DescribeLogDirsTopic]) -> Vec<(String, i32, i64)> {
        let rows = topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p)));
        rows.map(|(t, p)| (t.name.to_string(), p.partition_index, p.partition_size)).collect()
    }

    #[test]
    fn all_or_the_ones_asked_for_are_shown() {
        let statuses = || vec![status("a", 0, 10), status("a", 1, 20), status("b", 0, u64::MAX)];
        let all = [("a".to_owned(), 0, 10), ("a".to_owned(), 1, 20), ("b".to_owned(), 0, i64::MAX)];
        assert_eq!(shown(&topics(statuses(), None)), all);

        let asked = |name: &'static str, partitions: Vec<i32>| {
            DescribableLogDirTopic::default()
                .with_topic(TopicName(StrBytes::from_static_str(name)))
                .with_partitions(partitions)
        };
        let some = [asked("a", vec![1, 7]), asked("b", vec![]), asked("c", vec![0])];
        assert_eq!(shown(&topics(statuses(), Some(&some))), [("a".to_owned(), 1, 20)]);
        assert!(topics(statuses(), Some(&[])).is_empty());
    }
}
