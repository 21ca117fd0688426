//! `highwater verify`: checks a whole data directory and writes nothing, also beside a running broker.
//!
//! Promises to look at every file that the brokers rely on, and to say which one, and where in it, is not sound.
//! Exit codes: 0 sound, 1 not, 2 there is no data directory. Bytes that an unclean stop left after the last whole
//! batch are counted, not held against it; so are directories that no topic owns, which are noted.

use super::complain;
use super::offline::{on_data, Apart};
use super::output::{say, Output};
use clap::Args;
use futures::StreamExt;
use highwater::cluster::inspect::{self, Inspection};
use highwater::cluster::strays;
use highwater::coordinator::inspect as coordinator;
use highwater::storage::verify::{self, Finding, Report};
use highwater::types::TopicId;
use highwater::volume::{Volume, VolumeError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Directories that are checked side by side: a shared volume answers slowly, and many at a time.
const AT_ONCE: usize = 8;

/// What `verify` takes.
#[derive(Debug, Args)]
pub struct Flags {
    /// The data directory (what serve calls --data)
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    apart: Apart,
    /// Prints findings only: no notes, no summary
    #[arg(long, short)]
    quiet: bool,
}

/// Checks what the flags name, prints, and says how it ended.
pub fn main(flags: &Flags) -> ExitCode {
    on_data(&flags.dir, &flags.apart, async |v| run(v, flags).await)
}

async fn run(v: &dyn Volume, flags: &Flags) -> ExitCode {
    let mut out = Output::new(std::io::stdout().lock());
    let total = check(v, &flags.dir, flags.quiet, &mut out).await;
    if !flags.quiet {
        say!(out, "{total}");
    }
    match out.finish() {
        Ok(()) if total.findings == 0 => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(e) => {
            complain(&format!("cannot print: {e}"));
            ExitCode::FAILURE
        }
    }
}

/// What was looked at, over all directories.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    partitions: u64,
    slots: u64,
    segments: u64,
    batches: u64,
    bytes: u64,
    unfinished: u64,
    findings: u64,
}

impl Total {
    fn add(&mut self, r: &Report) {
        self.segments += r.segments;
        self.batches += r.batches;
        self.bytes += r.bytes;
        self.unfinished += r.unfinished;
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} partitions, {} group slots, {} segments, {} batches, {} bytes, {} unfinished bytes: ",
            self.partitions, self.slots, self.segments, self.batches, self.bytes, self.unfinished
        )?;
        match self.findings {
            0 => write!(f, "sound"),
            1 => write!(f, "1 finding"),
            n => write!(f, "{n} findings"),
        }
    }
}

/// One directory to check.
struct Job {
    dir: String,
    identity: (TopicId, i32),
    /// It is of this slot of the group coordinator.
    slot: Option<u32>,
}

async fn check<W: Write>(v: &dyn Volume, root: &Path, quiet: bool, out: &mut Output<W>) -> Total {
    let mut total = Total::default();
    let mut tell = |total: &mut Total, findings: &[Finding]| {
        for f in findings {
            total.findings += 1;
            say!(out, "{}", shown(root, f));
        }
    };
    let cluster = inspect::inspect(v).await;
    tell(&mut total, &cluster.findings);
    tell(&mut total, &coordinator::producer_id_blocks(v).await);
    let mut notes = cluster.notes.clone();
    let (jobs, strays) = jobs(v, &cluster, &mut notes).await;
    tell(&mut total, &strays);
    let mut done = futures::stream::iter(jobs).map(|job| look(v, job)).buffered(AT_ONCE);
    while let Some((job, found)) = done.next().await {
        match found {
            Ok(Some(report)) => {
                match job.slot {
                    Some(_) => total.slots += 1,
                    None => total.partitions += 1,
                }
                total.add(&report);
                tell(&mut total, &report.findings);
            }
            // Never opened, or deleted since.
            Ok(None) => {}
            Err(e) => {
                let path = if e.path.is_empty() { job.dir } else { e.path };
                let what = format!("cannot be read: {}", e.source);
                tell(&mut total, &[Finding { path, byte: None, what }]);
            }
        }
    }
    if !quiet {
        for note in notes {
            say!(out, "note: {note}");
        }
    }
    total
}

async fn look(v: &dyn Volume, job: Job) -> (Job, Result<Option<Report>, VolumeError>) {
    let found = match job.slot {
        None => verify::partition(v, &job.dir, job.identity).await,
        Some(slot) => {
            let mut content = |h: &_, batch: &bytes::Bytes| coordinator::slot_batch(slot, h, batch);
            verify::partition_with(v, &job.dir, job.identity, &mut content).await
        }
    };
    match found {
        Err(e) if e.is_not_found() && e.path == job.dir => (job, Ok(None)),
        Err(e) => (job, Err(e)),
        Ok(report) => (job, Ok(Some(report))),
    }
}

/// A finding with the path as the shell takes it.
fn shown(root: &Path, f: &Finding) -> String {
    Finding { path: root.join(&f.path).display().to_string(), ..f.clone() }.to_string()
}

/// What there is to check, and what cannot be listed. Directories that nobody owns are noted.
async fn jobs(v: &dyn Volume, cluster: &Inspection, notes: &mut Vec<String>) -> (Vec<Job>, Vec<Finding>) {
    let mut jobs: Vec<Job> =
        coordinator::slots().map(|(dir, slot, identity)| Job { dir, identity, slot: Some(slot) }).collect();
    let found = strays::strays(v, cluster).await;
    notes.extend(found.strays.iter().map(|s| format!("{}: {}", s.dir, s.why)));
    let mut findings = found.findings;
    let Some(topics) = &cluster.topics else {
        notes.push("without metadata, partitions are checked where they are found".into());
        for (topic, incarnation) in found.incarnations {
            unnamed(v, &format!("{topic}/{incarnation}"), &incarnation, &mut jobs, &mut findings).await;
        }
        return (jobs, findings);
    };
    for (name, (id, partitions)) in topics {
        jobs.extend((0..*partitions).map(|n| Job {
            dir: format!("{name}/{id}/{n}"),
            identity: (*id, n),
            slot: None,
        }));
    }
    (jobs, findings)
}

/// Partitions to check by what their paths say, because there is no metadata that could tell.
async fn unnamed(
    v: &dyn Volume,
    dir: &str,
    incarnation: &str,
    jobs: &mut Vec<Job>,
    findings: &mut Vec<Finding>,
) {
    let id = TopicId(uuid::Uuid::parse_str(incarnation).unwrap_or_default());
    if id.to_string() != incarnation {
        return;
    }
    match strays::dirs(v, dir).await {
        Ok(names) => {
            jobs.extend(names.iter().filter_map(|n| Some((n, n.parse().ok()?))).map(|(n, index)| Job {
                dir: format!("{dir}/{n}"),
                identity: (id, index),
                slot: None,
            }))
        }
        Err(finding) => findings.push(finding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_file_and_byte_and_the_summary_counts() {
        let f = Finding { path: "t/0/x.log".into(), byte: Some(7), what: "damaged".into() };
        assert_eq!(shown(Path::new("data"), &f), "data/t/0/x.log byte 7: damaged");
        let mut total = Total { partitions: 2, ..Total::default() };
        total.add(&Report { segments: 3, batches: 4, bytes: 5, unfinished: 6, ..Report::default() });
        let counts = "2 partitions, 0 group slots, 3 segments, 4 batches, 5 bytes, 6 unfinished bytes: ";
        assert_eq!(total.to_string(), format!("{counts}sound"));
        total.findings = 2;
        assert_eq!(total.to_string(), format!("{counts}2 findings"));
    }
}
