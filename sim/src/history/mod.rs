//! What happened in one life, with true time: the ledger that the checkers read, and its hash.
//!
//! Promises: events stand in the order in which they happened, each with the simulated time at which it was
//! recorded; two lives with the same events at the same times, volume operations included, have the same
//! hash. Recording draws no random number and takes no simulated time.
//!
//! It does not promise that what a client recorded is what the broker did: an event says what one side saw.

mod batch;
mod event;

pub use batch::{BatchInfo, BatchReader, HEADER_LEN};
pub use event::*;

use crate::volume::OpEvent;
use parking_lot::Mutex;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// The place of an event in its history.
pub type Index = usize;

/// An event, with the true time at which it was recorded.
#[derive(Clone, Debug)]
pub struct Stamped {
    pub at: Duration,
    pub event: Event,
}

/// Appends events of one life; clones write to the same history.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    events: Vec<Stamped>,
    /// Only kept if somebody is going to look at them: there are many.
    operations: Vec<OpEvent>,
    keeps_operations: bool,
    hash: Xxh3,
}

impl History {
    /// `record`: volume operations are kept, and not just hashed. A page that shows the life needs them, the
    /// checkers do not.
    pub fn new(record: bool) -> History {
        History(Arc::new(Mutex::new(Inner { keeps_operations: record, ..Inner::default() })))
    }

    /// Appends an event at the present simulated time, which never goes back.
    pub fn record(&self, event: Event) -> Index {
        let at = now();
        let mut inner = self.0.lock();
        (at, &event).hash(&mut inner.hash);
        inner.events.push(Stamped { at, event });
        inner.events.len() - 1
    }

    /// Appends an operation on the volume.
    pub fn record_operation(&self, operation: &OpEvent) {
        let mut inner = self.0.lock();
        operation.hash(&mut inner.hash);
        if inner.keeps_operations {
            inner.operations.push(operation.clone());
        }
    }

    /// A hash of everything so far: equal for two runs of one seed, or replay is broken.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash.finish()
    }

    /// Events so far.
    #[allow(clippy::len_without_is_empty)] // no history is empty for long
    pub fn len(&self) -> usize {
        self.0.lock().events.len()
    }

    pub fn events(&self) -> Vec<Stamped> {
        self.0.lock().events.clone()
    }

    /// All events; the history is empty afterwards, but for its hash.
    pub fn take_events(&self) -> Vec<Stamped> {
        std::mem::take(&mut self.0.lock().events)
    }

    pub fn operations(&self) -> Vec<OpEvent> {
        self.0.lock().operations.clone()
    }
}

/// True time since the life began, whatever the clocks of its nodes say.
pub fn now() -> Duration {
    madsim::time::TimeHandle::current().elapsed()
}
