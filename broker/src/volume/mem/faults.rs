//! The faults that a test sets, and the counts of what was asked.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// `open` and `open_write`.
    Open,
    Create,
    Read,
    Write,
    Sync,
    Len,
    Truncate,
    /// Found by the old path.
    Rename,
    Unlink,
    ReadDir,
    Mkdir,
    Rmdir,
    SyncDir,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Create => "create",
            Op::Read => "read",
            Op::Write => "write",
            Op::Sync => "sync",
            Op::Len => "len",
            Op::Truncate => "truncate",
            Op::Rename => "rename",
            Op::Unlink => "unlink",
            Op::ReadDir => "readdir",
            Op::Mkdir => "mkdir",
            Op::Rmdir => "rmdir",
            Op::SyncDir => "syncdir",
        }
    }
}

/// How often something was asked of the volume, failures included, and how many bytes went over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Opens and exclusive creates.
    pub opens: u64,
    pub reads: u64,
    pub bytes_read: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub syncs: u64,
    pub dir_syncs: u64,
    pub dir_reads: u64,
    pub renames: u64,
    /// Unlinks and removed directories.
    pub removals: u64,
}

impl Counts {
    fn count(&mut self, op: Op) {
        match op {
            Op::Open | Op::Create => self.opens += 1,
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            Op::Sync => self.syncs += 1,
            Op::SyncDir => self.dir_syncs += 1,
            Op::ReadDir => self.dir_reads += 1,
            Op::Rename => self.renames += 1,
            Op::Unlink | Op::Rmdir => self.removals += 1,
            Op::Len | Op::Truncate | Op::Mkdir => {}
        }
    }

    fn add(&mut self, o: &Counts) {
        self.opens += o.opens;
        self.reads += o.reads;
        self.bytes_read += o.bytes_read;
        self.writes += o.writes;
        self.bytes_written += o.bytes_written;
        self.syncs += o.syncs;
        self.dir_syncs += o.dir_syncs;
        self.dir_reads += o.dir_reads;
        self.renames += o.renames;
        self.removals += o.removals;
    }
}

/// A standing hang. Dropping it changes nothing; it ends by [`Hang::release`] or with
/// [`super::MemVolume::heal`].
#[derive(Clone, Debug)]
pub struct Hang {
    released: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

impl Hang {
    /// Lets go of what waits, and of what would come.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Waits until at least `n` operations have run into the hang, counting those that gave up.
    pub async fn caught(&self, n: usize) {
        let mut rx = self.waiting.subscribe();
        // The sender lives as long as `self`.
        let _ = rx.wait_for(|now| *now >= n).await;
    }
}

enum Effect {
    Fail(Errno),
    Short(usize),
    Delay(Duration),
    Hang(Hang),
}

struct Rule {
    op: Op,
    path: String,
    left: u64,
    effect: Effect,
}

/// What the rules say of one operation.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) errno: Option<Errno>,
    pub(super) short: Option<usize>,
    delay: Duration,
    hangs: Vec<Hang>,
}

impl Verdict {
    pub(super) fn waits(&self) -> bool {
        !self.delay.is_zero() || !self.hangs.is_empty()
    }

    pub(super) async fn wait(&self) {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        for hang in &self.hangs {
            let mut rx = hang.released.subscribe();
            // The sender lives as long as `hang`.
            let _ = rx.wait_for(|released| *released).await;
        }
    }
}

#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<Rule>,
    counts: BTreeMap<String, Counts>,
}

impl Faults {
    fn rule(&mut self, op: Op, path: &str, left: u64, effect: Effect) {
        self.rules.push(Rule { op, path: path.to_owned(), left, effect });
    }

    pub(super) fn fail(&mut self, op: Op, path: &str, errno: Errno, times: u64) {
        self.rule(op, path, times, Effect::Fail(errno));
    }

    pub(super) fn short(&mut self, path: &str, bytes: usize, times: u64) {
        self.rule(Op::Write, path, times, Effect::Short(bytes));
    }

    pub(super) fn delay(&mut self, op: Op, path: &str, by: Duration) {
        self.rule(op, path, u64::MAX, Effect::Delay(by));
    }

    pub(super) fn hang(&mut self, op: Op, path: &str) -> Hang {
        let hang = Hang { released: watch::Sender::new(false), waiting: watch::Sender::new(0) };
        self.rule(op, path, u64::MAX, Effect::Hang(hang.clone()));
        hang
    }

    pub(super) fn heal(&mut self) {
        for rule in std::mem::take(&mut self.rules) {
            if let Effect::Hang(hang) = rule.effect {
                hang.release();
            }
        }
    }

    /// Counts an operation and says what the rules do to it. Only the first rule that fails an
    /// operation, and the first that cuts a write short, is used up by it.
    pub(super) fn judge(&mut self, op: Op, path: &str) -> Verdict {
        self.counts.entry(path.to_owned()).or_default().count(op);
        let mut verdict = Verdict::default();
        for rule in self.rules.iter_mut().filter(|r| r.op == op && path.contains(&r.path)) {
            match &rule.effect {
                Effect::Fail(errno) if verdict.errno.is_none() => {
                    verdict.errno = Some(*errno);
                    rule.left -= 1;
                }
                Effect::Short(bytes) if verdict.short.is_none() => {
                    verdict.short = Some(*bytes);
                    rule.left -= 1;
                }
                Effect::Fail(_) | Effect::Short(_) => {}
                Effect::Delay(by) => verdict.delay += *by,
                Effect::Hang(hang) if !*hang.released.borrow() => {
                    hang.waiting.send_modify(|n| *n += 1);
                    verdict.hangs.push(hang.clone());
                }
                Effect::Hang(_) => {}
            }
        }
        self.rules.retain(|r| r.left > 0);
        verdict
    }

    pub(super) fn count_bytes(&mut self, op: Op, path: &str, n: usize) {
        let counts = self.counts.entry(path.to_owned()).or_default();
        match op {
            Op::Read => counts.bytes_read += n as u64,
            _ => counts.bytes_written += n as u64,
        }
    }

    pub(super) fn counts_of(&self, path: &str) -> Counts {
        let mut sum = Counts::default();
        for counts in self.counts.iter().filter(|(p, _)| p.contains(path)).map(|(_, c)| c) {
            sum.add(counts);
        }
        sum
    }

    pub(super) fn reset_counts(&mut self) {
        self.counts.clear();
    }
}
