//! What the stories need: an engine on a volume in memory, a clock that one can set, a lease that one can end.

use crate::config::{StorageConfig, TopicConfig};
use crate::metrics::StorageMetrics;
use crate::rt::{Clock, Env, SeededEntropy, SoloHost};
use crate::storage::batch::{testing, Header};
use crate::storage::*;
use crate::types::{Offset, TopicId};
use crate::volume::MemVolume;
use bytes::Bytes;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

pub const DIR: &str = "t/00000000000000000000000000000007/0";

/// Boot time runs with the runtime; wall time is set by hand.
#[derive(Debug)]
pub struct TestClock {
    pub started: tokio::time::Instant,
    pub wall: AtomicI64,
}

impl Clock for TestClock {
    fn boot(&self) -> Duration {
        self.started.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        self.wall.load(SeqCst)
    }
}

/// A lease that a test ends and begins. 0: none.
#[derive(Debug)]
pub struct TestLease(pub AtomicU64);

impl Fence for TestLease {
    fn right(&self) -> Option<u64> {
        Some(self.0.load(SeqCst)).filter(|t| *t > 0)
    }
}

pub struct Bed {
    pub volume: MemVolume,
    pub clock: Arc<TestClock>,
    pub lease: Arc<TestLease>,
    pub engine: Arc<Engine>,
    pub metrics: Arc<StorageMetrics>,
    pub partition: Arc<Partition>,
    pub config: StorageConfig,
    pub topic: TopicConfig,
}

pub fn small() -> StorageConfig {
    StorageConfig {
        sync_timeout: Duration::from_secs(30),
        group_bytes: 1000,
        checkpoint_bytes: 4000,
        queue_bytes: 100_000,
        ..StorageConfig::default()
    }
}

pub fn small_topic() -> TopicConfig {
    TopicConfig { segment_bytes: 20_000, index_interval_bytes: 64, ..TopicConfig::default() }
}

impl Bed {
    pub fn new() -> Bed {
        Bed::with(MemVolume::new(), small(), small_topic())
    }

    pub fn with(volume: MemVolume, config: StorageConfig, topic: TopicConfig) -> Bed {
        let clock =
            Arc::new(TestClock { started: tokio::time::Instant::now(), wall: AtomicI64::new(1_000_000) });
        let lease = Arc::new(TestLease(AtomicU64::new(1)));
        let metrics = Arc::new(StorageMetrics::default());
        let env = Env {
            volume: Arc::new(volume.clone()),
            clock: clock.clone(),
            entropy: Arc::new(SeededEntropy::new(7)),
            host: Arc::new(SoloHost { name: "h".into(), boot: "b".into() }),
        };
        let engine = Engine::new(env, lease.clone(), config.clone(), metrics.clone());
        let partition = engine.attach(PartitionSpec {
            topic: "t".into(),
            topic_id: TopicId(uuid::Uuid::from_u128(7)),
            index: 0,
            dir: DIR.into(),
            config: Arc::new(topic.clone()),
        });
        Bed { volume, clock, lease, engine, metrics, partition, config, topic }
    }

    /// The process dies; the page cache lives on. A new one starts on the same volume.
    pub fn kill(self) -> Bed {
        self.lease.0.store(0, SeqCst);
        self.volume.crash_process();
        Bed::with(self.volume.another_process(), self.config, self.topic)
    }

    /// The power goes; a new process starts on what the disk has.
    pub fn power_cut(self, seed: u64) -> Bed {
        // The tasks of a dead process do not run on.
        self.lease.0.store(0, SeqCst);
        self.volume.power_cut(&SeededEntropy::new(seed));
        Bed::with(self.volume.another_process(), self.config, self.topic)
    }

    pub async fn append(&self, batch: Bytes) -> Result<Appended, AppendError> {
        let req = AppendRequest { records: batch, acks: Acks::All };
        self.partition.start_append(req).await?.wait().await
    }

    pub async fn put(&self, body: &str) -> i64 {
        self.append(testing::plain(1, body.as_bytes())).await.unwrap().base_offset.0
    }

    pub async fn fetch(&self, from: i64, max: usize) -> Result<ReadOk, ReadError> {
        let bound = Bound::HighWatermark;
        self.partition
            .read(ReadRequest { from: Offset(from), max_bytes: max, at_least_one: true, bound })
            .await
    }

    /// Every batch from `from` on: base offset and body.
    pub async fn bodies(&self, from: i64) -> Vec<(i64, String)> {
        let mut out = Vec::new();
        let mut at = from;
        loop {
            let r = self.fetch(at, 1 << 20).await.unwrap().records;
            if r.is_empty() {
                return out;
            }
            for (h, b) in batches(&r) {
                at = h.next_offset().0;
                out.push((h.base_offset, String::from_utf8_lossy(&b[61..]).into_owned()));
            }
        }
    }

    pub async fn marks(&self) -> (i64, i64) {
        let m = self.partition.marks().await.unwrap();
        (m.log_start.0, m.hwm.0)
    }

    pub async fn epoch(&self) -> u32 {
        self.partition.marks().await.unwrap().epoch.0
    }
}

pub fn batches(mut b: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some(h) = Header::parse(b) {
        out.push((h, b[..h.size as usize].to_vec()));
        b = &b[h.size as usize..];
    }
    out
}
