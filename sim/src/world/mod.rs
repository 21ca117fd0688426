//! The world of one life: hosts, broker processes, clocks, network; and the volume that they share.
//!
//! It carries the plan's faults out, and plays the supervisor that an operator would have (systemd, a
//! pod's restart policy): a process that ended by itself is started again a second later.

mod act;
mod bench;
mod clock;
mod host;
mod process;
mod tamper;

pub use bench::Bench;
pub use clock::now;
pub use process::PORT;

use crate::history::{Event, History, Life};
use crate::scenario::draw::stream;
use crate::scenario::{Plan, Step};
use crate::volume::{Model, Op, OpEvent, Outcome};
use highwater::config::BrokerConfig;
use highwater::metrics::Metrics;
use highwater::reached;
use host::Machine;
use madsim::runtime::Handle;
use madsim::task::NodeId;
use parking_lot::Mutex;
use process::{Exit, Running};
use rand::Rng;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How long a broker that was told to stop may take before it is killed (a pod's grace period).
const GRACE: Duration = Duration::from_secs(30);

/// How long a supervisor waits before it starts a process again that ended by itself.
const RESTART: Duration = Duration::from_secs(1);

/// Where the founder and the prover sit.
const DESK: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);

pub struct Shared {
    pub seed: u64,
    pub plan: Plan,
    pub model: Model,
    pub history: History,
}

/// The world, as the life and its faults handle it.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    machines: Vec<Machine>,
    /// By broker id - 1.
    slots: Vec<Slot>,
    tamper: tamper::Tamper,
    watched: Arc<Mutex<Watched>>,
    desk: NodeId,
    /// Of every process that ever was.
    metrics: Mutex<Vec<Arc<Metrics>>>,
}

/// What was seen of the volume's operations.
#[derive(Default)]
struct Watched {
    operations: u64,
    /// Bytes of log files read, by directory.
    log_reads: BTreeMap<String, u64>,
    /// Which broker a process was.
    brokers: BTreeMap<u32, u32>,
    awaited: Vec<Awaited>,
}

/// A step that something waits for.
struct Awaited {
    step: Step,
    /// Who is to take it; 0 is any.
    broker: u32,
    /// How many go by before.
    left: u32,
    /// Which process took it.
    tell: tokio::sync::oneshot::Sender<u32>,
}

impl Watched {
    fn saw(&mut self, op: &OpEvent) {
        self.operations += 1;
        self.tell_who_awaits(op);
        if op.op == Op::Read && op.path.ends_with(".log") {
            if let Some((dir, _)) = op.path.rsplit_once('/') {
                *self.log_reads.entry(dir.to_owned()).or_default() += op.len;
            }
        }
        if op.landed_after_death() {
            match op.op {
                Op::WriteBack => reached!("late-writeback-after-death"),
                _ => reached!("late-request-landed-after-death"),
            }
        }
        if op.op == Op::Sync && matches!(op.outcome, Outcome::Failed(_)) {
            reached!("sync-failed");
        }
        if matches!(op.outcome, Outcome::Failed(e) if e == NOSPC || e == DQUOT) {
            reached!("volume-was-full");
        }
    }
}

impl Watched {
    fn tell_who_awaits(&mut self, op: &OpEvent) {
        let Some(broker) = self.brokers.get(&op.process).copied().filter(|_| op.outcome == Outcome::Done)
        else {
            return;
        };
        for mut awaited in std::mem::take(&mut self.awaited) {
            let is_it = (awaited.broker == 0 || awaited.broker == broker)
                && awaited.step.is(op.op, &op.path, op.to.as_deref());
            if is_it && awaited.left == 0 {
                // Whoever waited may have given up.
                let _ = awaited.tell.send(op.process);
                continue;
            }
            awaited.left -= u32::from(is_it);
            self.awaited.push(awaited);
        }
    }
}

/// errno(3): ENOSPC, EDQUOT.
const NOSPC: i32 = 28;
const DQUOT: i32 = 122;

/// Where one broker is.
struct Slot {
    broker: u32,
    /// Held by whoever moves the broker from one state to the next.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The host on which the broker belongs at present.
    host: u32,
    running: Option<Running>,
    /// A process of the same broker that was given up while it stood still, and may wake.
    zombie: Option<Running>,
    /// Counts the processes, so that a supervisor knows when its own was replaced.
    life: u64,
    /// Do not start it again: it is meant to be down.
    down: bool,
    paused: bool,
}

impl World {
    /// Makes the hosts and the volume, starts nothing.
    pub fn new(seed: u64, plan: Plan, model: Model, history: History) -> World {
        let drift = plan.life.drift_ppm;
        let machine = |n: u32| {
            let ppm = stream(seed, &format!("drift {n}")).gen_range(-drift..=drift);
            Machine::new(n, ppm)
        };
        let machines = (0..plan.life.hosts).map(machine).collect();
        let slot = |i: u32| Slot {
            broker: i + 1,
            turn: tokio::sync::Mutex::new(()),
            state: Mutex::new(State { host: i, ..State::default() }),
        };
        let slots = (0..plan.life.brokers).map(slot).collect();
        let watched = Arc::new(Mutex::new(Watched::default()));
        let (seen, watcher) = (watched.clone(), history.clone());
        model.watch(move |op: &OpEvent| {
            watcher.record_operation(op);
            seen.lock().saw(op);
        });
        let shared = Arc::new(Shared { seed, plan, model, history });
        let (tamper, metrics) = Default::default();
        let desk = Handle::current().create_node().name("desk").ip(DESK.into()).build().id();
        World(Arc::new(Inner { shared, machines, slots, tamper, watched, desk, metrics }))
    }

    pub fn model(&self) -> &Model {
        &self.0.shared.model
    }

    pub fn history(&self) -> &History {
        &self.0.shared.history
    }

    pub fn plan(&self) -> &Plan {
        &self.0.shared.plan
    }

    /// Where clients may find a broker.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.machines.iter().map(|m| SocketAddr::new(m.ip, PORT)).collect()
    }

    /// Starts every broker.
    pub fn start(&self) {
        for slot in &self.0.slots {
            self.start_broker(slot);
        }
    }

    fn slot(&self, broker: u32) -> &Slot {
        // A fault that names no broker, or one too many, hits the first.
        self.0.slots.get(broker.saturating_sub(1) as usize).unwrap_or(&self.0.slots[0])
    }

    /// Starts a process on the slot's host, and watches over it. Whatever still stands there, given up and asleep, is
    /// killed first: one host runs one process.
    fn start_broker(&self, slot: &Slot) {
        let host = slot.state.lock().host;
        self.bury_zombies(host);
        let mut state = slot.state.lock();
        let machine = &self.0.machines[state.host as usize];
        let running = process::start(&self.0.shared, slot.broker, machine);
        state.life += 1;
        state.down = false;
        let (life, mut exit) = (state.life, running.exit.clone());
        self.0.metrics.lock().push(running.metrics.clone());
        self.0.watched.lock().brokers.insert(running.volume.id(), slot.broker);
        state.running = Some(running);
        let (world, broker) = (self.clone(), slot.broker);
        tokio::spawn(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|e| e.clone());
            if let Some(end) = ended {
                world.ended(broker, life, end).await;
            }
        });
    }

    /// A process ended by itself: buries it, and starts another one unless it was told to stop.
    async fn ended(&self, broker: u32, life: u64, end: Exit) {
        let slot = self.slot(broker);
        {
            let mut state = slot.state.lock();
            if state.life != life {
                return;
            }
            let Some(dead) = state.running.take() else { return };
            dead.bury(&self.0.machines[dead.host as usize]);
            match end {
                Exit::Clean => {
                    self.life_on(broker, dead.host, Life::Stopped);
                    return;
                }
                Exit::Failed(why) => {
                    self.note(format!("broker {broker}: {why}"));
                    self.life_on(broker, dead.host, Life::Failed);
                }
            }
        }
        tokio::time::sleep(RESTART).await;
        let _turn = slot.turn.lock().await;
        let wanted = {
            let state = slot.state.lock();
            state.life == life && state.running.is_none() && !state.down
        };
        if wanted {
            self.start_broker(slot);
        }
    }

    /// Kills the processes on a host that nobody counts on any more.
    fn bury_zombies(&self, host: u32) {
        for slot in &self.0.slots {
            let zombie = {
                let mut state = slot.state.lock();
                if state.zombie.as_ref().is_none_or(|z| z.host != host) {
                    continue;
                }
                state.zombie.take()
            };
            if let Some(zombie) = zombie {
                zombie.bury(&self.0.machines[host as usize]);
                self.life_on(slot.broker, host, Life::Killed);
            }
        }
    }

    /// Kills a broker's process, if it has one.
    fn kill_process(&self, slot: &Slot) -> Option<Running> {
        let mut state = slot.state.lock();
        let dead = state.running.take()?;
        state.paused = false;
        state.down = true;
        dead.bury(&self.0.machines[dead.host as usize]);
        self.life_on(slot.broker, dead.host, Life::Killed);
        Some(dead)
    }

    /// SIGTERM, and SIGKILL when the grace period is over. True if it ended by itself.
    async fn stop_process(&self, slot: &Slot) -> bool {
        let exit = {
            let mut state = slot.state.lock();
            state.down = true;
            let Some(running) = &state.running else { return false };
            running.terminate();
            running.exit.clone()
        };
        let mut exit = exit;
        self.life(slot.broker, Life::Term);
        let ended = tokio::time::timeout(GRACE, exit.wait_for(Option::is_some)).await.is_ok();
        if !ended {
            self.kill_process(slot);
            return false;
        }
        // `ended` buries it.
        while slot.state.lock().running.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Another host for the broker: the next one that is no broker's, be it up, down or asleep. `from` if there is none.
    fn next_host(&self, from: u32) -> u32 {
        let hosts = |s: &Slot| {
            let state = s.state.lock();
            [Some(state.host), state.zombie.as_ref().map(|z| z.host)]
        };
        let taken: Vec<u32> = self.0.slots.iter().flat_map(hosts).flatten().collect();
        let n = self.0.machines.len() as u32;
        (1..n).map(|d| (from + d) % n).find(|h| !taken.contains(h)).unwrap_or(from)
    }

    /// Ends every fault's effect on processes: who is paused goes on, who is down is started, and the woken
    /// zombies, which nobody misses, are killed.
    pub async fn heal(&self) {
        self.model().heal();
        for m in &self.0.machines {
            madsim::net::NetSim::current().unclog_node(m.node);
        }
        for slot in &self.0.slots {
            let _turn = slot.turn.lock().await;
            let (paused, zombie) = {
                let mut state = slot.state.lock();
                (std::mem::take(&mut state.paused).then_some(state.host), state.zombie.take())
            };
            if let Some(host) = paused {
                Handle::current().resume(self.0.machines[host as usize].node);
            }
            if let Some(zombie) = zombie {
                zombie.bury(&self.0.machines[zombie.host as usize]);
                self.life_on(slot.broker, zombie.host, Life::Killed);
            }
            let idle = slot.state.lock().running.is_none();
            if idle {
                self.start_broker(slot);
            }
        }
    }

    /// Stops every broker cleanly. True if all of them did by themselves.
    pub async fn stop(&self) -> bool {
        let mut all = true;
        for slot in &self.0.slots {
            let _turn = slot.turn.lock().await;
            all &= self.stop_process(slot).await;
        }
        all
    }

    /// Kills every broker.
    pub async fn kill(&self) {
        for slot in &self.0.slots {
            let _turn = slot.turn.lock().await;
            self.kill_process(slot);
        }
    }

    /// Waits until every broker's process says that it serves; gives up after `patience`.
    pub async fn serving(&self, patience: Duration) -> bool {
        let all = async {
            for slot in &self.0.slots {
                loop {
                    let serving = slot.state.lock().running.as_ref().is_some_and(|r| *r.serving.borrow());
                    if serving {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        tokio::time::timeout(patience, all).await.is_ok()
    }

    /// Who runs now, by process: for the checkers.
    pub fn processes(&self) -> BTreeMap<u32, u32> {
        let state = self.0.slots.iter().filter_map(|s| {
            let state = s.state.lock();
            state.running.as_ref().map(|r| (r.volume.id(), s.broker))
        });
        state.collect()
    }

    /// Records that brokers opened where none may be opened, over all processes (P9).
    pub fn records_opened(&self) -> u64 {
        self.0.metrics.lock().iter().map(|m| m.storage.records_opened.get()).sum()
    }

    /// Bytes of log files read so far, by partition directory.
    pub fn log_reads(&self) -> BTreeMap<String, u64> {
        self.0.watched.lock().log_reads.clone()
    }

    /// Operations on the volume so far.
    pub fn operations(&self) -> u64 {
        self.0.watched.lock().operations
    }

    /// How the brokers are set.
    pub fn config(&self) -> BrokerConfig {
        process::config(&self.plan().broker, 1, &self.0.machines[0])
    }

    fn life(&self, broker: u32, life: Life) {
        let host = self.slot(broker).state.lock().host;
        self.life_on(broker, host, life);
    }

    fn life_on(&self, broker: u32, host: u32, life: Life) {
        let host = self.0.machines[host as usize].ip;
        self.history().record(Event::Broker { broker, host, life });
    }

    fn note(&self, what: String) {
        self.history().record(Event::Note(what));
    }

    /// Cuts the power of every broker's host.
    pub async fn cut_all_power(&self) {
        for slot in &self.0.slots {
            let _turn = slot.turn.lock().await;
            let host = slot.state.lock().host;
            self.cut_power(slot, host);
        }
    }

    /// Runs what the founder and the prover of a life do, on a node of their own.
    pub async fn at_desk<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) -> T {
        let desk = Handle::current().get_node(self.0.desk).expect("made with the world");
        desk.spawn(what).await.expect("nobody kills this node")
    }
}
