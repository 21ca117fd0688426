//! Coordinators and partitions on different brokers.

use super::common::pair::Pair;
use super::common::*;
use super::producer::*;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::*;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_spans_brokers_that_are_not_its_coordinator() {
    let pair = Pair::start().await;
    let partitions = [pair.partition_on(0), pair.partition_on(1)];
    let group = pair.name_on(0, "g");
    for version in Version::BOTH {
        // Its coordinator is neither the group's nor that of the first partition.
        let name = pair.name_on(1, &format!("p-{version:?}-"));
        let mut leaders = [pair.brokers[0].client().await, pair.brokers[1].client().await];
        let mut groups = pair.brokers[0].client().await;
        let mut p = Producer::init(pair.brokers[1].client().await, &name, version).await;
        for commit in [true, false, true] {
            let mut from = [0, 0];
            for (i, partition) in partitions.into_iter().enumerate() {
                let (_, _, stable) = committed(&mut leaders[i], "t", partition, 0).await;
                from[i] = stable;
                assert_eq!(p.write(&mut leaders[i], "t", partition, &["a"]).await, 0);
            }
            assert_eq!(p.commit_offset(&mut groups, &group, "t", from[0] + 100).await, 0);
            let began = Instant::now();
            assert_eq!(p.end(commit).await, 0);
            for (i, partition) in partitions.into_iter().enumerate() {
                until_stable(&mut leaders[i], "t", partition, from[i] + 2).await;
                let (seen, aborted, _) = committed(&mut leaders[i], "t", partition, from[i]).await;
                assert_eq!(seen, [from[i], from[i] + 1], "a batch and one marker");
                assert_eq!(aborted.is_empty(), commit);
            }
            println!("{version:?}: visible everywhere after {:?}", began.elapsed());
            if commit {
                assert_eq!(stable_offset(&mut groups, &group).await, from[0] + 100);
            }
        }
        // Who is fenced is so everywhere.
        let _successor = Producer::init(pair.brokers[1].client().await, &name, version).await;
        let late = p.batch("t", partitions[0], &["late"]);
        let late = leaders[0].call(version.produce(), &p.request("t", partitions[0], late)).await;
        assert_eq!(late.responses[0].partition_responses[0].error_code, 47);
    }
}

/// The offset of the group in partition 0, once no transaction has a say in it.
async fn stable_offset(client: &mut Client, group: &str) -> i64 {
    let topic = OffsetFetchRequestTopic::default().with_name(topic_name("t")).with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(Some(vec![topic]))
        .with_require_stable(true);
    let began = Instant::now();
    loop {
        let response = until_settled(client, 7, &request, |r| r.error_code).await;
        let row = &response.topics[0].partitions[0];
        if row.error_code == 0 {
            return row.committed_offset;
        }
        assert!(row.error_code == UNSTABLE && began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_told_of_by_whoever_leads_after_its_coordinator_is_gone() {
    let pair = Pair::start().await;
    let (name, partition) = (pair.name_on(1, "p"), pair.partition_on(0));
    let mut leader = pair.brokers[0].client().await;
    let mut p = Producer::init(pair.brokers[1].client().await, &name, Version::Two).await;
    assert_eq!(p.write(&mut leader, "t", partition, &["a"]).await, 0);
    // The marker does not get through to the partition before the coordinator is gone.
    let id = pair.brokers[0].node.broker().cluster.image().topic("t").expect("it is there").id;
    let hang = pair.brokers[0].volume.hang(highwater::volume::Op::Write, &format!("t/{id}/{partition}/"));
    assert_eq!(p.end(true).await, 0);
    hang.caught(1).await;
    let [first, second] = pair.brokers;
    second.node.shutdown().await;
    drop(second);
    first.volume.heal();
    until_stable(&mut leader, "t", partition, 2).await;
    let (seen, aborted, _) = committed(&mut leader, "t", partition, 0).await;
    assert_eq!((seen, aborted), (vec![0, 1], vec![]));
    // The same name goes on at its next coordinator.
    let mut p = Producer::init(first.client().await, &name, Version::Two).await;
    assert_eq!(p.write(&mut leader, "t", partition, &["b"]).await, 0);
    assert_eq!(p.end(true).await, 0);
    until_stable(&mut leader, "t", partition, 4).await;
}
