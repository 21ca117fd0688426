//! Two brokers on one volume, of which the cluster says who is to lead: what the one gave up, and what it holds.

use super::bed::*;
use crate::metrics::StorageMetrics;
use crate::rt::{Env, SeededEntropy, SoloHost};
use crate::storage::batch::testing;
use crate::storage::*;
use crate::types::{Epoch, Offset, TopicId};
use crate::volume::{MemVolume, Op};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

const ID: TopicId = TopicId(uuid::Uuid::from_u128(7));
const KEY: (TopicId, i32) = (ID, 0);

/// A broker's lease, and what it knows of others' leases.
struct Holder {
    name: &'static str,
    token: AtomicU64,
    over: Mutex<BTreeSet<String>>,
}

impl Fence for Holder {
    fn right(&self) -> Option<u64> {
        Some(self.token.load(SeqCst))
    }
    fn holder(&self, _token: u64) -> String {
        self.name.into()
    }
    fn is_over(&self, holder: &str) -> bool {
        self.over.lock().contains(holder)
    }
}

struct Broker {
    volume: MemVolume,
    fence: Arc<Holder>,
    engine: Arc<Engine>,
    partition: Arc<Partition>,
}

impl Broker {
    fn new(name: &'static str, volume: MemVolume, seed: u64) -> Broker {
        let clock = TestClock { started: tokio::time::Instant::now(), wall: AtomicI64::new(1_000_000) };
        let env = Env {
            volume: Arc::new(volume.clone()),
            clock: Arc::new(clock),
            entropy: Arc::new(SeededEntropy::new(seed)),
            host: Arc::new(SoloHost { name: name.into(), boot: "b".into() }),
        };
        let fence = Arc::new(Holder { name, token: AtomicU64::new(1), over: Mutex::default() });
        let engine = Engine::new(env, fence.clone(), small(), Arc::new(StorageMetrics::default()));
        let config = Arc::new(small_topic());
        let spec = PartitionSpec { topic: "t".into(), topic_id: ID, index: 0, dir: DIR.into(), config };
        let partition = engine.know(spec);
        Broker { volume, fence, engine, partition }
    }

    fn assign(&self, epoch: u32, disowned: &[(&str, u32)]) {
        let disowned = disowned.iter().map(|(by, below)| ((*by).to_owned(), Epoch(*below))).collect();
        self.engine.assign(BTreeMap::from([(KEY, Assignment { epoch: Epoch(epoch), disowned })]));
    }

    async fn put(&self, body: &str) -> Result<Offset, AppendError> {
        let req = AppendRequest { records: testing::plain(1, body.as_bytes()), acks: Acks::All };
        Ok(self.partition.start_append(req).await?.wait().await?.base_offset)
    }

    /// Appends until it is taken, for a minute at most.
    async fn put_soon(&self, body: &str) -> Option<Offset> {
        let tries = async {
            loop {
                if let Ok(at) = self.put(body).await {
                    return at;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), tries).await.ok()
    }
}

/// A leader that holds one record durably, and another whose sync hangs past the watchdog; and a second broker.
async fn a_stuck_leader() -> (Broker, Broker, crate::volume::Hang) {
    let volume = MemVolume::new();
    let a = Broker::new("a-1", volume.clone(), 1);
    let b = Broker::new("b-1", volume.another_process(), 2);
    a.assign(256, &[]);
    assert_eq!(a.put("acked").await.unwrap(), Offset(0));
    // Of the files of its epoch alone: the other broker's are well.
    let hang = a.volume.hang(Op::Sync, "/00000100-");
    assert!(matches!(a.put("stuck").await, Err(AppendError::Storage(_))));
    (a, b, hang)
}

#[tokio::test(start_paused = true)]
async fn what_was_disowned_is_led_by_another_at_once_and_never_again_under_the_same_assignment() {
    let (a, b, hang) = a_stuck_leader().await;
    assert!(a.engine.is_stuck());
    a.engine.disown_stuck();
    assert_eq!(a.engine.disowned(), [(ID, 0, Epoch(512))]);
    assert!(
        matches!(a.put("x").await, Err(AppendError::NotLeader)),
        "clients go and look for the next leader"
    );
    assert!(a.partition.marks().await.is_err(), "its marks would lag behind the next leader's");

    b.assign(512, &[("a-1", 512)]);
    let before = tokio::time::Instant::now();
    assert_eq!(b.put_soon("next").await, Some(Offset(2)), "what was not acknowledged may stay");
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());

    // What hung comes back; the old leader hears of its epoch only.
    hang.release();
    a.assign(257, &[]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!a.engine.is_stuck());
    assert!(matches!(a.put("x").await, Err(AppendError::NotLeader)));
    assert_eq!(b.put("more").await.unwrap(), Offset(3));

    // It is given back.
    b.engine.assign(BTreeMap::new());
    a.assign(768, &[("a-1", 512)]);
    assert_eq!(a.put_soon("back").await, Some(Offset(4)));
    assert!(a.engine.disowned().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_only_stalls_is_waited_for() {
    let (a, b, hang) = a_stuck_leader().await;
    b.assign(512, &[]);
    assert_eq!(b.put_soon("too early").await, None, "it may come back and lead on");
    // A claim of a later assignment is not disowned with the earlier one.
    b.engine.assign(BTreeMap::new());
    hang.release();
    a.assign(768, &[]);
    assert!(a.put_soon("leads on").await.is_some());
    b.assign(1024, &[("a-1", 512)]);
    assert_eq!(b.put_soon("too early").await, None);
    b.fence.over.lock().insert("a-1".into());
    assert!(b.put_soon("now").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_clean_end_that_hangs_is_told_through_the_cluster() {
    let volume = MemVolume::new();
    let a = Broker::new("a-1", volume.clone(), 1);
    let b = Broker::new("b-1", volume.another_process(), 2);
    a.assign(256, &[]);
    assert_eq!(a.put("acked").await.unwrap(), Offset(0));
    let hang = a.volume.hang(Op::Write, "00000100-claim");
    a.engine.assign(BTreeMap::new());
    b.assign(512, &[]);
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(a.engine.disowned().is_empty(), "whoever waits is told in the directory");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(a.engine.disowned(), [(ID, 0, Epoch(512))]);
    assert!(a.engine.is_stuck(), "it is to get nothing else meanwhile");
    // The word comes while it waits.
    b.assign(512, &[("a-1", 512)]);
    let before = tokio::time::Instant::now();
    assert_eq!(b.put_soon("next").await, Some(Offset(1)));
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    hang.release();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!a.engine.is_stuck());
    // It is given back.
    b.engine.assign(BTreeMap::new());
    a.assign(768, &[("a-1", 512)]);
    assert_eq!(a.put_soon("back").await, Some(Offset(2)));
    assert!(a.engine.disowned().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stale_assignment_does_not_outbid_the_later_one() {
    let volume = MemVolume::new();
    let a = Broker::new("a-1", volume.clone(), 1);
    let b = Broker::new("b-1", volume.another_process(), 2);
    b.assign(512, &[]);
    assert_eq!(b.put("acked").await.unwrap(), Offset(0));
    // It has yet to hear that the partition is another's.
    a.assign(256, &[]);
    assert_eq!(a.put_soon("stale").await, None);
    assert_eq!(a.partition.status().epoch, Epoch(0), "no leader epoch in which it never led");
    let claims = claims(&volume).await;
    assert_eq!(claims, ["00000200-claim"], "nor a claim");
    // Whoever was assigned later died: then anybody may.
    a.fence.over.lock().insert("b-1".into());
    assert_eq!(a.put_soon("served").await, Some(Offset(1)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_made_late_does_not_hide_the_one_that_is_to_be_given_up() {
    let volume = MemVolume::new();
    let a = Broker::new("a-1", volume.clone(), 1);
    let b = Broker::new("b-1", volume.another_process(), 2);
    // Under the first lease its creation hangs.
    let hang = volume.hang(Op::Create, "/00000100-");
    a.assign(256, &[]);
    assert!(tokio::time::timeout(Duration::from_secs(1), a.put("x")).await.is_err(), "it opens");
    a.engine.drop_all();
    a.fence.token.store(2, SeqCst);
    a.assign(512, &[]);
    assert_eq!(a.put_soon("acked").await, Some(Offset(0)));
    hang.release();
    tokio::time::sleep(Duration::from_secs(1)).await;
    a.engine.assign(BTreeMap::new());
    b.assign(768, &[]);
    assert_eq!(b.put_soon("next").await, Some(Offset(1)));
}

async fn claims(v: &MemVolume) -> Vec<String> {
    use crate::volume::{Class, Volume};
    let entries = v.read_dir(DIR, Class::Data).await.unwrap();
    let names = entries.into_iter().map(|e| e.name).filter(|n| n.ends_with("-claim"));
    names.collect()
}
