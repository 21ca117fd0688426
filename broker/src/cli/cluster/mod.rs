//! `highwater cluster`: tools that look at a whole cluster.

mod human;
mod status;

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows members, controller, who leads what, and what is stalled, orphaned or unreadable, and why
    ///
    /// Writes nothing; works beside running brokers, and when none runs. Heartbeats are watched for a little more than
    /// two of them (2.5 s with the default lease) if they do not move before. Exit code 0: all is well; 1: something is
    /// stalled, moving, orphaned or unreadable; 2: there is no data directory.
    Status(status::Flags),
}

pub fn main(command: &Command) -> ExitCode {
    match command {
        Command::Status(flags) => status::main(flags),
    }
}
