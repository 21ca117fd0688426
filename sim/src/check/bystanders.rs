//! P11, the other half: while some files are stuck, what has nothing to do with them goes on.
//!
//! Judged only while nothing else happened in the life, and only if what is stuck are the files of one partition index
//! (`/1/`) or of one topic (`name/`, as a data volume that hangs with `cluster.dir`): a partition that had trouble of its
//! own may still refuse. Nobody is refused whose partition is not stuck, a producer that uses no stuck partition is
//! answered in seconds, and so is what the control plane and the coordinators answer while only topics are stuck. Of the
//! others' time nothing follows: a connection's answers come in order, so the answer of one that went on may wait behind
//! the answer of the stuck one.

use super::ledger::Ledger;
use super::waits;
use super::Verdict;
use crate::history::{Event, FaultKind, Index, Life, Membership, Place, Produced, Stamped, Who};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Kafka: KAFKA_STORAGE_ERROR.
const STORAGE_ERROR: i16 = 56;
/// How long an answer may take that has nothing to do with what is stuck. Sound volumes here answer within
/// milliseconds; far less than the watchdog's time, so that a wait for the stuck one can't hide below it.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let mut stuck = Stuck::default();
    let mut uses: BTreeMap<Who, Vec<&Place>> = BTreeMap::new();
    for (index, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::FaultIn { kind: FaultKind::Stall | FaultKind::Error, what, .. } if stuck.add(what) => {}
            Event::FaultIn { .. } => return,
            Event::Broker { life, .. } if !matches!(life, Life::Starting | Life::Serving) => return,
            Event::ProduceSent { who, at, .. } => uses.entry(*who).or_default().push(at),
            Event::ProduceDone { who, .. } if !stuck.is_empty() => {
                let uses = uses.get(who).map_or(&[][..], Vec::as_slice);
                produce(ledger, verdict, &stuck, uses, (index, stamped));
            }
            event if !stuck.topics.is_empty() && stuck.partitions.is_empty() && is_of_control(event) => {
                control(ledger, verdict, &stuck, (index, stamped));
            }
            _ => {}
        }
    }
}

/// An answer to a producer that uses these partitions.
fn produce(
    ledger: &Ledger,
    verdict: &mut Verdict,
    stuck: &Stuck,
    uses: &[&Place],
    (index, stamped): (Index, &Stamped),
) {
    let Event::ProduceDone { sent, arrived, answer, .. } = &stamped.event else { return };
    let Some(Event::ProduceSent { at, .. }) = ledger.events.get(*sent).map(|s| &s.event) else { return };
    if stuck.has(at) {
        return;
    }
    let place = format!("{}-{}", at.topic, at.partition);
    if matches!(answer, Ok(Produced { code: STORAGE_ERROR, .. })) {
        let what = format!("{place} was refused by the volume, though only {stuck:?} was stuck");
        verdict.broken("P11", stamped.at, what, vec![*sent, index]);
    }
    let bound = ON_ITS_WAY + ledger.terms.network;
    let took = arrived.unwrap_or(stamped.at).saturating_sub(ledger.at(*sent));
    if took > bound && !uses.iter().any(|p| stuck.has(p)) {
        let what = format!(
            "a produce to {place} took {took:?}, though only {stuck:?} was stuck: {bound:?} at most are allowed"
        );
        verdict.broken("P11", stamped.at, what, vec![*sent, index]);
    }
}

/// Answers for which no topic's files are needed. Joining and syncing wait for other members.
fn is_of_control(event: &Event) -> bool {
    match event {
        Event::MemberDone { call, .. } => !matches!(call, Membership::Join | Membership::Sync),
        Event::CommitDone { .. }
        | Event::OffsetsFetched { .. }
        | Event::ProducerId { .. }
        | Event::TxnInit { .. }
        | Event::TxnAdded { .. }
        | Event::TxnEndDone { .. }
        | Event::CreateTopicDone { .. }
        | Event::CreatePartitionsDone { .. }
        | Event::AlterConfigDone { .. } => true,
        _ => false,
    }
}

fn control(ledger: &Ledger, verdict: &mut Verdict, stuck: &Stuck, (index, stamped): (Index, &Stamped)) {
    let Some(wait) = waits::wait(ledger, &stamped.event).filter(|w| w.was_sent) else { return };
    let bound = ON_ITS_WAY + ledger.terms.network;
    let took = stamped.at.saturating_sub(wait.started);
    if took > bound {
        let what = format!(
            "{} took {took:?}, though only {stuck:?} was stuck: {bound:?} at most are allowed",
            wait.what
        );
        verdict.broken("P11", stamped.at, what, wait.sent.into_iter().chain([index]).collect());
    }
}

/// Whose files are stuck.
#[derive(Debug, Default)]
struct Stuck {
    partitions: BTreeSet<i32>,
    topics: BTreeSet<String>,
}

impl Stuck {
    /// `false`: the fault is about other files as well.
    fn add(&mut self, what: &str) -> bool {
        let Some(path) = path(what) else { return false };
        let Some(name) = path.strip_suffix('/') else { return false };
        match name.strip_prefix('/').map(str::parse) {
            Some(Ok(partition)) => drop(self.partitions.insert(partition)),
            Some(Err(_)) => return false,
            None if name.contains('/') || name.is_empty() => return false,
            None => drop(self.topics.insert(name.to_owned())),
        }
        true
    }

    fn is_empty(&self) -> bool {
        self.partitions.is_empty() && self.topics.is_empty()
    }

    fn has(&self, at: &Place) -> bool {
        self.partitions.contains(&at.partition) || self.topics.contains(&*at.topic)
    }
}

/// Which paths a fault is about.
fn path(what: &str) -> Option<String> {
    let (from, to) = (what.find('{')?, what.rfind('}')?);
    let fault: serde_json::Value = serde_json::from_str(what.get(from..=to)?).ok()?;
    Some(fault.get("ops")?.get("path")?.as_str()?.to_owned())
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

    #[test]
    fn a_topic_that_is_stuck_holds_up_no_group_and_no_other_topic() {
        let commits = |stuck: &str, seconds: u64| {
            let mut story = Story::new();
            story.record(fault(FaultKind::Stall, stuck));
            let (group, member) = ("g".into(), "".into());
            let sent = story.record(Event::CommitSent {
                who: Who(0),
                group,
                generation: -1,
                member,
                offsets: vec![],
            });
            story.now += Duration::from_secs(seconds);
            story.record(Event::CommitDone { who: Who(0), sent, answer: Ok(vec![]) });
            story.broken()
        };
        assert_eq!(commits("u/", 10), ["P11"]);
        assert!(commits("u/", 4).is_empty());
        assert!(commits("/1/", 10).is_empty(), "a slot of groups has the number, too");
        assert!(commits("", 10).is_empty(), "all is stuck");
        assert_eq!(takes("u/", 10), ["P11"], "another topic");
        assert!(takes("t/", 10).is_empty(), "this one");
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
        assert!(refused_during(vec![fault(FaultKind::Error, ""), stuck()]).is_empty());
        let killed = Event::Broker { broker: 1, host: FIRST_HOST, life: Life::Killed };
        assert!(refused_during(vec![stuck(), killed]).is_empty());
    }
}
