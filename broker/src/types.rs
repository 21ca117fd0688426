//! Newtypes that keep offsets, epochs and byte positions from being mixed up.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A record's position in a partition (Kafka: *offset*). Never negative for a stored record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub i64);

impl Offset {
    pub const ZERO: Offset = Offset(0);

    /// The offset `n` records further on. Saturates, so that no outside number can overflow it.
    pub fn plus(self, n: i64) -> Offset {
        Offset(self.0.saturating_add(n))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A byte position in one segment file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pos(pub u64);

impl Pos {
    pub const ZERO: Pos = Pos(0);

    pub fn plus(self, n: u64) -> Pos {
        Pos(self.0.saturating_add(n))
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A leader epoch of a partition or a slot (KIP-101). It stands in file names as eight hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u32);

impl Epoch {
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }

    /// The first epoch of the next assignment of the partition. Between two assignments there is room for 256 openings, so
    /// that a leader that opens again, by itself, stays below whoever is assigned after it.
    pub fn of_next_assignment(self) -> Epoch {
        const ROOM: u32 = 256;
        Epoch((self.0 / ROOM + 1).saturating_mul(ROOM))
    }

    /// As Kafka's wire has it: a signed 32-bit number.
    pub fn wire(self) -> i32 {
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// A broker's id (Kafka: `node.id`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BrokerId(pub i32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A topic's incarnation (KIP-516). A recreated topic gets another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicId(pub uuid::Uuid);

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}
