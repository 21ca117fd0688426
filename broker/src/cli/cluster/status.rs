//! `highwater cluster status`: shows how a cluster stands, and writes nothing on its volume.
//!
//! Exit codes: 0 all is well, 1 something is not, 2 there is no data directory. A cluster that was stopped is not well:
//! nobody leads its partitions. Whether its files are sound is for `verify` to say.

use super::human;
use crate::cli::complain;
use crate::cli::offline::{on_data, Apart};
use crate::cli::output::{say, Output};
use clap::Args;
use highwater::cluster::status::{self, Ask, State, Status};
use highwater::coordinator::inspect as coordinator;
use highwater::rt::OsClock;
use highwater::volume::Volume;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What `cluster status` takes.
#[derive(Debug, Args)]
pub struct Flags {
    /// The data directory (what serve calls --data)
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    apart: Apart,
    /// Prints one JSON document
    #[arg(long)]
    json: bool,
    /// Lists all partitions and slots, not only those that are not well
    #[arg(long)]
    partitions: bool,
    /// Watches heartbeats that do not move for so long; from the lease (10 s by default) on this proves brokers dead
    #[arg(long, value_name = "SECONDS")]
    watch: Option<u32>,
}

pub fn main(flags: &Flags) -> ExitCode {
    on_data(&flags.data, &flags.apart, async |v| run(v, flags).await)
}

async fn run(v: &dyn Volume, flags: &Flags) -> ExitCode {
    let slots = coordinator::slots().map(|(dir, _, _)| dir).collect();
    let ask = Ask { slots, watch: flags.watch.map(|s| Duration::from_secs(s.into())) };
    let mut status = status::status(v, &OsClock, &ask).await;
    let well = status.well;
    let mut out = Output::new(std::io::stdout().lock());
    if flags.json {
        select(&mut status, flags.partitions);
        match serde_json::to_string_pretty(&status) {
            Ok(document) => say!(out, "{document}"),
            Err(e) => {
                complain(&e);
                return ExitCode::FAILURE;
            }
        }
    } else {
        human::print(&flags.data, &status, flags.partitions, &mut out);
    }
    match out.finish() {
        Ok(()) if well => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(e) => {
            complain(&format!("cannot print: {e}"));
            ExitCode::FAILURE
        }
    }
}

/// A cluster has thousands of partitions, most of them well.
fn select(status: &mut Status, all: bool) {
    status.places.retain(|p| all || p.state != State::Led);
}
