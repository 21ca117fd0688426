//! Fetches of several partitions, some of which are in trouble.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use common::*;
use highwater::config::BrokerConfig;
use highwater::volume::Op;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ProduceRequest};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Asks for partitions 0 to `n - 1` from their start on.
fn fetch_all(n: i32, partition_max_bytes: i32, max_bytes: i32) -> FetchRequest {
    let partition = |i| {
        FetchPartition::default()
            .with_partition(i)
            .with_fetch_offset(0)
            .with_partition_max_bytes(partition_max_bytes)
    };
    let topic =
        FetchTopic::default().with_topic(topic_name("t")).with_partitions((0..n).map(partition).collect());
    FetchRequest::default().with_max_bytes(max_bytes).with_min_bytes(1).with_topics(vec![topic])
}

/// Error and bytes of each row.
fn rows(response: &FetchResponse) -> Vec<(i16, usize)> {
    let row = |p: &kafka_protocol::messages::fetch_response::PartitionData| {
        (p.error_code, p.records.as_ref().map_or(0, |r| r.len()))
    };
    response.responses[0].partitions.iter().map(row).collect()
}

fn dir(broker: &TestBroker, partition: i32) -> String {
    let id = broker.node.broker().cluster.image().topic("t").expect("the topic").id;
    format!("t/{id}/{partition}/")
}

async fn with_topic(partitions: i32, configure: impl FnOnce(&mut BrokerConfig)) -> (TestBroker, Client) {
    let broker = TestBroker::start(configure).await;
    let mut client = broker.client().await;
    client.create_topic("t", partitions, &[]).await;
    (broker, client)
}

#[tokio::test]
async fn a_file_that_does_not_answer_costs_its_own_row_only() {
    let (broker, mut client) = with_topic(3, |_| {}).await;
    let records = batch(&["v"]);
    for partition in 0..3 {
        assert_eq!(client.produce("t", partition, records.clone()).await.error_code, 0);
    }
    broker.volume.hang(Op::Read, &dir(&broker, 0));
    let before = Instant::now();
    let response = client.fetch(11, &fetch_all(3, 1 << 20, 10 << 20)).await;
    assert_eq!(rows(&response), [(56, 0), (0, records.len()), (0, records.len())]);
    assert!(before.elapsed() < Duration::from_secs(6), "nobody waits out the watchdog");
    broker.volume.heal();
    let response = client.fetch(11, &fetch_all(3, 1 << 20, 10 << 20)).await;
    assert_eq!(rows(&response), [(0, records.len()); 3]);
}

#[tokio::test]
async fn a_partition_whose_log_failed_is_read_on_while_it_heals() {
    let (broker, mut client) = with_topic(1, |_| {}).await;
    let records = batch(&["durable"]);
    assert_eq!(client.produce("t", 0, records.clone()).await.error_code, 0);
    // The log fails, and cannot be opened again.
    let dir = dir(&broker, 0);
    let hang = broker.volume.hang(Op::Create, &dir);
    broker.volume.fail(Op::Write, &dir, Errno::IO, u64::MAX);
    broker.volume.fail(Op::Sync, &dir, Errno::IO, u64::MAX);
    assert_eq!(client.produce("t", 0, batch(&["lost"])).await.error_code, 56);
    hang.caught(1).await;
    assert_eq!(client.produce("t", 0, batch(&["refused"])).await.error_code, 56, "it heals, and says why");
    let response = client.fetch(11, &fetch_request("t", 0, 0)).await;
    assert_eq!((row(&response).error_code, row(&response).high_watermark), (0, 1));
    assert_eq!(rows(&response), [(0, records.len())]);
}

/// After a start, while the volume does not let a partition open.
#[tokio::test]
async fn a_partition_that_does_not_open_holds_up_the_connection_for_a_moment_only() {
    let (broker, mut client) = with_topic(2, |_| {}).await;
    for partition in 0..2 {
        assert_eq!(client.produce("t", partition, batch(&["v"])).await.error_code, 0);
    }
    let (volume, dir) = (broker.volume.clone(), dir(&broker, 0));
    broker.node.shutdown().await;
    for op in [Op::Open, Op::ReadDir, Op::Create, Op::Mkdir] {
        volume.hang(op, dir.trim_end_matches('/'));
    }
    let broker = TestBroker::start_on(volume, |_| {}).await;
    let mut client = broker.client().await;
    let before = Instant::now();
    let stuck = client.send(9, &produce_request("t", 0, -1, batch(&["v"]))).await;
    let other = client.send(9, &produce_request("t", 1, -1, batch(&["v"]))).await;
    let row = |r: kafka_protocol::messages::ProduceResponse| r.responses[0].partition_responses[0].clone();
    let stuck = row(client.receive::<ProduceRequest>(9, stuck).await);
    let other = row(client.receive::<ProduceRequest>(9, other).await);
    assert_eq!((stuck.error_code, other.error_code, other.base_offset), (6, 0, 1));
    let response = client.fetch(11, &fetch_all(2, 1 << 20, 1 << 20)).await;
    assert_eq!(response.responses[0].partitions.iter().map(|p| p.error_code).collect::<Vec<_>>(), [6, 0]);
    assert!(before.elapsed() < Duration::from_secs(8));
}

/// KIP-74, though the rows are read side by side.
#[tokio::test]
async fn case_33_room_is_given_in_the_order_of_the_request() {
    let (_broker, mut client) = with_topic(5, |_| {}).await;
    let small = batch(&["small"]);
    let large = batch(&["x".repeat(5000).as_str()]);
    for (partition, records) in [(1, &large), (2, &small), (3, &large), (4, &small)] {
        assert_eq!(client.produce("t", partition, records.clone()).await.error_code, 0);
    }
    let (s, l) = (small.len(), large.len());
    // The first batch of all is whole, and has used up the room.
    let response = client.fetch(11, &fetch_all(5, 100, 2000)).await;
    assert_eq!(rows(&response), [(0, 0), (0, l), (0, 0), (0, 0), (0, 0)]);
    // With room left, what fits goes in, past what does not.
    let response = client.fetch(11, &fetch_all(5, 1000, (l + s) as i32 + 10)).await;
    assert_eq!(rows(&response), [(0, 0), (0, l), (0, s), (0, 0), (0, 0)]);
    let response = client.fetch(11, &fetch_all(5, 1000, 1 << 20)).await;
    assert_eq!(rows(&response), [(0, 0), (0, l), (0, s), (0, 0), (0, s)]);
    // One that asks for all that the response may have keeps nothing from those behind it.
    let response = client.fetch(11, &fetch_all(5, 1 << 20, 1 << 20)).await;
    assert_eq!(rows(&response), [(0, 0), (0, l), (0, s), (0, l), (0, s)]);
}
