//! The storage engine: partitions as epoch-named segment files on one shared volume.
//!
//! It knows no Kafka request. It takes record batches as opaque bytes, of which it reads the fixed-size
//! header only, and gives them back as they came.

mod api;
pub mod batch;
mod engine;
mod partition;

pub use api::*;
pub use engine::Engine;
pub use partition::{Partition, Ticket, WatchGuard};
