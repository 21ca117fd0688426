//! Stories about one partition on a volume in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // a test support: it fails by panicking

mod bed;
mod cases;
mod checkpoints;
mod crashes;
mod stalls;
mod successors;
mod transactions;
mod verify;
