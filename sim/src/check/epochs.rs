//! P5: in one leader epoch one process acknowledges, and epochs only rise along the log.
//!
//! Which process acknowledged is told by the host that answered and by its time: on one host a process lives from one start
//! to the next, and an acknowledgement is of one that lived at some time between its request and its answer.

use super::ledger::{Final, Ledger, Part, PartKey};
use super::Verdict;
use crate::history::{BatchInfo, Index};
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    for (key, part) in &ledger.parts {
        let Some(end) = &part.end else { continue };
        // The leader epoch is outside a batch's checksum: a flipped bit in it shows nowhere.
        if !ledger.had_damage() {
            rise(ledger, key, part, end, verdict);
        }
        one_process(ledger, key, part, end, verdict);
    }
}

fn rise(ledger: &Ledger, key: &PartKey, part: &Part, end: &Final, verdict: &mut Verdict) {
    for pair in end.batches.windows(2) {
        let [a, b] = pair else { continue };
        if b.leader_epoch < a.leader_epoch {
            let what = format!(
                "{}: the batch at {} of leader epoch {} follows one of epoch {}",
                part.name(key),
                b.base,
                b.leader_epoch,
                a.leader_epoch
            );
            verdict.broken("P5", ledger.at(end.event), what, vec![end.event]);
        }
    }
}

/// Processes of one host that an epoch's acknowledgements may be of: from, to, and the acknowledgements that say so.
struct Span {
    host: IpAddr,
    from: (usize, Index),
    to: (usize, Index),
}

fn one_process(ledger: &Ledger, key: &PartKey, part: &Part, end: &Final, verdict: &mut Verdict) {
    let there: BTreeMap<i64, &BatchInfo> = end.batches.iter().map(|b| (b.base, *b)).collect();
    let mut spans: BTreeMap<i32, Span> = BTreeMap::new();
    // The answer to a repetition comes from whoever leads then, of a batch of an older epoch.
    for ack in part.acks.iter().filter(|a| a.sent.acks == -1 && !a.sent.is_retry) {
        let Some(batch) = there.get(&ack.base).filter(|b| b.is_same_content(ack.sent.batch)) else {
            continue;
        };
        let Some(host) = ack.from else { continue };
        let starts = ledger.starts.get(&host).map_or(&[][..], Vec::as_slice);
        let from = (starts.partition_point(|s| *s <= ack.sent.at), ack.event);
        let to = (starts.partition_point(|s| *s <= ack.at), ack.event);
        let span = spans.entry(batch.leader_epoch).or_insert(Span { host, from, to });
        span.from = span.from.max(from);
        span.to = if to.0 < span.to.0 { to } else { span.to };
        if span.host != host || span.from.0 > span.to.0 {
            let what = format!(
                "{}: two processes acknowledged in leader epoch {}",
                part.name(key),
                batch.leader_epoch
            );
            verdict.broken("P5", ack.at, what, vec![span.to.1, span.from.1, ack.event]);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::Story;
    use crate::client::records::Identity;
    use crate::history::*;

    fn start(story: &mut Story) {
        story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::Starting });
    }

    /// Stamps the last batch.
    fn stamp(story: &mut Story, epoch: i32) {
        story.log.last_mut().expect("a batch").leader_epoch = epoch;
    }

    #[test]
    fn each_process_with_an_epoch_of_its_own_is_fine() {
        let mut story = Story::new();
        for epoch in [1, 2, 3] {
            start(&mut story);
            story.produce();
            story.produce();
            for at in story.log.len() - 2..story.log.len() {
                story.log[at].leader_epoch = epoch;
            }
        }
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }

    #[test]
    fn two_processes_in_one_epoch_are_p5() {
        let mut story = Story::new();
        for _ in 0..2 {
            start(&mut story);
            story.produce();
        }
        story.finish();
        assert_eq!(story.broken(), ["P5"]);
    }

    #[test]
    fn an_epoch_that_falls_is_p5() {
        let mut story = Story::new();
        for epoch in [2, 1] {
            start(&mut story);
            story.produce();
            stamp(&mut story, epoch);
        }
        story.finish();
        assert_eq!(story.broken(), ["P5"]);
    }

    /// It was sent to the one and may have been answered by the other.
    #[test]
    fn an_answer_across_a_restart_accuses_nobody() {
        let mut story = Story::new();
        start(&mut story);
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        let base = story.store(&bytes);
        start(&mut story);
        story.done(sent, base);
        story.produce();
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }

    #[test]
    fn a_repetition_is_answered_by_whoever_leads() {
        let mut story = Story::new();
        start(&mut story);
        story.produce();
        let bytes = story.make(Identity { id: 1, epoch: 0, sequence: 0 });
        let sent = story.send(&bytes, -1, None);
        let base = story.store(&bytes);
        story.answered(sent, Err(Lost::CutOff(String::new())));
        start(&mut story);
        let again = story.send(&bytes, -1, Some(sent));
        story.done(again, base);
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }
}
