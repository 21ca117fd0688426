//! Coordinators and partitions on different brokers.

use super::common::*;
use super::producer::*;
use highwater::cluster::SLOTS;
use highwater::types::BrokerId;
use highwater::volume::MemVolume;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::*;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(3);

async fn start(id: i32, volume: MemVolume) -> TestBroker {
    TestBroker::start_on(volume, |config| {
        config.broker_id = BrokerId(id);
        config.lease = LEASE;
    })
    .await
}

/// Two brokers that share the slots and the partitions of topic "t".
struct Pair {
    brokers: [TestBroker; 2],
}

impl Pair {
    async fn start() -> Pair {
        let volume = MemVolume::new();
        let first = start(1, volume.clone()).await;
        let second = start(2, volume.another_process()).await;
        let pair = Pair { brokers: [first, second] };
        pair.brokers[0].client().await.create_topic("t", 4, &[]).await;
        let began = Instant::now();
        while !pair.is_shared_out() {
            assert!(began.elapsed() < PATIENCE, "the load is not shared out");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        pair
    }

    /// Whether both lead as much, of both kinds, and know that of one another: then nothing moves any more.
    fn is_shared_out(&self) -> bool {
        let is_even = |b: &TestBroker| {
            let image = b.node.broker().cluster.image();
            let Some(topic) = image.topic("t") else { return false };
            let slots = (0..SLOTS).filter_map(|s| image.coordinator(s)).filter(|b| b.0 == 1).count();
            let led = (0..4).filter_map(|p| topic.leader(p)).filter(|b| b.0 == 1).count();
            let mixed = (1..SLOTS as usize).contains(&slots) && (1..4).contains(&led);
            mixed && (slots + led).abs_diff((SLOTS as usize + 4) / 2) <= 1
        };
        self.brokers.iter().all(is_even)
    }

    fn coordinator(&self, id: &str) -> usize {
        let image = self.brokers[0].node.broker().cluster.image();
        let slot = highwater::coordinator::slot_of(id);
        image.coordinator(slot).expect("somebody has it").0 as usize - 1
    }

    /// A name whose slot is on broker `index`.
    fn name_on(&self, index: usize, prefix: &str) -> String {
        let mut names = (0..).map(|n| format!("{prefix}{n}"));
        names.find(|name| self.coordinator(name) == index).expect("there are many")
    }

    fn partition_on(&self, index: usize) -> i32 {
        let image = self.brokers[0].node.broker().cluster.image();
        let topic = image.topic("t").expect("it is there");
        let led = |p: &i32| topic.leader(*p) == Some(BrokerId(index as i32 + 1));
        (0..4).find(led).expect("it leads one")
    }
}

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
