//! Cuts a failing life down: fewer faults, fewer clients, a shorter chaos, a plainer volume, with the same
//! promise broken.
//!
//! What it changes is the *plan*, which is settled and complete; so each step is another life, lived in a
//! process of its own. Leaving something out moves everything after it, and the fault may then need another
//! moment to strike: each candidate is tried with a few seeds of the runtime's randomness, and counts if one of
//! them breaks the promise.

#![allow(clippy::disallowed_methods)] // works on real files, in real time

mod ddmin;
mod simpler;

use crate::cli::{lay_over, Told};
use crate::life::Outcome;
use crate::runner::{self, Ask};
use crate::scenario::{self, Plan};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// A scenario by name or path
    pub scenario: String,
    pub seed: u64,
    #[arg(long, default_value = "scenarios", env = "HIGHWATER_SCENARIOS")]
    pub dir: String,
    #[arg(long = "set", value_name = "PLACE=VALUE")]
    pub set: Vec<String>,
    /// Where the small scenario goes; standard output if not given
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
    /// The promise to keep broken, if the life breaks several
    #[arg(long)]
    pub promise: Option<String>,
    /// Seeds that each candidate is tried with
    #[arg(long, default_value_t = 12)]
    pub tries: u64,
    /// Seconds of real time after which it stops with what it has
    #[arg(long, default_value_t = 300)]
    pub budget: u64,
    #[arg(long)]
    pub jobs: Option<usize>,
}

/// Tries candidates.
pub struct Trial {
    name: String,
    promise: String,
    seed: u64,
    tries: u64,
    jobs: usize,
    file: PathBuf,
    until: Instant,
    pub lives: u64,
    /// What the last candidate that failed came to.
    pub last: Outcome,
}

impl Trial {
    /// Whether this plan still breaks the promise; if so its seed is the one to go on with.
    fn breaks(&mut self, plan: &Plan) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        if std::fs::write(&self.file, plan.to_toml()).is_err() {
            return false;
        }
        let path = self.file.to_string_lossy().into_owned();
        let others = (1..).filter(|s| *s != self.seed).take(self.tries.saturating_sub(1) as usize);
        let seeds: Vec<u64> = std::iter::once(self.seed).chain(others).collect();
        let ask = |seed| Ask { scenario: self.name.clone(), path: path.clone(), seed, set: vec![] };
        let mut found: Vec<Outcome> = Vec::new();
        let mut lives = 0;
        runner::run(seeds.into_iter().map(ask), self.jobs, |_, outcome| {
            lives += 1;
            if outcome.breaks(&self.promise) {
                found.push(outcome);
            }
            found.is_empty()
        });
        self.lives += lives;
        let Some(first) = found.into_iter().next() else { return false };
        self.seed = first.seed;
        self.last = first;
        true
    }
}

pub fn run(args: &Args) -> Told {
    let mut scenario = scenario::find(&args.dir, &args.scenario)?;
    lay_over(&mut scenario, &args.set)?;
    let whole = scenario.plan(args.seed)?;
    let ask = Ask {
        scenario: scenario.name.clone(),
        path: scenario.path.clone(),
        seed: args.seed,
        set: args.set.clone(),
    };
    let first = runner::live(&ask);
    let broken = first.broken.iter().find(|b| args.promise.as_ref().is_none_or(|p| *p == b.promise));
    let Some(broken) = broken.cloned() else {
        return Err(
            format!("{} seed {} breaks no such promise: nothing to shrink", ask.scenario, ask.seed).into()
        );
    };
    let file = std::env::temp_dir().join(format!("highwater-shrink-{}.toml", std::process::id()));
    let mut trial = Trial {
        name: scenario.name.clone(),
        promise: broken.promise.clone(),
        seed: args.seed,
        tries: args.tries.max(1),
        jobs: args.jobs.unwrap_or_else(runner::cores),
        file,
        until: Instant::now() + Duration::from_secs(args.budget),
        lives: 0,
        last: first,
    };
    let small = shrink(whole.clone(), &mut trial);
    // What was written while trying is of no use to anybody.
    let _ = std::fs::remove_file(&trial.file);
    let (Some(small), last) = (small, trial.last.clone()) else {
        return Err("the settled plan does not break the promise again: replay is broken".into());
    };
    let text = written(&small, &trial, &last, &ask);
    match &args.out {
        Some(path) => std::fs::write(path, &text)?,
        None => print!("{text}"),
    }
    eprintln!(
        "{}: {} of {} faults, {} of {} clients, {} of {} s of chaos left; {} lives; seed {}",
        trial.promise,
        small.faults.len(),
        whole.faults.len(),
        small.clients.len(),
        whole.clients.len(),
        small.life.seconds,
        whole.life.seconds,
        trial.lives,
        trial.seed,
    );
    Ok(true)
}

/// The smallest plan found; `None` if not even the whole one fails again.
fn shrink(whole: Plan, trial: &mut Trial) -> Option<Plan> {
    if !trial.breaks(&whole) {
        return None;
    }
    let mut plan = whole;
    loop {
        let before = plan.clone();
        plan = simpler::shorter(plan, trial);
        plan = ddmin::faults(plan, trial);
        plan = ddmin::clients(plan, trial);
        plan = simpler::plainer(plan, trial);
        plan = simpler::briefer(plan, trial);
        if plan == before || Instant::now() >= trial.until {
            // The last candidate that was tried need not be the one that was kept.
            return trial.breaks(&plan).then(|| plan.clone()).or(Some(plan));
        }
    }
}

fn written(small: &Plan, trial: &Trial, last: &Outcome, from: &Ask) -> String {
    let what = last.broken.iter().find(|b| b.promise == trial.promise);
    let what = what.map_or(String::new(), |b| b.what.replace('\n', " "));
    let mut plan = small.clone();
    plan.seeds = vec![trial.seed];
    plan.must.clear();
    plan.about = format!("{} broken: {what}", trial.promise);
    format!("# Shrunk from {} seed {}.\n{}", from.scenario, from.seed, plan.to_toml())
}
