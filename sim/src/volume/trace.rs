//! What was asked of the volume, for whoever watches: the history's hash, the checkers, the viewer.

use super::fault::Op;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Done,
    /// An error number (errno(3)).
    Failed(i32),
    /// The asking process died first.
    Orphaned,
}

/// One operation of a process, at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpEvent {
    pub host: u32,
    pub process: u32,
    pub op: Op,
    pub path: String,
    /// Position and length, for reads, writes and truncations; else 0.
    pub pos: u64,
    pub len: u64,
    pub started: Duration,
    pub ended: Duration,
    pub outcome: Outcome,
}
