//! What a page shows, in the form that its script reads (`page/data.js`).
//!
//! All times are microseconds of simulated time. Names are one letter where a life has thousands of them, and
//! what is empty is left out, so that a page stays small.

use serde::{Deserialize, Serialize};

/// One life.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Life {
    pub meta: Meta,
    pub phases: Vec<Phase>,
    pub lanes: Vec<Lane>,
    pub items: Vec<Item>,
    pub violations: Vec<Violation>,
    pub partitions: Vec<Partition>,
    pub files: Vec<File>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    pub scenario: String,
    pub seed: u64,
    /// Of the whole history; equal for two runs of a seed.
    pub hash: String,
    /// In a few words, as `held` or `broken: P1 acked-durable`.
    pub verdict: String,
    pub duration: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command that makes this life again.
    pub replay: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    pub name: String,
    pub from: u64,
    pub to: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneKind {
    Client,
    Broker,
    Volume,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    pub kind: LaneKind,
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Of a broker; `o` is starting, serving, stalled, paused or dead.
    State,
    Lease,
    Fault,
    Produce,
    Read,
    /// Any other request of a client.
    Request,
    /// Of a broker's host on the volume.
    Op,
    Note,
}

/// Something on a lane: a moment, or a stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// The lane, by number.
    pub l: usize,
    pub k: Kind,
    /// From.
    pub f: u64,
    /// To; -1: it never ended. Absent: a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub t: Option<i64>,
    /// Outcome: `ok`, `refused` or `unanswered`; or a broker's state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub o: String,
    /// The partition, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<usize>,
    /// Base offset that was acknowledged or read, and the number of offsets from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub b: Option<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n: u64,
    /// What else there is to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub x: String,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Violation {
    /// As `P1`.
    pub promise: String,
    pub title: String,
    pub at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    pub text: String,
    /// The items that led there, by number, in the order of the story.
    pub events: Vec<usize>,
}

/// A partition and its marks over time, each as `[from when, …]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    pub name: String,
    /// High watermark and log start, as a client saw them.
    #[serde(default)]
    pub hwm: Vec<(u64, i64)>,
    #[serde(default)]
    pub start: Vec<(u64, i64)>,
    /// Recovery checkpoint: file, position, offset.
    #[serde(default)]
    pub checkpoint: Vec<(u64, usize, u64, i64)>,
}

/// A file of a partition and its bytes over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub path: String,
    pub part: usize,
    /// `log` for segments; else a word for what it is.
    pub role: String,
    /// Bytes of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<u64>,
    pub born: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<u64>,
    pub snaps: Vec<Snap>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<Batch>,
    /// Where a successor's manifest ends it: from when, position, offset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seals: Vec<(u64, u64, i64)>,
}

/// From when, the file's length, its bytes as runs, and 1 if a crash could take the name back.
///
/// A run is a number of bytes and a letter: `D` on disk, `S` only in the server's memory, `H` only in a host's
/// page cache, `T` on disk but torn, `L` lost, `Z` never written. Lost bytes past the end do not count for the
/// length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snap(pub u64, pub u64, pub String, #[serde(default)] pub u8);

/// Position, length in bytes, base offset, number of offsets, when it was first seen there, when it was gone
/// (-1: never), and flags: [`MARKER`], [`TORN`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch(pub u64, pub u64, pub i64, pub u64, pub u64, pub i64, pub u8);

/// A control batch: a transaction's marker.
pub const MARKER: u8 = 2;
/// Cut off, or its bytes are not what was written.
pub const TORN: u8 = 4;
