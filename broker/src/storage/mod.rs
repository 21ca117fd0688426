//! The storage engine: partitions as epoch-named segment files on one shared volume.
//!
//! It knows no Kafka request. It takes record batches as opaque bytes, of which it reads the fixed-size
//! header only, and gives them back as they came.
//!
//! ```text
//! engine      all partitions; background opening and retention
//! partition   one partition's life and published view
//!   queue       appends that wait, and who waits for them
//!   lifecycle   opening, installing, clean stop
//!   committer   group commit: write, sync, publish, answer
//!   pace        when the next group is worth a wait
//!   maintain    checkpoints, log start, retention
//!   read        fetches and lookups
//! recovery    claim, scan, seal, copy the doubtful tail
//! verify      checking a directory offline; glance: who claims it, and nothing else
//! scan        walking a segment file
//! transactions, marker, aborted: which transactions are open, how they end, which were aborted
//! segment, index, producers, batch, records, names, docs, handles, guarded: parts of these
//! ```

pub mod aborted;
mod api;
pub mod batch;
mod committer;
pub mod docs;
mod engine;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod glance;
mod guarded;
mod handles;
pub mod index;
mod lifecycle;
mod maintain;
pub mod marker;
pub mod names;
mod pace;
mod partition;
pub mod producers;
mod queue;
mod read;
pub mod records;
pub mod recovery;
pub mod scan;
mod segment;
pub mod transactions;
pub mod verify;

pub use aborted::Aborted;
pub use api::*;
pub use engine::Engine;
pub use partition::{Partition, WatchGuard};
pub use queue::Ticket;
pub use transactions::{Marker, MarkerError, Question};

#[cfg(test)]
pub(crate) mod tests;
