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

mod transactions;

pub use transactions::{Fortune, Pipeline, Transactional};

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
    /// Members of a consumer group.
    #[serde(rename = "group")]
    Member(Member),
    Committer(Committer),
    Admin(Admin),
    Lookup(Lookup),
    Transactional(Transactional),
    Pipeline(Pipeline),
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
    /// After how many milliseconds an idempotent one begins anew, with another producer id, as a process does
    /// that is started again. Unset: never by itself.
    pub anew_ms: Option<Range>,
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
            anew_ms: None,
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

/// Whether a consumer is shown what no transaction has decided yet, or was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    Uncommitted,
    Committed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Consumer {
    pub count: u32,
    /// Empty: all topics.
    pub topics: Vec<String>,
    pub from: From,
    pub isolation: Isolation,
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
            isolation: Isolation::Uncommitted,
            max_bytes: Range::Between([1.0, 65_536.0]),
            max_wait_ms: Range::Between([10.0, 500.0]),
            pause_ms: Range::Between([10.0, 100.0]),
            timeout_ms: None,
        }
    }
}

/// A member of a classic consumer group: joins, consumes, commits, leaves, and joins again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Member {
    pub count: u32,
    pub group: String,
    /// Empty: all topics.
    pub topics: Vec<String>,
    pub session_ms: Range,
    /// How long the others may take to join again.
    pub rebalance_ms: Range,
    pub heartbeat_ms: Range,
    /// Milliseconds between two commits.
    pub commit_ms: Range,
    /// Whether it comes and goes, or stays to the end.
    pub churn: bool,
    /// Milliseconds until it leaves.
    pub stay_ms: Range,
    /// Milliseconds until it is back.
    pub away_ms: Range,
    /// How likely it goes without a word, and the group has to find out.
    pub vanish: f64,
    /// How likely it commits once more in the name that it had before, each time that it is back or has joined
    /// again: as a process does that slept through its own end.
    pub ghost: f64,
}

impl Default for Member {
    fn default() -> Self {
        Member {
            count: 1,
            group: "group".into(),
            topics: Vec::new(),
            session_ms: Range::One(6000.0),
            rebalance_ms: Range::One(6000.0),
            heartbeat_ms: Range::Between([300.0, 1500.0]),
            commit_ms: Range::Between([100.0, 2000.0]),
            churn: false,
            stay_ms: Range::Between([1000.0, 15_000.0]),
            away_ms: Range::Between([100.0, 3000.0]),
            vanish: 0.2,
            ghost: 0.0,
        }
    }
}

/// Commits offsets to a group that has no members, and asks for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Committer {
    pub count: u32,
    /// All of them share it; empty: each has its own.
    pub group: String,
    pub topics: Vec<String>,
    /// Commits a second.
    pub rate: Range,
    /// How likely it asks instead of committing.
    pub ask: f64,
    /// How likely it asks for what no open transaction may change any more.
    pub stable: f64,
    pub timeout_ms: Option<Range>,
}

impl Default for Committer {
    fn default() -> Self {
        Committer {
            count: 1,
            group: String::new(),
            topics: Vec::new(),
            rate: Range::Between([1.0, 10.0]),
            ask: 0.3,
            stable: 0.0,
            timeout_ms: None,
        }
    }
}

/// Something that an admin does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deed {
    /// Deletes a topic and makes it anew under the same name.
    Recreate,
    /// Makes a topic of its own and deletes the one that it made before.
    CreateDelete,
    CreatePartitions,
    DeleteRecords,
    /// Sets `retention.ms` or `retention.bytes`, or takes it away.
    AlterConfigs,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Admin {
    pub count: u32,
    /// Empty: all topics.
    pub topics: Vec<String>,
    /// One of these is drawn each time.
    pub does: Vec<Deed>,
    /// Deeds a second.
    pub rate: Range,
    /// No topic is made larger than this.
    pub max_partitions: i32,
    pub retention_ms: Range,
    pub retention_bytes: Range,
    pub timeout_ms: Option<Range>,
}

impl Default for Admin {
    fn default() -> Self {
        Admin {
            count: 1,
            topics: Vec::new(),
            does: vec![Deed::DeleteRecords],
            rate: Range::Between([0.3, 3.0]),
            max_partitions: 8,
            retention_ms: Range::Between([500.0, 20_000.0]),
            retention_bytes: Range::Between([1.0, 100_000.0]),
            timeout_ms: None,
        }
    }
}

/// Asks which offset belongs to a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Lookup {
    pub count: u32,
    pub topics: Vec<String>,
    /// Questions a second.
    pub rate: Range,
    /// How likely it asks for the beginning or the end of the log instead.
    pub ends: f64,
    pub timeout_ms: Option<Range>,
}

impl Default for Lookup {
    fn default() -> Self {
        Lookup { count: 1, topics: Vec::new(), rate: Range::One(2.0), ends: 0.0, timeout_ms: None }
    }
}

impl Spec {
    pub(in crate::workload) fn count(&self) -> u32 {
        match self {
            Spec::Producer(s) => s.count,
            Spec::Consumer(s) => s.count,
            Spec::Member(s) => s.count,
            Spec::Committer(s) => s.count,
            Spec::Admin(s) => s.count,
            Spec::Lookup(s) => s.count,
            Spec::Transactional(s) => s.count,
            Spec::Pipeline(s) => s.count,
        }
    }

    pub(in crate::workload) fn timeout(&self) -> Option<Range> {
        match self {
            Spec::Producer(s) => s.timeout_ms,
            Spec::Consumer(s) => s.timeout_ms,
            Spec::Member(_) => None,
            Spec::Committer(s) => s.timeout_ms,
            Spec::Admin(s) => s.timeout_ms,
            Spec::Lookup(s) => s.timeout_ms,
            Spec::Transactional(s) => s.timeout_ms,
            Spec::Pipeline(s) => s.timeout_ms,
        }
    }

    pub(in crate::workload) fn name(&self) -> &'static str {
        match self {
            Spec::Producer(_) => "producer",
            Spec::Consumer(_) => "consumer",
            Spec::Member(_) => "group",
            Spec::Committer(_) => "committer",
            Spec::Admin(_) => "admin",
            Spec::Lookup(_) => "lookup",
            Spec::Transactional(_) => "transactional",
            Spec::Pipeline(_) => "pipeline",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[derive(Deserialize)]
    struct File {
        client: Vec<Spec>,
    }

    #[test]
    fn a_scenario_file_says_who_uses_the_broker() {
        let file: File = toml::from_str(
            "[[client]]\nkind = 'producer'\nrate = [5, 20]\nin-flight = 1\n[[client]]\nkind = 'admin'\ndoes = ['recreate']",
        )
        .expect("it reads");
        let Spec::Producer(p) = &file.client[0] else { panic!("a producer") };
        assert_eq!((p.rate, p.in_flight), (Range::Between([5.0, 20.0]), Range::One(1.0)));
        let text = toml::to_string(&file.client[1]).expect("it writes");
        assert_eq!(toml::from_str::<Spec>(&text).expect("it reads back"), file.client[1]);
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        assert!(toml::from_str::<Spec>("kind = 'producer'\nratee = 3").is_err());
    }

    #[test]
    fn a_range_draws_within_its_ends() {
        let mut rng = SmallRng::seed_from_u64(1);
        let drawn: Vec<u64> = (0..100).map(|_| Range::Between([1.0, 3.0]).whole(&mut rng)).collect();
        assert!(drawn.iter().all(|n| (1..=3).contains(n)) && drawn.contains(&1) && drawn.contains(&3));
        assert_eq!(Range::One(2.5).draw(&mut rng), 2.5);
    }
}
