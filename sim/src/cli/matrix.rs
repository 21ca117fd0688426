//! `matrix`: which mounts keep which promises.

use super::{Told, Which};
use crate::runner::{self, Ask, Progress};
use std::collections::BTreeMap;

/// The kinds of mounts that are compared: what people call them, and what that is in the model.
const MOUNTS: [(&str, &[&str]); 9] = [
    ("local directory (ext4, XFS), one host", &["volume.kind=local"]),
    ("NFS, hard, actimeo=3", &["volume.kind=nfs", "volume.actimeo=3000", "volume.acdirmax=3000"]),
    ("NFS, hard, actimeo=0 (noac)", &["volume.kind=nfs", "volume.actimeo=0", "volume.acdirmax=0"]),
    (
        "NFS, hard, defaults (acdirmax=60)",
        &["volume.kind=nfs", "volume.actimeo=3000", "volume.acdirmax=60000"],
    ),
    ("NFS, hard, actimeo=60", &["volume.kind=nfs", "volume.actimeo=60000", "volume.acdirmax=60000"]),
    ("NFS, soft (timeo=50, retrans=1: 10 s)", &["volume.kind=nfs", "volume.soft=10000"]),
    ("coherent (CephFS-like)", &["volume.kind=coherent"]),
    ("NFS, hard, server exports async", &["volume.kind=nfs", "volume.lying=true"]),
    ("coherent, server drops what it synced", &["volume.kind=coherent", "volume.lying=true"]),
];

/// What is lived on each, unless scenarios are named.
const SCENARIOS: [&str; 6] =
    ["power-cut", "process-kill", "server-restart", "stall-past-watchdog", "stale-cache", "everything"];

const PROMISES: [&str; 13] =
    ["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P12", "P13"];

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Seeds of each scenario on each mount
    #[arg(long, default_value_t = 200)]
    num: u64,
    #[arg(long)]
    jobs: Option<usize>,
}

pub fn run(args: &Args) -> Told {
    let mut which = args.which.clone();
    if which.scenarios.is_empty() {
        which.scenarios = SCENARIOS.map(str::to_owned).to_vec();
    }
    let scenarios = which.scenarios()?;
    let total = (MOUNTS.len() * scenarios.len()) as u64 * args.num;
    let mut progress = Progress::new(total);
    // (mount, promise) -> the first seed that broke it, and how many did.
    let mut broken: BTreeMap<(usize, String), (String, u64)> = BTreeMap::new();
    for (m, (_, options)) in MOUNTS.iter().enumerate() {
        let set: Vec<String> =
            args.which.set.iter().cloned().chain(options.iter().map(|o| o.to_string())).collect();
        for s in &scenarios {
            let ask = |seed| Ask { scenario: s.name.clone(), path: s.path.clone(), seed, set: set.clone() };
            let asks = (1..=args.num).map(ask);
            runner::run(asks, args.jobs.unwrap_or_else(runner::cores), |ask, outcome| {
                progress.count(&outcome, !outcome.holds());
                let promises: std::collections::BTreeSet<String> =
                    outcome.broken.iter().map(|b| b.promise.clone()).collect();
                for promise in promises {
                    let shown = || (format!("{} {}", ask.scenario, ask.seed), 0);
                    broken.entry((m, promise)).or_insert_with(shown).1 += 1;
                }
                true
            });
        }
    }
    println!("{}", progress.end());
    println!("{}", table(&broken, args.num * scenarios.len() as u64));
    Ok(true)
}

/// Markdown: a row for each mount, a column for each promise that is broken anywhere, and one for the rest.
fn table(broken: &BTreeMap<(usize, String), (String, u64)>, lives: u64) -> String {
    let mut columns: Vec<String> = broken.keys().map(|(_, p)| p.clone()).collect();
    columns.sort_by_key(|p| (PROMISES.iter().position(|q| q == p).unwrap_or(99), p.clone()));
    columns.dedup();
    let whole: Vec<&str> = PROMISES.into_iter().filter(|p| !columns.iter().any(|c| c == p)).collect();
    let mut out = format!("{lives} lives on each mount; a cell names the first scenario and seed that broke the promise, and how many lives did.\n\n");
    out += &format!(
        "| mount | {} |\n",
        columns.iter().cloned().chain([whole.join(", ")]).collect::<Vec<_>>().join(" | ")
    );
    out += &format!("|---|{}\n", "---|".repeat(columns.len() + 1));
    for (m, (name, _)) in MOUNTS.iter().enumerate() {
        let cell = |p: &String| match broken.get(&(m, p.clone())) {
            Some((first, n)) => format!("**{first}** ({n})"),
            None => "holds".into(),
        };
        let cells: Vec<String> = columns.iter().map(cell).chain(["hold".into()]).collect();
        out += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    out
}
