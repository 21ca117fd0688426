//! A fault with its time.

use super::draw::{number, stream};
use crate::volume::{Fault, Op};
use rand::Rng;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};

/// Something done to the world, from `at` on, for so long. In a file it is a table with `at` and `for`
/// and one more key, which names what is done:
///
/// ```toml
/// [[fault]]
/// at = 3.5             # seconds of chaos; left out, any time
/// for = 12.0           # seconds; for what has a duration
/// stall = { ops = { ops = ["sync"], path = ".log" } }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FaultAt {
    pub at: f64,
    pub lasts: Option<f64>,
    pub what: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    World(Act),
    Volume(Fault),
}

/// What can be done to processes, hosts, clocks and the network. Where a step is named and no broker, it is the one that takes
/// the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Act {
    /// `kill -9`: the process dies, its host and its page cache live.
    Kill {
        #[serde(default)]
        broker: u32,
        /// Seconds until it is started again.
        #[serde(default)]
        back: f64,
        /// Start it again on another host.
        #[serde(default)]
        elsewhere: bool,
        #[serde(default)]
        checkpoint: Option<Checkpoint>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<Step>,
    },
    /// The broker's host loses power.
    PowerCut {
        #[serde(default)]
        broker: u32,
        #[serde(default)]
        back: f64,
        #[serde(default)]
        elsewhere: bool,
        #[serde(default)]
        checkpoint: Option<Checkpoint>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<Step>,
    },
    /// SIGTERM: a clean stop, then a start.
    Term {
        #[serde(default)]
        broker: u32,
        #[serde(default)]
        back: f64,
        #[serde(default)]
        elsewhere: bool,
        #[serde(default)]
        checkpoint: Option<Checkpoint>,
    },
    /// SIGSTOP, and SIGCONT after `for`. With `elsewhere`, the same broker id is started on another host
    /// in between, as a scheduler would that gave the first host up; the woken one must not harm.
    Pause {
        #[serde(default)]
        broker: u32,
        #[serde(default)]
        elsewhere: bool,
        /// From so many seconds before it stands still its host's mount hangs for what it writes to its logs, and
        /// answers again a moment before it wakes: what was under way lands after its successor looked.
        #[serde(default, skip_serializing_if = "is_zero")]
        hangs: f64,
        /// When it stands still the wall clock of its host jumps by so many seconds.
        #[serde(default, skip_serializing_if = "is_zero")]
        clock: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<Step>,
    },
    /// The wall clock of the broker's host jumps by so many seconds.
    ClockStep {
        #[serde(default)]
        broker: u32,
        seconds: f64,
    },
    /// Packets between the clients and the broker's host wait until the fault ends.
    Partition {
        #[serde(default)]
        broker: u32,
    },
}

/// A step of a broker: what is done to it waits for that one, from its time on. If it does not come before the chaos is over,
/// nothing is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Step {
    /// The operations on the volume of which one ends then; empty: any.
    pub ops: Vec<Op>,
    /// Only on paths that contain this.
    pub path: String,
    /// How many of them go by before.
    pub skip: u32,
    /// Seconds from its end on: answers that follow from it are on their way by then, or seen.
    pub after: f64,
}

impl Step {
    pub fn is(&self, op: Op, path: &str, to: Option<&str>) -> bool {
        let named = path.contains(&self.path) || to.is_some_and(|to| to.contains(&self.path));
        named && (self.ops.is_empty() || self.ops.contains(&op))
    }
}

fn is_zero(n: &f64) -> bool {
    *n == 0.0
}

/// What happens to the recovery checkpoints while the broker is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpoint {
    /// Each is what it was some time ago.
    Older,
    /// Each points past the end of its segment.
    Ahead,
    /// Each is cut in its middle.
    Torn,
    /// Each names another segment.
    OtherSegment,
    /// Each has the content of an older epoch's, or an epoch that is not its own.
    OtherEpoch,
}

impl Act {
    /// The step that it waits for, and the broker that is to take it; 0 is any.
    pub fn step(&self) -> Option<(&Step, u32)> {
        match self {
            Act::Kill { step, broker, .. }
            | Act::PowerCut { step, broker, .. }
            | Act::Pause { step, broker, .. } => step.as_ref().map(|step| (step, *broker)),
            _ => None,
        }
    }

    /// What it does to the checkpoints.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        match self {
            Act::Kill { checkpoint, .. }
            | Act::PowerCut { checkpoint, .. }
            | Act::Term { checkpoint, .. } => *checkpoint,
            _ => None,
        }
    }
}

const ACTS: [&str; 6] = ["kill", "power-cut", "term", "pause", "clock-step", "partition"];

impl FaultAt {
    /// When it is over, in seconds of chaos.
    pub fn end(&self) -> f64 {
        let down = match &self.what {
            Action::World(Act::Kill { back, .. } | Act::PowerCut { back, .. } | Act::Term { back, .. }) => {
                *back
            }
            _ => 0.0,
        };
        self.at + self.lasts.unwrap_or(0.0).max(down)
    }
}

impl std::fmt::Display for FaultAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(t)) => t,
            _ => return Err(std::fmt::Error),
        };
        for (key, value) in table.iter().filter(|(k, _)| *k != "at" && *k != "for") {
            write!(f, "{key} {value}")?;
        }
        match self.lasts {
            Some(s) => write!(f, " for {s} s"),
            None => Ok(()),
        }
    }
}

impl Serialize for FaultAt {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let what = match &self.what {
            Action::World(a) => Value::try_from(a),
            Action::Volume(v) => Value::try_from(v),
        };
        let mut t = match what.map_err(serde::ser::Error::custom)? {
            Value::Table(t) => t,
            Value::String(unit) => Table::from_iter([(unit, Value::Table(Table::new()))]),
            _ => return Err(serde::ser::Error::custom("an action is a table")),
        };
        t.insert("at".into(), self.at.into());
        if let Some(lasts) = self.lasts {
            t.insert("for".into(), lasts.into());
        }
        t.serialize(s)
    }
}

impl<'de> Deserialize<'de> for FaultAt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let mut t = Table::deserialize(d)?;
        let mut seconds = |key: &str| match t.remove(key) {
            None => Ok(None),
            Some(v) => match number(&v).filter(|n| *n >= 0.0 && n.is_finite()) {
                Some(n) => Ok(Some(n)),
                None => Err(D::Error::custom(format!("{key}: seconds, not negative"))),
            },
        };
        let (at, lasts) = (seconds("at")?, seconds("for")?);
        let keys: Vec<&String> = t.keys().collect();
        let [key] = keys[..] else {
            return Err(D::Error::custom(format!("a fault is `at`, `for` and one thing done, not {keys:?}")));
        };
        let value = if ACTS.contains(&key.as_str()) {
            Action::World(Value::Table(t).try_into().map_err(D::Error::custom)?)
        } else {
            Action::Volume(Value::Table(t).try_into().map_err(D::Error::custom)?)
        };
        Ok(FaultAt { at: at.unwrap_or(0.0), lasts, what: value })
    }
}

/// Gives a fault without a time one, somewhere in the chaos.
pub(super) fn place_in_time(fault: &mut Value, seed: u64, i: usize, seconds: f64) {
    let Value::Table(t) = fault else { return };
    if !t.contains_key("at") {
        let at = stream(seed, &format!("fault@{i}")).gen_range(0.0..seconds);
        t.insert("at".into(), ((at * 1000.0).round() / 1000.0).into());
    }
}

/// When a fault that has been placed begins.
pub(super) fn time(fault: &Value) -> f64 {
    fault.get("at").and_then(number).unwrap_or(0.0)
}
