//! Two brokers on one volume.

#![allow(clippy::disallowed_methods)] // tests run in real time

use super::{TestBroker, PATIENCE};
use highwater::cluster::SLOTS;
use highwater::types::BrokerId;
use highwater::volume::MemVolume;
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
pub struct Pair {
    pub brokers: [TestBroker; 2],
}

impl Pair {
    pub async fn start() -> Pair {
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

    pub fn coordinator(&self, id: &str) -> usize {
        let image = self.brokers[0].node.broker().cluster.image();
        let slot = highwater::coordinator::slot_of(id);
        image.coordinator(slot).expect("somebody has it").0 as usize - 1
    }

    /// A name whose slot is on broker `index`.
    pub fn name_on(&self, index: usize, prefix: &str) -> String {
        let mut names = (0..).map(|n| format!("{prefix}{n}"));
        names.find(|name| self.coordinator(name) == index).expect("there are many")
    }

    /// A partition that broker `index` leads.
    pub fn partition_on(&self, index: usize) -> i32 {
        let image = self.brokers[0].node.broker().cluster.image();
        let topic = image.topic("t").expect("it is there");
        let led = |p: &i32| topic.leader(*p) == Some(BrokerId(index as i32 + 1));
        (0..4).find(led).expect("it leads one")
    }
}
