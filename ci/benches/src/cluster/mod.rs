//! Several brokers on one directory: what it costs when one goes, and what they ask of the volume meanwhile.
//!
//! The brokers are real processes that share this machine and its page cache, so what a network and a file server add
//! is not in these figures. Clients are the bench's own, and come back as soon as they can: what is measured is the
//! cluster, not a client library's patience.

pub mod failover;
pub mod idle;
mod probe;
pub mod rolling;
mod routes;
pub mod takeover;

use crate::broker::{free_port, Broker, Setup};
use crate::Bench;
use anyhow::{bail, ensure, Context, Result};
use routes::Routes;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default of `broker.lease.ms`, and the least there may be.
const LEASE: Duration = Duration::from_secs(10);
const SHORT_LEASE: Duration = Duration::from_secs(2);
/// How long a cluster may take to come to rest.
const SETTLING: Duration = Duration::from_secs(90);

/// Brokers 1 to n, each at an address of its own that it keeps when it is started again.
pub struct Members {
    setups: BTreeMap<i32, Setup>,
    running: BTreeMap<i32, Broker>,
    addrs: Vec<SocketAddr>,
    lease: Duration,
}

impl Members {
    /// Starts the brokers, one after the other: the first one becomes controller.
    ///
    /// `adjust` may change how each is started.
    pub fn start(
        b: &Bench,
        data: &str,
        size: i32,
        lease: Duration,
        adjust: impl Fn(&mut Setup),
    ) -> Result<Self> {
        let mut members =
            Members { setups: BTreeMap::new(), running: BTreeMap::new(), addrs: Vec::new(), lease };
        for id in 1..=size {
            let addr = free_port()?;
            let mut setup = Setup { id, listen: Some(addr), lease: Some(lease), ..b.setup(data) };
            adjust(&mut setup);
            members.setups.insert(id, setup);
            members.addrs.push(addr);
            members.restart(id)?;
        }
        members.await_shares()?;
        Ok(members)
    }

    /// Waits until group slots were given to every broker, as long as there are enough: then they know each other, and what
    /// is created from now on is spread evenly. Evening out moves partitions before slots.
    fn await_shares(&self) -> Result<()> {
        const SLOTS: usize = 8;
        let start = Instant::now();
        loop {
            let groups = (0..8 * SLOTS).map(|i| format!("group-{i}"));
            let have = self.first()?.client()?.coordinators(groups)?.len();
            if have >= self.running.len().min(SLOTS) {
                return Ok(());
            }
            ensure!(start.elapsed() < SETTLING, "{have} of {} brokers have group slots", self.running.len());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn first(&self) -> Result<&Broker> {
        self.running.values().next().context("no broker runs")
    }

    pub fn ids(&self) -> Vec<i32> {
        self.setups.keys().copied().collect()
    }

    /// Where clients find the cluster.
    pub fn routes(&self, topic: &str) -> Arc<Routes> {
        Arc::new(Routes::new(topic, self.addrs.clone()))
    }

    pub fn broker(&self, id: i32) -> Result<&Broker> {
        self.running.get(&id).with_context(|| format!("broker {id} does not run"))
    }

    /// Takes a broker out, for whoever ends it.
    pub fn take(&mut self, id: i32) -> Result<Broker> {
        self.running.remove(&id).with_context(|| format!("broker {id} does not run"))
    }

    /// Starts a broker that does not run.
    pub fn restart(&mut self, id: i32) -> Result<()> {
        let setup = self.setups.get(&id).with_context(|| format!("there is no broker {id}"))?;
        let broker = Broker::start(setup)?;
        // It listens before it serves: then it knows who is controller.
        while !serves(&broker) {
            ensure!(
                broker.started.elapsed() < SETTLING,
                "broker {id} does not serve: {}",
                broker.last_words()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.running.insert(id, broker);
        Ok(())
    }

    pub fn trace(&self, id: i32) -> Result<&PathBuf> {
        let setup = self.setups.get(&id).with_context(|| format!("there is no broker {id}"))?;
        setup.trace.as_ref().with_context(|| format!("broker {id} is not traced"))
    }

    pub fn create_topic(&self, topic: &str, partitions: i32) -> Result<()> {
        self.first()?.client()?.request_topic(topic, partitions)
    }

    /// Waits until the topic's partitions have leaders, every broker leads `least` of them, and nothing moves any more.
    pub fn settle(&self, routes: &Routes, partitions: usize, least: usize) -> Result<()> {
        let rest = (self.lease / 5).max(Duration::from_secs(1));
        let (start, mut since, mut last) = (Instant::now(), Instant::now(), BTreeMap::new());
        loop {
            routes.refresh(Instant::now());
            let now = routes.leaders();
            if now != last {
                (since, last) = (Instant::now(), now);
            }
            let short: Vec<(i32, usize)> = self
                .running
                .keys()
                .map(|id| (*id, last.values().filter(|leader| *leader == id).count()))
                .filter(|(_, led)| *led < least)
                .collect();
            let all_led = last.len() == partitions;
            if all_led && short.is_empty() && since.elapsed() >= rest {
                return Ok(());
            }
            ensure!(
                start.elapsed() < SETTLING,
                "the cluster does not come to rest: {} of {partitions} partitions led, too few by {short:?}; {}",
                last.len(),
                self.last_words()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn last_words(&self) -> String {
        let last = |b: &Broker| b.last_words().rsplit(" | ").next().unwrap_or_default().to_string();
        self.running.iter().map(|(id, b)| format!("broker {id}: {}; ", last(b))).collect()
    }

    /// SIGTERM to all, one after the other.
    pub fn stop(mut self) -> Result<()> {
        while let Some((id, broker)) = self.running.pop_last() {
            if let Err(e) = broker.stop() {
                bail!("broker {id}: {e:#}");
            }
        }
        Ok(())
    }
}

fn serves(broker: &Broker) -> bool {
    let metadata = broker.client().and_then(|mut client| client.metadata(""));
    metadata.is_ok_and(|m| m.controller_id.0 >= 0)
}
