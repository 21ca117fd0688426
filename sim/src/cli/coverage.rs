//! `coverage`: which marks the scenarios reach.

use super::{lay_over, Told, Which};
use crate::runner::{self, Ask, Progress};
use std::collections::{BTreeMap, BTreeSet};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Seeds of each scenario
    #[arg(long, default_value_t = 100)]
    num: u64,
    #[arg(long)]
    jobs: Option<usize>,
}

pub fn run(args: &Args) -> Told {
    let mut asks = Vec::new();
    let mut must: BTreeSet<(String, String)> = BTreeSet::new();
    for mut s in args.which.scenarios()? {
        lay_over(&mut s, &args.which.set)?;
        must.extend(s.must().into_iter().map(|m| (s.name.clone(), m)));
        let (name, path) = (s.name.clone(), s.path.clone());
        asks.extend((1..=args.num).map(|seed| Ask {
            scenario: name.clone(),
            path: path.clone(),
            seed,
            set: args.which.set.clone(),
        }));
    }
    let mut progress = Progress::new(asks.len() as u64);
    // Mark -> scenario -> how many seeds reached it, and how often in all.
    let mut reached: BTreeMap<String, BTreeMap<String, (u64, u64)>> = BTreeMap::new();
    runner::run(asks.into_iter(), args.jobs.unwrap_or_else(runner::cores), |ask, outcome| {
        progress.count(&outcome, !outcome.holds());
        for (mark, n) in outcome.reached {
            let at = reached.entry(mark).or_default().entry(ask.scenario.clone()).or_default();
            at.0 += 1;
            at.1 += n;
        }
        true
    });
    println!("{}", progress.end());
    for (mark, scenarios) in &reached {
        println!("{mark}");
        for (scenario, (seeds, times)) in scenarios {
            println!("  {scenario:<24} in {seeds} of {} seeds, {times} times", args.num);
        }
    }
    let missed: Vec<_> =
        must.iter().filter(|(s, m)| !reached.get(m).is_some_and(|by| by.contains_key(s))).collect();
    for (scenario, mark) in &missed {
        println!("NEVER REACHED: {mark}, which {scenario} must reach");
    }
    let all = "every must-mark was reached";
    println!("{} marks; {}", reached.len(), if missed.is_empty() { all } else { "must-marks are missing" });
    Ok(missed.is_empty())
}
