//! The promises P1-P13, held against what happened and what is left on the media.
//!
//! What a checker may lean on: the history (what clients sent, got and did not get, with true time), and what
//! the world hands in beside it ([`Evidence`]). None of it shares code with the broker. What a checker must
//! never do is cry wolf: a request without an answer may have taken effect or not, may take it later, and never
//! counts as either; a topic is its id and not its name; what retention or DeleteRecords removed is gone lawfully.
//!
//! Each checker takes time near linear in the number of events.

mod bystanders;
mod deposed;
mod epochs;
mod groups;
mod leaders;
mod ledger;
mod log;
mod lookup;
mod marks;
pub mod media;
mod recovery;
mod removal;
mod retention;
mod sequences;
mod succession;
mod tidy;
mod transactions;
mod waits;

#[cfg(test)]
mod bed;

use crate::history::{Index, Stamped};
use bytes::Bytes;
use ledger::Ledger;
use std::collections::BTreeMap;
use std::time::Duration;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `P1` to `P13`, as in the design.
    pub promise: &'static str,
    /// When it was seen, in simulated time.
    pub at: Duration,
    /// One line.
    pub what: String,
    /// The events that show it.
    pub events: Vec<Index>,
}

/// How durable an acknowledgement is (`flush.messages`, `flush.ms`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    /// 1: what is acknowledged or shown is on the media.
    Durable,
    /// Above 1: up to so many records of a partition may be unflushed, for so long, and a crash of a host or of
    /// the volume's server takes them.
    PageCache { messages: u64, ms: Duration },
}

/// What the brokers and the volume were set to.
#[derive(Clone, Debug)]
pub struct Terms {
    pub lease: Duration,
    /// `storage.sync.timeout.ms`: the watchdog.
    pub sync_timeout: Duration,
    /// What the network may add to an answer's time while it is sound.
    pub network: Duration,
    pub dial: Dial,
    /// `storage.group.bytes`.
    pub group_bytes: u64,
    /// `storage.checkpoint.bytes`.
    pub checkpoint_bytes: u64,
    /// How long records are kept where a topic does not say: `log.retention.ms` and `log.retention.bytes`.
    pub retention_ms: Option<Duration>,
    pub retention_bytes: Option<u64>,
    /// Wall time when the life begins, in milliseconds.
    pub wall_ms: i64,
    /// How fast at most a broker's clock drifts against true time, in parts per million.
    pub drift_ppm: f64,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            lease: Duration::from_secs(10),
            sync_timeout: Duration::from_secs(30),
            network: Duration::from_secs(1),
            dial: Dial::Durable,
            group_bytes: 4 << 20,
            checkpoint_bytes: 64 << 20,
            retention_ms: Some(Duration::from_secs(7 * 24 * 3600)),
            retention_bytes: None,
            wall_ms: 0,
            drift_ppm: 0.0,
        }
    }
}

/// A file that a process holds open after everything settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenHandle {
    pub process: String,
    /// Whether this process leads (or, with one broker, is the one that lives).
    pub is_leader: bool,
    pub path: String,
    /// The file was unlinked some seconds ago, and takes room for as long as it is open.
    pub is_unlinked: bool,
}

/// How much of a partition's log was read before the partition served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    pub at: Duration,
    /// The partition's directory.
    pub dir: String,
    /// The life before ended cleanly.
    pub after_clean_close: bool,
    /// Bytes of log that lay past the last checkpoint that was durable when the opening began.
    pub past_checkpoint: u64,
    /// Bytes of log files that were read, each counted once however often it was.
    pub log_bytes_read: u64,
}

/// Everything that is known of a life.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub history: Vec<Stamped>,
    /// The files as the media has them: what a power cut of everything would leave.
    pub media: BTreeMap<String, Bytes>,
    /// The files as a process sees them.
    pub shown: BTreeMap<String, Bytes>,
    pub handles: Vec<OpenHandle>,
    pub openings: Vec<Opening>,
    /// The brokers' count of records opened where none may be (P9), over all lives.
    pub records_opened: u64,
    pub terms: Terms,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The earliest first.
    pub violations: Vec<Violation>,
    /// Records that were acknowledged and are gone, as a dial above 1 allows.
    pub lost_records: u64,
}

/// Every broken promise, the earliest first.
pub fn all(evidence: &Evidence) -> Vec<Violation> {
    judge(evidence).violations
}

pub fn judge(evidence: &Evidence) -> Verdict {
    let ledger = Ledger::new(evidence);
    let txns = transactions::Txns::new(&ledger);
    let mut verdict = Verdict::default();
    log::check(&ledger, &mut verdict);
    removal::check(&ledger, &mut verdict);
    sequences::check(&ledger, &mut verdict);
    epochs::check(&ledger, &mut verdict);
    deposed::check(&ledger, &mut verdict);
    marks::check(&ledger, &mut verdict);
    groups::check(&ledger, &txns, &mut verdict);
    leaders::check(&ledger, &mut verdict);
    lookup::check(&ledger, &mut verdict);
    recovery::check(&ledger, &mut verdict);
    bystanders::check(&ledger, &mut verdict);
    succession::check(&ledger, &mut verdict);
    waits::check(&ledger, &mut verdict);
    tidy::check(&ledger, &mut verdict);
    transactions::check(&ledger, &txns, &mut verdict);
    verdict.violations.sort_by_key(|v| v.at);
    verdict
}

impl Verdict {
    fn broken(&mut self, promise: &'static str, at: Duration, what: String, events: Vec<Index>) {
        self.violations.push(Violation { promise, at, what, events });
    }
}
