//! `run`: many seeds of many scenarios.

use super::{lay_over, seeds, Told, Which};
use crate::life::Outcome;
use crate::runner::{self, Ask, Progress};
use crate::scenario::Scenario;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// How many failures are told one by one.
const TOLD: usize = 20;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub which: Which,
    /// The seeds, A..B (without B) or A..=B
    #[arg(long, value_parser = seeds, conflicts_with = "num")]
    pub seeds: Option<RangeInclusive<u64>>,
    /// The first N seeds
    #[arg(long)]
    pub num: Option<u64>,
    /// The first seed of --num
    #[arg(long, default_value_t = 1)]
    pub start: u64,
    /// Lives at a time; the cores of this machine if not given
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Go on after a failure
    #[arg(long)]
    pub keep_going: bool,
    /// Live every seed twice and compare the hashes
    #[arg(long)]
    pub check_determinism: bool,
    /// Stop only at a life that breaks this promise; others are counted
    #[arg(long, value_name = "PROMISE")]
    pub expect: Option<String>,
    /// Append each outcome to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
}

/// Default number of seeds of each scenario.
const SEEDS: u64 = 100;

impl Args {
    fn seeds_of(&self, scenario: &Scenario) -> Vec<u64> {
        if let Some(range) = &self.seeds {
            return range.clone().collect();
        }
        match self.num {
            Some(n) => (self.start..self.start.saturating_add(n)).collect(),
            // A regression names the seeds that failed.
            None if !scenario.seeds().is_empty() => scenario.seeds(),
            None => (self.start..self.start + SEEDS).collect(),
        }
    }

    /// Everything to be lived, scenario by scenario.
    fn asks(&self) -> Result<Vec<Ask>, crate::scenario::ScenarioError> {
        let mut asks = Vec::new();
        for mut s in self.which.scenarios()? {
            lay_over(&mut s, &self.which.set)?;
            let seeds = self.seeds_of(&s);
            // What is wrong with a file is told once, before anything is lived.
            if let Some(first) = seeds.first() {
                s.plan(*first)?;
            }
            let ask = |seed| Ask {
                scenario: s.name.clone(),
                path: s.path.clone(),
                seed,
                set: self.which.set.clone(),
            };
            asks.extend(seeds.into_iter().map(ask));
        }
        Ok(asks)
    }
}

pub fn run(args: &Args) -> Told {
    let asks = args.asks()?;
    let jobs = args.jobs.unwrap_or_else(runner::cores);
    let times = if args.check_determinism { 2 } else { 1 };
    let mut progress = Progress::new(asks.len() as u64 * times);
    let mut book = Book::default();
    let mut json = match &args.json {
        Some(path) => Some(std::fs::OpenOptions::new().create(true).append(true).open(path)?),
        None => None,
    };
    let twice = asks.iter().flat_map(|a| std::iter::repeat_n(a.clone(), times as usize));
    runner::run(twice, jobs, |ask, outcome| {
        let failed = book.enter(ask, &outcome);
        progress.count(&outcome, failed);
        if let Some(file) = &mut json {
            use std::io::Write;
            // The file is a by-product; what it can't take must not end the run.
            let _ = writeln!(file, "{}", serde_json::to_string(&outcome).unwrap_or_default());
        }
        let awaited = args.expect.as_ref().is_none_or(|p| outcome.breaks(p));
        args.keep_going || !failed || !awaited
    });
    println!("{}", progress.end());
    book.tell();
    Ok(progress.failed == 0)
}

/// What came of all of it.
#[derive(Default)]
struct Book {
    failures: Vec<(Ask, Outcome)>,
    hashes: BTreeMap<(String, u64), String>,
    by_scenario: BTreeMap<String, (u64, u64)>,
}

impl Book {
    /// True if this life failed, by itself or against another run of it.
    fn enter(&mut self, ask: &Ask, outcome: &Outcome) -> bool {
        let mut outcome = outcome.clone();
        let key = (ask.path.clone(), ask.seed);
        if !outcome.hash.is_empty() {
            let before = self.hashes.insert(key, outcome.hash.clone());
            if before.as_ref().is_some_and(|h| *h != outcome.hash) {
                let what = format!("lived twice: {} and {}", before.unwrap_or_default(), outcome.hash);
                let at_ms = outcome.sim_ms;
                outcome.broken.push(crate::life::Broken { promise: "determinism".into(), at_ms, what });
            }
        }
        let count = self.by_scenario.entry(ask.scenario.clone()).or_default();
        count.0 += 1;
        if outcome.holds() {
            return false;
        }
        count.1 += 1;
        if self.failures.len() < TOLD {
            self.failures.push((ask.clone(), outcome));
        }
        true
    }

    fn tell(&self) {
        for (scenario, (lives, failed)) in &self.by_scenario {
            let verdict = if *failed == 0 { "held".into() } else { format!("{failed} FAILED") };
            println!("  {scenario:<24} {lives:>7} lives  {verdict}");
        }
        for (ask, outcome) in &self.failures {
            println!();
            for b in &outcome.broken {
                let at = b.at_ms as f64 / 1000.0;
                println!("{} seed {}: {} broken at {at:.3} s: {}", ask.scenario, ask.seed, b.promise, b.what);
            }
            println!("  replay: {}", ask.replay());
        }
    }
}
