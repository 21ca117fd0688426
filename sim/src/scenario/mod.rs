//! Scenario files, and the plan of one life that a seed draws from one.
//!
//! A scenario is TOML that a person can read: what kind of volume, which brokers, which clients, which
//! faults. A [`Plan`] is the same with everything settled: no range left, every fault with its time. It
//! is written in the same form, so that a shrunk plan is a scenario file that fails by itself.
//!
//! Tables in `[[fault]]`, `[[client]]` and `[[topic]]` may say `chance` (whether it exists at all in this
//! life) and `times` or `count` (how many of it).

pub mod draw;
mod fault;
mod written;

pub use fault::{Act, Action, Checkpoint, FaultAt, Step};

use crate::volume::{Kind, Options};
use crate::workload::{Spec, TopicSpec};
use draw::{happens, settle};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Lists whose entries may be absent or many in one life.
const LISTS: [&str; 3] = ["topic", "client", "fault"];

#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("{path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}: {why}")]
    Bad { path: String, why: String },
    #[error("there is no scenario `{0}`: neither a file nor a name in scenarios/ or scenarios/regressions/")]
    Unknown(String),
}

/// A scenario file as it was read.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without directory and ending.
    pub name: String,
    pub path: String,
    raw: Table,
}

/// How long a life is, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct LifeSpec {
    /// Seconds of chaos.
    pub seconds: f64,
    /// Hosts that a broker can be started on. Brokers start on the first ones.
    pub hosts: u32,
    /// Brokers, with ids from 1.
    pub brokers: u32,
    /// Milliseconds that a packet takes, from and to.
    pub network: [f64; 2],
    /// How far each host's clocks may run from true time, in parts per million, either way.
    pub drift_ppm: f64,
    /// Seconds of real time after which the life is ended from outside: for lives of very many brokers or partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_seconds: Option<u32>,
    /// At so many moments of the chaos, everything that a crash could leave is enumerated, and recovered from.
    #[serde(skip_serializing_if = "is_zero")]
    pub crash_points: u32,
    /// At most so many survivals of each moment; of more, so many are drawn.
    #[serde(skip_serializing_if = "is_zero")]
    pub crash_images: u32,
}

impl Default for LifeSpec {
    fn default() -> Self {
        LifeSpec {
            seconds: 20.0,
            hosts: 1,
            brokers: 1,
            network: [0.1, 1.0],
            drift_ppm: 100.0,
            real_seconds: None,
            crash_points: 0,
            crash_images: 0,
        }
    }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// One life, settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plan {
    #[serde(default)]
    pub about: String,
    /// The seeds that this file is meant for, if it is about particular ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seeds: Vec<u64>,
    /// Marks that some seed of this scenario must reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub must: Vec<String>,
    #[serde(default)]
    pub life: LifeSpec,
    #[serde(default)]
    pub volume: Options,
    /// The brokers' configuration, by Kafka's names.
    #[serde(default)]
    pub broker: BTreeMap<String, Value>,
    #[serde(default, rename = "topic")]
    pub topics: Vec<TopicSpec>,
    #[serde(default, rename = "client")]
    pub clients: Vec<Spec>,
    #[serde(default, rename = "fault")]
    pub faults: Vec<FaultAt>,
}

impl Scenario {
    /// Reads the file at `path`.
    pub fn read(path: &str) -> Result<Scenario, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        Scenario::parse(path, &text)
    }

    pub fn parse(path: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let bad = |why: String| ScenarioError::Bad { path: path.to_owned(), why };
        let raw: Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
        let stem = path.rsplit('/').next().unwrap_or(path);
        let name = stem.strip_suffix(".toml").unwrap_or(stem).to_owned();
        Ok(Scenario { name, path: path.to_owned(), raw })
    }

    /// Sets the value at a dotted place, as `--set volume.kind=local` does; `text` is read as TOML if it
    /// is that, else as a string.
    pub fn set(&mut self, place: &str, text: &str) -> Result<(), ScenarioError> {
        let line: Result<Table, _> = format!("v = {text}").parse();
        let value = line.ok().and_then(|t| t.get("v").cloned()).unwrap_or(Value::String(text.to_owned()));
        let mut at = &mut self.raw;
        let mut parts = place.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                at.insert(part.to_owned(), value);
                return Ok(());
            }
            let next = at.entry(part).or_insert(Value::Table(Table::new()));
            let Value::Table(next) = next else {
                let why = format!("--set {place}: {part} is no table");
                return Err(ScenarioError::Bad { path: self.path.clone(), why });
            };
            at = next;
        }
        Ok(())
    }

    /// The seeds that the file itself names.
    pub fn seeds(&self) -> Vec<u64> {
        let list = self.raw.get("seeds").and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_integer)
            .filter_map(|n| u64::try_from(n).ok())
            .collect()
    }

    /// The marks that some seed must reach.
    pub fn must(&self) -> Vec<String> {
        let list = self.raw.get("must").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Seconds of real time that a life may take, if the file says so.
    pub fn real_seconds(&self) -> Option<u64> {
        let seconds = self.raw.get("life")?.get("real-seconds")?.as_integer()?;
        u64::try_from(seconds).ok()
    }

    /// What the file says that it is about.
    pub fn about(&self) -> &str {
        self.raw.get("about").and_then(Value::as_str).unwrap_or_default()
    }

    /// The life that `seed` draws.
    pub fn plan(&self, seed: u64) -> Result<Plan, ScenarioError> {
        let bad = |why: String| ScenarioError::Bad { path: self.path.clone(), why };
        let mut drawn = Table::new();
        for (key, value) in &self.raw {
            let value = match value {
                Value::Array(items) if LISTS.contains(&key.as_str()) => {
                    Value::Array(list(key, items, seed).map_err(bad)?)
                }
                other => settle(other.clone(), seed, key).map_err(bad)?,
            };
            drawn.insert(key.clone(), value);
        }
        let seconds = drawn.get("life").and_then(|l| l.get("seconds")).and_then(draw::number);
        let seconds = seconds.unwrap_or(LifeSpec::default().seconds);
        if let Some(Value::Array(faults)) = drawn.get_mut("fault") {
            for (i, f) in faults.iter_mut().enumerate() {
                fault::place_in_time(f, seed, i, seconds);
            }
            faults.sort_by(|a, b| fault::time(a).total_cmp(&fault::time(b)));
        }
        let mut plan: Plan =
            Value::Table(drawn).try_into().map_err(|e: toml::de::Error| bad(e.to_string()))?;
        if plan.volume.kind == Kind::Local {
            // A local directory has one host.
            plan.life.hosts = plan.life.brokers;
        }
        plan.check().map_err(bad)?;
        Ok(plan)
    }
}

/// Settles the entries of one list: whether each exists, and how often.
fn list(key: &str, items: &[Value], seed: u64) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let place = format!("{key}[{i}]");
        let Value::Table(t) = item else { return Err(format!("{place}: not a table")) };
        let mut t = t.clone();
        if let Some(p) = t.remove("chance") {
            if !happens(&p, seed, &place)? {
                continue;
            }
        }
        let times = t.remove("times").or_else(|| t.remove("count")).unwrap_or(Value::Integer(1));
        let times = settle(times, seed, &format!("{place}.times"))?;
        let times =
            times.as_integer().filter(|n| *n >= 0).ok_or(format!("{place}: a whole number of times"))?;
        for n in 0..times {
            all.push(settle(Value::Table(t.clone()), seed, &format!("{place}#{n}"))?);
        }
    }
    Ok(all)
}

impl Plan {
    /// What can be seen to be wrong before anything runs.
    fn check(&self) -> Result<(), String> {
        if self.topics.is_empty() {
            return Err("a life needs at least one [[topic]]".into());
        }
        if self.life.brokers < 1 || self.life.hosts < self.life.brokers {
            return Err("life.hosts must be at least life.brokers, and that at least 1".into());
        }
        if !(self.life.seconds > 0.0 && self.life.seconds <= 3600.0) {
            return Err("life.seconds must be above 0 and at most 3600".into());
        }
        Ok(())
    }

    /// As a scenario file: what is as it is by default is left out.
    pub fn to_toml(&self) -> String {
        written::plan(self)
    }

    /// When the last fault has ended, in seconds of chaos.
    pub fn last_fault_end(&self) -> f64 {
        self.faults.iter().map(FaultAt::end).fold(0.0, f64::max)
    }
}

/// A scenario by path, or by name in `scenarios/` or its `regressions/`.
pub fn find(root: &str, what: &str) -> Result<Scenario, ScenarioError> {
    let tries = [what.to_owned(), format!("{root}/{what}.toml"), format!("{root}/regressions/{what}.toml")];
    let file = tries.iter().find(|p| p.ends_with(".toml") && std::path::Path::new(p).is_file());
    Scenario::read(file.ok_or_else(|| ScenarioError::Unknown(what.to_owned()))?)
}

/// All scenario files directly in `dir`, by name.
pub fn all(dir: &str) -> Result<Vec<Scenario>, ScenarioError> {
    let io = |source| ScenarioError::Read { path: dir.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path().to_string_lossy().into_owned();
        if path.ends_with(".toml") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|p| Scenario::read(p)).collect()
}

#[cfg(test)]
mod tests;
