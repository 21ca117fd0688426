//! One life: chaos, heal, prove.
//!
//! 1. *Chaos*: brokers serve, clients use them, faults strike.
//! 2. *Heal*: all faults end. Within the lease and 5 s every partition must take `acks=all` again (P13).
//! 3. *Prove*: the clients stop. Each broker ends once more, cleanly, by a kill or by a power cut, and opens
//!    again with nobody asking; everything is read back from the start; then the checkers judge the history,
//!    what lies on the media, and what is held open.
//!
//! What the seed and the plan give, and nothing else, decides what happens.

mod ending;
mod images;
mod outcome;

pub use outcome::{Broken, Outcome, Stats};

use crate::check::{self, Dial, Evidence, Terms, Verdict};
use crate::history::{Event, History, Phase, Stamped};
use crate::scenario::draw::stream;
use crate::scenario::Plan;
use crate::view::Collector;
use crate::volume::Model;
use crate::workload::{self, Ctx};
use crate::world::{now, World};
use highwater::config::BrokerConfig;
use rand::RngCore;
use std::panic::resume_unwind;
use std::time::Duration;
use tokio::sync::watch;

/// What a life is run with, besides its plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Keep every operation on the volume, for the page that shows the life.
    pub record: bool,
}

/// What is left of a life.
pub struct Lived {
    pub history: Vec<Stamped>,
    pub operations: Vec<crate::volume::OpEvent>,
    pub hash: u64,
    pub verdict: Verdict,
    /// What became of the files, for the page that shows the life; only if it is recorded.
    pub seen: Option<Collector>,
    pub sim_time: Duration,
    pub volume_ops: u64,
    pub crash_images: u64,
    pub plan: Plan,
}

/// Lives one life to its end.
pub fn run(scenario: &str, seed: u64, plan: &Plan, settings: &Settings) -> (Outcome, Lived) {
    let mut net = madsim::Config::default();
    let [from, to] = plan.life.network;
    net.net.send_latency = Duration::from_secs_f64(from / 1000.0)..Duration::from_secs_f64(to / 1000.0);
    let inner = stream(seed, "runtime").next_u64();
    let living = || {
        let runtime = madsim::runtime::Runtime::with_seed_and_config(inner, net);
        runtime.block_on(live(seed, plan.clone(), *settings))
    };
    // On a thread of its own: the keys of std's hash maps are a thread's, and madsim can seed them only where no hash
    // map was made before, such as that of a log filter.
    let lived = std::thread::scope(|s| s.spawn(living).join()).unwrap_or_else(|e| resume_unwind(e));
    (Outcome::of(scenario, seed, &lived), lived)
}

async fn live(seed: u64, plan: Plan, settings: Settings) -> Lived {
    let history = History::new(settings.record);
    let model = Model::new(plan.volume.clone(), stream(seed, "volume").next_u64());
    let watched = settings.record.then(|| Collector::watch(&model));
    let world = World::new(seed, plan.clone(), model, history.clone());
    let (phase, seen) = watch::channel(Phase::Chaos);
    let (terms, ctx) = surroundings(seed, &world, seen);
    let enter = |p: Phase| {
        history.record(Event::Phase(p));
        phase.send_replace(p);
    };
    enter(Phase::Chaos);
    world.start();
    let (founder, topics) = (ctx.clone(), plan.topics.clone());
    world.at_desk(async move { workload::create_topics(&founder, &topics).await }).await;
    let users = workload::start(&ctx, &plan.clients);
    world.unleash();
    world.remember();
    let images = images::Images::default();
    images.take(&world, seed);
    tokio::time::sleep(Duration::from_secs_f64(plan.life.seconds)).await;

    enter(Phase::Heal);
    world.heal().await;
    let prover = ctx.clone();
    world.at_desk(async move { workload::comes_back(&prover).await }).await;

    enter(Phase::Prove);
    users.ended().await;
    let prover = ctx.clone();
    world.at_desk(async move { workload::transactions_end(&prover).await }).await;
    let mut held = ending::held_in_use(&world).await;
    let openings = ending::once_more(&world, &ctx, seed).await;
    let prover = ctx.clone();
    world.at_desk(async move { workload::read_all(&prover).await }).await;
    let (shown, handles) = ending::settle(&world).await;
    held.extend(handles);
    enter(Phase::Done);

    let (hash, sim_time) = (history.hash(), now());
    if let Some(watched) = &watched {
        watched.look();
    }
    let evidence = Evidence {
        history: history.take_events(),
        media: ending::files(world.model().media()),
        shown,
        handles: held,
        openings,
        records_opened: world.records_opened(),
        terms,
    };
    let mut verdict = check::judge(&evidence);
    world.kill().await;
    let recovered = images.recover(&world, &ctx, &evidence.terms, &evidence.history).await;
    verdict.violations.extend(recovered.violations);
    let (operations, volume_ops) = (history.operations(), world.operations());
    Lived {
        history: evidence.history,
        operations,
        hash,
        verdict,
        seen: watched,
        sim_time,
        volume_ops,
        crash_images: recovered.images,
        plan,
    }
}

/// What clients and checkers are told of how the brokers are set.
fn surroundings(seed: u64, world: &World, phase: watch::Receiver<Phase>) -> (Terms, Ctx) {
    let plan = world.plan();
    let config = world.config();
    let terms = Terms {
        lease: config.lease,
        sync_timeout: config.storage.sync_timeout,
        network: Duration::from_secs_f64(plan.life.network[1] / 1000.0 * 20.0) + Duration::from_secs(1),
        dial: dial(plan, &config),
        group_bytes: config.storage.group_bytes,
        checkpoint_bytes: config.storage.checkpoint_bytes,
        retention_ms: config.topic_defaults.retention_ms,
        retention_bytes: config.topic_defaults.retention_bytes,
        wall_ms: workload::EPOCH_MS,
        drift_ppm: plan.life.drift_ppm,
    };
    let history = world.history().clone();
    let ctx = Ctx::new(history, world.addresses(), seed, phase, terms.sync_timeout, terms.lease);
    (terms, ctx)
}

/// The loosest dial of any topic.
fn dial(plan: &Plan, config: &BrokerConfig) -> Dial {
    let number = |t: &workload::TopicSpec, key: &str| t.configs.get(key).and_then(|v| v.parse::<u64>().ok());
    let messages = |t| number(t, "flush.messages").unwrap_or(config.topic_defaults.flush_messages);
    let Some(loosest) = plan.topics.iter().max_by_key(|t| messages(t)) else { return Dial::Durable };
    match messages(loosest) {
        0 | 1 => Dial::Durable,
        messages => {
            let ms = number(loosest, "flush.ms").map_or(Duration::MAX, Duration::from_millis);
            Dial::PageCache { messages, ms }
        }
    }
}
