//! Producer ids, the cluster, and every version of every answer.

use crate::ask::*;
use crate::common::{topic_name, Client};
use kafka_protocol::messages::alter_configs_request::AlterConfigsResource as LegacyResource;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::*;

#[tokio::test]
async fn producers_get_ids_of_their_own_and_those_of_a_transactional_id_the_next_epoch() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let mut ids = std::collections::BTreeSet::new();
    let mut of_the_name = None;
    for (epoch, version) in (0..=5).enumerate() {
        let epoch = epoch as i16;
        let response =
            client.call(version, &InitProducerIdRequest::default().with_transactional_id(None)).await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0), "v{version}");
        assert!(ids.insert(response.producer_id.0), "v{version}");
        let transactional =
            InitProducerIdRequest::default().with_transactional_id(Some(TransactionalId(text("t"))));
        let refused = client.call(version, &transactional).await;
        assert_eq!(
            (refused.error_code, refused.producer_id.0, refused.producer_epoch),
            (50, -1, -1),
            "INVALID_TRANSACTION_TIMEOUT"
        );
        let given =
            transactional_id(&mut client, version, transactional.with_transaction_timeout_ms(60_000)).await;
        assert_eq!((given.error_code, given.producer_epoch), (0, epoch), "v{version}");
        assert_eq!(given.producer_id, *of_the_name.get_or_insert(given.producer_id));
    }
    assert!(of_the_name.is_some_and(|id| ids.insert(id.0)));
    let again = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_producer_id(ProducerId(0))
        .with_producer_epoch(3);
    let again = client.call(4, &again).await;
    assert_eq!((again.error_code, again.producer_epoch), (0, 0));
    assert!(ids.insert(again.producer_id.0));
}

/// Asks until the coordinator has loaded.
async fn transactional_id(
    client: &mut Client,
    version: i16,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    for _ in 0..500 {
        let given = client.call(version, &request).await;
        if ![14, 15, 16].contains(&given.error_code) {
            return given;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the coordinator does not load")
}

#[tokio::test]
async fn the_cluster_is_one_broker_that_moves_nothing() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    for version in 0..=1 {
        let cluster = client.call(version, &DescribeClusterRequest::default()).await;
        assert_eq!(
            (cluster.error_code, cluster.controller_id.0, cluster.cluster_id.len()),
            (0, broker.id(), 22)
        );
        assert_eq!(cluster.brokers[0].port, i32::from(broker.addr().port()));
    }
    let controllers = DescribeClusterRequest::default().with_endpoint_type(2);
    assert_eq!(client.call(1, &controllers).await.error_code, 114);
    let moving = client.call(0, &ListPartitionReassignmentsRequest::default().with_topics(None)).await;
    assert_eq!((moving.error_code, moving.topics.len()), (0, 0));
}

#[tokio::test]
async fn answers_can_be_read_in_every_version_that_is_listed() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    for version in 2..=7 {
        let name = format!("t{version}");
        let topics = vec![new_topic(&name, 1), new_topic("a/b", 1)];
        let response = client.call(version, &create_request(topics)).await;
        assert_eq!((response.topics[0].error_code, response.topics[1].error_code), (0, 17), "v{version}");
    }
    for version in 0..=3 {
        let topic = |name, count| {
            CreatePartitionsTopic::default()
                .with_name(topic_name(name))
                .with_count(count)
                .with_assignments(None)
        };
        let topics = vec![topic("t2", version as i32 + 2), topic("none", 2)];
        let request = CreatePartitionsRequest::default().with_topics(topics).with_timeout_ms(10_000);
        let response = client.call(version, &request).await;
        assert_eq!((response.results[0].error_code, response.results[1].error_code), (0, 3), "v{version}");
    }
    for version in 1..=6 {
        let names = [format!("t{}", version + 1), "none".to_owned()];
        let request = DeleteTopicsRequest::default().with_timeout_ms(10_000);
        let request = if version == 6 {
            let state = |n: &String| DeleteTopicState::default().with_name(Some(topic_name(n)));
            request.with_topics(names.iter().map(state).collect())
        } else {
            request.with_topic_names(names.iter().map(|n| topic_name(n)).collect())
        };
        let response = client.call(version, &request).await;
        assert_eq!(
            (response.responses[0].error_code, response.responses[1].error_code),
            (0, 3),
            "v{version}"
        );
    }
    for version in 1..=4 {
        let response = client.call(version, &DescribeLogDirsRequest::default().with_topics(None)).await;
        assert_eq!(response.results[0].error_code, 0, "v{version}");
    }
    for version in 0..=2 {
        let legacy = LegacyResource::default().with_resource_type(TOPIC).with_resource_name(text("none"));
        let request = AlterConfigsRequest::default().with_resources(vec![legacy]);
        assert_eq!(client.call(version, &request).await.responses[0].error_code, 3, "v{version}");
        let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(0);
        let topic =
            DeleteRecordsTopic::default().with_name(topic_name("none")).with_partitions(vec![partition]);
        let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(1000);
        assert_eq!(client.call(version, &request).await.topics[0].partitions[0].error_code, 3, "v{version}");
    }
    for version in 0..=1 {
        let resource =
            AlterConfigsResource::default().with_resource_type(TOPIC).with_resource_name(text("none"));
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(client.call(version, &request).await.responses[0].error_code, 3, "v{version}");
    }
}
