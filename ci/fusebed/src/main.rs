//! A directory as a FUSE file system whose operations can be delayed, stalled and failed while it is
//! mounted. Several mounts of one directory stand for several hosts on one volume: what goes wrong
//! on one of them is seen by the broker on it and by nobody else.
//!
//! It says `mounted` when it is, and then reads commands, one a line, and answers each with a line:
//! a rule (`faults.rs` has the words) with `ok`, `clear` with `ok HITS STALLED` (operations hit since the
//! last `clear`, and those that it let go on), anything else with `no: …`. At the end of the input
//! everything stalled goes on, the mount goes away, used or not, and the program ends; so it does
//! not outlive who started it. Exit code 3: this machine lets nobody mount here (no FUSE, or no right to).

mod faults;
mod nodes;
mod passthrough;

#[cfg(test)]
mod tests;

use anyhow::{Context, Result};
use clap::Parser;
use faults::{Faults, Rule};
use fuser::{Config, MountOption, Session};
use nodes::Nodes;
use passthrough::Passthrough;
use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Operations that no rule hits are done on these threads; each may wait for the disk.
const THREADS: usize = 32;
const NOT_HERE: u8 = 3;

/// Mounts a directory somewhere else, for faults to be played there.
#[derive(Parser)]
struct Args {
    /// The directory whose files are shown
    backing: PathBuf,
    /// An empty directory to mount it at
    mountpoint: PathBuf,
}

/// A mounted bed, until it is dropped.
struct Mounted {
    at: PathBuf,
    faults: Arc<Faults>,
}

impl Mounted {
    /// `None`, and a line that says why, if this machine lets nobody mount here.
    fn new(backing: &Path, at: &Path) -> Result<Option<Mounted>> {
        let at = at.canonicalize().with_context(|| at.display().to_string())?;
        let nodes = Nodes::new(backing).with_context(|| backing.display().to_string())?;
        let faults = Arc::new(Faults::default());
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("highwater-fusebed".into()), MountOption::DefaultPermissions];
        config.n_threads = Some(THREADS);
        match Session::new(Passthrough::new(nodes, faults.clone()), &at, &config) {
            Ok(session) => {
                std::thread::spawn(move || session.run());
                Ok(Some(Mounted { at, faults }))
            }
            // Not found: /dev/fuse, or the program that mounts for those who may not.
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
                eprintln!("no FUSE, or no right to mount: {e}");
                Ok(None)
            }
            Err(e) => Err(e).context("cannot mount"),
        }
    }
}

impl Drop for Mounted {
    /// A mount that is in use goes, too: its users get errors from now on, and must not get stuck.
    fn drop(&mut self) {
        self.faults.clear();
        if let Err(e) = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {e}", self.at.display());
        }
    }
}

/// Carries out one command; the answer.
fn obey(faults: &Faults, line: &str) -> String {
    if line.trim() == "clear" {
        let (hits, stalled) = faults.clear();
        return format!("ok {hits} {stalled}");
    }
    match line.parse::<Rule>() {
        Ok(rule) => {
            faults.add(rule);
            "ok".to_owned()
        }
        Err(why) => format!("no: {why}"),
    }
}

fn converse(faults: &Faults) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "mounted")?;
    for line in io::stdin().lock().lines() {
        writeln!(out, "{}", obey(faults, &line?))?;
    }
    Ok(())
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    // The modes that come from the kernel have the callers' masks in them already.
    rustix::process::umask(rustix::fs::Mode::empty());
    match Mounted::new(&args.backing, &args.mountpoint)? {
        Some(mounted) => converse(&mounted.faults).map(|()| ExitCode::SUCCESS),
        None => Ok(ExitCode::from(NOT_HERE)),
    }
}
