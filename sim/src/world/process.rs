//! One broker process: the broker exactly as it ships, with its surroundings handed in.

use super::host::Machine;
use super::Shared;
use crate::history::{Event, Life};
use crate::scenario::draw::stream;
use crate::volume::Process;
use highwater::cluster::inspect;
use highwater::config::{BrokerConfig, Layer, Origin};
use highwater::metrics::Metrics;
use highwater::rt::{Env, SeededEntropy};
use highwater::server::Node;
use highwater::volume::Volume;
use madsim::runtime::Handle;
use rand::RngCore;
use std::sync::Arc;
use tokio::sync::watch;
use toml::Value;

pub const PORT: u16 = 9092;

/// Why a process ended by itself.
#[derive(Clone, Debug)]
pub enum Exit {
    /// It was told to stop, and did.
    Clean,
    /// It could not start, or not go on; a supervisor starts it again.
    Failed(String),
}

/// A process that was started and has not been killed.
pub struct Running {
    pub host: u32,
    pub volume: Process,
    pub metrics: Arc<Metrics>,
    alive: super::host::Alive,
    term: watch::Sender<bool>,
    pub exit: watch::Receiver<Option<Exit>>,
    pub serving: watch::Receiver<bool>,
}

impl Running {
    /// SIGTERM.
    pub fn terminate(&self) {
        self.term.send_replace(true);
    }

    /// The process is gone, by whatever cause: its tasks, its connections, its handles.
    pub fn bury(&self, machine: &Machine) {
        Handle::current().kill(machine.node);
        self.alive.end();
        self.volume.kill();
        // A killed node takes no new tasks until it was restarted.
        Handle::current().restart(machine.node);
    }
}

/// The broker's configuration, as an operator would have set it.
pub fn config(
    plan: &std::collections::BTreeMap<String, Value>,
    broker: u32,
    machine: &Machine,
) -> BrokerConfig {
    let mut layer = Layer::default();
    for (key, value) in plan {
        let text = match value {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        layer.put(key, text, Origin::Set);
    }
    layer.put("broker.id", broker.to_string(), Origin::Set);
    layer.put("listeners", format!("0.0.0.0:{PORT}"), Origin::Set);
    layer.put("advertised.listeners", format!("{}:{PORT}", machine.ip), Origin::Set);
    layer.put("metrics.listener", "off", Origin::Set);
    BrokerConfig::resolve(vec![layer]).expect("the scenario's broker settings are valid")
}

/// Starts a process of `broker` on `machine`.
pub fn start(shared: &Arc<Shared>, broker: u32, machine: &Machine) -> Running {
    let volume = shared.model.process(machine.number);
    let (alive, host) = machine.process();
    let entropy = stream(shared.seed, &format!("process {}", volume.id())).next_u64();
    let config = Arc::new(config(&shared.plan.broker, broker, machine));
    // With `cluster.dir` the model plays both volumes: what tells them apart are the faults, by their paths.
    let both = || Arc::new(volume.clone()) as Arc<dyn Volume>;
    let volume_of_it = match config.cluster_dir {
        Some(_) => Arc::new(inspect::split(both(), both())),
        None => both(),
    };
    let env = Env {
        volume: volume_of_it,
        clock: machine.clock.clone(),
        entropy: Arc::new(SeededEntropy::new(entropy)),
        host,
    };
    let metrics = Arc::new(Metrics::default());
    let (term, told) = watch::channel(false);
    let (ended, exit) = watch::channel(None);
    let (up, serving) = watch::channel(false);
    let history = shared.history.clone();
    let (pid, on, counted) = (volume.id(), machine.number, metrics.clone());
    let ip = machine.ip;
    history.record(Event::Note(format!("broker {broker} is process {pid} on host {on}")));
    history.record(Event::Broker { broker, host: ip, life: Life::Starting });
    let life = async move {
        let mut told = told;
        let started = tokio::select! {
            biased;
            () = asked(&mut told) => None,
            started = Node::start(env, config, counted) => Some(started),
        };
        let node = match started {
            Some(Ok(node)) => node,
            Some(Err(e)) => {
                ended.send_replace(Some(Exit::Failed(e.to_string())));
                return;
            }
            // Told to stop before it served.
            None => {
                ended.send_replace(Some(Exit::Clean));
                return;
            }
        };
        history.record(Event::Broker { broker, host: ip, life: Life::Serving });
        up.send_replace(true);
        let end = run(&node, told).await;
        ended.send_replace(Some(end));
        // The supervisor kills what is left; until then the node stays, as a process does that has not exited yet.
        std::future::pending::<()>().await;
    };
    Handle::current().get_node(machine.node).expect("the host's node").spawn(life);
    Running { host: on, volume, metrics, alive, term, exit, serving }
}

/// Serves until it is told to stop or can't go on.
async fn run(node: &Node, mut told: watch::Receiver<bool>) -> Exit {
    tokio::select! {
        biased;
        () = asked(&mut told) => {
            node.shutdown().await;
            Exit::Clean
        }
        why = node.failed() => {
            node.shutdown().await;
            Exit::Failed(why.to_string())
        }
    }
}

async fn asked(told: &mut watch::Receiver<bool>) {
    if told.wait_for(|told| *told).await.is_err() {
        // Nobody is left to ask.
        std::future::pending::<()>().await;
    }
}
