//! Consumer groups (KIP-848) over the wire.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use common::*;
use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use std::time::Duration;
use uuid::Uuid;

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

fn group_id(s: &str) -> GroupId {
    GroupId(text(s))
}

/// The slots load in the background: clients retry COORDINATOR_LOAD_IN_PROGRESS.
async fn ready(client: &mut Client) {
    for _ in 0..100 {
        if client.call(5, &ListGroupsRequest::default()).await.error_code == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the group slots did not load within ten seconds");
}

/// A broker with topic "t" of four partitions, and the topic's id.
async fn broker() -> (TestBroker, Client, Uuid) {
    let broker = TestBroker::start(|_| {}).await;
    let mut client = broker.client().await;
    client.create_topic("t", 4, &[]).await;
    ready(&mut client).await;
    let id = topic_id(&broker);
    (broker, client, id)
}

fn topic_id(broker: &TestBroker) -> Uuid {
    broker.node.broker().cluster.image().topic("t").expect("the topic").id.0
}

fn joining(group: &str, member: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(vec![topic_name("t")]))
        .with_topic_partitions(Some(vec![]))
}

fn staying(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
        .with_subscribed_topic_names(None)
        .with_topic_partitions(None)
}

fn owning(
    request: ConsumerGroupHeartbeatRequest,
    id: Uuid,
    partitions: &[i32],
) -> ConsumerGroupHeartbeatRequest {
    let owned = TopicPartitions::default().with_topic_id(id).with_partitions(partitions.to_vec());
    request.with_topic_partitions(Some(vec![owned]))
}

/// Error, epoch, and what is assigned of the only topic.
async fn say(client: &mut Client, request: &ConsumerGroupHeartbeatRequest) -> (i16, i32, Option<Vec<i32>>) {
    let response = client.call(0, request).await;
    assert_eq!(response.error_message.is_some(), response.error_code != 0, "a refusal has its sentence");
    let assigned =
        response.assignment.map(|a| a.topic_partitions.into_iter().flat_map(|t| t.partitions).collect());
    (response.error_code, response.member_epoch, assigned)
}

async fn describe(client: &mut Client, group: &str) -> DescribedGroup {
    let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group_id(group)]);
    client.call(0, &request).await.groups.remove(0)
}

async fn commit(
    client: &mut Client,
    version: i16,
    group: &str,
    member: &str,
    epoch: i32,
    offset: i64,
) -> i16 {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic =
        OffsetCommitRequestTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(epoch)
        .with_topics(vec![topic]);
    client.call(version, &request).await.topics[0].partitions[0].error_code
}

/// The group's error, or the committed offset.
async fn committed(client: &mut Client, group: &str, reader: Option<(&str, i32)>) -> Result<i64, i16> {
    let topic =
        OffsetFetchRequestTopics::default().with_name(topic_name("t")).with_partition_indexes(vec![0]);
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(group_id(group))
        .with_member_id(reader.map(|(id, _)| text(id)))
        .with_member_epoch(reader.map_or(-1, |(_, epoch)| epoch))
        .with_topics(Some(vec![topic]));
    let response = client.call(9, &OffsetFetchRequest::default().with_groups(vec![group])).await;
    match response.groups[0].error_code {
        0 => Ok(response.groups[0].topics[0].partitions[0].committed_offset),
        code => Err(code),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_share_a_topic_and_one_leaves() {
    let (_broker, mut c, id) = broker().await;
    let first = c.call(0, &joining("g", "")).await;
    assert_eq!((first.error_code, first.member_epoch, first.heartbeat_interval_ms), (0, 1, 5000));
    let assigned = &first.assignment.as_ref().unwrap().topic_partitions;
    assert_eq!((assigned[0].topic_id, &assigned[0].partitions), (id, &vec![0, 1, 2, 3]));
    let one = first.member_id.unwrap().to_string();

    assert_eq!(say(&mut c, &joining("g", "two")).await, (0, 2, Some(vec![])));
    assert_eq!(say(&mut c, &staying("g", &one, 1)).await, (0, 1, Some(vec![0, 1])));
    assert_eq!(describe(&mut c, "g").await.group_state.as_str(), "Reconciling");
    assert_eq!(say(&mut c, &owning(staying("g", &one, 1), id, &[0, 1])).await, (0, 2, None));
    assert_eq!(say(&mut c, &staying("g", "two", 2)).await, (0, 2, Some(vec![2, 3])));

    let group = describe(&mut c, "g").await;
    assert_eq!(
        (group.error_code, group.group_state.as_str(), group.assignor_name.as_str()),
        (0, "Stable", "uniform")
    );
    assert_eq!((group.group_epoch, group.assignment_epoch, group.members.len()), (2, 2, 2));
    let two = group.members.iter().find(|m| m.member_id.as_str() == "two").unwrap();
    assert_eq!(
        (two.member_epoch, two.client_id.as_str(), two.client_host.as_str()),
        (2, "test", "/127.0.0.1")
    );
    assert_eq!(two.assignment, two.target_assignment);
    let part = &two.assignment.topic_partitions[0];
    assert_eq!((part.topic_id, part.topic_name.as_str(), &part.partitions), (id, "t", &vec![2, 3]));

    assert_eq!(say(&mut c, &staying("g", &one, -1)).await, (0, -1, None));
    assert_eq!(say(&mut c, &staying("g", "two", 2)).await, (0, 3, Some(vec![0, 1, 2, 3])));
    assert_eq!(say(&mut c, &staying("g", &one, 2)).await, (25, 0, None));
    assert_eq!(say(&mut c, &staying("g", "two", 9)).await, (110, 0, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_grows_is_assigned() {
    let (broker, mut c, _) = broker().await;
    assert_eq!(say(&mut c, &joining("g", "m")).await.1, 1);
    let grow = kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic::default()
        .with_name(topic_name("t"))
        .with_count(6)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default().with_topics(vec![grow]).with_timeout_ms(10_000);
    assert_eq!(broker.client().await.call(3, &request).await.results[0].error_code, 0);
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (code, epoch, assigned) = say(&mut c, &staying("g", "m", 1)).await;
        if epoch == 2 {
            assert_eq!((code, assigned), (0, Some(vec![0, 1, 2, 3, 4, 5])));
            return;
        }
    }
    panic!("the new partitions were not assigned within five seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_are_for_members_in_their_epoch() {
    let (_broker, mut c, _) = broker().await;
    say(&mut c, &joining("g", "m")).await;
    assert_eq!(commit(&mut c, 9, "g", "m", 1, 5).await, 0);
    assert_eq!(commit(&mut c, 9, "g", "m", 0, 6).await, 113);
    assert_eq!(commit(&mut c, 9, "g", "x", 1, 6).await, 25);
    assert_eq!(commit(&mut c, 9, "g", "", -1, 6).await, 25);
    assert_eq!(commit(&mut c, 8, "g", "m", 1, 6).await, 35);
    assert_eq!(committed(&mut c, "g", Some(("m", 1))).await, Ok(5));
    assert_eq!(committed(&mut c, "g", None).await, Ok(5));
    assert_eq!(committed(&mut c, "g", Some(("m", 2))).await, Err(113));
    assert_eq!(committed(&mut c, "g", Some(("x", 1))).await, Err(25));
    assert_eq!(committed(&mut c, "nobody", Some(("x", 1))).await, Ok(-1));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_protocol_is_shown_by_its_own_apis() {
    let (_broker, mut c, _) = broker().await;
    say(&mut c, &joining("new", "m").with_instance_id(Some(text("i")))).await;
    assert_eq!(commit(&mut c, 8, "old", "", -1, 1).await, 0);
    let types = |filter: &[&str]| {
        let filter = filter.iter().map(|f| text(f)).collect();
        ListGroupsRequest::default().with_types_filter(filter)
    };
    for (filter, ids) in [(&[][..], &["new", "old"][..]), (&["Consumer"], &["new"]), (&["classic"], &["old"])]
    {
        let listed = c.call(5, &types(filter)).await.groups;
        let mut names: Vec<&str> = listed.iter().map(|g| g.group_id.as_str()).collect();
        names.sort();
        assert_eq!(names, ids);
    }
    let asked = DescribeGroupsRequest::default().with_groups(vec![group_id("new")]);
    let dead = c.call(5, &asked).await.groups.remove(0);
    assert_eq!((dead.error_code, dead.group_state.as_str()), (0, "Dead"));
    let dead = c.call(6, &asked).await.groups.remove(0);
    assert_eq!((dead.error_code, dead.error_message.is_some()), (69, true));
    for (group, why) in [("old", "classic"), ("nobody", "no such group")] {
        let missing = describe(&mut c, group).await;
        assert_eq!(missing.error_code, 69);
        assert!(missing.error_message.is_some_and(|m| m.contains(why)));
    }
    let coordinators = FindCoordinatorRequest::default().with_coordinator_keys(vec![text("new")]);
    assert_eq!(c.call(4, &coordinators).await.coordinators[0].error_code, 0);

    let delete = DeleteGroupsRequest::default().with_groups_names(vec![group_id("new")]);
    assert_eq!(c.call(2, &delete).await.results[0].error_code, 68);
    // As the administrator of classic groups removes a static member.
    let member = MemberIdentity::default().with_group_instance_id(Some(text("i")));
    let leave = LeaveGroupRequest::default().with_group_id(group_id("new")).with_members(vec![member]);
    assert_eq!(c.call(5, &leave).await.members[0].error_code, 0);
    assert_eq!(describe(&mut c, "new").await.group_state.as_str(), "Empty");
    assert_eq!(c.call(2, &delete).await.results[0].error_code, 0);
    assert_eq!(describe(&mut c, "new").await.error_code, 69);
}

#[tokio::test(flavor = "multi_thread")]
async fn static_members_and_refusals() {
    let (_broker, mut c, _) = broker().await;
    let of = |r: ConsumerGroupHeartbeatRequest| r.with_instance_id(Some(text("i")));
    say(&mut c, &of(joining("g", "m1"))).await;
    assert_eq!(say(&mut c, &of(joining("g", "m2"))).await.0, 111);
    assert_eq!(say(&mut c, &of(staying("g", "m1", -2))).await, (0, -2, None));
    assert_eq!(say(&mut c, &of(joining("g", "m2"))).await, (0, 1, Some(vec![0, 1, 2, 3])));
    assert_eq!(say(&mut c, &of(staying("g", "m1", 1))).await.0, 82);
    assert_eq!(say(&mut c, &joining("g", "x").with_server_assignor(Some(text("odd")))).await.0, 112);
    assert_eq!(say(&mut c, &joining("g", "x").with_topic_partitions(None)).await.0, 42);
    assert_eq!(say(&mut c, &joining("", "x")).await.0, 42);
    assert_eq!(say(&mut c, &staying("nobody", "x", 1)).await.0, 25);
    // Version 1: ids are the client's, and an expression is refused in so many words.
    assert_eq!(c.call(1, &joining("v1", "")).await.error_code, 42);
    let joined = c.call(1, &joining("v1", "mine")).await;
    assert_eq!((joined.error_code, joined.member_id.as_deref(), joined.member_epoch), (0, Some("mine"), 1));
    let regex =
        joining("v1", "x").with_subscribed_topic_names(None).with_subscribed_topic_regex(Some(text("t.*")));
    let refused = c.call(1, &regex).await;
    assert_eq!(refused.error_code, 128);
    assert!(refused.error_message.is_some_and(|m| m.contains("not served yet")));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_there_after_a_restart_and_after_a_kill() {
    let (mut broker, mut c, id) = broker().await;
    say(&mut c, &joining("g", "a")).await;
    say(&mut c, &joining("g", "b")).await;
    say(&mut c, &staying("g", "a", 1)).await;
    say(&mut c, &owning(staying("g", "a", 1), id, &[0, 1])).await;
    say(&mut c, &staying("g", "b", 2)).await;
    assert_eq!(commit(&mut c, 9, "g", "a", 2, 42).await, 0);
    let before = describe(&mut c, "g").await;
    for kill in [false, true] {
        match kill {
            true => broker.volume.crash_process(),
            false => broker.node.shutdown().await,
        }
        let volume = broker.volume.another_process();
        drop(broker);
        broker = TestBroker::start_on(volume, |_| {}).await;
        let mut c = broker.client().await;
        ready(&mut c).await;
        assert_eq!(describe(&mut c, "g").await, before, "killed: {kill}");
        assert_eq!(say(&mut c, &staying("g", "a", 2)).await, (0, 2, None), "no rebalance; killed: {kill}");
        assert_eq!(say(&mut c, &staying("g", "b", 2)).await, (0, 2, None));
        assert_eq!(committed(&mut c, "g", Some(("a", 2))).await, Ok(42));
    }
}
