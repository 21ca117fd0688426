//! P5: a deposed process acknowledges or shows nothing that its successor does not have.
//!
//! For one partition a process is deposed once another that was started later has served it, for as long as that one
//! lives. What a deposed one *answers* is told by true time: the request was sent after the successor had served, or
//! the process slept while the successor served and answered after it woke. Which of two answers that merely
//! overlap came first nobody can tell, so they accuse nobody.
//!
//! A record that is there in the end does no harm, whoever answered for it and when: a process that falls asleep between
//! the decision and the answer is late, not wrong. So this says who did it where a record is missing, which is P1 or P2 as
//! well; it never judges where those two do not.

use super::ledger::{Final, Ledger, Part, PartKey, Process};
use super::{log, Verdict};
use crate::history::{BatchInfo, FaultKind, Index, Life};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    if ledger.had_damage() || log::may_lose(ledger) {
        return;
    }
    for (key, part) in &ledger.parts {
        let is_alone = part.served.len() < 2 || ledger.deleted.contains_key(&key.0);
        if let (Some(end), false) = (&part.end, is_alone) {
            missing(ledger, key, part, end, verdict);
        }
    }
}

/// An answer that told of a record.
struct Told {
    asked: Duration,
    at: Duration,
    from: Option<IpAddr>,
    events: Vec<Index>,
    what: String,
}

/// Looks for who told of what is not there in the end.
fn missing(ledger: &Ledger, key: &PartKey, part: &Part, end: &Final, verdict: &mut Verdict) {
    let there: BTreeMap<i64, &BatchInfo> = end.batches.iter().map(|b| (b.base, *b)).collect();
    let acks = part.acks.iter().filter(|a| a.sent.acks == -1 && a.end() > end.log_start);
    let acks = acks.filter(|a| !there.get(&a.base).is_some_and(|b| b.is_same_content(a.sent.batch)));
    let acked = acks.map(|a| Told {
        asked: a.sent.at,
        at: a.at,
        from: a.from,
        events: vec![a.sent.event, a.event],
        what: format!("acknowledged {}..{}", a.base, a.end()),
    });
    let reads = part.reads.iter().filter(|r| r.batch.end() > end.log_start);
    let reads = reads.filter(|r| !there.get(&r.batch.base).is_some_and(|b| b.is_equal_but_epoch(r.batch)));
    let shown = reads.map(|r| Told {
        asked: r.asked,
        at: r.at,
        from: r.from,
        events: vec![r.event],
        what: format!("showed {}..{}", r.batch.base, r.batch.end()),
    });
    for told in acked.chain(shown) {
        let Some((process, successor)) = deposed_by(ledger, part, &told) else { continue };
        let what = format!(
            "{}: {} was deposed by {} and {}, which is not there",
            part.name(key),
            process.host,
            successor.0.host,
            told.what
        );
        let events = [vec![successor.1], told.events, vec![end.event]].concat();
        verdict.broken("P5", told.at, what, events);
    }
}

/// Who gave the answer, and who had deposed it by then.
fn deposed_by(ledger: &Ledger, part: &Part, told: &Told) -> Option<(Process, (Process, Index))> {
    let process = ledger.process(told.from?, told.asked, told.at)?;
    let began = ledger.started(process);
    let successor = part.served.iter().find(|(other, served)| {
        let since = ledger.at(**served);
        ledger.started(**other) > began
            && answered_after(ledger, process, told, since)
            && !ended_before(ledger, **other, told.at)
    });
    successor.map(|(other, served)| (process, (*other, *served)))
}

/// Whether the answer was surely given after `since`.
fn answered_after(ledger: &Ledger, process: Process, told: &Told, since: Duration) -> bool {
    if since <= told.asked {
        return true;
    }
    let mut slept = None;
    for (at, life) in ledger.lives_of(process) {
        match life {
            Life::Paused => slept = Some(at),
            Life::Resumed if slept.is_some_and(|from| from < since && since <= at && at <= told.at) => {
                // What it had sent before it fell asleep came while it slept.
                let slow = |f: &super::ledger::Fault| {
                    f.kind == FaultKind::Network && f.from <= told.at && f.until >= told.asked
                };
                let awaited = slept.is_some_and(|from| at >= from + ledger.terms.network);
                return awaited && !ledger.faults.iter().any(slow);
            }
            _ => {}
        }
    }
    false
}

/// Whether a process was at its end before `at`, so that somebody else may have come after it.
fn ended_before(ledger: &Ledger, process: Process, at: Duration) -> bool {
    let is_end =
        |life| matches!(life, Life::Killed | Life::PowerCut | Life::Failed | Life::Stopped | Life::Term);
    ledger.lives_of(process).any(|(when, life)| when < at && is_end(life))
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story};
    use crate::client::records::Identity;
    use crate::history::*;
    use std::net::IpAddr;
    use std::time::Duration;

    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 2));

    fn broker(story: &mut Story, host: IpAddr, life: Life) {
        story.record(Event::Broker { broker: 0, host, life });
    }

    /// Tells of a batch that is stored nowhere.
    fn acknowledge(story: &mut Story, sent: Index, from: IpAddr) {
        let answer = Ok(Produced { code: 0, base: story.end(), log_start: 0 });
        story.record(Event::ProduceDone { who: Who(0), sent, from: Some(from), arrived: None, answer });
    }

    fn send(story: &mut Story) -> Index {
        let bytes = story.make(Identity::NONE);
        story.send(&bytes, -1, None)
    }

    /// The second process answers for the partition.
    fn successor_serves(story: &mut Story) {
        let (who, at, started) = (Who(1), place(), story.now);
        let answer = Ok(Listed { code: 0, offset: story.end(), timestamp: -1, epoch: 1 });
        let from = Some(OTHER);
        story.record(Event::ListOffsetsDone {
            who,
            started,
            at,
            timestamp: -1,
            committed: false,
            from,
            answer,
        });
    }

    /// The first process falls asleep, and the second one takes over.
    fn taken_over(story: &mut Story) {
        broker(story, FIRST_HOST, Life::Paused);
        broker(story, OTHER, Life::Starting);
        story.now += Duration::from_secs(12);
        successor_serves(story);
    }

    fn accuses(story: &Story) -> bool {
        story.broken().contains(&"P5")
    }

    fn started() -> Story {
        let mut story = Story::new();
        broker(&mut story, FIRST_HOST, Life::Starting);
        story.produce();
        story
    }

    #[test]
    fn an_acknowledgement_from_who_woke_too_late_is_p5() {
        let mut story = started();
        let sent = send(&mut story);
        taken_over(&mut story);
        broker(&mut story, FIRST_HOST, Life::Resumed);
        acknowledge(&mut story, sent, FIRST_HOST);
        story.finish();
        assert!(accuses(&story));
    }

    #[test]
    fn an_acknowledgement_of_what_was_sent_after_the_successor_served_is_p5() {
        let mut story = started();
        broker(&mut story, OTHER, Life::Starting);
        successor_serves(&mut story);
        let sent = send(&mut story);
        acknowledge(&mut story, sent, FIRST_HOST);
        story.finish();
        assert!(accuses(&story));
    }

    #[test]
    fn what_a_deposed_one_shows_and_nobody_has_is_p5() {
        let mut story = started();
        let bytes = story.make(Identity::NONE);
        story.send(&bytes, -1, None);
        taken_over(&mut story);
        broker(&mut story, FIRST_HOST, Life::Resumed);
        story.store(&bytes);
        story.read(2);
        story.log.pop();
        story.finish();
        assert!(accuses(&story));
    }

    /// It had decided before it fell asleep.
    #[test]
    fn a_late_answer_about_what_is_there_accuses_nobody() {
        let mut story = started();
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        let base = story.store(&bytes);
        taken_over(&mut story);
        broker(&mut story, FIRST_HOST, Life::Resumed);
        story.done(sent, base);
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }

    /// The record is lost, but who lost it can't be told: the answer may be from before the successor's scan.
    #[test]
    fn answers_that_overlap_accuse_nobody() {
        let mut story = started();
        let sent = send(&mut story);
        broker(&mut story, OTHER, Life::Starting);
        successor_serves(&mut story);
        acknowledge(&mut story, sent, FIRST_HOST);
        story.finish();
        assert!(story.broken().contains(&"P1") && !accuses(&story));
    }

    /// It came while its sender slept: it had been sent before.
    #[test]
    fn what_was_sent_before_the_sleep_accuses_nobody() {
        let mut story = started();
        let sent = send(&mut story);
        taken_over(&mut story);
        acknowledge(&mut story, sent, FIRST_HOST);
        broker(&mut story, FIRST_HOST, Life::Resumed);
        story.finish();
        assert!(story.broken().contains(&"P1") && !accuses(&story));
    }

    /// The first one leads again.
    #[test]
    fn once_the_successor_is_dead_nobody_is_deposed() {
        let mut story = started();
        broker(&mut story, OTHER, Life::Starting);
        successor_serves(&mut story);
        broker(&mut story, OTHER, Life::Killed);
        let sent = send(&mut story);
        acknowledge(&mut story, sent, FIRST_HOST);
        story.finish();
        assert!(story.broken().contains(&"P1") && !accuses(&story));
    }
}
