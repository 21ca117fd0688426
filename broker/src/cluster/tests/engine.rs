//! The control plane with the real engine below.

use super::*;
use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::storage::batch::testing;
use crate::storage::{Acks, AppendError, AppendRequest, Bound, Partition, ReadRequest};
use crate::types::Offset;
use crate::volume::Op;

async fn start(w: &World, on: &Machine) -> (Arc<Cluster>, MemVolume) {
    let volume = w.volume.another_process();
    let env = Env {
        volume: Arc::new(volume.clone()),
        clock: w.clock.clone(),
        entropy: w.entropy.clone(),
        host: Arc::new(on.clone()),
    };
    let config = BrokerConfig { broker_id: BrokerId(1), lease: LEASE, ..BrokerConfig::default() };
    let cluster = Cluster::start(env, Arc::new(config), Arc::new(Metrics::default())).await;
    (cluster.expect("starts"), volume)
}

fn partition(c: &Cluster) -> Arc<Partition> {
    let topic = c.image().topic("orders").cloned().expect("there");
    c.engine().get(topic.id, 0).expect("attached before its topic was seen")
}

async fn append(p: &Arc<Partition>, body: &str) -> Result<i64, AppendError> {
    let req = AppendRequest { records: testing::plain(1, body.as_bytes()), acks: Acks::All };
    Ok(p.start_append(req).await?.wait().await?.base_offset.0)
}

async fn bodies(p: &Arc<Partition>) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let from = Offset(bodies.len() as i64);
        let req = ReadRequest { from, max_bytes: 1, at_least_one: true, bound: Bound::HighWatermark };
        let records = p.read(req).await.expect("readable").records;
        if records.is_empty() {
            return bodies;
        }
        bodies.push(String::from_utf8_lossy(&records[61..]).into_owned());
    }
}

async fn create_orders(c: &Cluster) {
    let topic = NewTopic { name: "orders".into(), partitions: 1, overrides: BTreeMap::new() };
    c.create_topic(topic, false).await.expect("created");
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_and_after_a_clean_stop() {
    story(async {
        let w = World::new(1);
        let host = w.machine("a");
        let (c, volume) = start(&w, &host).await;
        create_orders(&c).await;
        assert_eq!(append(&partition(&c), "one").await, Ok(0));
        volume.crash_process();
        drop(c);

        let since = w.now();
        let (c, _volume) = start(&w, &host).await;
        assert_eq!(append(&partition(&c), "two").await, Ok(1));
        assert!(w.now() - since < Duration::from_secs(1), "serves at once");
        c.shutdown().await;
        drop(c);

        let (c, _volume) = start(&w, &host).await;
        assert_eq!(bodies(&partition(&c)).await, ["one", "two"]);
    });
}

#[test]
fn a_lapsed_lease_fails_appends_and_the_next_one_serves_under_a_higher_epoch() {
    story(async {
        let w = World::new(2);
        let (c, volume) = start(&w, &w.machine("a")).await;
        create_orders(&c).await;
        let p = partition(&c);
        append(&p, "before").await.expect("appended");
        let epoch = p.marks().await.expect("leads").epoch;

        // The log hangs, and the heartbeat with it: the lease ends before the watchdog does.
        let hangs = [volume.hang(Op::Sync, ".log"), volume.hang(Op::Sync, ".heartbeat")];
        let since = w.now();
        assert_eq!(append(&p, "in doubt").await, Err(AppendError::NotLeader));
        assert!(w.now() - since <= LEASE);
        assert!(!c.ready());
        hangs.iter().for_each(|h| h.release());

        eventually("serves again", || async { append(&p, "after").await.is_ok() }).await;
        assert!(p.marks().await.expect("leads").epoch > epoch);
        let all = bodies(&p).await;
        assert_eq!(all.first().map(String::as_str), Some("before"));
        assert_eq!(all.last().map(String::as_str), Some("after"));
    });
}

#[test]
fn deleting_a_topic_while_it_opens_leaves_nothing_behind() {
    for ms in 0..25 {
        story(async {
            let w = World::new(ms);
            let (c, volume) = start(&w, &w.machine("a")).await;
            use Op::*;
            for op in [Create, Write, Sync, Rename, ReadDir, Mkdir, SyncDir] {
                volume.delay(op, "orders", Duration::from_millis(2));
            }
            create_orders(&c).await;
            let p = partition(&c);
            let _ = tokio::time::timeout(Duration::from_millis(ms * 2), append(&p, "x")).await;
            c.delete_topic("orders").await.expect("deleted");
            eventually("forgotten", || async { c.core.controller.metadata().deleting.is_empty() }).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(!w.has("orders").await, "{ms}: {:?}", w.everything().await.keys());
        });
    }
}
