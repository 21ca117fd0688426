//! Transactions over the wire, in both of KIP-890's protocols.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod producer;
mod two_brokers;

use common::*;
use highwater::volume::{MemVolume, Op};
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::*;
use producer::*;
use std::time::{Duration, Instant};

/// A broker with topic "t" of three partitions.
async fn broker() -> TestBroker {
    let broker = TestBroker::start(|_| {}).await;
    broker.client().await.create_topic("t", 3, &[]).await;
    broker
}

async fn producer(broker: &TestBroker, name: &str, version: Version) -> Producer {
    Producer::init(broker.client().await, name, version).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_shows_all_of_a_transaction_and_an_abort_nothing() {
    let broker = broker().await;
    let mut client = broker.client().await;
    for (round, version) in Version::BOTH.into_iter().enumerate() {
        let (at, name) = (4 * round as i64, format!("p-{version:?}"));
        let mut p = producer(&broker, &name, version).await;
        for partition in [0, 1] {
            assert_eq!(p.write(&mut client, "t", partition, &["a"]).await, 0);
            let (seen, _, stable) = committed(&mut client, "t", partition, at).await;
            assert_eq!((seen, stable), (vec![], at), "{version:?}: undecided");
        }
        assert_eq!(p.end(true).await, 0);
        for partition in [0, 1] {
            until_stable(&mut client, "t", partition, at + 2).await;
            let (seen, aborted, _) = committed(&mut client, "t", partition, at).await;
            assert_eq!((seen, aborted), (vec![at, at + 1], vec![]), "{version:?}: the batch and its marker");
        }

        assert_eq!(p.write(&mut client, "t", 0, &["b"]).await, 0);
        assert_eq!(p.write(&mut client, "t", 1, &["b"]).await, 0);
        assert_eq!(p.end(false).await, 0);
        for partition in [0, 1] {
            until_stable(&mut client, "t", partition, at + 4).await;
            let (_, aborted, _) = committed(&mut client, "t", partition, at + 2).await;
            assert_eq!(aborted, [at + 2], "{version:?}: readers are told what to leave out");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_succeeded_under_his_transactional_id_is_fenced_where_he_writes() {
    let broker = broker().await;
    let mut client = broker.client().await;
    for version in Version::BOTH {
        let name = format!("p-{version:?}");
        let mut zombie = producer(&broker, &name, version).await;
        assert_eq!(zombie.write(&mut client, "t", 0, &["left open"]).await, 0);
        let mut successor = producer(&broker, &name, version).await;
        assert!(successor.epoch > zombie.epoch);
        let (_, _, stable) = committed(&mut client, "t", 0, 0).await;
        let late = zombie.batch("t", 0, &["late"]);
        let late = client.call(version.produce(), &zombie.request("t", 0, late)).await;
        assert_eq!(late.responses[0].partition_responses[0].error_code, 47, "INVALID_PRODUCER_EPOCH");
        let elsewhere = zombie.batch("t", 2, &["late"]);
        let elsewhere = client.call(version.produce(), &zombie.request("t", 2, elsewhere)).await;
        let code = elsewhere.responses[0].partition_responses[0].error_code;
        assert_eq!(code, 47, "a partition that does not know either of them asks");
        assert_eq!(zombie.end(true).await, FENCED);
        assert_eq!(committed(&mut client, "t", 0, 0).await.2, stable, "what he left open was aborted before");

        assert_eq!(successor.write(&mut client, "t", 0, &["new"]).await, 0);
        assert_eq!(successor.end(true).await, 0);
        until_stable(&mut client, "t", 0, stable + 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_a_transaction_that_nobody_confirms_is_not_appended() {
    let broker = broker().await;
    let mut client = broker.client().await;
    let mut p = producer(&broker, "p", Version::One).await;
    let batch = p.batch("t", 0, &["a"]);
    for (version, code) in [(9, 48), (10, 48), (11, ABORTABLE)] {
        let response = client.call(version, &p.request("t", 0, batch.clone())).await;
        assert_eq!(response.responses[0].partition_responses[0].error_code, code, "Produce {version}");
    }
    assert_eq!(p.add("t", &[0, 7]).await, [55, 3], "all join or none: OPERATION_NOT_ATTEMPTED");
    let response = client.call(11, &p.request("t", 0, batch)).await;
    assert_eq!(response.responses[0].partition_responses[0].error_code, ABORTABLE);
    let (seen, _, _) = committed(&mut client, "t", 0, 0).await;
    assert_eq!(seen, [0i64; 0]);
    // Versions 4 and up are for brokers: they verify.
    let verify = |verify_only| {
        let asked = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(txn_id("p"))
            .with_producer_id(p.id)
            .with_producer_epoch(p.epoch)
            .with_verify_only(verify_only)
            .with_topics(vec![AddPartitionsToTxnTopic::default()
                .with_name(topic_name("t"))
                .with_partitions(vec![0])]);
        AddPartitionsToTxnRequest::default().with_transactions(vec![asked])
    };
    let mut codes = Vec::new();
    for verify_only in [true, false, true] {
        let response = client.call(4, &verify(verify_only)).await;
        let topics = &response.results_by_transaction[0].topic_results;
        codes.push(topics[0].results_by_partition[0].partition_error_code);
    }
    assert_eq!(codes, [ABORTABLE, 0, 0]);
}

async fn offset(client: &mut Client, group: &str, stable: bool) -> (i16, i64) {
    let topic = OffsetFetchRequestTopic::default().with_name(topic_name("t")).with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(Some(vec![topic]))
        .with_require_stable(stable);
    let response = until_settled(client, 7, &request, |r| r.error_code).await;
    let row = &response.topics[0].partitions[0];
    (row.error_code, row.committed_offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_of_a_transaction_are_seen_once_it_has_committed() {
    let broker = broker().await;
    let mut client = broker.client().await;
    for version in Version::BOTH {
        let group = format!("g-{version:?}");
        let mut p = producer(&broker, &format!("p-{version:?}"), version).await;
        assert_eq!(p.commit_offset(&mut client, &group, "t", 41).await, 0);
        assert_eq!(offset(&mut client, &group, false).await, (0, -1));
        assert_eq!(offset(&mut client, &group, true).await, (UNSTABLE, -1));
        assert_eq!(p.end(false).await, 0);
        settled(&mut client, &group, -1).await;
        assert_eq!(p.commit_offset(&mut client, &group, "t", 42).await, 0);
        assert_eq!(p.end(true).await, 0);
        settled(&mut client, &group, 42).await;
        let mut zombie = producer(&broker, &p.name, version).await;
        zombie.epoch -= 1;
        if version == Version::Two {
            assert_eq!(zombie.commit_offset(&mut client, &group, "t", 43).await, 47, "a fenced producer");
        }
        assert_eq!(offset(&mut client, &group, true).await, (0, 42));
    }
}

/// Waits until no transaction has a say in the group's offset, which is then `expected`.
async fn settled(client: &mut Client, group: &str, expected: i64) {
    let began = Instant::now();
    loop {
        let (code, found) = offset(client, group, true).await;
        if code == 0 {
            return assert_eq!(found, expected);
        }
        assert!(code == UNSTABLE && began.elapsed() < PATIENCE, "{code}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn dir(broker: &TestBroker, partition: i32) -> String {
    let image = broker.node.broker().cluster.image();
    let topic = image.topic("t").expect("it is there");
    format!("t/{}/{partition}/", topic.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_told_of_by_the_next_life_if_this_one_ends_before() {
    let mut broker = broker().await;
    for (round, version) in Version::BOTH.into_iter().enumerate() {
        let at = 2 * round as i64;
        let mut client = broker.client().await;
        let mut p = producer(&broker, "p", version).await;
        for partition in [0, 1] {
            assert_eq!(p.write(&mut client, "t", partition, &["a"]).await, 0);
        }
        let hang = broker.volume.hang(Op::Write, &dir(&broker, 1));
        assert_eq!(p.end(true).await, 0, "what is decided is answered");
        hang.caught(1).await;
        broker.volume.crash_process();
        let volume: MemVolume = broker.volume.another_process();
        drop(broker);
        volume.heal();
        broker = TestBroker::start_on(volume, |_| {}).await;
        let mut client = broker.client().await;
        for partition in [0, 1] {
            until_stable(&mut client, "t", partition, at + 2).await;
            let (seen, aborted, _) = committed(&mut client, "t", partition, at).await;
            assert_eq!((seen, aborted), (vec![at, at + 1], vec![]), "{version:?}: once, and committed");
        }
    }
}

/// The coordinator's log does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_for_its_coordinator_holds_up_its_producer_only() {
    let broker = broker().await;
    let mut client = broker.client().await;
    let mut p = producer(&broker, "p", Version::Two).await;
    let hang = broker.volume.hang(Op::Write, "__cluster/groups");
    let (first, second) = (p.batch("t", 0, &["1"]), p.batch("t", 0, &["2"]));
    let began = Instant::now();
    let sent = [
        client.send(12, &p.request("t", 0, first.clone())).await,
        client.send(12, &p.request("t", 0, second.clone())).await,
        client.send(12, &produce_request("t", 0, -1, batch(&["of another"]))).await,
        client.send(12, &produce_request("t", 1, -1, batch(&["of another"]))).await,
    ];
    hang.caught(1).await;
    let mut other = broker.client().await;
    for partition in [0, 1] {
        until_stable(&mut other, "t", partition, 1).await;
    }
    assert!(began.elapsed() < Duration::from_secs(4), "others are appended meanwhile");
    let mut codes = Vec::new();
    for id in sent {
        let response = client.receive::<ProduceRequest>(12, id).await;
        codes.push(response.responses[0].partition_responses[0].error_code);
    }
    assert_eq!(codes, [19, 45, 0, 0], "the second must not be taken for the first");
    broker.volume.heal();
    for records in [first, second] {
        let request = p.request("t", 0, records);
        let code = |r: &ProduceResponse| r.responses[0].partition_responses[0].error_code;
        assert_eq!(code(&until_settled(&mut client, 12, &request, code).await), 0, "sent again, in order");
    }
    assert_eq!(p.end(true).await, 0);
    until_stable(&mut client, "t", 0, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_finds_a_hanging_transaction_and_aborts_it() {
    let broker = broker().await;
    let mut client = broker.client().await;
    let mut p = producer(&broker, "p", Version::One).await;
    assert_eq!(p.write(&mut client, "t", 0, &["hangs"]).await, 0);

    let list = ListTransactionsRequest::default()
        .with_state_filters(vec![text("Ongoing"), text("Unheard-of")])
        .with_duration_filter(-1);
    let listed = client.call(1, &list).await;
    assert_eq!(listed.unknown_state_filters, [text("Unheard-of")]);
    assert_eq!(listed.transaction_states.len(), 1);
    assert_eq!(listed.transaction_states[0].producer_id, p.id);
    let long = client.call(1, &list.with_duration_filter(60_000)).await;
    assert_eq!(long.transaction_states.len(), 0);
    let describe =
        DescribeTransactionsRequest::default().with_transactional_ids(vec![txn_id("p"), txn_id("nobody's")]);
    let described = client.call(0, &describe).await.transaction_states;
    assert_eq!((described[0].error_code, &*described[0].transaction_state), (0, "Ongoing"));
    assert_eq!(described[0].topics[0].partitions, [0]);
    assert_eq!(described[1].error_code, 105, "TRANSACTIONAL_ID_NOT_FOUND");

    let topic = TopicRequest::default().with_name(topic_name("t")).with_partition_indexes(vec![0, 9]);
    let request = DescribeProducersRequest::default().with_topics(vec![topic]);
    let producers = client.call(0, &request).await.topics.remove(0).partitions;
    assert_eq!(producers[1].error_code, 3);
    let found = &producers[0].active_producers[0];
    assert_eq!((found.producer_id, found.current_txn_start_offset), (p.id, 0));

    // As kafka-transactions.sh --abort does it.
    let topic =
        WritableTxnMarkerTopic::default().with_name(topic_name("t")).with_partition_indexes(vec![0, 9]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(p.id)
        .with_producer_epoch(p.epoch)
        .with_coordinator_epoch(found.coordinator_epoch.max(0))
        .with_topics(vec![topic]);
    let written = client.call(1, &WriteTxnMarkersRequest::default().with_markers(vec![marker])).await;
    let rows = &written.markers[0].topics[0].partitions;
    assert_eq!((rows[0].error_code, rows[1].error_code), (0, 3));
    let (_, aborted, stable) = committed(&mut client, "t", 0, 0).await;
    assert_eq!((aborted, stable), (vec![0], 2));
}
