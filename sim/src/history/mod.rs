//! What happened in one life, with true time: the ledger that the checkers read, and its hash.

use parking_lot::Mutex;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// Appends events of one life; clones write to the same history.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    events: Vec<(Duration, Event)>,
    hash: Xxh3,
}

#[derive(Clone, Debug, Hash)]
pub enum Event {
    /// Something that was done to the brokers, the network or the volume.
    World(String),
}

impl History {
    /// Appends an event at the present simulated time, which never goes back.
    pub fn record(&self, event: Event) {
        let now = madsim::time::TimeHandle::current().elapsed();
        let mut inner = self.0.lock();
        (now, &event).hash(&mut inner.hash);
        inner.events.push((now, event));
    }

    /// A hash of everything so far: equal for two runs of one seed, or replay is broken.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash.finish()
    }

    pub fn events(&self) -> Vec<(Duration, Event)> {
        self.0.lock().events.clone()
    }
}
