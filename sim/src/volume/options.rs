//! What kind of volume is played.

use serde::{Deserialize, Serialize};

/// Milliseconds, from and to, both included; each request draws from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span(pub f64, pub f64);

/// Who stands behind the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One host's own ext4-like file system: names are durable once the directory was synced.
    Local,
    /// NFS: UNSTABLE writes and COMMIT, close-to-open, attribute and name caches.
    Nfs,
    /// A coherent shared file system (CephFS-like): every host sees every other's writes at once, a
    /// write is durable once synced.
    Coherent,
}

/// The mount's options. All times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Options {
    pub kind: Kind,
    /// A soft mount gives up after that many milliseconds with EIO; `None` is a hard mount (nfs(5)).
    pub soft: Option<f64>,
    /// How long attributes, and pages validated by them, are believed (nfs(5), actimeo).
    pub actimeo: f64,
    /// How long names, and missing names, are believed (nfs(5), acdirmax, lookupcache=all).
    pub acdirmax: f64,
    /// Opening a directory asks the server whether the cached listing still holds, as Linux does. If not,
    /// listings are believed as long as names.
    pub fresh_lists: bool,
    /// The server keeps a file whose last name another client removed while it is open (an NFSv4 server
    /// of Linux does, until it restarts). If not, its users get ESTALE (NFSv3).
    pub keeps_open_files: bool,
    /// The server acknowledges COMMIT, and metadata operations, before they are durable (exports(5),
    /// async; of a local file system, a device that forgets its cache): a server that lies. It exists to prove that the checkers see it.
    pub lying: bool,
    /// Bytes.
    pub capacity: u64,
    /// How likely a page that a power cut finds being written is torn between sectors of 512 bytes, 0 to
    /// 1; local file systems only.
    pub torn: f64,
    /// Time of one request there and back, but for the ones that reach the media.
    pub latency: Span,
    /// Time of a request that reaches the media: COMMIT, a synchronous metadata change.
    pub sync: Span,
    /// After how long a host writes a dirty page back by itself, whether its process lives or not.
    pub writeback: Span,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            kind: Kind::Nfs,
            soft: None,
            actimeo: 3_000.0,
            acdirmax: 60_000.0,
            fresh_lists: false,
            keeps_open_files: false,
            lying: false,
            capacity: 4 << 30,
            torn: 0.125,
            latency: Span(0.2, 1.0),
            sync: Span(0.5, 4.0),
            writeback: Span(500.0, 30_000.0),
        }
    }
}
