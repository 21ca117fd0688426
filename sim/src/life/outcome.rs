//! What a life came to: one line of JSON from the process that lived it to the one that asked.

use super::Lived;
use crate::check::Violation;
use crate::history::{Event, Lost};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One life's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub scenario: String,
    pub seed: u64,
    /// Of the whole history, in hex; empty if the process did not live to tell.
    pub hash: String,
    pub broken: Vec<Broken>,
    /// Milliseconds of simulated time.
    pub sim_ms: u64,
    pub stats: Stats,
    /// Marks, and how often each was reached.
    pub reached: BTreeMap<String, u64>,
}

/// A promise that did not hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Broken {
    /// P1 to P13, an anomaly's name, `panic` or `time-out`.
    pub promise: String,
    pub at_ms: u64,
    pub what: String,
}

/// What a life did, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Record batches acknowledged with `acks=all`.
    pub acked: u64,
    /// Produce requests whose outcome is unknown.
    pub unknown: u64,
    /// Batches read by consumers.
    pub read: u64,
    pub events: u64,
    /// Operations on the volume.
    pub volume_ops: u64,
    /// Acknowledged records gone where the dial allows it (page-cache-acks).
    pub lawfully_lost: u64,
    pub crash_images: u64,
}

impl Outcome {
    /// A process that ended without a word.
    pub fn silent(scenario: &str, seed: u64, promise: &str, what: String) -> Outcome {
        let broken = vec![Broken { promise: promise.into(), at_ms: 0, what }];
        Outcome { scenario: scenario.into(), seed, broken, ..Outcome::default() }
    }

    pub fn holds(&self) -> bool {
        self.broken.is_empty()
    }

    pub fn breaks(&self, promise: &str) -> bool {
        self.broken.iter().any(|b| b.promise == promise)
    }
}

impl Outcome {
    pub(super) fn of(scenario: &str, seed: u64, lived: &Lived) -> Outcome {
        let mut stats = Stats {
            events: lived.history.len() as u64,
            volume_ops: lived.volume_ops,
            lawfully_lost: lived.verdict.lost_records,
            crash_images: lived.crash_images,
            ..Stats::default()
        };
        for e in &lived.history {
            match &e.event {
                Event::ProduceDone { answer: Ok(p), .. } if p.code == 0 => stats.acked += 1,
                Event::ProduceDone { answer: Err(lost), .. } if !matches!(lost, Lost::NotSent(_)) => {
                    stats.unknown += 1;
                }
                Event::FetchDone { answer: Ok(f), .. } => stats.read += f.batches.len() as u64,
                _ => {}
            }
        }
        Outcome {
            scenario: scenario.into(),
            seed,
            hash: format!("{:016x}", lived.hash),
            broken: first_of_each(&lived.verdict.violations),
            sim_ms: lived.sim_time.as_millis() as u64,
            stats,
            reached: BTreeMap::new(),
        }
    }
}

/// How often one promise is told of in one life; one lost segment would fill the screen.
const TOLD: usize = 3;

fn first_of_each(violations: &[Violation]) -> Vec<Broken> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    let mut told: Vec<Broken> = Vec::new();
    for v in violations {
        let n = count.entry(v.promise).or_default();
        *n += 1;
        if *n <= TOLD {
            told.push(Broken::from(v));
        }
    }
    for (promise, n) in count.into_iter().filter(|(_, n)| *n > TOLD) {
        if let Some(last) = told.iter_mut().rfind(|b| b.promise == promise) {
            last.what += &format!(" (and {} more)", n - TOLD);
        }
    }
    told
}

impl From<&Violation> for Broken {
    fn from(v: &Violation) -> Self {
        Broken { promise: v.promise.to_string(), at_ms: v.at.as_millis() as u64, what: v.what.clone() }
    }
}
