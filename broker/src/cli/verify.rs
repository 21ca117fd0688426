//! `highwater verify`: checks a whole data directory and writes nothing, also beside a running broker.
//!
//! Promises to look at every file that the brokers rely on, and to say which one, and where in it, is not sound.
//! Exit codes: 0 sound, 1 not, 2 there is no data directory. Bytes that an unclean stop left after the last whole
//! batch are counted, not held against it; so are directories that no topic owns, which are noted.

use super::output::{say, Output};
use super::{complain, USAGE};
use clap::Args;
use futures::StreamExt;
use highwater::cluster::inspect::{self, Inspection};
use highwater::coordinator::inspect as coordinator;
use highwater::storage::verify::{self, Finding, Report};
use highwater::types::TopicId;
use highwater::volume::{Class, EntryKind, OsVolume, Volume, VolumeError};
use std::collections::BTreeMap;
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
    /// Prints findings only: no notes, no summary
    #[arg(long, short)]
    quiet: bool,
}

/// Checks what the flags name, prints, and says how it ended.
pub fn main(flags: &Flags) -> ExitCode {
    let volume = match OsVolume::open(&flags.dir) {
        Ok(volume) => volume,
        Err(e) => {
            complain(&format!("{}: {}", flags.dir.display(), e.source));
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            complain(&e);
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(run(&volume, flags));
    // A call that is stuck in the volume must not keep the process.
    runtime.shutdown_background();
    code
}

async fn run(v: &dyn Volume, flags: &Flags) -> ExitCode {
    match inspect::is_data(v).await {
        Ok(true) => {}
        Ok(false) => {
            complain(&format!("{}: no Highwater data here (no __cluster directory)", flags.dir.display()));
            return ExitCode::from(USAGE);
        }
        Err(e) => {
            complain(&format!("{}: {}", flags.dir.display(), e.source));
            return ExitCode::from(USAGE);
        }
    }
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
    if let Some(topics) = &cluster.topics {
        for (name, (id, partitions)) in topics {
            jobs.extend((0..*partitions).map(|n| Job {
                dir: format!("{name}/{id}/{n}"),
                identity: (*id, n),
                slot: None,
            }));
        }
    }
    let mut tree = Tree { v, cluster, findings: Vec::new(), found: Vec::new(), notes };
    tree.walk().await;
    jobs.extend(tree.found);
    (jobs, tree.findings)
}

/// A walk over the directories of topics, for those that the metadata does not name.
struct Tree<'a> {
    v: &'a dyn Volume,
    cluster: &'a Inspection,
    findings: Vec<Finding>,
    /// Partitions to check by what their paths say, because there is no metadata that could tell.
    found: Vec<Job>,
    notes: &'a mut Vec<String>,
}

impl Tree<'_> {
    async fn walk(&mut self) {
        if self.cluster.topics.is_none() {
            self.notes.push("without metadata, partitions are checked where they are found".into());
        }
        for topic in self.dirs("").await {
            if inspect::is_no_topic(&topic) {
                continue;
            }
            for incarnation in self.dirs(&topic).await {
                self.incarnation(&topic, &incarnation).await;
            }
        }
    }

    async fn incarnation(&mut self, topic: &str, incarnation: &str) {
        let dir = format!("{topic}/{incarnation}");
        let id = TopicId(uuid::Uuid::parse_str(incarnation.trim_end_matches(".deleted")).unwrap_or_default());
        let known = |topics: &BTreeMap<String, (TopicId, i32)>| {
            topics.get(topic).filter(|(k, _)| k.to_string() == incarnation).map(|(_, partitions)| *partitions)
        };
        let Some(topics) = &self.cluster.topics else {
            return self.unnamed(&dir, id, incarnation).await;
        };
        match known(topics) {
            Some(partitions) => {
                for n in self.dirs(&dir).await {
                    if n.parse::<i32>().map_or(true, |i| i < 0 || i >= partitions || i.to_string() != n) {
                        self.notes.push(format!("{dir}/{n}: the topic has no such partition"));
                    }
                }
            }
            None if self.cluster.deleting.contains(&id) => {
                self.notes.push(format!("{dir}: of a topic that is being deleted"));
            }
            None => self.notes.push(format!("{dir}: of no topic that the metadata knows")),
        }
    }

    async fn unnamed(&mut self, dir: &str, id: TopicId, incarnation: &str) {
        if id.to_string() != incarnation {
            return;
        }
        for n in self.dirs(dir).await {
            if let Ok(index) = n.parse() {
                self.found.push(Job { dir: format!("{dir}/{n}"), identity: (id, index), slot: None });
            }
        }
    }

    /// The directories in a directory.
    async fn dirs(&mut self, dir: &str) -> Vec<String> {
        match self.v.read_dir(dir, Class::Data).await {
            Ok(entries) => entries.into_iter().filter(|e| e.kind == EntryKind::Dir).map(|e| e.name).collect(),
            Err(e) if e.is_not_found() => Vec::new(),
            Err(e) => {
                let what = format!("cannot be listed: {}", e.source);
                self.findings.push(Finding { path: dir.into(), byte: None, what });
                Vec::new()
            }
        }
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
