//! The wire, byte by byte: what a client that knows nothing of this broker sees of it.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use bytes::{BufMut, Bytes, BytesMut};
use common::*;
use highwater::api::dispatch::TABLE;
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, FetchRequest, ListOffsetsRequest, MetadataRequest,
};
use kafka_protocol::protocol::{Decodable, StrBytes};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn case_25_zstd_is_refused_in_versions_that_do_not_know_it() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    // Records are never opened, so that these need not be real zstd.
    let zstd = batch_of(1, 1, 4, b"not looked at");
    let old = client.call(6, &produce_request("t", 0, -1, zstd.clone())).await;
    assert_eq!(old.responses[0].partition_responses[0].error_code, 76);
    let new = client.call(7, &produce_request("t", 0, -1, zstd)).await;
    assert_eq!(new.responses[0].partition_responses[0].error_code, 0);
    assert_eq!(new.responses[0].partition_responses[0].base_offset, 0);
    let old = client.fetch(9, &fetch_request("t", 0, 0)).await;
    assert_eq!(row(&old).error_code, 76);
    assert_eq!(row(&old).records.as_deref(), Some(&[][..]));
    let new = client.fetch(10, &fetch_request("t", 0, 0)).await;
    assert_eq!(row(&new).error_code, 0);
    assert_eq!(base_offsets(row(&new).records.as_ref().unwrap()), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_31_a_fetch_inside_a_batch_returns_the_batch_that_holds_the_offset() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(&["a", "b"])).await;
    client.produce("t", 0, batch(&["c", "d"])).await;
    for (from, expected) in [(1, vec![0, 2]), (3, vec![2])] {
        let response = client.fetch(12, &fetch_request("t", 0, from)).await;
        assert_eq!(base_offsets(row(&response).records.as_ref().unwrap()), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_33_a_batch_larger_than_every_limit_is_returned_whole() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let big = "x".repeat(100 << 10);
    client.produce("t", 0, batch(&[&big])).await;
    client.produce("t", 0, batch(&["next"])).await;
    let mut request = fetch_request("t", 0, 0).with_max_bytes(1);
    request.topics[0].partitions[0].partition_max_bytes = 1;
    let response = client.fetch(12, &request).await;
    assert_eq!(base_offsets(row(&response).records.as_ref().unwrap()), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_34_the_edges_of_a_log() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(&["a", "b"])).await;
    for (from, code) in [(2, 0), (3, 1), (-1, 1), (i64::MAX, 1)] {
        let response = client.fetch(12, &fetch_request("t", 0, from)).await;
        assert_eq!(row(&response).error_code, code, "from {from}");
        // Empty, never null: librdkafka would ask again at once.
        assert_eq!(row(&response).records.as_deref(), Some(&[][..]), "from {from}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_a_long_poll_ends_with_its_time_or_with_data() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let poll = fetch_request("t", 0, 0).with_max_wait_ms(500);
    let asked = Instant::now();
    let empty = client.fetch(12, &poll).await;
    assert_eq!(row(&empty).records.as_deref(), Some(&[][..]));
    let took = asked.elapsed();
    assert!(took >= Duration::from_millis(495) && took < Duration::from_secs(3), "{took:?}");

    let asked = Instant::now();
    let id = client.send(12, &fetch_request("t", 0, 0).with_max_wait_ms(15_000)).await;
    let mut producer = broker.client().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    producer.produce("t", 0, batch(&["news"])).await;
    let news = client.receive::<FetchRequest>(12, id).await;
    assert_eq!(base_offsets(row(&news).records.as_ref().unwrap()), [0]);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_waits_for_min_bytes() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 2, &[]).await;
    let one = batch(&["0123456789"]);
    let mut request = fetch_request("t", 0, 0).with_max_wait_ms(15_000).with_min_bytes(2 * one.len() as i32);
    let second = request.topics[0].partitions[0].clone().with_partition(1);
    request.topics[0].partitions.push(second);
    let id = client.send(12, &request).await;
    let mut producer = broker.client().await;
    producer.produce("t", 0, one.clone()).await;
    let early = tokio::time::timeout(Duration::from_millis(300), client.stream.readable()).await;
    assert!(early.is_err(), "answered before min_bytes were there");
    producer.produce("t", 1, one).await;
    let response = client.receive::<FetchRequest>(12, id).await;
    for p in &response.responses[0].partitions {
        assert_eq!(base_offsets(p.records.as_ref().unwrap()), [0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_36_no_fetch_sessions() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let asked = fetch_request("t", 0, 0).with_session_epoch(0);
    let response = client.fetch(12, &asked).await;
    assert_eq!((response.error_code, response.session_id), (0, 0));
    let claimed = fetch_request("t", 0, 0).with_session_id(7).with_session_epoch(1);
    for version in 7..=17 {
        let response = client.fetch(version, &claimed).await;
        assert_eq!((response.error_code, response.session_id), (70, 0), "version {version}");
        assert!(response.responses.is_empty());
    }
}

/// What is listed.
const LISTED: &[(ApiKey, i16, i16)] = &[
    (ApiKey::Produce, 0, 13),
    (ApiKey::Fetch, 4, 17),
    (ApiKey::ListOffsets, 1, 8),
    (ApiKey::Metadata, 0, 12),
    (ApiKey::OffsetCommit, 2, 9),
    (ApiKey::OffsetFetch, 1, 9),
    (ApiKey::FindCoordinator, 0, 5),
    (ApiKey::JoinGroup, 0, 9),
    (ApiKey::Heartbeat, 0, 4),
    (ApiKey::LeaveGroup, 0, 5),
    (ApiKey::SyncGroup, 0, 5),
    (ApiKey::DescribeGroups, 0, 6),
    (ApiKey::ListGroups, 0, 5),
    (ApiKey::ApiVersions, 0, 4),
    (ApiKey::CreateTopics, 2, 7),
    (ApiKey::DeleteTopics, 1, 6),
    (ApiKey::DeleteRecords, 0, 2),
    (ApiKey::InitProducerId, 0, 5),
    (ApiKey::OffsetForLeaderEpoch, 2, 4),
    (ApiKey::AddPartitionsToTxn, 0, 5),
    (ApiKey::AddOffsetsToTxn, 0, 4),
    (ApiKey::EndTxn, 0, 5),
    (ApiKey::WriteTxnMarkers, 1, 1),
    (ApiKey::TxnOffsetCommit, 0, 5),
    (ApiKey::DescribeConfigs, 1, 4),
    (ApiKey::AlterConfigs, 0, 2),
    (ApiKey::DescribeLogDirs, 1, 4),
    (ApiKey::CreatePartitions, 0, 3),
    (ApiKey::DeleteGroups, 0, 2),
    (ApiKey::IncrementalAlterConfigs, 0, 1),
    (ApiKey::ListPartitionReassignments, 0, 0),
    (ApiKey::OffsetDelete, 0, 0),
    (ApiKey::DescribeCluster, 0, 1),
    (ApiKey::DescribeProducers, 0, 0),
    (ApiKey::DescribeTransactions, 0, 0),
    (ApiKey::ListTransactions, 0, 1),
    (ApiKey::ConsumerGroupHeartbeat, 0, 1),
    (ApiKey::ConsumerGroupDescribe, 0, 0),
];

fn assert_lists_everything(response: &ApiVersionsResponse) {
    let rows: Vec<_> = response.api_keys.iter().map(|r| (r.api_key, r.min_version, r.max_version)).collect();
    let expected: Vec<_> = LISTED.iter().map(|(k, min, max)| (*k as i16, *min, *max)).collect();
    assert_eq!(rows, expected);
}

fn introduced() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("raw-test"))
        .with_client_software_version(StrBytes::from_static_str("1.0"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_listed_is_what_the_issue_says() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    for version in 0..=4 {
        let request = if version >= 3 { introduced() } else { ApiVersionsRequest::default() };
        let response = client.call(version, &request).await;
        assert_eq!(response.error_code, 0);
        assert_lists_everything(&response);
        // KIP-848 behind KIP-584; a feature that might be 0 is not told to clients before version 4 (KIP-1006).
        let supported =
            response.supported_features.iter().map(|f| (f.name.as_str(), f.min_version, f.max_version));
        let expected =
            if version >= 4 { vec![("group.version", 0, 1), ("transaction.version", 0, 2)] } else { vec![] };
        assert_eq!(supported.collect::<Vec<_>>(), expected);
        let finalized = response.finalized_features.iter();
        let finalized = finalized.map(|f| (f.name.as_str(), f.min_version_level, f.max_version_level));
        let expected =
            if version >= 3 { vec![("group.version", 1, 1), ("transaction.version", 2, 2)] } else { vec![] };
        assert_eq!(finalized.collect::<Vec<_>>(), expected);
        assert_eq!(response.finalized_features_epoch, if version >= 3 { 1 } else { -1 });
    }
    let nameless = client.call(3, &ApiVersionsRequest::default()).await;
    assert_eq!(nameless.error_code, 42);
    assert_eq!(client.call(3, &introduced()).await.error_code, 0, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_55_an_unknown_api_versions_version_is_answered_as_version_0() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    for version in [5, 99, i16::MAX, -1] {
        let mut b = BytesMut::new();
        b.put_i32(8 + 6);
        b.put_i16(ApiKey::ApiVersions as i16);
        b.put_i16(version);
        b.put_i32(4711);
        // Whatever stands behind need not make sense to this broker.
        b.put_slice(b"future");
        client.send_bytes(&b).await;
        let mut frame = client.frame().await.expect("an answer");
        assert_eq!(frame.split_to(4), Bytes::copy_from_slice(&4711i32.to_be_bytes()));
        let response = ApiVersionsResponse::decode(&mut frame, 0).unwrap();
        assert_eq!(frame.len(), 0);
        assert_eq!(response.error_code, 35);
        assert_lists_everything(&response);
    }
    assert_eq!(client.call(3, &introduced()).await.error_code, 0, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_56_every_listed_version_is_decoded_and_answered() {
    let broker = TestBroker::start(|c| c.auto_create_topics = false).await;
    for (version, topic_ids) in [(0, false), (4, false), (9, false), (10, true), (12, true)] {
        let mut client = broker.client().await;
        let request = MetadataRequest::default().with_topics(None).with_topics(if version == 0 {
            Some(vec![])
        } else {
            None
        });
        let response = client.call(version, &request).await;
        assert_eq!(response.brokers.len(), 1, "version {version}, ids {topic_ids}");
    }
    for version in 1..=8 {
        let mut client = broker.client().await;
        let response = client.call(version, &ListOffsetsRequest::default()).await;
        assert!(response.topics.is_empty(), "version {version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_56_unknown_tagged_fields_are_skipped() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    client.produce("t", 0, batch(&["a"])).await;
    let mut request = fetch_request("t", 0, 0).with_unknown_tagged_field(999, Bytes::from_static(b"later"));
    request.topics[0].unknown_tagged_fields.insert(1000, Bytes::new());
    request.topics[0].partitions[0].unknown_tagged_fields.insert(77, Bytes::from_static(&[0; 300]));
    let response = client.fetch(12, &request).await;
    assert_eq!(base_offsets(row(&response).records.as_ref().unwrap()), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_listed_closes_the_connection() {
    let broker = TestBroker::start(|_| {}).await;
    let mut unlisted = vec![(-1, 0), (999, 0), (ApiKey::SaslHandshake as i16, 0)];
    for s in TABLE.iter().filter(|s| s.key != ApiKey::ApiVersions) {
        unlisted.push((s.key as i16, s.max + 1));
        unlisted.push((s.key as i16, -1));
    }
    unlisted.push((ApiKey::Fetch as i16, 3));
    for (key, version) in unlisted {
        let mut client = broker.client().await;
        let mut b = BytesMut::new();
        b.put_i32(30);
        b.put_i16(key);
        b.put_i16(version);
        b.put_bytes(0, 26);
        client.send_bytes(&b).await;
        assert!(client.frame().await.is_none(), "key {key} version {version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn produce_0_to_2_are_refused_in_their_own_shape() {
    let broker = TestBroker::start(|_| {}).await;
    for (version, row) in [(0, 8 + 14), (1, 8 + 14 + 4), (2, 8 + 14 + 8 + 4)] {
        let mut client = broker.client().await;
        let mut b = BytesMut::new();
        b.put_i16(0);
        b.put_i16(version);
        b.put_i32(5);
        b.put_i16(-1); // no client id
        b.put_i16(1);
        b.put_i32(1000);
        b.put_i32(1);
        b.put_i16(1);
        b.put_slice(b"t");
        b.put_i32(1);
        b.put_i32(0);
        b.put_i32(-1);
        let mut framed = BytesMut::new();
        framed.put_i32(b.len() as i32);
        framed.put_slice(&b);
        client.send_bytes(&framed).await;
        let frame = client.frame().await.expect("an answer");
        assert_eq!(frame.len(), 4 + 7 + row - 4, "version {version}");
        assert_eq!(frame[4 + 7 + 8..][..2], 35i16.to_be_bytes(), "version {version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_0_is_never_answered_and_its_failure_closes_the_connection() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    client.send(9, &produce_request("t", 0, 0, batch(&["a"]))).await;
    // What is answered next is this, so that the produce was not.
    assert_eq!(client.call(3, &introduced()).await.error_code, 0);
    client.send(9, &produce_request("nowhere", 0, 0, batch(&["a"]))).await;
    assert!(client.frame().await.is_none());
    let mut client = broker.client().await;
    let response = client.fetch(12, &fetch_request("t", 0, 0).with_max_wait_ms(5000)).await;
    assert_eq!(base_offsets(row(&response).records.as_ref().unwrap()), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn produce_says_what_is_wrong() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let one = batch(&["a"]);
    let two = Bytes::from([&one[..], &one[..]].concat());
    let mut flipped = one.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    for (why, code, topic, partition, acks, records) in [
        ("unknown topic", 3, "nowhere", 0, -1, one.clone()),
        ("unknown partition", 3, "t", 1, -1, one.clone()),
        ("negative partition", 3, "t", -1, -1, one.clone()),
        ("acks", 21, "t", 0, 2, one.clone()),
        ("no records", 87, "t", 0, -1, Bytes::new()),
        ("two batches", 87, "t", 0, -1, two),
        ("checksum", 2, "t", 0, -1, flipped.into()),
    ] {
        let response = client.call(11, &produce_request(topic, partition, acks, records)).await;
        let row = &response.responses[0].partition_responses[0];
        assert_eq!((row.error_code, row.base_offset), (code, -1), "{why}");
    }
    // Of a transaction that no coordinator knows.
    let mut batch = one.to_vec();
    batch[22] |= 0x10;
    batch[43..57].fill(0);
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    let mut transactional = produce_request("t", 0, -1, batch.into());
    transactional.transactional_id = Some(StrBytes::from_static_str("tx").into());
    let response = client.call(9, &transactional).await;
    assert_eq!(response.responses[0].partition_responses[0].error_code, 49, "INVALID_PRODUCER_ID_MAPPING");
    transactional.transactional_id = None;
    let response = client.call(9, &transactional).await;
    assert_eq!(
        response.responses[0].partition_responses[0].error_code, 53,
        "a batch of nobody's transaction: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    );
    assert_eq!(client.produce("t", 0, one).await.base_offset, 0, "nothing of it was appended");
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_produces_keep_their_order() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let mut ids = Vec::new();
    for i in 0..200 {
        ids.push(client.send(9, &produce_request("t", 0, -1, batch(&[&format!("{i}")]))).await);
    }
    for (i, id) in ids.into_iter().enumerate() {
        let response = client.receive::<kafka_protocol::messages::ProduceRequest>(9, id).await;
        let row = &response.responses[0].partition_responses[0];
        assert_eq!((row.error_code, row.base_offset), (0, i as i64));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_behind_a_long_poll_is_worked_on_and_answered_in_order() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let asked = Instant::now();
    let poll = client.send(12, &fetch_request("t", 0, 0).with_max_wait_ms(15_000)).await;
    let produce = client.send(9, &produce_request("t", 0, -1, batch(&["a"]))).await;
    // The poll ends because the produce behind it was worked on.
    let polled = client.receive::<FetchRequest>(12, poll).await;
    assert_eq!(base_offsets(row(&polled).records.as_ref().unwrap()), [0]);
    client.receive::<kafka_protocol::messages::ProduceRequest>(9, produce).await;
    assert!(asked.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_closes_the_connection_and_nothing_else() {
    let broker = TestBroker::start(|c| c.socket_request_max_bytes = 1 << 20).await;
    let mut bystander = broker.client().await;
    let truncated = request_frame(12, 1, &fetch_request("t", 0, 0));
    let short = truncated.len() - 9;
    let cut = [&((short - 4) as i32).to_be_bytes()[..], &truncated[4..short]].concat();
    for (why, bytes) in [
        ("negative length", (-5i32).to_be_bytes().to_vec()),
        ("too long", ((1 << 20) + 1i32).to_be_bytes().to_vec()),
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("empty frame", vec![0; 4]),
        ("three bytes", vec![0, 0, 0, 3, 1, 2, 3]),
        ("a request cut short", cut),
        ("noise", vec![0, 0, 0, 40].into_iter().chain((0..40u32).map(|i| (i * 37 % 251) as u8)).collect()),
    ] {
        let mut client = broker.client().await;
        client.send_bytes(&bytes).await;
        assert!(client.frame().await.is_none(), "{why}");
    }
    assert_eq!(bystander.call(3, &introduced()).await.error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_broker_answers_what_is_under_way() {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 1, &[]).await;
    let poll = client.send(12, &fetch_request("t", 0, 0).with_max_wait_ms(60_000)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    let stopping = tokio::spawn(async move { broker.node.shutdown().await });
    let polled = client.receive::<FetchRequest>(12, poll).await;
    assert_eq!(row(&polled).records.as_deref(), Some(&[][..]));
    assert!(client.frame().await.is_none(), "then it closes");
    stopping.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
