//! P8: a committed offset stays until a later one takes its place, and who is fenced can't commit.
//!
//! Each partition of a group is a register. A commit that was answered without an error took effect between its
//! request and its answer; one that was refused for good never did; any other may have, or may yet. What is read
//! must be a commit that could be the last: none that was surely later was surely there before the read
//! began. Commits say in their metadata who they are, so no two are taken for one.
//!
//! A member is fenced once somebody was told of a newer generation, and once it was told that it has left. The latter
//! holds only while the coordinator lives on undisturbed: as in Kafka, a member's leaving is durable with the rebalance
//! that follows it, and a coordinator that is lost before that knows the member again.

use super::ledger::{Ledger, PartKey};
use super::transactions::{Outcome, Txns};
use super::Verdict;
use crate::history::{Answer, Code, CommittedOffset, Event, Index, Membership};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Codes after which a commit surely has no effect: it was refused before anything was written.
/// UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID,
/// REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID.
const REFUSED: [Code; 7] = [3, 12, 22, 24, 25, 27, 82];

type Register = (Arc<str>, PartKey);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// In effect since this event at the latest.
    Done(Index),
    Refused(Code),
    /// Part of a transaction that was aborted.
    Aborted,
    /// In effect, or not, or later.
    Open,
}

struct Commit {
    sent: Index,
    offset: i64,
    fate: Fate,
    /// Of a transaction: when its commit was asked for, if it ever was. Whoever does not ask for what is stable may miss it for
    /// a while after that was acknowledged.
    txn: Option<Option<Index>>,
}

struct Read {
    event: Index,
    started: Duration,
    stable: bool,
    offset: i64,
    commit: Option<Index>,
}

#[derive(Default)]
struct History {
    commits: Vec<Commit>,
    reads: Vec<Read>,
}

pub(super) fn check(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    let mut registers: BTreeMap<Register, History> = BTreeMap::new();
    let mut uncertain = Uncertain::new();
    let answers = answers(ledger);
    for (event, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::CommitSent { group, offsets, .. } => {
                for (i, (place, offset)) in offsets.iter().enumerate() {
                    let Some(id) = place.id else {
                        uncertain.insert((event, place.partition), *offset);
                        continue;
                    };
                    let fate = match answers.get(&event) {
                        // The topic may have been another one when the commit got there.
                        _ if is_deleted_before(ledger, id, answers.get(&event)) => Fate::Open,
                        Some((done, Ok(codes))) => match codes.get(i) {
                            Some(0) => Fate::Done(*done),
                            Some(code) if REFUSED.contains(code) => Fate::Refused(*code),
                            _ => Fate::Open,
                        },
                        _ => Fate::Open,
                    };
                    let register = registers.entry((group.clone(), (id, place.partition))).or_default();
                    let txn = txns.of_commit.get(&event).and_then(|t| txns.all.get(t));
                    let fate = match (fate, txn) {
                        (Fate::Done(_), Some(txn)) => match txns.outcome(ledger, txn) {
                            Outcome::Committed(done) => Fate::Done(done),
                            Outcome::Aborted => Fate::Aborted,
                            Outcome::Unknown => Fate::Open,
                        },
                        (Fate::Open, Some(txn)) if txns.outcome(ledger, txn) == Outcome::Aborted => {
                            Fate::Aborted
                        }
                        (fate, _) => fate,
                    };
                    let txn = txn.map(|t| t.asked());
                    register.commits.push(Commit { sent: event, offset: *offset, fate, txn });
                }
            }
            Event::OffsetsFetched { started, group, stable, answer: Ok(rows), .. } => {
                for CommittedOffset { at, code, offset, commit } in rows {
                    let (Some(id), 0) = (at.id, *code) else { continue };
                    let register = registers.entry((group.clone(), (id, at.partition))).or_default();
                    let (started, stable) = (*started, *stable);
                    register.reads.push(Read { event, started, stable, offset: *offset, commit: *commit });
                }
            }
            _ => {}
        }
    }
    for ((group, key), register) in &registers {
        register_holds(ledger, group, key, register, &uncertain, verdict);
    }
    generations(ledger, &answers, verdict);
    those_who_left(ledger, &answers, verdict);
}

type Answers<'a> = BTreeMap<Index, (Index, &'a Answer<Vec<Code>>)>;

/// Of each commit, by the event of its sending.
fn answers<'a>(ledger: &Ledger<'a>) -> Answers<'a> {
    let done = ledger.events.iter().enumerate().filter_map(|(event, s)| match &s.event {
        Event::CommitDone { sent, answer, .. } => Some((*sent, (event, answer))),
        _ => None,
    });
    done.collect()
}

fn is_deleted_before(ledger: &Ledger, id: uuid::Uuid, answer: Option<&(Index, &Answer<Vec<Code>>)>) -> bool {
    let until = answer.map_or(Duration::MAX, |(event, _)| ledger.at(*event));
    ledger.deleted.get(&id).is_some_and(|at| *at <= until)
}

/// Offsets committed while it was not certain which topic the name stood for, by commit and partition: they may be of
/// any topic of that name.
type Uncertain = BTreeMap<(Index, i32), i64>;

fn register_holds(
    ledger: &Ledger,
    group: &str,
    key: &PartKey,
    register: &History,
    uncertain: &Uncertain,
    verdict: &mut Verdict,
) {
    let by_event: BTreeMap<Index, &Commit> = register.commits.iter().map(|c| (c.sent, c)).collect();
    // Commits in the order of their answers, and the latest-sent of those that were answered before a read.
    let mut done: Vec<(Index, Index, bool)> = register
        .commits
        .iter()
        .filter_map(|c| match c.fate {
            Fate::Done(done) => Some((done, c.sent, c.txn.is_none())),
            _ => None,
        })
        .collect();
    done.sort();
    let mut done = done.into_iter().peekable();
    let mut reads: Vec<&Read> = register.reads.iter().collect();
    reads.sort_by_key(|r| (r.started, r.event));
    // What is surely there: the commit sent last of those that were answered; for those who do not ask for what is
    // stable, of those that are of no transaction.
    let mut floors: [Option<Index>; 2] = [None; 2];
    let name = |what: &str| format!("group {group}, partition {} of {}: {what}", key.1, key.0);
    for read in reads {
        while let Some((_, sent, is_plain)) =
            done.next_if(|(done, ..)| ledger.at(*done) <= read.started && *done < read.event)
        {
            floors[1] = floors[1].max(Some(sent));
            if is_plain {
                floors[0] = floors[0].max(Some(sent));
            }
        }
        let floor = floors[usize::from(read.stable)];
        let mut broken = |what: String, events: Vec<Option<Index>>| {
            let events = events.into_iter().flatten().chain([read.event]).collect();
            verdict.broken("P8", ledger.at(read.event), name(&what), events);
        };
        let commit = read.commit.and_then(|c| by_event.get(&c));
        let undecided = commit.filter(|c| c.txn.is_some_and(|asked| asked.is_none_or(|a| a > read.event)));
        if let Some(c) = undecided.or(commit.filter(|c| c.fate == Fate::Aborted)) {
            let what = format!("{} is there, of a transaction that is not committed", c.offset);
            verdict.broken("P7", ledger.at(read.event), name(&what), vec![c.sent, read.event]);
            continue;
        }
        match (read.offset, commit) {
            (-1, _) => {
                if floor.is_some() {
                    broken("a committed offset is gone".into(), vec![floor]);
                }
            }
            (offset, None) if read.commit.and_then(|c| uncertain.get(&(c, key.1))) == Some(&offset) => {}
            (offset, None) => broken(format!("{offset} was never committed"), vec![floor]),
            (offset, Some(c)) if c.offset != offset => {
                broken(format!("{} was committed and {offset} is there", c.offset), vec![Some(c.sent)]);
            }
            (offset, Some(Commit { sent, fate: Fate::Refused(code), .. })) => {
                broken(format!("{offset} is there, which was refused with {code}"), vec![Some(*sent)]);
            }
            // One that is open may have waited and taken its place since.
            (offset, Some(Commit { sent, fate: Fate::Done(done), .. })) => {
                // Surely later: sent after this one was answered.
                if let Some(later) = floor.filter(|later| later > done) {
                    broken(
                        format!("went back to {offset}, committed before"),
                        vec![Some(*sent), Some(later)],
                    );
                }
            }
            (_, Some(Commit { fate: Fate::Open | Fate::Aborted, .. })) => {}
        }
    }
}

/// A commit of an older generation must be refused once a member knows of a newer one.
fn generations(ledger: &Ledger, answers: &Answers, verdict: &mut Verdict) {
    let mut newest: BTreeMap<&Arc<str>, (i32, Index)> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::MemberDone { group, call: Membership::Join, generation, answer: Ok(0), .. } => {
                let newest = newest.entry(group).or_insert((*generation, event));
                if newest.0 < *generation {
                    *newest = (*generation, event);
                }
            }
            Event::CommitSent { group, generation, .. } if *generation >= 0 => {
                let Some((newer, joined)) = newest.get(group).filter(|(g, _)| g > generation) else {
                    continue;
                };
                let Some((done, Ok(codes))) = answers.get(&event) else { continue };
                if codes.contains(&0) {
                    let what =
                        format!("group {group}: a commit of generation {generation} was taken in {newer}");
                    verdict.broken("P8", ledger.at(*done), what, vec![*joined, event, *done]);
                }
            }
            _ => {}
        }
    }
}

/// A member that was told that it has left commits no more.
fn those_who_left(ledger: &Ledger, answers: &Answers, verdict: &mut Verdict) {
    let mut left: BTreeMap<(&Arc<str>, &Arc<str>), Index> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::MemberDone { group, member, call: Membership::Leave, answer: Ok(0), .. } => {
                left.insert((group, member), event);
            }
            Event::CommitSent { group, member, .. } => {
                let Some(gone) = left.get(&(group, member)) else { continue };
                let Some((done, Ok(codes))) = answers.get(&event) else { continue };
                if codes.contains(&0) && !ledger.was_disturbed(ledger.at(*gone), ledger.at(*done)) {
                    let what = format!("group {group}: a commit of a member that had left was taken");
                    verdict.broken("P8", ledger.at(*done), what, vec![*gone, event, *done]);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story};
    use crate::history::*;
    use std::time::Duration;

    fn send(story: &mut Story, generation: i32, offset: i64) -> Index {
        let (who, offsets) = (Who(0), vec![(place(), offset)]);
        story.record(Event::CommitSent { who, group: "g".into(), generation, member: "m".into(), offsets })
    }

    fn answer(story: &mut Story, sent: Index, answer: Answer<Vec<Code>>) {
        story.record(Event::CommitDone { who: Who(0), sent, answer });
    }

    fn commit(story: &mut Story, offset: i64) -> Index {
        let sent = send(story, -1, offset);
        answer(story, sent, Ok(vec![0]));
        sent
    }

    fn read_since(story: &mut Story, started: Duration, offset: i64, commit: Option<Index>) {
        let rows = vec![CommittedOffset { at: place(), code: 0, offset, commit }];
        story.record(Event::OffsetsFetched {
            who: Who(1),
            started,
            group: "g".into(),
            stable: false,
            answer: Ok(rows),
        });
    }

    fn read(story: &mut Story, offset: i64, commit: Option<Index>) {
        let now = story.now;
        read_since(story, now, offset, commit);
    }

    #[test]
    fn the_last_commit_is_read() {
        let mut story = Story::new();
        read(&mut story, -1, None);
        for offset in [5, 9, 3] {
            let sent = commit(&mut story, offset);
            read(&mut story, offset, Some(sent));
        }
        assert_eq!(story.verdict().violations, []);
    }

    #[test]
    fn a_commit_that_is_gone_or_undone_or_made_up_is_p8() {
        let mut story = Story::new();
        commit(&mut story, 5);
        read(&mut story, -1, None);
        assert_eq!(story.broken(), ["P8"]);

        let mut story = Story::new();
        let old = commit(&mut story, 5);
        commit(&mut story, 6);
        read(&mut story, 5, Some(old));
        assert_eq!(story.broken(), ["P8"]);

        let mut story = Story::new();
        let sent = commit(&mut story, 5);
        read(&mut story, 6, Some(sent));
        assert_eq!(story.broken(), ["P8"]);

        let mut story = Story::new();
        commit(&mut story, 5);
        read(&mut story, 5, None);
        assert_eq!(story.broken(), ["P8"]);
    }

    #[test]
    fn what_was_refused_is_never_read() {
        let mut story = Story::new();
        let sent = send(&mut story, 1, 5);
        answer(&mut story, sent, Ok(vec![22]));
        read(&mut story, 5, Some(sent));
        assert_eq!(story.broken(), ["P8"]);
    }

    /// It may be there, or not, or come later, even over one that was sent after it.
    #[test]
    fn a_commit_without_an_answer_may_do_as_it_likes() {
        let outcomes: [Answer<Vec<Code>>; 3] =
            [Err(Lost::TimedOut), Err(Lost::CutOff(String::new())), Ok(vec![15])];
        for outcome in outcomes {
            let mut story = Story::new();
            let first = commit(&mut story, 5);
            let open = send(&mut story, -1, 6);
            answer(&mut story, open, outcome);
            read(&mut story, 5, Some(first));
            read(&mut story, 6, Some(open));
            let last = commit(&mut story, 7);
            read(&mut story, 7, Some(last));
            assert_eq!(story.verdict().violations, []);
        }
    }

    #[test]
    fn commits_side_by_side_may_end_either_way() {
        for wins in [0, 1] {
            let mut story = Story::new();
            let sent = [send(&mut story, -1, 5), send(&mut story, -1, 6)];
            answer(&mut story, sent[0], Ok(vec![0]));
            answer(&mut story, sent[1], Ok(vec![0]));
            read(&mut story, 5 + wins as i64, Some(sent[wins]));
            assert_eq!(story.verdict().violations, []);
        }
    }

    #[test]
    fn a_read_that_began_before_the_commit_was_answered_may_miss_it() {
        let mut story = Story::new();
        let began = story.now;
        commit(&mut story, 5);
        read_since(&mut story, began, -1, None);
        assert_eq!(story.verdict().violations, []);
    }

    fn joined(story: &mut Story, generation: i32) {
        let (who, started) = (Who(0), story.now);
        let (call, answer) = (Membership::Join, Ok(0));
        let (group, member) = ("g".into(), "m".into());
        story.record(Event::MemberDone { who, started, group, call, member, generation, answer });
    }

    #[test]
    fn an_older_generation_can_t_commit() {
        let mut story = Story::new();
        joined(&mut story, 1);
        let under_way = send(&mut story, 1, 5);
        joined(&mut story, 2);
        answer(&mut story, under_way, Ok(vec![0]));
        assert_eq!(story.verdict().violations, [], "it was sent before anybody knew of the new one");
        let late = send(&mut story, 1, 5);
        answer(&mut story, late, Ok(vec![0]));
        assert_eq!(story.broken(), ["P8"]);
    }
    #[test]
    fn who_has_left_commits_no_more() {
        let leave = |story: &mut Story| {
            let (who, started, group, member) = (Who(0), story.now, "g".into(), "m".into());
            let (call, answer, generation) = (Membership::Leave, Ok(0), 1);
            story.record(Event::MemberDone { who, started, group, call, member, generation, answer });
        };
        let host = FIRST_HOST;
        for (life, broken) in [(None, vec!["P8"]), (Some(Life::Killed), vec![])] {
            let mut story = Story::new();
            leave(&mut story);
            if let Some(life) = life {
                story.record(Event::Broker { broker: 1, host, life });
            }
            let late = send(&mut story, 1, 5);
            answer(&mut story, late, Ok(vec![0]));
            assert_eq!(story.broken(), broken, "{life:?}");
        }
        let mut story = Story::new();
        leave(&mut story);
        let late = send(&mut story, 1, 5);
        answer(&mut story, late, Ok(vec![25]));
        assert_eq!(story.verdict().violations, []);
    }
}
