//! The control plane as a whole, on a volume in memory, with a stand-in for the engine.

mod apart;
mod deletion;
mod engine;
mod lapse;
mod power_cuts;
mod several;
mod start;
mod status;

use super::admin::NewTopic;
use super::core::Core;
use super::error::StartError;
use super::partitions::Partitions;
use crate::config::{BrokerConfig, TopicConfig};
use crate::rt::{Clock, Entropy, Env, Host, HostLock, LockError, SeededEntropy};
use crate::storage::{Assignment, PartitionSpec};
use crate::types::{BrokerId, Epoch, TopicId};
use crate::volume::{Class, EntryKind, MemVolume, Volume};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);

/// Runs a story in time that passes only while everything waits.
fn story<T>(f: impl Future<Output = T>) -> T {
    #[cfg(not(madsim))]
    {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        rt.expect("a runtime").block_on(f)
    }
    #[cfg(madsim)]
    madsim::runtime::Runtime::new().block_on(f)
}

/// A clock that runs with tokio's, paused or simulated.
pub(super) struct StoryClock(tokio::time::Instant);

impl Clock for StoryClock {
    fn boot(&self) -> Duration {
        // Not zero at the start: no machine is that young.
        Duration::from_secs(1000) + self.0.elapsed()
    }
    fn wall_ms(&self) -> i64 {
        0
    }
}

/// A machine: its locks, and which boot it is in.
#[derive(Clone)]
pub(super) struct Machine {
    name: String,
    locks: Arc<Mutex<BTreeSet<String>>>,
}

struct Unlock(Arc<Mutex<BTreeSet<String>>>, String);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

#[async_trait]
impl Host for Machine {
    async fn lock(&self, name: &str) -> Result<HostLock, LockError> {
        if !self.locks.lock().insert(name.to_owned()) {
            return Err(LockError::Held(name.to_owned()));
        }
        Ok(HostLock::new(format!("{}/{name}", self.name), Unlock(self.locks.clone(), name.to_owned())))
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Stands in for the engine, and remembers what it was told.
#[derive(Default)]
struct Told {
    attached: Mutex<BTreeMap<(TopicId, i32), PartitionSpec>>,
    assigned: Mutex<BTreeSet<(TopicId, i32)>>,
    /// What it is said to lead, and in which epoch.
    led_in: Mutex<BTreeMap<(TopicId, i32), Epoch>>,
    /// For which of its partitions calls hang, and the first epoch of their next assignments.
    stuck: Mutex<BTreeMap<(TopicId, i32), Epoch>>,
    disowned: Mutex<BTreeMap<(TopicId, i32), Epoch>>,
    reconfigured: Mutex<Vec<(TopicId, Arc<TopicConfig>)>>,
    drops: AtomicUsize,
    /// The next drop panics.
    breaks: AtomicBool,
    shutdowns: AtomicUsize,
    /// What was still assigned when the partitions were told to close.
    left: AtomicUsize,
}

#[async_trait]
impl Partitions for Told {
    fn know(&self, spec: PartitionSpec) {
        self.attached.lock().insert((spec.topic_id, spec.index), spec);
    }
    fn assign(&self, wanted: BTreeMap<(TopicId, i32), Assignment>) {
        self.disowned.lock().retain(|key, from| wanted.get(key).is_some_and(|a| a.epoch < *from));
        *self.assigned.lock() = wanted.into_keys().collect();
    }
    fn is_stuck(&self) -> bool {
        !self.stuck.lock().is_empty()
    }
    fn disown_stuck(&self) {
        self.disowned.lock().append(&mut self.stuck.lock().clone());
    }
    fn disowned(&self) -> Vec<(TopicId, i32, Epoch)> {
        self.disowned.lock().iter().map(|((id, index), from)| (*id, *index, *from)).collect()
    }
    fn led_in(&self, topic: TopicId, index: i32) -> Option<Epoch> {
        self.led_in.lock().get(&(topic, index)).copied()
    }
    fn reconfigure(&self, topic: TopicId, config: Arc<TopicConfig>) {
        self.reconfigured.lock().push((topic, config));
    }
    async fn abandon_topic(&self, topic: TopicId) {
        self.attached.lock().retain(|(t, _), _| *t != topic);
    }
    fn drop_all(&self) {
        assert!(!self.breaks.load(SeqCst), "told to break");
        self.drops.fetch_add(1, SeqCst);
    }
    async fn run(self: Arc<Self>) {
        std::future::pending().await
    }
    async fn shutdown(&self) {
        self.shutdowns.fetch_add(1, SeqCst);
        self.left.store(self.assigned.lock().len(), SeqCst);
    }
}

/// A volume and the machines that mount it.
pub(super) struct World {
    volume: MemVolume,
    entropy: Arc<SeededEntropy>,
    pub(super) clock: Arc<StoryClock>,
}

/// A running broker. Its process can be killed.
struct Process {
    core: Option<Core>,
    told: Arc<Told>,
    volume: MemVolume,
    entropy: Arc<SeededEntropy>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        World {
            volume: MemVolume::new(),
            entropy: Arc::new(SeededEntropy::new(seed)),
            clock: Arc::new(StoryClock(tokio::time::Instant::now())),
        }
    }

    pub(super) fn machine(&self, name: &str) -> Machine {
        Machine { name: name.into(), locks: Arc::default() }
    }

    async fn start(&self, on: &Machine, id: i32) -> Result<Process, StartError> {
        let volume = self.volume.another_process();
        let env = Env {
            volume: Arc::new(volume.clone()),
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            host: Arc::new(on.clone()),
        };
        let config = BrokerConfig { broker_id: BrokerId(id), lease: LEASE, ..BrokerConfig::default() };
        let (core, told) = Core::start(env, &config, |_| Arc::new(Told::default())).await?;
        Ok(Process { core: Some(core), told, volume, entropy: self.entropy.clone() })
    }

    /// Every file with its content, and every directory.
    async fn everything(&self) -> BTreeMap<String, Option<bytes::Bytes>> {
        let v = self.volume.another_process();
        let mut all = BTreeMap::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            // What goes away while we look is not there.
            let Ok(entries) = v.read_dir(&dir, Class::Data).await else { continue };
            for entry in entries {
                let path = if dir.is_empty() { entry.name } else { format!("{dir}/{}", entry.name) };
                if entry.kind == EntryKind::Dir {
                    all.insert(path.clone(), None);
                    dirs.push(path);
                } else if let Ok(content) = super::files::read(&v, &path).await {
                    all.insert(path, Some(content));
                }
            }
        }
        all
    }

    async fn has(&self, part: &str) -> bool {
        self.everything().await.keys().any(|p| p.contains(part))
    }

    fn now(&self) -> Duration {
        self.clock.boot()
    }
}

impl Process {
    fn core(&self) -> &Core {
        self.core.as_ref().expect("alive")
    }

    /// kill -9.
    fn kill(mut self) {
        self.volume.crash_process();
        drop(self.core.take());
    }

    async fn create(&self, name: &str) -> Result<TopicId, super::AdminError> {
        let topic = NewTopic { name: name.into(), partitions: 2, overrides: BTreeMap::new() };
        let id = TopicId(self.entropy.uuid());
        self.core().create_topic(id, topic, false).await.map(|t| t.id)
    }

    async fn set(&self, name: &str, key: &'static str, value: &str) -> Result<(), super::AdminError> {
        let value = value.to_owned();
        let change = Box::new(move |o: &mut BTreeMap<String, String>| {
            o.insert(key.into(), value.clone());
            Ok(())
        });
        self.core().alter_topic_config(name, change, false).await
    }

    fn topics(&self) -> Vec<String> {
        self.core().controller.image().topics.keys().cloned().collect()
    }

    /// Makes the files that a partition of the topic would make.
    async fn fill(&self, name: &str, id: TopicId) {
        let v = &self.volume;
        for dir in [name.to_owned(), format!("{name}/{id}"), format!("{name}/{id}/0")] {
            match v.mkdir(&dir, Class::Data).await {
                Err(e) if !e.is_already_exists() => panic!("{e}"),
                _ => {}
            }
        }
        let file = v.create_new(&format!("{name}/{id}/0/00000001-0.log"), Class::Data).await.expect("new");
        file.write_sync(0, vec!["records".into()]).await.expect("room");
        for dir in ["".to_owned(), name.to_owned(), format!("{name}/{id}"), format!("{name}/{id}/0")] {
            v.sync_dir(&dir, Class::Data).await.expect("there");
        }
    }
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut f: impl FnMut() -> F) {
    for _ in 0..600 {
        if f().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("did not happen in two minutes: {what}");
}
