//! Stories about one partition on a volume in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // a test support: it fails by panicking

mod aborted_lists;
pub(crate) mod bed;
mod cases;
mod checkpoints;
mod crashes;
mod histories;
mod stalls;
mod successors;
pub(crate) mod transactions;
mod verify;
