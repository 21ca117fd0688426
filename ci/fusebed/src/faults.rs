//! What goes wrong on this mount, and for whom: rules, and the gate that every operation passes.
//!
//! A rule names operations, a part of a path and what happens to those that match: they are delayed,
//! stalled until the rules are cleared, or failed with EIO. The first rule that matches an
//! operation when it arrives decides; a rule that comes later does not touch it any more. A delayed
//! or stalled operation takes effect *afterwards*, as one does that a hung mount sends when the
//! network heals.

use parking_lot::{Condvar, Mutex};
use std::str::FromStr;
use std::time::Duration;

/// What may be asked of a file system, as far as rules tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Lookup,
    Stat,
    SetAttr,
    Open,
    Create,
    Read,
    Write,
    Sync,
    Close,
    MkDir,
    RmDir,
    Unlink,
    Rename,
    Link,
    ReadDir,
    SyncDir,
    StatFs,
}

const OPS: [(&str, Op); 17] = [
    ("lookup", Op::Lookup),
    ("stat", Op::Stat),
    ("setattr", Op::SetAttr),
    ("open", Op::Open),
    ("create", Op::Create),
    ("read", Op::Read),
    ("write", Op::Write),
    ("sync", Op::Sync),
    ("close", Op::Close),
    ("mkdir", Op::MkDir),
    ("rmdir", Op::RmDir),
    ("unlink", Op::Unlink),
    ("rename", Op::Rename),
    ("link", Op::Link),
    ("readdir", Op::ReadDir),
    ("syncdir", Op::SyncDir),
    ("statfs", Op::StatFs),
];

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Delay(Duration),
    /// Until the rules are cleared.
    Stall,
    /// With EIO, and without any effect.
    Fail,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    action: Action,
    /// Empty: every operation.
    ops: Vec<Op>,
    /// A part of the path below the mount; empty: every path.
    path: String,
    /// How many more operations it hits; `None`: all that come.
    left: Option<u64>,
}

impl Rule {
    fn matches(&self, op: Op, path: &str) -> bool {
        self.left != Some(0) && (self.ops.is_empty() || self.ops.contains(&op)) && path.contains(&self.path)
    }
}

/// `delay MILLIS OPS PATH [TIMES]`, `stall OPS PATH [TIMES]` or `fail OPS PATH [TIMES]`. OPS are names with
/// commas between them; `*` stands for every operation, or every path.
impl FromStr for Rule {
    type Err = String;

    fn from_str(line: &str) -> Result<Rule, String> {
        let mut words = line.split_whitespace();
        let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
        let action = match word("what to do")? {
            "delay" => Action::Delay(Duration::from_millis(number(word("the milliseconds")?)?)),
            "stall" => Action::Stall,
            "fail" => Action::Fail,
            other => return Err(format!("unknown: {other}")),
        };
        let ops = match word("the operations")? {
            "*" => Vec::new(),
            names => names.split(',').map(op).collect::<Result<_, _>>()?,
        };
        let path = match word("the path")? {
            "*" => String::new(),
            part => part.to_owned(),
        };
        let left = words.next().map(number).transpose()?;
        match words.next() {
            Some(more) => Err(format!("too much: {more}")),
            None => Ok(Rule { action, ops, path, left }),
        }
    }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("not a number: {word}"))
}

fn op(name: &str) -> Result<Op, String> {
    OPS.iter().find(|(n, _)| *n == name).map(|(_, op)| *op).ok_or(format!("no such operation: {name}"))
}

/// Whether an operation is to be carried out, once it has passed the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    /// Operations hit since the rules were last cleared.
    hits: u64,
    /// Rises when the rules are cleared: what was stalled before goes on.
    cleared: u64,
    waiting: u64,
}

/// The rules of one mount.
#[derive(Default)]
pub struct Faults {
    state: Mutex<State>,
    released: Condvar,
}

/// An operation that was hit, and what is still to happen to it.
pub struct Hit {
    action: Action,
    /// The clearing that ends its stall is the next one after this.
    cleared: u64,
}

impl Faults {
    pub fn add(&self, rule: Rule) {
        self.state.lock().rules.push(rule);
    }

    /// Forgets all rules and lets go on what is stalled; returns how many operations were hit since
    /// the last time, and how many of them were stalled still.
    pub fn clear(&self) -> (u64, u64) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.cleared += 1;
        self.released.notify_all();
        (std::mem::take(&mut state.hits), state.waiting)
    }

    /// What happens to an operation that arrives now. The path is asked for only if there are rules.
    pub fn meet(&self, op: Op, path: impl FnOnce() -> String) -> Option<Hit> {
        if self.state.lock().rules.is_empty() {
            return None;
        }
        // Outside of the lock: it takes a system call.
        let path = path();
        let mut state = self.state.lock();
        let rule = state.rules.iter_mut().find(|r| r.matches(op, &path))?;
        rule.left = rule.left.map(|n| n - 1);
        let action = rule.action;
        state.hits += 1;
        Some(Hit { action, cleared: state.cleared })
    }

    /// Waits for as long as the hit says.
    pub fn suffer(&self, hit: &Hit) -> Verdict {
        match hit.action {
            Action::Fail => return Verdict::Fail,
            Action::Delay(time) => std::thread::sleep(time),
            Action::Stall => {
                let mut state = self.state.lock();
                state.waiting += 1;
                self.released.wait_while(&mut state, |s| s.cleared == hit.cleared);
                state.waiting -= 1;
            }
        }
        Verdict::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    fn rule(line: &str) -> Rule {
        line.parse().unwrap()
    }

    #[test]
    fn rules_are_read_as_they_are_written() {
        let slow = rule("delay 200 sync,write .log 3");
        let action = Action::Delay(Duration::from_millis(200));
        let expected = Rule { action, ops: vec![Op::Sync, Op::Write], path: ".log".into(), left: Some(3) };
        assert_eq!(slow, expected);
        let all = Rule { action: Action::Stall, ops: vec![], path: String::new(), left: None };
        assert_eq!(rule("stall * *"), all);
        for bad in ["", "stall", "stall *", "delay x * *", "fail fsync *", "fail * * x", "fail * * 1 1"] {
            assert!(bad.parse::<Rule>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_rule_hits_its_operations_on_its_paths_only_and_only_so_often() {
        let faults = Faults::default();
        assert!(faults.meet(Op::Sync, || unreachable!("no rules, no path")).is_none());
        faults.add(rule("fail sync .log 2"));
        let hit = |op, path: &str| faults.meet(op, || path.to_owned()).is_some();
        assert!(!hit(Op::Write, "t/0.log"));
        assert!(!hit(Op::Sync, "t/manifest"));
        assert!(hit(Op::Sync, "t/0.log"));
        assert!(hit(Op::Sync, "t/1.log"));
        assert!(!hit(Op::Sync, "t/0.log"), "used up");
        assert_eq!(faults.clear(), (2, 0));
        assert_eq!(faults.clear(), (0, 0));
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let faults = Faults::default();
        faults.add(rule("delay 1 sync heartbeat"));
        faults.add(rule("fail * *"));
        let suffered = |path: &str| faults.suffer(&faults.meet(Op::Sync, || path.to_owned()).unwrap());
        assert_eq!(suffered("1.heartbeat"), Verdict::Pass);
        assert_eq!(suffered("0.log"), Verdict::Fail);
    }

    #[test]
    fn what_is_stalled_goes_on_when_the_rules_are_cleared_and_not_before() {
        let faults = Arc::new(Faults::default());
        faults.add(rule("stall sync *"));
        let hit = faults.meet(Op::Sync, String::new).unwrap();
        let (stalled, started) = (faults.clone(), Instant::now());
        let thread = std::thread::spawn(move || {
            assert_eq!(stalled.suffer(&hit), Verdict::Pass);
            started.elapsed()
        });
        while faults.state.lock().waiting == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!thread.is_finished());
        assert_eq!(faults.clear(), (1, 1));
        assert!(thread.join().unwrap() >= Duration::from_millis(50));
    }

    #[test]
    fn a_stall_that_was_cleared_before_its_operation_waits_does_not_wait() {
        let faults = Faults::default();
        faults.add(rule("stall sync *"));
        let hit = faults.meet(Op::Sync, String::new).unwrap();
        faults.clear();
        assert_eq!(faults.suffer(&hit), Verdict::Pass);
    }
}
