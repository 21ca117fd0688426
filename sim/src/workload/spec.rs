//! Who uses the broker, as a scenario file says it: `[[topic]]` and `[[client]]` tables.
//!
//! ```toml
//! [[client]]
//! kind = "producer"
//! count = 3
//! rate = 10              # requests a second; or [5, 20]: each client draws its own
//! idempotent = true
//!
//! [[client]]
//! kind = "consumer"
//! from = "tail"
//! ```

use rand::rngs::SmallRng;
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A number, or two between which one is drawn, both included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Range {
    One(f64),
    Between([f64; 2]),
}

impl Range {
    pub fn draw(&self, rng: &mut SmallRng) -> f64 {
        match *self {
            Range::One(n) => n,
            Range::Between([from, to]) if from < to => rng.gen_range(from..=to),
            Range::Between([from, _]) => from,
        }
    }

    /// A whole number: both ends are as likely as the rest.
    pub fn whole(&self, rng: &mut SmallRng) -> u64 {
        match *self {
            Range::One(n) => n as u64,
            Range::Between([from, to]) if from < to => rng.gen_range(from as u64..=to as u64),
            Range::Between([from, _]) => from as u64,
        }
    }

    pub fn millis(&self, rng: &mut SmallRng) -> Duration {
        Duration::from_micros((self.draw(rng) * 1000.0) as u64)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TopicSpec {
    pub name: String,
    #[serde(default = "one")]
    pub partitions: i32,
    /// By Kafka's names.
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
}

fn one() -> i32 {
    1
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Spec {
    Producer(Producer),
    Consumer(Consumer),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Producer {
    /// So many of them.
    pub count: u32,
    /// Empty: all topics.
    pub topics: Vec<String>,
    /// Requests a second.
    pub rate: Range,
    /// Records per batch.
    pub records: Range,
    /// Bytes per value, drawn for each.
    pub value_bytes: Range,
    /// -1 (all), 1 or 0.
    pub acks: i16,
    /// Batches are numbered, and what got no acknowledgement is sent again until it does.
    pub idempotent: bool,
    /// Requests under way at a time: 1 to 5.
    pub in_flight: Range,
    /// How likely a batch claims to be compressed and holds bytes that no codec understands.
    pub opaque: f64,
    /// After how many milliseconds a request without an answer is given up. Unset: later than any broker may
    /// keep it.
    pub timeout_ms: Option<Range>,
}

impl Default for Producer {
    fn default() -> Self {
        Producer {
            count: 1,
            topics: Vec::new(),
            rate: Range::One(10.0),
            records: Range::Between([1.0, 5.0]),
            value_bytes: Range::Between([20.0, 500.0]),
            acks: -1,
            idempotent: false,
            in_flight: Range::Between([1.0, 5.0]),
            opaque: 0.0,
            timeout_ms: None,
        }
    }
}

/// Where a consumer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum From {
    /// From the end on.
    Tail,
    /// From the beginning on.
    Start,
    /// From the beginning on, with jumps.
    Seek,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Consumer {
    pub count: u32,
    /// Empty: all topics.
    pub topics: Vec<String>,
    pub from: From,
    /// Bytes asked for per partition, drawn for each request.
    pub max_bytes: Range,
    /// Milliseconds that the broker may wait for records, drawn for each request.
    pub max_wait_ms: Range,
    /// Milliseconds between two requests.
    pub pause_ms: Range,
    pub timeout_ms: Option<Range>,
}

impl Default for Consumer {
    fn default() -> Self {
        Consumer {
            count: 1,
            topics: Vec::new(),
            from: From::Start,
            max_bytes: Range::Between([1.0, 65_536.0]),
            max_wait_ms: Range::Between([10.0, 500.0]),
            pause_ms: Range::Between([10.0, 100.0]),
            timeout_ms: None,
        }
    }
}
