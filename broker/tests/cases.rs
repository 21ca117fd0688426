//! Cases from the field that need the whole broker and belong to no single API.
#![cfg(not(madsim))]
#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use common::{batch, TestBroker};
use highwater::types::TopicId;
use highwater::volume::Op;
use kafka_protocol::messages::ApiVersionsRequest;
use kafka_protocol::protocol::StrBytes;
use std::time::{Duration, Instant};

/// What is advertised: exactly this.
const ADVERTISED: &[(&str, i16, i16, i16)] = &[
    ("Produce", 0, 0, 13),
    ("Fetch", 1, 4, 17),
    ("ListOffsets", 2, 1, 8),
    ("Metadata", 3, 0, 12),
    ("OffsetCommit", 8, 2, 9),
    ("OffsetFetch", 9, 1, 9),
    ("FindCoordinator", 10, 0, 5),
    ("JoinGroup", 11, 0, 9),
    ("Heartbeat", 12, 0, 4),
    ("LeaveGroup", 13, 0, 5),
    ("SyncGroup", 14, 0, 5),
    ("DescribeGroups", 15, 0, 6),
    ("ListGroups", 16, 0, 5),
    ("ApiVersions", 18, 0, 4),
    ("CreateTopics", 19, 2, 7),
    ("DeleteTopics", 20, 1, 6),
    ("DeleteRecords", 21, 0, 2),
    ("InitProducerId", 22, 0, 5),
    ("OffsetForLeaderEpoch", 23, 2, 4),
    ("AddPartitionsToTxn", 24, 0, 5),
    ("AddOffsetsToTxn", 25, 0, 4),
    ("EndTxn", 26, 0, 5),
    ("WriteTxnMarkers", 27, 1, 1),
    ("TxnOffsetCommit", 28, 0, 5),
    ("DescribeConfigs", 32, 1, 4),
    ("AlterConfigs", 33, 0, 2),
    ("DescribeLogDirs", 35, 1, 4),
    ("CreatePartitions", 37, 0, 3),
    ("DeleteGroups", 42, 0, 2),
    ("IncrementalAlterConfigs", 44, 0, 1),
    ("ListPartitionReassignments", 46, 0, 0),
    ("OffsetDelete", 47, 0, 0),
    ("DescribeCluster", 60, 0, 1),
    ("DescribeProducers", 61, 0, 0),
    ("DescribeTransactions", 65, 0, 0),
    ("ListTransactions", 66, 0, 1),
    ("ConsumerGroupHeartbeat", 68, 0, 1),
    ("ConsumerGroupDescribe", 69, 0, 0),
];

#[tokio::test]
async fn case_57_the_advertised_versions_fit_each_other() {
    let broker = TestBroker::start(|_| {}).await;
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("test"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let response = broker.client().await.call(3, &request).await;
    let mut listed: Vec<(i16, i16, i16)> =
        response.api_keys.iter().map(|k| (k.api_key, k.min_version, k.max_version)).collect();
    listed.sort();
    let want: Vec<(i16, i16, i16)> = ADVERTISED.iter().map(|(_, key, min, max)| (*key, *min, *max)).collect();
    assert_eq!(listed, want);
    // Fetch 13 and Produce 13 name topics by id only: not without Metadata that carries ids; nor OffsetCommit and OffsetFetch 10.
    let max = |key: i16| listed.iter().find(|k| k.0 == key).map_or(-1, |k| k.2);
    assert!(max(8) < 10 && max(9) < 10 && max(3) >= 10);
}

#[tokio::test]
async fn case_14_a_busy_broker_is_not_taken_for_a_dead_one() {
    let lease = Duration::from_secs(2);
    let broker = TestBroker::start(|c| c.lease = lease).await;
    broker.client().await.create_topic("busy", 1, &[]).await;
    broker.volume.delay(Op::Sync, ".log", Duration::from_millis(20));
    // Heartbeats crawl, but each gets there before the lease ends.
    broker.volume.delay(Op::Sync, "heartbeat", Duration::from_millis(700));
    let cluster = broker.node.broker().cluster.clone();
    let id: TopicId = cluster.image().topic("busy").expect("the topic").id;
    let partition = cluster.engine().get(id, 0).expect("the partition");
    let before = (cluster.controller_epoch(), partition.marks().await.expect("marks").epoch);
    let until = Instant::now() + lease * 3;
    let mut acked = 0;
    while Instant::now() < until {
        let mut c = broker.client().await;
        for _ in 0..20 {
            assert_eq!(c.produce("busy", 0, batch(&["x"])).await.error_code, 0);
            acked += 1;
        }
    }
    let after = (cluster.controller_epoch(), partition.marks().await.expect("marks").epoch);
    assert_eq!(before, after, "no epoch was lost to load");
    assert!(acked > 100);
    // A heartbeat that does not return at all is noticed.
    let hang = broker.volume.hang(Op::Sync, "heartbeat");
    tokio::time::sleep(lease + Duration::from_millis(500)).await;
    let refused = broker.client().await.produce("busy", 0, batch(&["x"])).await.error_code;
    assert_eq!(refused, 6, "NOT_LEADER_OR_FOLLOWER once the lease has ended");
    hang.release();
    broker.volume.heal();
}

#[tokio::test]
async fn no_record_is_opened_by_producing_or_fetching() {
    let broker = TestBroker::start(|_| {}).await;
    let mut c = broker.client().await;
    c.create_topic("opaque", 2, &[]).await;
    for partition in 0..2 {
        for i in 0..50 {
            let row = c.produce("opaque", partition, batch(&[&format!("{i}"), "more"])).await;
            assert_eq!((row.error_code, row.base_offset), (0, i * 2));
        }
        let response = c.fetch(12, &common::fetch_request("opaque", partition, 0)).await;
        assert_eq!(common::base_offsets(common::row(&response).records.as_deref().unwrap()).len(), 50);
    }
    let storage = &broker.metrics.storage;
    assert_eq!((storage.records_opened.get(), storage.records_opened_compacted.get()), (0, 0), "P9");
    // The counter counts: a compacted topic's records are opened, for their keys.
    c.create_topic("keyed", 1, &[("cleanup.policy", "compact")]).await;
    assert_eq!(c.produce("keyed", 0, batch(&["no key"])).await.error_code, 87, "INVALID_RECORD");
    assert_eq!((storage.records_opened.get(), storage.records_opened_compacted.get()), (0, 1));
}
