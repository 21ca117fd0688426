//! `life`: one seed, in this process.

use super::{lay_over, Told};
use crate::life::{self, Broken, Outcome, Settings};
use crate::marks::Marks;
use crate::scenario::Scenario;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[derive(clap::Args)]
pub struct Args {
    /// The scenario's file
    pub path: String,
    pub seed: u64,
    #[arg(long = "set")]
    pub set: Vec<String>,
}

pub fn run(args: &Args) -> Told {
    let mut scenario = Scenario::read(&args.path)?;
    lay_over(&mut scenario, &args.set)?;
    let plan = scenario.plan(args.seed)?;
    let marks = Marks::default();
    marks.listen(None);
    let mut outcome = guarded(&scenario.name, args.seed, || {
        life::run(&scenario.name, args.seed, &plan, &Settings::default()).0
    });
    outcome.reached = marks.counts();
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(outcome.holds())
}

/// A panic of the broker, or of the simulator, is an outcome too.
pub fn guarded(scenario: &str, seed: u64, live: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(live)).unwrap_or_else(|e| {
        let text = e.downcast_ref::<String>().map(String::as_str);
        let text = text.or(e.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        let broken = vec![Broken { promise: "panic".into(), at_ms: 0, what: text.to_owned() }];
        Outcome { scenario: scenario.into(), seed, broken, ..Outcome::default() }
    })
}
