//! Measures a Highwater broker against the raw limits of the machine it runs on, and prints one table.
//!
//! The broker is a child process on loopback, its data lies next to the files of the raw runs, and nothing
//! else is needed. Where a row has a ratio, the raw run and the broker's run alternate, and each figure is the
//! median of the rounds: a disk whose speed wanders then wanders for both. Everything is bounded in time and in bytes.
//! What it does not do: it takes no other client library's overhead into account, and it says nothing of
//! machines other than this one.

mod broker;
mod cluster;
mod load;
mod offsets;
mod raw;
mod rows;
mod slow;
mod start;
mod stats;
mod strace;
mod table;
mod txn;
mod wire;

use anyhow::{bail, Context, Result};
use broker::{Broker, Setup};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use table::{Row, Table, Verdict};

/// Measures a Highwater broker against the raw limits of this machine and prints one Markdown table.
#[derive(Parser)]
struct Args {
    /// Short runs, one round, 500 partitions instead of 10,000: a smoke test
    #[arg(long)]
    quick: bool,
    /// Only these parts (raw, latency, throughput, sharing, consume, idle, memory, transactions, offsets, padded, start,
    /// cluster-failover, cluster-rolling, cluster-idle, cluster-takeover, cluster-transactions; cluster is all of the last
    /// five); may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where the raw files and the broker's data lie during the run
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The broker's binary
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
}

/// What every part works with.
pub struct Bench {
    pub quick: bool,
    pub dir: PathBuf,
    binary: PathBuf,
    main: Option<Main>,
    table: Table,
}

/// The broker that all parts but `padded`, `start` and those of the cluster share.
pub struct Main {
    pub broker: Broker,
    /// Resident memory before any load.
    pub idle_rss: f64,
}

impl Bench {
    pub fn rounds(&self) -> usize {
        if self.quick {
            1
        } else {
            3
        }
    }

    /// How long one measuring run lasts.
    pub fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 700 } else { 3000 })
    }

    pub fn limit(&self) -> load::Limit {
        load::Limit { time: self.time(), bytes: if self.quick { 512 << 20 } else { 3 << 30 } }
    }

    pub fn add(&mut self, row: Row) {
        eprintln!("  {}: {} {}", row.what, row.measured, row.ratio);
        self.table.0.push(row);
    }

    pub fn setup(&self, data: &str) -> Setup {
        Setup {
            binary: self.binary.clone(),
            data: self.dir.join(data),
            id: 1,
            listen: None,
            lease: None,
            trace: None,
            sync_delay: None,
            open_files: None,
        }
    }

    /// The shared broker, started at its first use.
    pub fn main(&mut self) -> Result<&Main> {
        if self.main.is_none() {
            let broker = Broker::start(&self.setup("data"))?;
            broker.client()?.create_topic("warm", 1)?;
            std::thread::sleep(Duration::from_secs(1));
            self.main = Some(Main { idle_rss: broker.rss()?, broker });
        }
        self.main.as_ref().context("no broker")
    }
}

type Part = fn(&mut Bench) -> Result<()>;

const PARTS: &[(&str, Part)] = &[
    ("raw", rows::raw_limits),
    ("latency", rows::latency),
    ("throughput", rows::throughput),
    ("sharing", rows::sharing),
    ("consume", rows::consume),
    ("idle", rows::idle),
    ("memory", rows::memory),
    ("transactions", txn::one_broker),
    ("offsets", offsets::rates),
    ("padded", rows::padded),
    ("start", start::many_partitions),
    ("cluster-failover", cluster::failover::by_cause),
    ("cluster-rolling", cluster::rolling::restart),
    ("cluster-idle", cluster::idle::operations),
    ("cluster-takeover", cluster::takeover::many_partitions),
    ("cluster-transactions", txn::three_brokers),
];

/// Whether `asked` is the part of that name, or the group of parts that its name begins with.
fn names(part: &str, asked: &str) -> bool {
    part == asked || part.split('-').next() == Some(asked)
}

/// A directory that is removed when the bench ends.
struct Scratch(PathBuf);

impl Scratch {
    fn create(parent: &Path) -> Result<Self> {
        let dir = parent.join(format!("highwater-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Scratch(dir.canonicalize()?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(args: Args) -> Result<Table> {
    for name in &args.only {
        if !PARTS.iter().any(|(part, _)| names(part, name)) {
            bail!(
                "there is no part {name}; the parts are {:?}",
                PARTS.iter().map(|(n, _)| *n).collect::<Vec<_>>()
            );
        }
    }
    let parent = args.data.unwrap_or_else(std::env::temp_dir);
    let scratch = Scratch::create(&parent)?;
    let mut bench = Bench {
        quick: args.quick,
        dir: scratch.0.clone(),
        binary: args.binary,
        main: None,
        table: Table::default(),
    };
    for (name, part) in PARTS {
        if !args.only.is_empty() && !args.only.iter().any(|asked| names(name, asked)) {
            continue;
        }
        let start = Instant::now();
        eprintln!("{name}");
        if let Err(e) = part(&mut bench) {
            let mut row = Row::shown(*name, "");
            row.verdict = Verdict::Failed(format!("{e:#}"));
            bench.add(row);
            // A broker that failed once gives no comparable figures any more.
            bench.main = None;
        }
        eprintln!("  ({:.1} s)", start.elapsed().as_secs_f64());
    }
    // The broker ends before its files go; with 10,000 partitions removing them takes a while.
    bench.main = None;
    eprintln!("removing {}", scratch.0.display());
    Ok(bench.table)
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(table) => {
            println!("{table}");
            let failed = table.count(&Verdict::Failed(String::new()));
            println!(
                "{} targets met, {} missed, {failed} parts not measured",
                table.count(&Verdict::Met),
                table.count(&Verdict::Missed)
            );
            // A missed target is a result; a part that could not run is an error.
            ExitCode::from(u8::from(failed > 0))
        }
        Err(e) => {
            eprintln!("bench: {e:#}");
            ExitCode::from(2)
        }
    }
}
