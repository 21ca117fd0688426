//! One broker, its users, a kill and a power cut in the middle; then every promise is asked for.
//!
//! The volume is the broker's own model in memory, so that this holds workloads and checkers together without
//! anything else of the simulator. That a seed replays is not asked here: it holds for one life per process, and
//! `cargo sim run --check-determinism` asks it.
#![cfg(madsim)]

use bytes::Bytes;
use highwater::config::BrokerConfig;
use highwater::metrics::Metrics;
use highwater::rt::{Env, OsClock, SeededEntropy, SoloHost};
use highwater::server::Node;
use highwater::volume::{Class, EntryKind, MemVolume, Volume};
use highwater_sim::check::{self, Evidence, Verdict};
use highwater_sim::history::{Event, History, Life, Membership, Phase};
use highwater_sim::workload::{self, Ctx, Spec, TopicSpec};
use madsim::runtime::{Handle, NodeHandle};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const BROKER: &str = "10.0.0.1:9092";

#[derive(serde::Deserialize)]
struct Plan {
    topic: Vec<TopicSpec>,
    client: Vec<Spec>,
}

/// One life of the broker on `volume`; ends with its node.
async fn serve(volume: MemVolume, history: History) {
    history.record(Event::Broker {
        broker: 0,
        host: highwater_sim::history::FIRST_HOST,
        life: Life::Starting,
    });
    let config = BrokerConfig { listen: "0.0.0.0:9092".into(), ..BrokerConfig::default() };
    let env = Env {
        volume: Arc::new(volume.another_process()),
        clock: Arc::new(OsClock),
        entropy: Arc::new(SeededEntropy::new(madsim::rand::random())),
        host: Arc::new(SoloHost { name: "10.0.0.1".into(), boot: "boot".into() }),
    };
    let node =
        Node::start(env, Arc::new(config), Arc::new(Metrics::default())).await.expect("the broker starts");
    history.record(Event::Broker {
        broker: 0,
        host: highwater_sim::history::FIRST_HOST,
        life: Life::Serving,
    });
    node.failed().await;
}

/// Everything on the volume, by path.
async fn files(volume: &MemVolume) -> BTreeMap<String, Bytes> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for entry in volume.read_dir(&dir, Class::Data).await.expect("a directory") {
            let path = if dir.is_empty() { entry.name } else { format!("{dir}/{}", entry.name) };
            if entry.kind == EntryKind::Dir {
                dirs.push(path);
                continue;
            }
            let file = volume.open(&path, Class::Data).await.expect("a file");
            let len = file.len().await.expect("a length");
            let bytes = file.read_at(0, len as usize).await.expect("its bytes");
            files.insert(path, bytes);
        }
    }
    files
}

struct World {
    volume: MemVolume,
    broker: NodeHandle,
    prover: NodeHandle,
    history: History,
    phase: watch::Sender<Phase>,
    ctx: Ctx,
}

impl World {
    fn new() -> World {
        let history = History::new(false);
        let handle = Handle::current();
        let volume = MemVolume::new();
        let (served, noted) = (volume.clone(), history.clone());
        let ip = |s: &str| s.parse().expect("an address");
        let broker = handle.create_node().name("broker").ip(ip("10.0.0.1"));
        let broker = broker.init(move || serve(served.clone(), noted.clone())).build();
        let prover = handle.create_node().name("prover").ip(ip("10.2.0.1")).build();
        let (phase, seen) = watch::channel(Phase::Chaos);
        let addr: SocketAddr = BROKER.parse().expect("an address");
        let (watchdog, lease) = (Duration::from_secs(30), Duration::from_secs(10));
        let mut ctx = Ctx::new(history.clone(), vec![addr], handle.seed(), seen, watchdog, lease);
        // The broker here has madsim's own clock.
        let wall = madsim::time::TimeHandle::current().now_time();
        let wall = wall.duration_since(std::time::SystemTime::UNIX_EPOCH).expect("after 1970");
        ctx.epoch_ms = wall.as_millis() as i64 - highwater_sim::history::now().as_millis() as i64;
        World { volume, broker, prover, history, phase, ctx }
    }

    fn crash(&self, how: Life) {
        self.history.record(Event::Broker { broker: 0, host: highwater_sim::history::FIRST_HOST, life: how });
        let handle = Handle::current();
        handle.kill(self.broker.id());
        match how {
            Life::PowerCut => self.volume.power_cut(&SeededEntropy::new(self.ctx.seed)),
            _ => self.volume.crash_process(),
        }
        handle.restart(self.broker.id());
    }

    fn enter(&self, phase: Phase) {
        self.history.record(Event::Phase(phase));
        self.phase.send_replace(phase);
    }

    /// Runs a step of a life on the prover's node.
    async fn step<F>(&self, work: impl FnOnce(Ctx) -> F)
    where
        F: std::future::Future<Output = ()> + Send + 'static,
    {
        self.prover.spawn(work(self.ctx.clone())).await.expect("a step of a life ends");
    }
}

struct Walked {
    evidence: Evidence,
    verdict: Verdict,
}

impl Walked {
    fn count(&self, f: impl Fn(&Event) -> bool) -> usize {
        self.evidence.history.iter().filter(|s| f(&s.event)).count()
    }
}

async fn walk(plan: &str, seconds: u64) -> Walked {
    let Plan { topic, client } = toml::from_str(plan).expect("a plan");
    let world = World::new();
    world.step(move |ctx| async move { workload::create_topics(&ctx, &topic).await }).await;
    let users = workload::start(&world.ctx, &client);
    for how in [Life::Killed, Life::PowerCut] {
        tokio::time::sleep(Duration::from_secs(seconds) / 3).await;
        world.crash(how);
    }
    tokio::time::sleep(Duration::from_secs(seconds) / 3).await;
    world.enter(Phase::Heal);
    world.step(|ctx| async move { workload::comes_back(&ctx).await }).await;
    world.enter(Phase::Prove);
    users.ended().await;
    world.step(|ctx| async move { workload::read_all(&ctx).await }).await;
    world.enter(Phase::Done);
    let media = files(&world.volume).await;
    let evidence = Evidence { history: world.history.events(), media, ..Evidence::default() };
    let verdict = check::judge(&evidence);
    Walked { evidence, verdict }
}

const PLAIN: &str = r#"
topic = [{ name = "t", partitions = 2, configs = { "segment.bytes" = "20000" } }]

[[client]]
kind = "producer"
count = 2

[[client]]
kind = "producer"
acks = 1
opaque = 0.2

[[client]]
kind = "producer"
acks = 0
rate = 2

[[client]]
kind = "producer"
idempotent = true
in-flight = 5

[[client]]
kind = "consumer"
from = "tail"

[[client]]
kind = "consumer"
from = "start"

[[client]]
kind = "consumer"
from = "seek"
"#;

#[madsim::test]
async fn a_broker_with_users_and_crashes_breaks_no_promise() {
    let walked = walk(PLAIN, 30).await;
    assert_eq!(walked.verdict.violations, [], "seed {}", Handle::current().seed());
    let acked = walked.count(|e| matches!(e, Event::ProduceDone { answer: Ok(p), .. } if p.code == 0));
    let read = walked.count(|e| matches!(e, Event::FetchDone { answer: Ok(f), .. } if !f.batches.is_empty()));
    assert!(acked > 300 && read > 300, "{acked} acknowledged, {read} read");
    assert_eq!(walked.count(|e| matches!(e, Event::FinalRead { .. })), 2);
}

const ALL: &str = r#"
topic = [
    { name = "t", partitions = 2, configs = { "segment.bytes" = "20000" } },
    { name = "gone", partitions = 1 },
    { name = "kept", partitions = 1, configs = { "segment.bytes" = "10000", "retention.ms" = "5000" } },
    { name = "times", partitions = 1, configs = { "segment.bytes" = "20000" } },
]

[[client]]
kind = "producer"
idempotent = true
count = 2
timeout-ms = [50, 3000]

[[client]]
kind = "producer"
topics = ["t", "gone", "kept"]
opaque = 0.1

[[client]]
kind = "consumer"
from = "start"

[[client]]
kind = "consumer"
from = "tail"

[[client]]
kind = "group"
count = 3
churn = true
topics = ["t", "times"]
stay-ms = [2000, 10000]

[[client]]
kind = "committer"
count = 2

[[client]]
kind = "committer"
count = 2
group = "shared"
timeout-ms = [20, 500]

[[client]]
kind = "admin"
topics = ["gone"]
does = ["recreate", "create-delete", "create-partitions"]

[[client]]
kind = "admin"
topics = ["t", "kept"]
does = ["delete-records"]

[[client]]
kind = "admin"
topics = ["kept"]
does = ["alter-configs"]

[[client]]
kind = "lookup"
topics = ["times", "kept"]
"#;

#[madsim::test]
async fn all_kinds_of_users_and_crashes_break_no_promise() {
    let walked = walk(ALL, 30).await;
    assert_eq!(walked.verdict.violations, [], "seed {}", Handle::current().seed());
    let commits =
        walked.count(|e| matches!(e, Event::CommitDone { answer: Ok(codes), .. } if codes.contains(&0)));
    let joins =
        walked.count(|e| matches!(e, Event::MemberDone { call: Membership::Sync, answer: Ok(0), .. }));
    let deleted = walked.count(|e| matches!(e, Event::DeleteTopicDone { answer: Ok(0), .. }));
    let trimmed = walked.count(|e| matches!(e, Event::DeleteRecordsDone { answer: Ok((0, _)), .. }));
    let found = walked.count(
        |e| matches!(e, Event::ListOffsetsDone { timestamp: 0.., answer: Ok(l), .. } if l.offset >= 0),
    );
    let counts = [commits, joins, deleted, trimmed, found];
    assert!(counts.iter().all(|n| *n > 0), "commits, joins, deletions, trims, lookups: {counts:?}");
}
