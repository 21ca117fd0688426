//! P11 and P13: nothing waits for ever, and everything comes back.
//!
//! P11: a broker answers, refuses or cuts off within the watchdog's time and a second, plus what the network
//! takes. A request is only judged if from its sending to its end the broker was up and running and the network
//! was sound; a fetch has its own patience on top; joining and syncing wait for other members, lawfully.
//!
//! P13 is what the prover could not get ([`Event::NotProven`]); it has P13's time for it, from the last fault on.

use super::ledger::Ledger;
use super::Verdict;
use crate::history::{Answer, Event, FaultKind, Index, Life, Lost, Membership};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let quiet = Quiet::new(ledger);
    let bound = ledger.terms.sync_timeout + SECOND + ledger.terms.network;
    for (event, stamped) in ledger.events.iter().enumerate() {
        if let Event::NotProven { what } = &stamped.event {
            verdict.broken("P13", stamped.at, format!("not so: {what}"), vec![event]);
        }
        let Some(wait) = wait(ledger, &stamped.event) else { continue };
        if wait.is_garbled {
            verdict.broken(
                "wire",
                stamped.at,
                format!("{}: an answer that can't be read", wait.what),
                vec![event],
            );
        }
        let came = wait.came.unwrap_or(stamped.at);
        let took = came.saturating_sub(wait.started);
        if took > bound + wait.patience && wait.was_sent && quiet.was(wait.started, stamped.at) {
            let what =
                format!("{} took {took:?}, {:?} at most are allowed", wait.what, bound + wait.patience);
            verdict.broken("P11", stamped.at, what, wait.sent.into_iter().chain([event]).collect());
        }
    }
}

pub(super) struct Wait {
    pub what: &'static str,
    pub started: Duration,
    pub sent: Option<Index>,
    /// When the answer came, where the client may have been late to look.
    came: Option<Duration>,
    /// What the request itself allows on top.
    patience: Duration,
    pub was_sent: bool,
    is_garbled: bool,
}

/// What an event says about a wait that ended with it.
pub(super) fn wait(ledger: &Ledger, event: &Event) -> Option<Wait> {
    fn of<T>(what: &'static str, started: Duration, sent: Option<Index>, answer: &Answer<T>) -> Option<Wait> {
        let was_sent = !matches!(answer, Err(Lost::NotSent(_)));
        let is_garbled = matches!(answer, Err(Lost::Garbled(_)));
        Some(Wait { what, started, sent, came: None, patience: Duration::ZERO, was_sent, is_garbled })
    }
    let begun = |sent: &Index| (ledger.at(*sent), Some(*sent));
    match event {
        Event::ProduceDone { sent, arrived, answer, .. } => {
            let (at, sent) = begun(sent);
            Some(Wait { came: *arrived, ..of("a produce", at, sent, answer)? })
        }
        Event::FetchDone { started, answer, .. } => {
            // No consumer here asks the broker to wait for longer.
            let wait = of("a fetch", *started, None, answer)?;
            Some(Wait { patience: SECOND, ..wait })
        }
        Event::ListOffsetsDone { started, answer, .. } => of("a ListOffsets", *started, None, answer),
        Event::ProducerId { started, answer, .. } => of("an InitProducerId", *started, None, answer),
        Event::MemberDone { call: Membership::Join | Membership::Sync, .. } => None,
        Event::MemberDone { started, answer, .. } => of("a heartbeat", *started, None, answer),
        Event::CommitDone { sent, answer, .. } => {
            let (at, sent) = begun(sent);
            of("an OffsetCommit", at, sent, answer)
        }
        Event::TxnInit { started, answer, .. } => of("an InitProducerId", *started, None, answer),
        Event::TxnAdded { started, answer, .. } => of("an addition to a transaction", *started, None, answer),
        Event::TxnEndDone { sent, answer, .. } => {
            let (at, sent) = begun(sent);
            of("an EndTxn", at, sent, answer)
        }
        Event::OffsetsFetched { started, answer, .. } => of("an OffsetFetch", *started, None, answer),
        Event::CreateTopicDone { sent, answer, .. } => {
            let (at, sent) = begun(sent);
            of("a CreateTopics", at, sent, answer)
        }
        Event::DeleteTopicDone { sent, answer, .. } => {
            let (at, sent) = begun(sent);
            of("a DeleteTopics", at, sent, answer)
        }
        Event::CreatePartitionsDone { started, answer, .. } => {
            of("a CreatePartitions", *started, None, answer)
        }
        Event::DeleteRecordsDone { sent, answer, .. } => {
            let (at, sent) = begun(sent);
            of("a DeleteRecords", at, sent, answer)
        }
        Event::AlterConfigDone { sent, answer, .. } => {
            let (at, sent) = begun(sent);
            of("an IncrementalAlterConfigs", at, sent, answer)
        }
        _ => None,
    }
}

/// When a broker could be expected to answer.
struct Quiet {
    /// From, until: a broker was down, starting or paused, or the network was not sound.
    excuses: Vec<(Duration, Duration)>,
    /// The latest end of all excuses that begin no later.
    latest: Vec<Duration>,
}

impl Quiet {
    fn new(ledger: &Ledger) -> Quiet {
        let network =
            ledger.faults.iter().filter(|f| matches!(f.kind, FaultKind::Network | FaultKind::Clock));
        let mut excuses: Vec<(Duration, Duration)> = network.map(|f| (f.from, f.until)).collect();
        let mut away: std::collections::BTreeMap<u32, Duration> = Default::default();
        for (at, broker, _, life) in &ledger.lives {
            match life {
                Life::Serving | Life::Resumed => {
                    if let Some(since) = away.remove(broker) {
                        excuses.push((since, *at));
                    }
                }
                _ => drop(away.entry(*broker).or_insert(*at)),
            }
        }
        excuses.extend(away.into_values().map(|since| (since, Duration::MAX)));
        excuses.sort();
        let mut so_far = Duration::ZERO;
        let latest = excuses.iter().map(|(_, until)| {
            so_far = so_far.max(*until);
            so_far
        });
        let latest = latest.collect();
        Quiet { excuses, latest }
    }

    /// Whether nothing excuses a late answer between the two.
    fn was(&self, from: Duration, until: Duration) -> bool {
        let begun = self.excuses.partition_point(|(start, _)| *start <= until);
        begun.checked_sub(1).and_then(|last| self.latest.get(last)).is_none_or(|end| *end < from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::Story;
    use crate::client::records::Identity;
    use crate::history::*;
    use std::time::Duration;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// A produce that takes so long, with something that happens a second after it was sent.
    fn takes(time: Duration, answer: Answer<Produced>, happens: Option<Event>) -> Vec<&'static str> {
        let mut story = Story::new();
        story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::Starting });
        story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::Serving });
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        let began = story.now;
        if let Some(event) = happens {
            story.now += seconds(1);
            story.record(event);
        }
        story.now = began + time;
        story.answered(sent, answer);
        story.broken()
    }

    #[test]
    fn an_answer_in_time_is_fine_and_a_late_one_is_p11() {
        let refused = Ok(Produced { code: 56, base: -1, log_start: -1 });
        assert!(takes(seconds(31), refused.clone(), None).is_empty());
        assert_eq!(takes(seconds(33), refused, None), ["P11"]);
        assert_eq!(takes(seconds(40), Err(Lost::TimedOut), None), ["P11"]);
        assert_eq!(takes(seconds(40), Err(Lost::CutOff(String::new())), None), ["P11"]);
        assert!(takes(seconds(40), Err(Lost::NotSent(String::new())), None).is_empty());
        assert!(takes(seconds(5), Err(Lost::TimedOut), None).is_empty(), "the client had no patience");
    }

    #[test]
    fn an_answer_that_came_in_time_is_fine_though_its_client_was_late_to_look() {
        for (came, broken) in [(31, vec![]), (33, vec!["P11"])] {
            let mut story = Story::new();
            let bytes = story.make(Identity::NONE);
            let sent = story.send(&bytes, -1, None);
            let arrived = Some(story.now + seconds(came));
            story.now += seconds(40);
            let answer = Ok(Produced { code: 56, base: -1, log_start: -1 });
            story.record(Event::ProduceDone { who: Who(0), sent, from: Some(FIRST_HOST), arrived, answer });
            assert_eq!(story.broken(), broken, "after {came} s");
        }
    }

    #[test]
    fn a_broker_that_is_gone_or_paused_and_a_network_that_is_cut_excuse() {
        for life in [Life::Killed, Life::PowerCut, Life::Paused, Life::Term] {
            let event = Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life };
            assert!(takes(seconds(40), Err(Lost::TimedOut), Some(event)).is_empty());
        }
        let cut = |kind| Event::FaultIn { id: 1, kind, what: String::new() };
        assert!(takes(seconds(40), Err(Lost::TimedOut), Some(cut(FaultKind::Network))).is_empty());
        let stalled = takes(seconds(40), Err(Lost::TimedOut), Some(cut(FaultKind::Stall)));
        assert_eq!(stalled, ["P11"], "a stuck volume is what the watchdog is for");
    }

    #[test]
    fn an_excuse_that_ended_before_excuses_nothing() {
        let mut story = Story::new();
        story.record(Event::FaultIn { id: 1, kind: FaultKind::Network, what: String::new() });
        story.record(Event::FaultOut { id: 1 });
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        story.now += seconds(40);
        story.answered(sent, Err(Lost::TimedOut));
        assert_eq!(story.broken(), ["P11"]);
    }

    #[test]
    fn what_could_not_be_proven_is_p13() {
        let mut story = Story::new();
        story.record(Event::Proven { what: "x".into(), took: seconds(1) });
        assert!(story.broken().is_empty());
        story.record(Event::NotProven { what: "x".into() });
        assert_eq!(story.broken(), ["P13"]);
    }

    #[test]
    fn an_answer_that_can_t_be_read_is_told() {
        assert_eq!(takes(seconds(1), Err(Lost::Garbled("x".into())), None), ["wire"]);
    }
}
