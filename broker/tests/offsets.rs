//! ListOffsets and OffsetForLeaderEpoch over the wire.

mod common;

use common::*;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{ListOffsetsRequest, OffsetForLeaderEpochRequest};

/// Error, timestamp, offset.
async fn list(client: &mut Client, version: i16, topic: &str, timestamp: i64) -> (i16, i64, i64) {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    let response = client.call(version, &request).await;
    let row = &response.topics[0].partitions[0];
    (row.error_code, row.timestamp, row.offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_38_offsets_by_timestamp() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    for version in 1..=8 {
        assert_eq!(list(&mut client, version, "t", -1).await, (0, -1, 0), "empty, latest");
        assert_eq!(list(&mut client, version, "t", 0).await, (0, -1, -1), "empty, none at or after");
    }
    for timestamp in [2, 4, 8, 6] {
        client.produce("t", 0, batch_at(timestamp, &["x"])).await;
    }
    for version in 1..=8 {
        assert_eq!(list(&mut client, version, "t", -2).await, (0, -1, 0), "earliest");
        assert_eq!(list(&mut client, version, "t", -1).await, (0, -1, 4), "latest");
        assert_eq!(list(&mut client, version, "t", 3).await, (0, 4, 1));
        assert_eq!(list(&mut client, version, "t", 5).await, (0, 8, 2), "the first by offset");
        assert_eq!(list(&mut client, version, "t", 9).await, (0, -1, -1));
        assert_eq!(list(&mut client, version, "nowhere", -1).await, (3, -1, -1));
        let newest = if version >= 7 { (0, 8, 2) } else { (35, -1, -1) };
        assert_eq!(list(&mut client, version, "t", -3).await, newest, "largest timestamp, version {version}");
        let local = if version >= 8 { (0, -1, 0) } else { (35, -1, -1) };
        assert_eq!(list(&mut client, version, "t", -4).await, local, "earliest local, version {version}");
        assert_eq!(list(&mut client, version, "t", -5).await, (35, -1, -1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_another_leader_epoch_is_told_so() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(&["a", "b"])).await;
    let epoch_end = |believed, epoch| {
        let partition =
            OffsetForLeaderPartition::default().with_current_leader_epoch(believed).with_leader_epoch(epoch);
        let topic =
            OffsetForLeaderTopic::default().with_topic(topic_name("t")).with_partitions(vec![partition]);
        OffsetForLeaderEpochRequest::default().with_topics(vec![topic])
    };
    let far = client.call(4, &epoch_end(-1, 1_000_000)).await;
    let row = &far.topics[0].partitions[0];
    assert_eq!((row.error_code, row.leader_epoch, row.end_offset), (0, -1, -1), "an epoch to come");

    // A fetch finds out the present epoch by its error, as no client needs to but a test may. The first assignment begins at 256.
    let mut present = None;
    for epoch in 200..300 {
        let mut request = fetch_request("t", 0, 0);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        let response = client.fetch(12, &request).await;
        match self::row(&response).error_code {
            74 => assert!(present.is_none(), "older epochs come first"),
            0 => present = Some(epoch),
            75 => assert!(present.is_some_and(|p| epoch > p)),
            other => panic!("error {other}"),
        }
    }
    let present = present.expect("an epoch is accepted");
    for version in 2..=4 {
        let response = client.call(version, &epoch_end(present, present)).await;
        let row = &response.topics[0].partitions[0];
        assert_eq!((row.error_code, row.leader_epoch, row.end_offset), (0, present, 2), "version {version}");
        let response = client.call(version, &epoch_end(present + 1, present)).await;
        assert_eq!(response.topics[0].partitions[0].error_code, 75);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_read_another_log_learns_where_they_part() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(&["a", "b"])).await;
    let fetched = client.fetch(12, &fetch_request("t", 0, 0)).await;
    let records = row(&fetched).records.clone().unwrap();
    let epoch = i32::from_be_bytes(records[12..16].try_into().unwrap());
    let mut request = fetch_request("t", 0, 5).with_max_wait_ms(10_000);
    request.topics[0].partitions[0].last_fetched_epoch = epoch;
    let parted = client.fetch(12, &request).await;
    let row = row(&parted);
    assert_eq!(row.error_code, 0);
    assert_eq!((row.diverging_epoch.epoch, row.diverging_epoch.end_offset), (epoch, 2));
}
