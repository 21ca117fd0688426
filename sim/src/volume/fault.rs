//! What can be done to a volume while it is used.
//!
//! A fault is put in and taken out again; what it holds is then let go. All of them can be written in
//! a scenario file.

use super::options::Span;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(pub u64);

/// An operation of the `Volume` trait, or one that a host does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    Open,
    Create,
    Read,
    /// Also the WRITE requests that a sync or a write-back sends.
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
    /// A host writes dirty pages back by itself.
    WriteBack,
}

impl Op {
    /// As it stands in a `VolumeError`.
    pub fn name(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Create => "create",
            Op::Read => "read",
            Op::Write => "write",
            Op::Sync => "sync",
            Op::Len => "len",
            Op::Truncate => "truncate",
            Op::Rename => "rename",
            Op::Unlink => "unlink",
            Op::ReadDir => "readdir",
            Op::Mkdir => "mkdir",
            Op::Rmdir => "rmdir",
            Op::SyncDir => "syncdir",
            Op::Space => "statvfs",
            Op::WriteBack => "writeback",
        }
    }
}

/// Which requests a fault touches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Ops {
    /// Empty: all operations.
    pub ops: Vec<Op>,
    /// Only paths that contain this.
    pub path: String,
    /// Only paths that end with this.
    pub suffix: String,
    /// How likely each matching request is hit, 0 to 1.
    pub p: f64,
}

impl Default for Ops {
    fn default() -> Self {
        Ops { ops: Vec::new(), path: String::new(), suffix: String::new(), p: 1.0 }
    }
}

impl Ops {
    pub fn of(ops: &[Op]) -> Self {
        Ops { ops: ops.to_vec(), ..Ops::default() }
    }

    pub fn on(self, path: &str) -> Self {
        Ops { path: path.to_owned(), ..self }
    }

    fn matches(&self, op: Op, paths: &[&str]) -> bool {
        let named = |p: &&str| p.contains(&self.path) && p.ends_with(&self.suffix);
        (self.ops.is_empty() || self.ops.contains(&op)) && paths.iter().any(named)
    }
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

impl Scope {
    pub fn holds(self, host: u32) -> bool {
        match self {
            Scope::All => true,
            Scope::Host(h) => h == host,
        }
    }
}

/// An error number of errno(3), by its name in a scenario file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorName {
    EIO,
    ENOSPC,
    EDQUOT,
    ESTALE,
    ENOENT,
    EBUSY,
    ETIMEDOUT,
    EACCES,
    EROFS,
}

impl From<ErrorName> for rustix::io::Errno {
    fn from(name: ErrorName) -> Self {
        match name {
            ErrorName::EIO => Self::IO,
            ErrorName::ENOSPC => Self::NOSPC,
            ErrorName::EDQUOT => Self::DQUOT,
            ErrorName::ESTALE => Self::STALE,
            ErrorName::ENOENT => Self::NOENT,
            ErrorName::EBUSY => Self::BUSY,
            ErrorName::ETIMEDOUT => Self::TIMEDOUT,
            ErrorName::EACCES => Self::ACCESS,
            ErrorName::EROFS => Self::ROFS,
        }
    }
}

/// When a full volume says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullAt {
    /// At the write, which may be short first: a local file system.
    Write,
    /// When the bytes reach the server, which is at the sync: NFS.
    Sync,
    /// As `Sync`, and no write-back finds out before.
    Close,
}

/// Something that goes wrong until it is lifted, or once.
///
/// An operation that the host answers from its own cache sends no request, and no fault of requests
/// touches it; `Fail`, `Gone` and `Short` touch the call itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Requests wait until this is lifted, then take effect, even if their sender is dead by then.
    Stall {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
    },
    /// A request takes effect that long after it was sent; the sender waits, as on a hard mount, and
    /// if it dies the request still lands.
    Late {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
        by: Span,
    },
    /// The reply takes that much longer; the effect does not.
    Slow {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
        by: Span,
    },
    /// The request is executed and the reply lost; the client sends it again after `by`, and it is
    /// executed again: RENAME and UNLINK then find nothing. Whether an exclusive CREATE is known
    /// again by its verifier (RFC 8881, 18.16.3), `verifier` says.
    LostReply {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
        #[serde(default = "retransmission")]
        by: Span,
        #[serde(default = "yes")]
        verifier: bool,
    },
    /// Operations fail without effect; but a failed sync leaves the pages clean, readable and, for
    /// ever, not on the media.
    Fail {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
        errno: ErrorName,
    },
    /// As `Fail`, but a sync is never hit: what is there seems not to be, for a while.
    Gone {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
        errno: ErrorName,
    },
    /// Writes take between so many and so many bytes at most.
    Short {
        #[serde(default)]
        scope: Scope,
        #[serde(default)]
        ops: Ops,
        bytes: [u64; 2],
    },
    /// The volume has that many bytes.
    Capacity {
        bytes: u64,
        at: FullAt,
        #[serde(default = "no_space")]
        errno: ErrorName,
    },
    /// A host writes nothing back by itself.
    HoldWriteback {
        #[serde(default)]
        scope: Scope,
    },
    /// Once: so many bits flip on the media, in files whose path contains `path`. Clean cached pages
    /// are dropped, so that readers see it.
    /// The last `spare` bytes of each file are left alone: what rots there can't be told from a torn end.
    Rot {
        path: String,
        flips: u32,
        #[serde(default)]
        spare: u64,
    },
    /// Once: the server restarts and forgets what it had not committed.
    ServerRestart,
    /// Once: a host loses power.
    PowerCut { host: u32 },
}

fn retransmission() -> Span {
    Span(50.0, 2_000.0)
}

fn yes() -> bool {
    true
}

fn no_space() -> ErrorName {
    ErrorName::ENOSPC
}

impl Fault {
    /// Whose requests, and which.
    pub(super) fn matches(&self, host: u32, op: Op, paths: &[&str]) -> bool {
        match self {
            Fault::Stall { scope, ops }
            | Fault::Late { scope, ops, .. }
            | Fault::Slow { scope, ops, .. }
            | Fault::LostReply { scope, ops, .. }
            | Fault::Fail { scope, ops, .. }
            | Fault::Gone { scope, ops, .. }
            | Fault::Short { scope, ops, .. } => scope.holds(host) && ops.matches(op, paths),
            Fault::HoldWriteback { scope } => scope.holds(host) && op == Op::WriteBack,
            Fault::Capacity { .. } | Fault::Rot { .. } | Fault::ServerRestart | Fault::PowerCut { .. } => {
                false
            }
        }
    }

    pub(super) fn p(&self) -> f64 {
        match self {
            Fault::Stall { ops, .. }
            | Fault::Late { ops, .. }
            | Fault::Slow { ops, .. }
            | Fault::LostReply { ops, .. }
            | Fault::Fail { ops, .. }
            | Fault::Gone { ops, .. }
            | Fault::Short { ops, .. } => ops.p,
            _ => 1.0,
        }
    }
}
