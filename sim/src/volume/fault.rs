//! What can be done to a volume while it is used.
//!
//! A fault is put in and taken out again; what it holds is then let go. All of them can be written in
//! a scenario file.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(pub u64);

/// An operation of the `Volume` trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    Open,
    Create,
    Read,
    Write,
    Sync,
    Len,
    Truncate,
    Rename,
    Unlink,
    ReadDir,
    Mkdir,
    Rmdir,
    SyncDir,
    Space,
}

/// Which requests a fault touches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Ops {
    /// Empty: all operations.
    pub ops: Vec<Op>,
    /// Only paths that contain this.
    pub path: String,
    /// How likely each matching request is hit, 0 to 1.
    pub p: f64,
}

/// Who is hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    #[default]
    All,
    /// The host with that number.
    Host(u32),
}
