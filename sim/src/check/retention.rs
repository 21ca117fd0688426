//! How long a topic's records are kept, as far as a client can know: `retention.ms` and `retention.bytes` over time.
//!
//! A change counts from its request on, whatever was answered, and the value before it until a second after a later
//! change was acknowledged: partitions learn of it a moment after the client. So more is taken for lawful than was, never
//! less.

use super::ledger::Ledger;
use super::Terms;
use crate::history::{Event, FaultKind, Index};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const MS: &str = "retention.ms";
const BYTES: &str = "retention.bytes";
/// For an acknowledged change to reach its partitions.
const GRACE: Duration = Duration::from_secs(1);
/// What a broker's clock may be off besides its drift: times are whole milliseconds.
const TICK_MS: i64 = 5;

/// A value that was set.
#[derive(Clone, Debug)]
struct Change {
    sent: Duration,
    /// When it was surely in force; `None` if no answer said so.
    done: Option<Duration>,
    /// `None`: the broker's default.
    value: Option<String>,
    /// It was surely this topic's, and not one of another topic of the name.
    is_certain: bool,
}

/// A limit, and from when until when it may have been in force.
#[derive(Clone, Copy, Debug)]
struct Limit {
    from: Duration,
    until: Duration,
    value: u64,
    is_default: bool,
}

/// All that was ever set, of all topics.
#[derive(Default)]
pub(super) struct Settings {
    /// By the topic's name and the config's: at creation.
    created: BTreeMap<(Arc<str>, &'static str), Vec<Change>>,
    /// By a name that did not surely stand for one topic.
    by_name: BTreeMap<(Arc<str>, &'static str), Vec<Change>>,
    by_id: BTreeMap<(Uuid, &'static str), Vec<Change>>,
}

impl Settings {
    pub fn new(ledger: &Ledger) -> Settings {
        let mut settings = Settings::default();
        let done: BTreeMap<Index, Duration> = ledger
            .events
            .iter()
            .filter_map(|s| match &s.event {
                Event::AlterConfigDone { sent, answer: Ok(0), .. } => Some((*sent, s.at)),
                _ => None,
            })
            .collect();
        for (event, stamped) in ledger.events.iter().enumerate() {
            let sent = stamped.at;
            match &stamped.event {
                Event::CreateTopicSent { topic, configs, .. } => {
                    for key in [MS, BYTES] {
                        let value = configs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
                        let change = Change { sent, done: Some(sent), value, is_certain: true };
                        settings.created.entry((topic.clone(), key)).or_default().push(change);
                    }
                }
                Event::AlterConfigSent { topic, id, key, value, .. } => {
                    let Some(key) = [MS, BYTES].into_iter().find(|k| k == key) else { continue };
                    let done = done.get(&event).copied();
                    let is_deleted = |id: &Uuid| {
                        ledger.deleted.get(id).is_some_and(|at| *at <= done.unwrap_or(Duration::MAX))
                    };
                    let is_certain = id.is_some_and(|id| !is_deleted(&id));
                    let change = Change { sent, done, value: value.clone(), is_certain };
                    match id.filter(|_| is_certain) {
                        Some(id) => settings.by_id.entry((id, key)).or_default().push(change),
                        None => settings.by_name.entry((topic.clone(), key)).or_default().push(change),
                    }
                }
                _ => {}
            }
        }
        settings
    }

    /// What may be removed of one topic.
    pub fn of<'a>(&self, ledger: &'a Ledger, id: Uuid, topic: Option<&Arc<str>>) -> Retention<'a> {
        let all = |key: &'static str| {
            let name = topic.map(|t| (t.clone(), key));
            let of_name = |map: &BTreeMap<_, Vec<Change>>| name.as_ref().and_then(|n| map.get(n)).cloned();
            let mut all = of_name(&self.created).unwrap_or_default();
            all.extend(of_name(&self.by_name).unwrap_or_default());
            all.extend(self.by_id.get(&(id, key)).cloned().unwrap_or_default());
            all
        };
        let terms = ledger.terms;
        let default_ms = terms.retention_ms.map(|ms| u64::try_from(ms.as_millis()).unwrap_or(u64::MAX));
        Retention {
            terms,
            clocks_jumped: ledger.faults.iter().any(|f| f.kind == FaultKind::Clock),
            ages: limits(&all(MS), default_ms),
            sizes: limits(&all(BYTES), terms.retention_bytes),
        }
    }
}

fn limits(changes: &[Change], default: Option<u64>) -> Vec<Limit> {
    let limit = |c: &Change| {
        let value = match &c.value {
            None => default?,
            // A negative one is none.
            Some(value) => value.parse().ok()?,
        };
        let replaced = c.done.and_then(|done| {
            let later = changes.iter().filter(|l| l.is_certain && l.sent > done);
            later.filter_map(|l| l.done).min()
        });
        let until = replaced.map_or(Duration::MAX, |at| at + GRACE);
        Some(Limit { from: c.sent, until, value, is_default: c.value.is_none() })
    };
    changes.iter().filter_map(limit).collect()
}

/// What retention may remove of one topic.
pub(super) struct Retention<'a> {
    terms: &'a Terms,
    clocks_jumped: bool,
    ages: Vec<Limit>,
    sizes: Vec<Limit>,
}

impl Retention<'_> {
    /// Records of this time, in milliseconds, or before may have been removed for their age by `at`.
    pub fn oldest_kept(&self, at: Duration) -> Option<i64> {
        let in_force = self.ages.iter().filter(|l| l.from <= at);
        let limit = |l: &Limit| {
            if self.clocks_jumped && !l.is_default {
                // Whatever a broker's clock said then.
                return i64::MAX;
            }
            let now = l.until.min(at).as_secs_f64() * (1.0 + self.terms.drift_ppm / 1e6) * 1000.0;
            let age = i64::try_from(l.value).unwrap_or(i64::MAX);
            (self.terms.wall_ms + now as i64 + TICK_MS).saturating_sub(age)
        };
        in_force.map(limit).max()
    }

    /// Whether a segment may have been removed by `at` for the sake of `retention.bytes`; `left` says how many bytes at
    /// most were behind it at a given time.
    pub fn is_too_large(&self, at: Duration, left: impl Fn(Duration) -> u64) -> bool {
        self.sizes.iter().any(|l| l.from <= at && left(l.until.min(at)) >= l.value)
    }

    /// Whether anything of what clients wrote may have been removed by `at`.
    pub fn is_possible(&self, at: Duration) -> bool {
        self.sizes.iter().any(|l| l.from <= at)
            || self.oldest_kept(at).is_some_and(|oldest| oldest >= self.terms.wall_ms)
    }
}
