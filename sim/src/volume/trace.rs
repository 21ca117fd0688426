//! What was asked of the volume, for whoever watches: the history's hash, the checkers, the viewer.

use super::fault::Op;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Done,
    /// An error number (errno(3)).
    Failed(i32),
    /// The asking process was dead when its operation ended.
    Orphaned,
}

/// Who waited for the operation when it took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sender {
    Waiting,
    /// The caller had given up, its process lived.
    GaveUp,
    /// The process was dead: this is what a successor must expect.
    Dead,
}

/// One operation of a process, or of a host by itself ([`Op::WriteBack`]), at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpEvent {
    pub host: u32,
    /// For a write-back: who wrote last.
    pub process: u32,
    pub op: Op,
    pub path: String,
    /// The new path of a rename.
    pub to: Option<String>,
    /// Position and length, for reads, writes and truncations; else 0.
    pub pos: u64,
    pub len: u64,
    pub started: Duration,
    /// From when to when a stall held it.
    pub held: Option<(Duration, Duration)>,
    /// When it took effect on the server, if it sent a request that did.
    pub landed: Option<Duration>,
    pub ended: Duration,
    pub outcome: Outcome,
    pub sender: Sender,
}

impl OpEvent {
    /// Whether it took effect after its sender had died.
    pub fn landed_after_death(&self) -> bool {
        self.landed.is_some() && self.sender == Sender::Dead
    }
}

/// What was asked, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub opens: u64,
    pub reads: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub syncs: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, o: Counts) {
        self.opens += o.opens;
        self.reads += o.reads;
        self.bytes_read += o.bytes_read;
        self.writes += o.writes;
        self.bytes_written += o.bytes_written;
        self.syncs += o.syncs;
    }
}
