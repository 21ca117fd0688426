//! Groups over the wire, in every version that is served.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use bytes::Bytes;
use common::*;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

fn group_id(s: &str) -> GroupId {
    GroupId(text(s))
}

/// A broker with topic "t" of three partitions, whose groups do not wait for company.
async fn broker() -> TestBroker {
    let broker = TestBroker::start(quick).await;
    broker.client().await.create_topic("t", 3, &[]).await;
    broker
}

fn quick(config: &mut highwater::config::BrokerConfig) {
    config.groups.initial_rebalance_delay = Duration::ZERO;
}

fn join_request(version: i16, group: &str, member: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff"));
    let request = JoinGroupRequest::default()
        .with_group_id(group_id(group))
        .with_session_timeout_ms(10_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    match version {
        0 => request,
        _ => request.with_rebalance_timeout_ms(30_000),
    }
}

/// Joins; where the version asks for it, first for an id.
async fn join(client: &mut Client, version: i16, group: &str, member: &str) -> JoinGroupResponse {
    let response = client.call(version, &join_request(version, group, member)).await;
    if response.error_code != 79 {
        return response;
    }
    assert!(version >= 4, "MEMBER_ID_REQUIRED is unknown to version {version}");
    client.call(version, &join_request(version, group, &response.member_id)).await
}

async fn sync(
    client: &mut Client,
    version: i16,
    group: &str,
    joined: &JoinGroupResponse,
    all: &[(&StrBytes, &'static str)],
) -> SyncGroupResponse {
    let assignment = |(member, what): &(&StrBytes, &'static str)| {
        SyncGroupRequestAssignment::default()
            .with_member_id((*member).clone())
            .with_assignment(Bytes::from_static(what.as_bytes()))
    };
    let request = SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(all.iter().map(assignment).collect());
    let request = match version >= 5 {
        true => request.with_protocol_type(Some(text("consumer"))).with_protocol_name(Some(text("range"))),
        false => request,
    };
    client.call(version, &request).await
}

async fn heartbeat(client: &mut Client, version: i16, group: &str, joined: &JoinGroupResponse) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone());
    client.call(version, &request).await.error_code
}

async fn leave(client: &mut Client, version: i16, group: &str, member: &StrBytes) -> i16 {
    let request = LeaveGroupRequest::default().with_group_id(group_id(group));
    if version < 3 {
        return client.call(version, &request.with_member_id(member.clone())).await.error_code;
    }
    let members = vec![MemberIdentity::default().with_member_id(member.clone())];
    let response = client.call(version, &request.with_members(members)).await;
    assert_eq!(response.error_code, 0);
    response.members[0].error_code
}

fn commit_request(group: &str, topic: &str, partition: i32, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text("note")));
    let topic =
        OffsetCommitRequestTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    OffsetCommitRequest::default().with_group_id(group_id(group)).with_topics(vec![topic])
}

async fn commit(client: &mut Client, version: i16, request: &OffsetCommitRequest) -> i16 {
    client.call(version, request).await.topics[0].partitions[0].error_code
}

/// Offset and metadata of one partition of "t".
async fn fetch_offset(client: &mut Client, version: i16, group: &str, partition: i32) -> (i64, String) {
    let one = vec![partition];
    if version >= 8 {
        let topic =
            OffsetFetchRequestTopics::default().with_name(topic_name("t")).with_partition_indexes(one);
        let group =
            OffsetFetchRequestGroup::default().with_group_id(group_id(group)).with_topics(Some(vec![topic]));
        let request = OffsetFetchRequest::default().with_groups(vec![group]).with_require_stable(true);
        let response = client.call(version, &request).await;
        assert_eq!(response.groups[0].error_code, 0);
        let row = &response.groups[0].topics[0].partitions[0];
        assert_eq!(row.error_code, 0);
        return (row.committed_offset, row.metadata.as_ref().unwrap().to_string());
    }
    let topic = OffsetFetchRequestTopic::default().with_name(topic_name("t")).with_partition_indexes(one);
    let request = OffsetFetchRequest::default().with_group_id(group_id(group)).with_topics(Some(vec![topic]));
    let response = client.call(version, &request).await;
    assert_eq!(response.error_code, 0);
    let row = &response.topics[0].partitions[0];
    assert_eq!(row.error_code, 0);
    (row.committed_offset, row.metadata.as_ref().unwrap().to_string())
}

/// The slots load in the background: clients retry COORDINATOR_LOAD_IN_PROGRESS.
async fn ready(client: &mut Client) {
    for _ in 0..100 {
        if client.call(4, &ListGroupsRequest::default()).await.error_code == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the group slots did not load within ten seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_lives_its_life_in_every_version() {
    let broker = broker().await;
    let mut client = broker.client().await;
    ready(&mut client).await;
    for version in 0..=9 {
        let group = format!("g{version}");
        let (v5, v4) = (version.min(5), version.min(4));
        let joined = join(&mut client, version, &group, "").await;
        assert_eq!(joined.error_code, 0, "version {version}");
        assert_eq!((joined.generation_id, &joined.leader), (1, &joined.member_id));
        assert_eq!(joined.protocol_name.as_deref(), Some("range"));
        assert_eq!(joined.members.len(), 1);
        let synced = sync(&mut client, v5, &group, &joined, &[(&joined.member_id, "mine")]).await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"mine"[..]));
        assert_eq!(heartbeat(&mut client, v4, &group, &joined).await, 0);

        let stranger =
            commit_request(&group, "t", 0, 1).with_generation_id_or_member_epoch(1).with_member_id(text("x"));
        assert_eq!(commit(&mut client, 8, &stranger).await, 25);
        let stale =
            stranger.clone().with_member_id(joined.member_id.clone()).with_generation_id_or_member_epoch(0);
        assert_eq!(commit(&mut client, 8, &stale).await, 22);
        assert_eq!(commit(&mut client, 8, &stale.with_generation_id_or_member_epoch(1)).await, 0);

        assert_eq!(leave(&mut client, v5, &group, &joined.member_id).await, 0);
        assert_eq!(leave(&mut client, v5, &group, &joined.member_id).await, 25);
        assert_eq!(heartbeat(&mut client, v4, &group, &joined).await, 25);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_committed_and_fetched_in_every_version() {
    let broker = broker().await;
    let mut client = broker.client().await;
    ready(&mut client).await;
    for version in 2..=9 {
        let request = commit_request("g", "t", 1, i64::from(version)).with_generation_id_or_member_epoch(-1);
        assert_eq!(commit(&mut client, version, &request).await, 0, "OffsetCommit {version}");
    }
    for version in 1..=9 {
        assert_eq!(fetch_offset(&mut client, version, "g", 1).await, (9, "note".to_owned()), "{version}");
        assert_eq!(fetch_offset(&mut client, version, "g", 0).await, (-1, String::new()));
        assert_eq!(fetch_offset(&mut client, version, "nobody", 0).await, (-1, String::new()));
    }
    // All of a group's offsets: null topics, from version 2 on.
    for version in 2..=7 {
        let request = OffsetFetchRequest::default().with_group_id(group_id("g")).with_topics(None);
        let all = client.call(version, &request).await.topics;
        assert_eq!((all.len(), all[0].partitions.len(), all[0].partitions[0].committed_offset), (1, 1, 9));
    }
    let nowhere = commit_request("g", "t", 3, 1).with_generation_id_or_member_epoch(-1);
    assert_eq!(commit(&mut client, 8, &nowhere).await, 3);
    let mut wordy = commit_request("g", "t", 1, 99).with_generation_id_or_member_epoch(-1);
    wordy.topics[0].partitions[0].committed_metadata = Some(text(&"x".repeat(4097)));
    assert_eq!(commit(&mut client, 8, &wordy).await, 12);
    assert_eq!(fetch_offset(&mut client, 8, "g", 1).await.0, 9, "what was refused changed nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn this_broker_coordinates_groups_and_transactions() {
    let broker = broker().await;
    let mut client = broker.client().await;
    for version in 0..=4 {
        let keys = |request: FindCoordinatorRequest| match version >= 4 {
            true => request.with_coordinator_keys(vec![text("a"), text("b")]),
            false => request.with_key(text("a")),
        };
        let found = client.call(version, &keys(FindCoordinatorRequest::default())).await;
        let port = i32::from(broker.node.local_addr().port());
        match version >= 4 {
            true => assert!(found.coordinators.iter().all(|c| c.error_code == 0 && c.port == port)),
            false => assert_eq!((found.error_code, found.port), (0, port)),
        }
        if version >= 1 {
            let request = keys(FindCoordinatorRequest::default().with_key_type(1));
            let found = client.call(version, &request).await;
            let listed = found.coordinators.first().map(|c| (c.error_code, c.port));
            assert_eq!(listed.unwrap_or((found.error_code, found.port)), (0, port));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_share_and_are_described_and_listed() {
    let broker = broker().await;
    let (mut one, mut two, mut admin) = (broker.client().await, broker.client().await, broker.client().await);
    ready(&mut admin).await;
    let first = join(&mut one, 9, "g", "").await;
    sync(&mut one, 5, "g", &first, &[(&first.member_id, "all")]).await;
    let second = tokio::spawn(async move {
        let joined = join(&mut two, 9, "g", "").await;
        let synced = sync(&mut two, 5, "g", &joined, &[]).await;
        (two, joined, synced)
    });
    // Told by its heartbeat, the first rejoins.
    while heartbeat(&mut one, 4, "g", &first).await != 27 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let again = join(&mut one, 9, "g", &first.member_id).await;
    assert_eq!((again.error_code, again.generation_id, again.members.len()), (0, 2, 2));
    let other = again.members.iter().map(|m| &m.member_id).find(|id| **id != again.member_id).unwrap();
    let half = sync(&mut one, 5, "g", &again, &[(&again.member_id, "a"), (other, "b")]).await;
    assert_eq!(&half.assignment[..], b"a");
    let (_two, joined, synced) = second.await.unwrap();
    assert_eq!((joined.generation_id, &synced.assignment[..]), (2, &b"b"[..]));

    for version in 0..=6 {
        let request = DescribeGroupsRequest::default().with_groups(vec![group_id("g"), group_id("nobody")]);
        let groups = admin.call(version, &request).await.groups;
        assert_eq!(groups[0].group_state.as_str(), "Stable");
        assert_eq!(groups[0].protocol_data.as_str(), "range");
        assert_eq!(groups[0].members.len(), 2);
        assert_eq!(groups[0].members[0].client_host.as_str(), "/127.0.0.1");
        let missing = if version >= 6 { 69 } else { 0 };
        assert_eq!((groups[1].group_state.as_str(), groups[1].error_code), ("Dead", missing));
    }
    for version in 0..=5 {
        let groups = admin.call(version, &ListGroupsRequest::default()).await.groups;
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].group_id.as_str(), "g");
        assert_eq!(groups[0].group_type.as_str(), if version >= 5 { "classic" } else { "" });
    }
    let empty = ListGroupsRequest::default().with_states_filter(vec![text("Empty")]);
    assert!(admin.call(4, &empty).await.groups.is_empty());

    for version in 0..=2 {
        let request =
            DeleteGroupsRequest::default().with_groups_names(vec![group_id("g"), group_id("nobody")]);
        let results = admin.call(version, &request).await.results;
        let codes: Vec<i16> = results.iter().map(|r: &DeletableGroupResult| r.error_code).collect();
        assert_eq!(codes, [68, 69]);
    }
    let delete = |topic: &str| {
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(0);
        let mut topics = OffsetDeleteRequestTopic::default();
        topics.name = topic_name(topic);
        topics.partitions = vec![partition];
        let mut request = OffsetDeleteRequest::default();
        request.group_id = group_id("g");
        request.topics = vec![topics];
        request
    };
    assert_eq!(admin.call(0, &delete("t")).await.topics[0].partitions[0].error_code, 86);
    assert_eq!(admin.call(0, &delete("nowhere")).await.topics[0].partitions[0].error_code, 3);
}

/// Field case 21, over the wire.
#[tokio::test(flavor = "multi_thread")]
async fn case_21_offsets_and_members_are_there_after_a_restart_and_after_a_kill() {
    let mut broker = broker().await;
    let mut client = broker.client().await;
    ready(&mut client).await;
    let joined = join(&mut client, 9, "g", "").await;
    sync(&mut client, 5, "g", &joined, &[(&joined.member_id, "all")]).await;
    let request = commit_request("g", "t", 0, 42)
        .with_generation_id_or_member_epoch(1)
        .with_member_id(joined.member_id.clone());
    assert_eq!(commit(&mut client, 8, &request).await, 0);
    for kill in [false, true] {
        match kill {
            true => broker.volume.crash_process(),
            false => broker.node.shutdown().await,
        }
        let volume = broker.volume.another_process();
        drop(broker);
        broker = TestBroker::start_on(volume, quick).await;
        let mut client = broker.client().await;
        ready(&mut client).await;
        assert_eq!(fetch_offset(&mut client, 7, "g", 0).await.0, 42, "killed: {kill}");
        assert_eq!(heartbeat(&mut client, 4, "g", &joined).await, 0, "no rebalance; killed: {kill}");
        assert_eq!(sync(&mut client, 5, "g", &joined, &[]).await.assignment, &b"all"[..]);
    }
}
