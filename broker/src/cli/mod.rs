//! The command line: `serve`, which is what runs when nothing is named, and the offline tools.
//!
//! This is the production side: it may use the operating system directly. Whatever goes wrong before a
//! broker serves is one line on stderr that begins with `highwater:`, with exit code 2 for usage and
//! configuration and 1 for everything else.

#![allow(clippy::disallowed_methods)] // the operating system is reached here

mod cluster;
mod dump_log;
mod logging;
mod offline;
mod output;
mod serve;
mod settings;
mod verify;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// The exit code of a mistake in usage or configuration, as clap has it.
const USAGE: u8 = 2;

/// A Kafka-wire-compatible broker for one shared volume.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: settings::Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the broker (the default)
    Serve(settings::Flags),
    /// Prints every configuration key with its meaning, as Markdown
    ConfigDocs,
    /// Checks a whole data directory without writing; works beside a running broker
    ///
    /// One line on stdout for each thing that is not sound, with its file and byte, then a summary. Exit code
    /// 0: all is sound; 1: it is not; 2: there is no data directory.
    Verify(verify::Flags),
    /// Prints the batches of segment files, and the small files beside them
    ///
    /// Reads only; works beside a running broker, and on other brokers' segments (magic 2). Exit code 0: all is
    /// sound, but for a torn tail; 1: it is not.
    DumpLog(dump_log::Flags),
    /// Looks at a cluster by what lies on its volume
    #[command(subcommand)]
    Cluster(cluster::Command),
}

/// Runs what the command line asks for.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        None => serve::main(&cli.serve),
        Some(Command::Serve(flags)) => serve::main(&flags),
        Some(Command::Verify(flags)) => verify::main(&flags),
        Some(Command::DumpLog(flags)) => dump_log::main(&flags),
        Some(Command::Cluster(command)) => cluster::main(&command),
        Some(Command::ConfigDocs) => print(&highwater::config::markdown()),
    }
}

/// Writes to stdout. Whoever reads it may have gone.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The one line that says why nothing runs.
fn complain(why: &dyn std::fmt::Display) {
    let line = why.to_string().replace('\n', " ");
    let _ = writeln!(std::io::stderr(), "highwater: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_what_runs_when_nothing_is_named() {
        let with = Cli::parse_from(["highwater", "serve", "--data", "/d"]);
        assert!(matches!(with.command, Some(Command::Serve(f)) if f.data.as_deref() == Some("/d")));
        let without = Cli::parse_from(["highwater", "--data", "/d"]);
        assert!(without.command.is_none() && without.serve.data.as_deref() == Some("/d"));
    }
}
