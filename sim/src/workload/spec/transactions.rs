//! Clients that write transactions, as a scenario file says it.
//!
//! ```toml
//! [[client]]
//! kind = "transactional"
//! fortune = { commit = 0.7, crash = 0.1, zombie = 0.1, late = 0.1 }
//! ```

use super::Range;
use serde::{Deserialize, Serialize};

/// What befalls a transactional client, and how it speaks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Fortune {
    /// How likely an incarnation speaks transaction.version 2 (KIP-890), and not 1.
    pub version_2: f64,
    /// After how many milliseconds the coordinator aborts a transaction by itself.
    pub transaction_ms: Range,
    /// How likely a transaction is meant to be committed.
    pub commit: f64,
    /// Milliseconds between two steps of a transaction.
    pub step_ms: Range,
    /// How likely the client crashes in the middle of a transaction.
    pub crash: f64,
    /// How likely it falls asleep in the middle of one and goes on later as if nothing had been, while
    /// another incarnation takes its place.
    pub zombie: f64,
    /// Milliseconds that it sleeps.
    pub sleep_ms: Range,
    /// Milliseconds until the next incarnation is there.
    pub back_ms: Range,
    /// How likely a request (an EndTxn above all) is under way for long.
    pub late: f64,
    /// For how many milliseconds.
    pub late_ms: Range,
}

impl Default for Fortune {
    fn default() -> Self {
        Fortune {
            version_2: 0.5,
            transaction_ms: Range::Between([4000.0, 15_000.0]),
            commit: 0.7,
            step_ms: Range::Between([0.0, 100.0]),
            crash: 0.0,
            zombie: 0.0,
            sleep_ms: Range::Between([200.0, 20_000.0]),
            back_ms: Range::Between([0.0, 2000.0]),
            late: 0.0,
            late_ms: Range::Between([50.0, 15_000.0]),
        }
    }
}

/// Writes transactions over several partitions, and perhaps commits offsets in them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Transactional {
    pub count: u32,
    /// Empty: all topics.
    pub topics: Vec<String>,
    /// All of them take turns in it, each fencing the one before; empty: each has its own.
    pub id: String,
    /// Milliseconds between two transactions.
    pub gap_ms: Range,
    /// Rounds of batches in a transaction.
    pub rounds: Range,
    /// Partitions that a round writes to, side by side.
    pub width: Range,
    pub records: Range,
    pub value_bytes: Range,
    /// Commits offsets of this group in each transaction, from outside; empty: none.
    pub group: String,
    pub fortune: Fortune,
    pub timeout_ms: Option<Range>,
}

impl Default for Transactional {
    fn default() -> Self {
        Transactional {
            count: 1,
            topics: Vec::new(),
            id: String::new(),
            gap_ms: Range::Between([0.0, 400.0]),
            rounds: Range::Between([1.0, 4.0]),
            width: Range::Between([1.0, 3.0]),
            records: Range::Between([1.0, 4.0]),
            value_bytes: Range::Between([20.0, 300.0]),
            group: String::new(),
            fortune: Fortune::default(),
            timeout_ms: None,
        }
    }
}

/// A member of a group that makes records of records: its outputs and the group's offsets move together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Pipeline {
    pub count: u32,
    pub group: String,
    /// Topics that it reads.
    pub from: Vec<String>,
    /// Topics that it writes.
    pub to: Vec<String>,
    pub session_ms: Range,
    pub rebalance_ms: Range,
    pub heartbeat_ms: Range,
    /// Bytes that it takes from a partition at a time.
    pub max_bytes: Range,
    pub value_bytes: Range,
    /// Whether it comes and goes, or stays to the end.
    pub churn: bool,
    pub stay_ms: Range,
    pub fortune: Fortune,
    pub timeout_ms: Option<Range>,
}

impl Default for Pipeline {
    fn default() -> Self {
        Pipeline {
            count: 1,
            group: "pipeline".into(),
            from: vec!["in".into()],
            to: vec!["out".into()],
            session_ms: Range::One(6000.0),
            rebalance_ms: Range::One(6000.0),
            heartbeat_ms: Range::Between([300.0, 1500.0]),
            max_bytes: Range::Between([1.0, 8192.0]),
            value_bytes: Range::Between([20.0, 100.0]),
            churn: false,
            stay_ms: Range::Between([3000.0, 15_000.0]),
            fortune: Fortune { commit: 0.95, ..Fortune::default() },
            timeout_ms: None,
        }
    }
}
