//! Topics named by their ids (KIP-516), and leaders named beside errors (KIP-951), on the wire.
#![cfg(not(madsim))]
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use common::pair::Pair;
use common::*;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::fetch_request::ReplicaState;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    BrokerId, DeleteTopicsRequest, FetchRequest, FetchResponse, MetadataRequest, ProduceRequest,
};
use std::time::{Duration, Instant};
use uuid::Uuid;

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const NOT_LEADER: i16 = 6;
const FENCED_LEADER_EPOCH: i16 = 74;
const UNKNOWN_TOPIC_ID: i16 = 100;

/// Versions that name topics by id.
const FETCHES: std::ops::RangeInclusive<i16> = 13..=17;

/// The id of a topic, as Metadata tells it.
async fn id_of(client: &mut Client, topic: &str) -> Uuid {
    let wanted = MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
    let request = MetadataRequest::default().with_topics(Some(vec![wanted]));
    let response = client.call(12, &request).await;
    assert_eq!(response.topics[0].error_code, 0);
    response.topics[0].topic_id
}

async fn delete(client: &mut Client, topic: &str) {
    let state = DeleteTopicState::default().with_name(Some(topic_name(topic)));
    let request = DeleteTopicsRequest::default().with_topics(vec![state]).with_timeout_ms(10_000);
    assert_eq!(client.call(6, &request).await.responses[0].error_code, 0);
}

fn fetch_by_id(id: Uuid, partition: i32) -> FetchRequest {
    let mut request = fetch_request("", partition, 0);
    request.topics[0].topic_id = id;
    request
}

fn produce_by_id(id: Uuid, partition: i32, value: &str) -> ProduceRequest {
    let mut request = produce_request("", partition, -1, batch(&[value]));
    request.topic_data[0].topic_id = id;
    request
}

async fn produce(client: &mut Client, request: &ProduceRequest) -> PartitionProduceResponse {
    let response = client.call(13, request).await;
    assert_eq!(response.responses[0].topic_id, request.topic_data[0].topic_id);
    response.responses[0].partition_responses[0].clone()
}

fn offsets(response: &FetchResponse) -> Vec<i64> {
    base_offsets(row(response).records.as_deref().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_written_and_read_by_its_id() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 2, &[]).await;
    let id = id_of(&mut client, "t").await;
    let row = produce(&mut client, &produce_by_id(id, 1, "a")).await;
    assert_eq!((row.error_code, row.base_offset), (0, 0));
    let large = "x".repeat(50_000);
    assert_eq!(produce(&mut client, &produce_by_id(id, 1, &large)).await.base_offset, 1);
    for version in FETCHES {
        let response = client.fetch(version, &fetch_by_id(id, 1)).await;
        assert_eq!(response.responses[0].topic_id, id, "version {version}");
        assert_eq!((response.error_code, offsets(&response)), (0, vec![0, 1]), "version {version}");
    }
    // What was written by id is there by name.
    assert_eq!(offsets(&client.fetch(12, &fetch_request("t", 1, 0)).await), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_nothing_costs_its_own_rows_only() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = id_of(&mut client, "t").await;
    client.produce("t", 0, batch(&["a"])).await;
    for nothing in [Uuid::nil(), Uuid::from_u128(0xdead)] {
        for version in FETCHES {
            let mut both = fetch_by_id(nothing, 0);
            both.topics.extend(fetch_by_id(id, 0).topics);
            let response = client.fetch(version, &both).await;
            let codes = response.responses.iter().map(|t| (t.topic_id, t.partitions[0].error_code));
            assert_eq!(codes.collect::<Vec<_>>(), [(nothing, UNKNOWN_TOPIC_ID), (id, 0)]);
        }
        assert_eq!(produce(&mut client, &produce_by_id(nothing, 0, "b")).await.error_code, UNKNOWN_TOPIC_ID);
    }
    // The topic is there, the partition is not.
    let response = client.fetch(13, &fetch_by_id(id, 1)).await;
    assert_eq!(row(&response).error_code, UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(produce(&mut client, &produce_by_id(id, 1, "b")).await.error_code, UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(offsets(&client.fetch(13, &fetch_by_id(id, 0)).await), [0], "nothing was added");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_57_a_stale_id_never_reaches_the_next_topic_of_the_name() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let stale = id_of(&mut client, "t").await;
    client.produce("t", 0, batch(&["of the first"])).await;
    // A long poll on the first topic, at its end, lives through both.
    let mut poll = fetch_by_id(stale, 0).with_max_wait_ms(15_000);
    poll.topics[0].partitions[0].fetch_offset = 1;
    let mut poller = broker.client().await;
    let polled = poller.send(13, &poll).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    delete(&mut client, "t").await;
    client.create_topic("t", 1, &[]).await;
    let id = id_of(&mut client, "t").await;
    assert_ne!(id, stale);
    client.produce("t", 0, batch(&["of the second"])).await;

    let response = poller.receive::<FetchRequest>(13, polled).await;
    assert_eq!((row(&response).error_code, offsets(&response)), (UNKNOWN_TOPIC_ID, vec![]));
    assert!(began.elapsed() < Duration::from_secs(10), "it did not wait for its time to pass");
    for version in FETCHES {
        let response = client.fetch(version, &fetch_by_id(stale, 0)).await;
        assert_eq!((row(&response).error_code, offsets(&response)), (UNKNOWN_TOPIC_ID, vec![]));
    }
    assert_eq!(produce(&mut client, &produce_by_id(stale, 0, "late")).await.error_code, UNKNOWN_TOPIC_ID);
    let response = client.fetch(17, &fetch_by_id(id, 0)).await;
    assert_eq!((row(&response).high_watermark, offsets(&response)), (1, vec![0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_claims_to_be_a_followers_is_answered_as_any_other() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let id = id_of(&mut client, "t").await;
    client.produce("t", 0, batch(&["a"])).await;
    let by_field = fetch_by_id(id, 0).with_replica_id(BrokerId(5));
    assert_eq!(offsets(&client.fetch(14, &by_field).await), [0]);
    let state = ReplicaState::default().with_replica_id(BrokerId(5)).with_replica_epoch(1);
    let by_tag = fetch_by_id(id, 0).with_replica_state(state);
    assert_eq!(offsets(&client.fetch(15, &by_tag).await), [0]);
    let mut with_directory = by_tag.clone();
    with_directory.topics[0].partitions[0].replica_directory_id = Uuid::from_u128(9);
    assert_eq!(offsets(&client.fetch(17, &with_directory).await), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_to_the_wrong_broker_is_told_of_the_leader() {
    let pair = Pair::start().await;
    let [here, there] = &pair.brokers;
    let mut client = here.client().await;
    let id = id_of(&mut client, "t").await;
    let (mine, other) = (pair.partition_on(0), pair.partition_on(1));
    let port = i32::from(there.node.local_addr().port());
    for version in 13..=17 {
        let response = client.fetch(version, &fetch_by_id(id, other)).await;
        let row = row(&response);
        assert_eq!(row.error_code, NOT_LEADER);
        let named: Vec<_> = response.node_endpoints.iter().map(|n| (n.node_id.0, n.port)).collect();
        if version < 16 {
            assert_eq!((row.current_leader.leader_id.0, named), (-1, vec![]));
        } else {
            assert_eq!((row.current_leader.leader_id.0, named), (2, vec![(2, port)]));
            assert!(row.current_leader.leader_epoch > 0);
        }
    }
    // Who follows an older epoch is told of the present one, by its leader too.
    let mut late = fetch_by_id(id, mine);
    late.topics[0].partitions[0].current_leader_epoch = 0;
    let response = client.fetch(16, &late).await;
    assert_eq!(row(&response).error_code, FENCED_LEADER_EPOCH);
    assert_eq!(row(&response).current_leader.leader_id.0, 1);
    assert_eq!(response.node_endpoints.len(), 1);
    for version in [9, 10, 12, 13] {
        let mut request = produce_by_id(id, other, "a");
        request.topic_data[0].name = topic_name("t");
        let response = client.call(version, &request).await;
        let row = &response.responses[0].partition_responses[0];
        assert_eq!(row.error_code, NOT_LEADER);
        let named: Vec<_> = response.node_endpoints.iter().map(|n| (n.node_id.0, n.port)).collect();
        let expected = if version < 10 { (-1, vec![]) } else { (2, vec![(2, port)]) };
        assert_eq!((row.current_leader.leader_id.0, named), expected, "version {version}");
    }
    // Where all goes well nobody is named.
    let response = client.fetch(17, &fetch_by_id(id, mine)).await;
    assert!(row(&response).error_code == 0 && response.node_endpoints.is_empty());
}
