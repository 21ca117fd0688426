//! P13 while it lasts: a partition whose leader's calls hang past the watchdog, though he lives, is led by another broker.
//!
//! Judged only while nothing else happens than that the files of topics (`name/`) hang for one host, and two brokers or more
//! serve: everybody else's volume is sound, so whoever is to lead next can. Brokers that stopped cleanly before and came
//! back are no harm: leaders move to them, and what hangs may be a clean end. Once a produce to a partition was not stored, one
//! that is sent the watchdog's time and a little more later must be, or another one before it.

use super::ledger::Ledger;
use super::Verdict;
use crate::history::{Answer, Event, FaultKind, Index, Life, Place, Produced};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What it takes beyond the watchdog: a request of the controller, the change that answers it, an opening, and a client that
/// asks who leads now. A client tries again after a second at most.
const TAKES: Duration = Duration::from_secs(10);

/// By then a client that was refused has asked who leads, and tried again.
const ASKS_AGAIN: Duration = Duration::from_secs(2);

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let mut brokers = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    let mut stalls = BTreeSet::new();
    let mut failing: BTreeMap<&Place, Index> = BTreeMap::new();
    // When the first produce was sent that should have been stored.
    let mut overdue: BTreeMap<&Place, Duration> = BTreeMap::new();
    let bound = ledger.terms.sync_timeout + ledger.terms.lease + TAKES + ledger.terms.network;
    for (index, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::Broker { broker, life: Life::Serving, .. } => drop(brokers.insert(broker)),
            Event::Broker { life: Life::Starting, .. } => {}
            Event::Broker { broker, life: Life::Term | Life::Stopped, .. } if hosts.is_empty() => {
                brokers.remove(broker);
            }
            Event::FaultIn { kind: FaultKind::Stall, what, id } => match host_of(what) {
                Some(host) if brokers.len() > 1 => {
                    hosts.insert(host);
                    stalls.insert(*id);
                }
                _ => return,
            },
            // A clean stop, before: what else it may be, the broker's own events say.
            Event::FaultIn { kind: FaultKind::Other, .. } if hosts.is_empty() => {}
            Event::FaultOut { id } if !stalls.contains(id) => {}
            // What follows a stall that is over, or a second one's, is judged elsewhere.
            Event::FaultIn { .. } | Event::FaultOut { .. } | Event::Broker { .. } => return,
            Event::ProduceDone { sent, answer, .. } if hosts.len() == 1 => {
                let Some(Event::ProduceSent { at, .. }) = ledger.events.get(*sent).map(|s| &s.event) else {
                    continue;
                };
                let is_stored = is_stored(answer);
                if let Some(first) = failing.get(at).filter(|_| !is_stored) {
                    let since = ledger.at(*first);
                    // By when it was sent: answers come in order, and one may wait behind that of another partition. And
                    // who waited so long goes by what it knew before, once.
                    let is_late = ledger.at(*sent).saturating_sub(since) > bound;
                    let overdue = is_late.then(|| *overdue.entry(at).or_insert(ledger.at(*sent)));
                    if overdue.is_some_and(|from| ledger.at(*sent).saturating_sub(from) > ASKS_AGAIN) {
                        let what = format!(
                            "{}-{} takes nothing since {since:?}, though the volume hangs for one broker only: \
                             {bound:?} at most are allowed",
                            at.topic, at.partition
                        );
                        verdict.broken("P13", stamped.at, what, vec![*first, index]);
                        return;
                    }
                }
                match is_stored {
                    true => drop((failing.remove(at), overdue.remove(at))),
                    false => drop(failing.entry(at).or_insert(*sent)),
                }
            }
            _ => {}
        }
    }
}

fn is_stored(answer: &Answer<Produced>) -> bool {
    matches!(answer, Ok(Produced { code: 0, .. }))
}

/// The host for which a topic's files hang; `None`: other files hang, or hang for others, too.
fn host_of(what: &str) -> Option<u64> {
    let (from, to) = (what.find('{')?, what.rfind('}')?);
    let fault: serde_json::Value = serde_json::from_str(what.get(from..=to)?).ok()?;
    let path = fault.get("ops")?.get("path")?.as_str()?;
    let topic = path.strip_suffix('/').filter(|name| !name.is_empty() && !name.contains('/'));
    topic.and(fault.get("scope")?.get("host")?.as_u64())
}

#[cfg(test)]
mod tests {
    use super::super::bed::Story;
    use crate::client::records::Identity;
    use crate::history::*;
    use std::time::Duration;

    const REFUSED: Answer<Produced> = Ok(Produced { code: 56, base: -1, log_start: -1 });

    fn hangs(scope: &str, path: &str) -> Event {
        let what =
            format!(r#"stall {{"ops":{{"ops":[],"p":1.0,"path":"{path}"}},"scope":{scope}}} for 60 s"#);
        Event::FaultIn { id: 1, kind: FaultKind::Stall, what }
    }

    fn story(brokers: u32, fault: Event) -> Story {
        let mut story = Story::new();
        for broker in 1..=brokers {
            story.record(Event::Broker { broker, host: FIRST_HOST, life: Life::Serving });
        }
        story.record(fault);
        story
    }

    /// A produce that is refused, another so long after it, and a third soon after that.
    fn refused_again(mut story: Story, seconds: u64) -> Vec<&'static str> {
        for pause in [0, seconds, 3] {
            story.now += Duration::from_secs(pause);
            let bytes = story.make(Identity::NONE);
            let sent = story.send(&bytes, -1, None);
            story.answered(sent, REFUSED);
        }
        story.broken()
    }

    #[test]
    fn a_partition_that_its_leader_cannot_write_is_led_by_another() {
        let one = || hangs(r#"{"host":1}"#, "t/");
        assert_eq!(refused_again(story(3, one()), 55), ["P13"]);
        assert!(refused_again(story(3, one()), 40).is_empty(), "it may take the watchdog and a lease");
        assert!(refused_again(story(1, one()), 55).is_empty(), "there is no other");
        assert!(refused_again(story(3, hangs(r#""all""#, "t/")), 55).is_empty(), "it hangs for all");
        assert!(refused_again(story(3, hangs(r#"{"host":1}"#, "")), 55).is_empty(), "the lease ends, too");
    }

    #[test]
    fn a_clean_stop_before_is_no_excuse_and_a_kill_is() {
        for (life, broken) in [(Life::Term, vec!["P13"]), (Life::Killed, vec![])] {
            let mut story = Story::new();
            let broker = |story: &mut Story, broker, life| {
                story.record(Event::Broker { broker, host: FIRST_HOST, life });
            };
            (1..=3).for_each(|b| broker(&mut story, b, Life::Serving));
            story.record(Event::FaultIn { id: 7, kind: FaultKind::Other, what: "term {}".into() });
            broker(&mut story, 3, life);
            broker(&mut story, 3, Life::Starting);
            story.record(hangs(r#"{"host":1}"#, "t/"));
            story.record(Event::FaultOut { id: 7 });
            assert_eq!(refused_again(story, 55), broken);
        }
    }

    #[test]
    fn what_is_stored_meanwhile_counts() {
        let mut story = story(3, hangs(r#"{"host":1}"#, "t/"));
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        story.answered(sent, REFUSED);
        story.now += Duration::from_secs(35);
        story.produce();
        assert!(refused_again(story, 40).is_empty());
    }
}
