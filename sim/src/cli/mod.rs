//! The commands.

#![allow(clippy::disallowed_methods)] // commands live in real time and on real files

mod coverage;
mod life;
mod matrix;
mod replay;
mod run;

use crate::scenario::{self, Scenario, ScenarioError};
use clap::{Args, Parser, Subcommand};
use std::ops::RangeInclusive;
use std::process::ExitCode;

/// Thousands of seeded lives of a Highwater broker on a model of a shared volume.
#[derive(Parser)]
#[command(name = "highwater-sim", bin_name = "cargo sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lives many seeds of scenarios, one process each; exits with 0 only if every promise held
    Run(run::Args),
    /// Lives one seed again, byte for byte, and says its hash
    Replay(replay::Args),
    /// Cuts a failing life down to a small scenario file that fails by itself
    Shrink(crate::shrink::Args),
    /// Which marks the scenarios reach; a must-mark that no seed reached fails
    Coverage(coverage::Args),
    /// Which mounts keep which promises
    Matrix(matrix::Args),
    /// Exercises to play in a terminal
    Play(crate::play::Args),
    /// Lives one seed in this process (what the other commands start)
    #[command(hide = true)]
    Life(life::Args),
}

/// Which scenarios, and what is laid over them.
#[derive(Args, Clone, Debug)]
pub struct Which {
    /// Scenarios by name or path; all in the scenario directory if none is named
    pub scenarios: Vec<String>,
    /// Where scenarios are
    #[arg(long, default_value = "scenarios", env = "HIGHWATER_SCENARIOS")]
    pub dir: String,
    /// Lays `place=value` over the file, such as volume.kind=local; may be given more than once
    #[arg(long = "set", value_name = "PLACE=VALUE")]
    pub set: Vec<String>,
}

impl Which {
    pub fn scenarios(&self) -> Result<Vec<Scenario>, ScenarioError> {
        if self.scenarios.is_empty() {
            return scenario::all(&self.dir);
        }
        let one = |what: &String| -> Result<Vec<Scenario>, ScenarioError> {
            match what.as_str() {
                "regressions" => scenario::all(&format!("{}/regressions", self.dir)),
                _ => Ok(vec![scenario::find(&self.dir, what)?]),
            }
        };
        Ok(self.scenarios.iter().map(one).collect::<Result<Vec<_>, _>>()?.concat())
    }
}

/// Lays `--set` values over a scenario.
pub fn lay_over(scenario: &mut Scenario, set: &[String]) -> Result<(), ScenarioError> {
    for s in set {
        let (place, value) = s.split_once('=').unwrap_or((s, "true"));
        scenario.set(place, value)?;
    }
    Ok(())
}

/// `A..B` (B excluded, as in Rust), `A..=B`, or one seed.
pub fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |s: &str| s.trim().parse::<u64>().map_err(|_| format!("`{s}` is no seed"));
    if let Some((a, b)) = text.split_once("..=") {
        return Ok(number(a)?..=number(b)?);
    }
    if let Some((a, b)) = text.split_once("..") {
        let (a, b) = (number(a)?, number(b)?);
        return if a < b { Ok(a..=b - 1) } else { Err("no seeds in that range".into()) };
    }
    let one = number(text)?;
    Ok(one..=one)
}

pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Shrink(args) => crate::shrink::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Play(args) => crate::play::run(args).map(|()| true).map_err(Into::into),
        Command::Life(args) => life::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("highwater-sim: {e}");
            ExitCode::from(2)
        }
    }
}

/// What a command says of itself: whether all is well, or why it could not tell.
pub type Told = Result<bool, Box<dyn std::error::Error>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seeds() {
        assert_eq!(seeds("3..5"), Ok(3..=4));
        assert_eq!(seeds("3..=5"), Ok(3..=5));
        assert_eq!(seeds("7"), Ok(7..=7));
        assert!(seeds("5..5").is_err() && seeds("x..2").is_err());
    }
}
