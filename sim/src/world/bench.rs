//! A host of its own on which one broker at a time is started on a volume that is handed in: for what is tried beside
//! the life.

use super::host::Machine;
use super::process::{self, Running};
use super::{Shared, World, PORT};
use crate::history::History;
use crate::volume::{Model, Options};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

/// The bench's host number; life hosts are few.
const HOST: u32 = 90;

pub struct Bench {
    world: World,
    machine: Machine,
}

impl Bench {
    pub fn new(world: &World) -> Bench {
        Bench { world: world.clone(), machine: Machine::new(HOST, 0.0) }
    }

    /// The life's kind of volume.
    pub fn options(&self) -> Options {
        self.world.plan().volume.clone()
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        vec![SocketAddr::new(self.machine.ip, PORT)]
    }

    /// Starts a broker on `model`.
    pub fn start(&self, model: &Model, history: &History) -> Running {
        self.machine.reboot();
        let life = &self.world.0.shared;
        let shared = Shared {
            seed: life.seed,
            plan: life.plan.clone(),
            model: model.clone(),
            history: history.clone(),
        };
        process::start(&Arc::new(shared), 1, &self.machine)
    }

    pub fn end(&self, running: Running) {
        running.bury(&self.machine);
    }

    pub async fn at_desk<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) -> T {
        self.world.at_desk(what).await
    }
}
