//! A host: an address, clocks, and the locks by which its processes prove each other dead.

use super::clock::HostClock;
use async_trait::async_trait;
use highwater::rt::{Host, HostLock, LockError};
use madsim::runtime::Handle;
use madsim::task::NodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// One machine that brokers may run on; one broker process at a time.
pub struct Machine {
    pub number: u32,
    pub node: NodeId,
    pub ip: IpAddr,
    pub clock: Arc<HostClock>,
    locks: Arc<Mutex<Locks>>,
}

#[derive(Default)]
struct Locks {
    /// Counts the boots: a lock of another boot proves nothing.
    boot: u32,
    held: BTreeMap<String, Arc<AtomicBool>>,
}

/// A process as the host's kernel knows it: alive, or not.
#[derive(Clone, Debug)]
pub struct Alive(Arc<AtomicBool>);

impl Alive {
    pub fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What one process sees of its host.
struct Seen {
    name: String,
    locks: Arc<Mutex<Locks>>,
    alive: Arc<AtomicBool>,
}

impl Machine {
    pub fn new(number: u32, drift_ppm: f64) -> Self {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 1, number as u8 + 1));
        let node = Handle::current().create_node().name(format!("host-{number}")).ip(ip).build();
        let uptime = Duration::from_secs(1000 + u64::from(number) * 77);
        let clock = Arc::new(HostClock::new(drift_ppm, uptime));
        Machine { number, node: node.id(), ip, clock, locks: Arc::default() }
    }

    /// The host's power comes back: another boot, with no locks.
    pub fn reboot(&self) {
        self.clock.reboot();
        let mut locks = self.locks.lock();
        locks.boot += 1;
        locks.held.clear();
    }

    /// A new process.
    pub fn process(&self) -> (Alive, Arc<dyn Host>) {
        let alive = Arc::new(AtomicBool::new(true));
        let seen = Seen { name: self.ip.to_string(), locks: self.locks.clone(), alive: alive.clone() };
        (Alive(alive), Arc::new(seen))
    }
}

#[async_trait]
impl Host for Seen {
    async fn lock(&self, name: &str) -> Result<HostLock, LockError> {
        let mut locks = self.locks.lock();
        let domain = format!("{}/{}/{name}", self.name, locks.boot);
        // The kernel ties a lock to its process: it ends with it, however that ends.
        if locks.held.get(name).is_some_and(|holder| holder.load(Ordering::Relaxed)) {
            return Err(LockError::Held(domain));
        }
        locks.held.insert(name.to_owned(), self.alive.clone());
        Ok(HostLock::new(domain, ()))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
