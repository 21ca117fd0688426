//! The surroundings of a broker: time, randomness, tasks, the host.
//!
//! This is the one module that knows of madsim. Everything else takes what is
//! defined here by argument, so that the simulator can hand in its own, and
//! spawns through `tokio`, which *is* madsim in the simulated build.

#![allow(clippy::disallowed_methods)] // the operating system is reached here

mod clock;
mod entropy;
mod fs;
mod host;
mod net;
mod vital;

/// Marks a place that the simulator's seeds are to reach: a trace event, so that it costs a comparison where nobody
/// listens, and needs no state.
#[macro_export]
macro_rules! reached {
    ($mark:literal) => {
        tracing::trace!(target: "reached", mark = $mark)
    };
}

pub use clock::{Clock, OsClock};
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use fs::{fs_kind, FsKind};
#[cfg(not(madsim))]
pub use host::OsHost;
pub use host::{Host, HostLock, LockError, SoloHost};
pub use net::tune_connection;
pub use vital::Vital;

use crate::volume::Volume;
use std::sync::Arc;

/// Everything that a broker takes from its surroundings.
#[derive(Clone)]
pub struct Env {
    pub volume: Arc<dyn Volume>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub host: Arc<dyn Host>,
}
