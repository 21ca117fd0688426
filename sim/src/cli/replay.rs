//! `replay`: one seed again, to be looked at.

use super::{lay_over, Told};
use crate::cli::life::guarded;
use crate::life::{self, Lived, Settings};
use crate::marks::Marks;
use crate::scenario;
use crate::view;
use crate::volume::OpEvent;
use highwater::config::BrokerConfig;

#[derive(clap::Args)]
pub struct Args {
    /// A scenario by name or path
    pub scenario: String,
    pub seed: u64,
    #[arg(long, default_value = "scenarios", env = "HIGHWATER_SCENARIOS")]
    pub dir: String,
    #[arg(long = "set", value_name = "PLACE=VALUE")]
    pub set: Vec<String>,
    /// What the broker says, on standard error: error, warn, info, debug, trace, or a filter such as
    /// highwater::storage=debug
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Write the page that shows this life
    #[arg(long, value_name = "FILE")]
    pub html: Option<String>,
    /// Print the settled plan and every event of the history
    #[arg(long)]
    pub events: bool,
    /// With --events: also the operations on the volume whose path contains this
    #[arg(long, value_name = "PATH")]
    pub ops: Option<String>,
}

pub fn run(args: &Args) -> Told {
    let mut scenario = scenario::find(&args.dir, &args.scenario)?;
    lay_over(&mut scenario, &args.set)?;
    let plan = scenario.plan(args.seed)?;
    let marks = Marks::default();
    marks.listen(args.log.as_deref());
    if args.events {
        println!("{}", plan.to_toml());
    }
    let settings = Settings { record: args.html.is_some() || args.events };
    let mut page: Result<(), String> = Ok(());
    let outcome = guarded(&scenario.name, args.seed, || {
        let (outcome, lived) = life::run(&scenario.name, args.seed, &plan, &settings);
        if args.events {
            print_events(&lived, args.ops.as_deref());
        }
        if let Some(file) = &args.html {
            page = write_page(file, &scenario.name, args.seed, &lived);
        }
        outcome
    });
    page?;
    for b in &outcome.broken {
        let at = b.at_ms as f64 / 1000.0;
        println!("{} broken at {at:.3} s: {}", b.promise, b.what);
    }
    for (mark, n) in marks.counts() {
        println!("reached {mark}: {n}");
    }
    println!("{:?}", outcome.stats);
    let verdict = if outcome.holds() { "held" } else { "FAILED" };
    println!("{} seed {}: {verdict}, hash {}", scenario.name, args.seed, outcome.hash);
    if let Some(file) = &args.html {
        println!("page: {file}");
    }
    Ok(outcome.holds())
}

/// Events and, of the operations on the volume, those on paths that contain `ops`, in order of time.
fn print_events(lived: &life::Lived, ops: Option<&str>) {
    let events = lived.history.iter().map(|e| (e.at, format!("{:?}", e.event)));
    let wanted = |o: &&OpEvent| ops.is_some_and(|p| o.path.contains(p));
    let operations = lived.operations.iter().filter(wanted).map(|o| (o.ended, format!("  {o:?}")));
    let mut lines: Vec<_> = events.chain(operations).collect();
    lines.sort_by_key(|(at, _)| *at);
    for (at, line) in lines {
        println!("{:>10.6} {line}", at.as_secs_f64());
    }
}

/// The page of a life that was recorded.
fn write_page(file: &str, scenario: &str, seed: u64, lived: &Lived) -> Result<(), String> {
    let Some(seen) = &lived.seen else { return Err(format!("{file}: the life was not recorded")) };
    let about = view::About {
        scenario: scenario.into(),
        seed,
        hash: lived.hash,
        commit: commit(),
        ended: lived.sim_time,
        lease: BrokerConfig::default().lease,
        notes: Vec::new(),
    };
    let life = view::life(&about, &lived.history, &lived.operations, &lived.verdict.violations, seen);
    let page = view::html(&life).map_err(|e| format!("{file}: {e}"))?;
    std::fs::write(file, page).map_err(|e| format!("{file}: {e}"))
}

/// The commit of the source that was run, if git knows it.
fn commit() -> Option<String> {
    let out = std::process::Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    out.status.success().then(|| text.trim().to_owned())
}
