//! P11, the other half: while one partition's files are stuck, other partitions go on.
//!
//! Judged only while nothing else happened in the life: a partition that had trouble of its own may still refuse.
//! Nobody is refused whose partition is not the stuck one, and a producer that uses no stuck partition is answered
//! in seconds. Of the others' time nothing follows: a connection's answers come in order, so the answer of one that
//! went on may wait behind the answer of the stuck one.

use super::ledger::Ledger;
use super::Verdict;
use crate::history::{Event, FaultKind, Life, Produced, Who};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Kafka: KAFKA_STORAGE_ERROR.
const STORAGE_ERROR: i16 = 56;

/// How long a produce may take that has nothing to do with what is stuck. Sound volumes here answer within
/// milliseconds; far less than the watchdog's time, so that a wait for the stuck one can't hide below it.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let bound = ON_ITS_WAY + ledger.terms.network;
    let mut stuck = BTreeSet::new();
    let mut uses: BTreeMap<Who, BTreeSet<i32>> = BTreeMap::new();
    for (index, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::FaultIn { kind: FaultKind::Stall, what, .. } => match only_partition(what) {
                Some(partition) => drop(stuck.insert(partition)),
                None => return,
            },
            Event::FaultIn { .. } => return,
            Event::Broker { life, .. } if !matches!(life, Life::Starting | Life::Serving) => return,
            Event::ProduceSent { who, at, .. } => drop(uses.entry(*who).or_default().insert(at.partition)),
            Event::ProduceDone { who, sent, arrived, answer, .. } if !stuck.is_empty() => {
                let Some(Event::ProduceSent { at, .. }) = ledger.events.get(*sent).map(|s| &s.event) else {
                    continue;
                };
                if stuck.contains(&at.partition) {
                    continue;
                }
                let place = format!("{}-{}", at.topic, at.partition);
                if matches!(answer, Ok(Produced { code: STORAGE_ERROR, .. })) {
                    let what = format!(
                        "{place} was refused by the volume, though only partition {stuck:?} was stuck"
                    );
                    verdict.broken("P11", stamped.at, what, vec![*sent, index]);
                }
                let took = arrived.unwrap_or(stamped.at).saturating_sub(ledger.at(*sent));
                if took > bound && uses.get(who).is_some_and(|used| used.is_disjoint(&stuck)) {
                    let what = format!(
                        "a produce to {place} took {took:?}, though only partition {stuck:?} was stuck: {bound:?} at most \
                         are allowed"
                    );
                    verdict.broken("P11", stamped.at, what, vec![*sent, index]);
                }
            }
            _ => {}
        }
    }
}

/// The partition index that a stall is about, if it is about the files of one index only.
fn only_partition(what: &str) -> Option<i32> {
    let (from, to) = (what.find('{')?, what.rfind('}')?);
    let stall: serde_json::Value = serde_json::from_str(what.get(from..=to)?).ok()?;
    stall.get("ops")?.get("path")?.as_str()?.strip_prefix('/')?.strip_suffix('/')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story};
    use crate::client::records::Identity;
    use crate::history::*;
    use std::time::Duration;

    const REFUSED: Answer<Produced> = Ok(Produced { code: 56, base: -1, log_start: -1 });

    fn fault(kind: FaultKind, path: &str) -> Event {
        let what =
            format!(r#"stall {{"ops":{{"ops":["sync"],"p":1.0,"path":"{path}","suffix":""}}}} for 31 s"#);
        Event::FaultIn { id: 1, kind, what }
    }

    /// A produce to partition 0 that takes so long while this partition is stuck.
    fn takes(stuck: &str, seconds: u64) -> Vec<&'static str> {
        let mut story = Story::new();
        story.record(fault(FaultKind::Stall, stuck));
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        story.now += Duration::from_secs(seconds);
        let base = story.store(&bytes);
        story.done(sent, base);
        story.broken()
    }

    #[test]
    fn whoever_has_nothing_to_do_with_the_stuck_partition_is_answered_in_seconds() {
        assert_eq!(takes("/1/", 10), ["P11"]);
        assert!(takes("/1/", 4).is_empty());
        assert!(takes("/0/", 10).is_empty(), "it is the stuck one");
        assert!(takes(".log", 10).is_empty(), "all are");
    }

    #[test]
    fn a_producer_that_uses_the_stuck_partition_too_may_wait_behind_it() {
        let mut story = Story::new();
        story.record(fault(FaultKind::Stall, "/1/"));
        let batch = BatchInfo::parse(&story.make(Identity::NONE)).expect("a batch");
        let at = Place { partition: 1, ..place() };
        story.record(Event::ProduceSent { who: Who(0), at, acks: -1, batch, retry_of: None });
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        story.now += Duration::from_secs(10);
        let base = story.store(&bytes);
        story.done(sent, base);
        assert!(story.broken().is_empty());
    }

    /// All produce to partition 0.
    fn refused_during(faults: Vec<Event>) -> Vec<&'static str> {
        let mut story = Story::new();
        for fault in faults {
            story.record(fault);
        }
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        story.answered(sent, REFUSED);
        story.broken()
    }

    #[test]
    fn whoever_is_refused_though_another_partition_is_stuck_was_not_let_go_on() {
        assert_eq!(refused_during(vec![fault(FaultKind::Stall, "/1/")]), ["P11"]);
        assert!(refused_during(vec![fault(FaultKind::Stall, "/0/")]).is_empty(), "it is the stuck one");
        assert!(refused_during(vec![fault(FaultKind::Stall, ".log")]).is_empty(), "all are");
    }

    #[test]
    fn other_trouble_excuses() {
        let stuck = || fault(FaultKind::Stall, "/1/");
        assert!(refused_during(vec![fault(FaultKind::Error, "/1/"), stuck()]).is_empty());
        let killed = Event::Broker { broker: 1, host: FIRST_HOST, life: Life::Killed };
        assert!(refused_during(vec![stuck(), killed]).is_empty());
    }
}
