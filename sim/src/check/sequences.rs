//! P4: an idempotent producer's batches appear once, in sequence order; and nothing that was sent once appears
//! twice.
//!
//! A batch without an acknowledgement may be there or not, but never twice. A broker that refuses the next batch
//! in order has forgotten the one before; one that says of a batch that it is a repetition has it. A producer id is
//! given out once: two producers with one id would take each other's batches for repetitions.

use super::ledger::{Final, Ledger, Part, PartKey};
use super::{Dial, Verdict};
use crate::history::{BatchInfo, Event, Index, Produced};
use std::collections::BTreeMap;

const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;

type Producer = (i64, i16);

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    ids_are_given_out_once(ledger, verdict);
    for (key, part) in &ledger.parts {
        let Some(end) = &part.end else { continue };
        appears_once(ledger, key, part, end, verdict);
        in_order(ledger, key, part, end, verdict);
    }
    if ledger.terms.dial == Dial::Durable {
        refusals(ledger, verdict);
    }
}

fn ids_are_given_out_once(ledger: &Ledger, verdict: &mut Verdict) {
    let mut given: BTreeMap<Producer, (Index, Option<Owner>)> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        let (id, epoch, owner) = match &stamped.event {
            Event::ProducerId { answer: Ok((0, id, epoch)), .. } => (id, epoch, None),
            Event::TxnInit { id: name, incarnation, answer: Ok((0, id, epoch)), .. } => {
                (id, epoch, Some((name, *incarnation)))
            }
            Event::TxnEndDone { sent, answer: Ok((0, id, epoch)), .. } if *id >= 0 => {
                let Some(owner) = ends_for(ledger, *sent) else { continue };
                (id, epoch, Some(owner))
            }
            _ => continue,
        };
        let before = given.insert((*id, *epoch), (event, owner));
        // One that asks again is told the same.
        let is_another = |before: &Option<Owner>| owner.is_none() || *before != owner;
        if let Some((before, _)) = before.filter(|(_, before)| is_another(before)) {
            let what = format!("producer id {id}, epoch {epoch}, was given out twice");
            verdict.broken("P4", stamped.at, what, vec![before, event]);
        }
    }
}

/// A transactional id, and which process has it.
type Owner<'a> = (&'a std::sync::Arc<str>, u32);

/// Who asked for an end, and is told of a new epoch with it (KIP-890).
fn ends_for<'a>(ledger: &Ledger<'a>, sent: Index) -> Option<Owner<'a>> {
    let Event::TxnEndSent { txn, .. } = &ledger.events.get(sent)?.event else { return None };
    let Event::TxnBegun { id, incarnation, version2: true, .. } = &ledger.events.get(*txn)?.event else {
        return None;
    };
    Some((id, *incarnation))
}

fn appears_once(ledger: &Ledger, key: &PartKey, part: &Part, end: &Final, verdict: &mut Verdict) {
    let mut first: BTreeMap<_, &BatchInfo> = BTreeMap::new();
    // A marker says what another one says.
    for batch in end.batches.iter().filter(|b| !b.is_control()) {
        let Some(before) = first.insert(batch.key(), batch).filter(|b| b.base != batch.base) else {
            continue;
        };
        let what = format!("{}: the batch at {} is at {} as well", part.name(key), before.base, batch.base);
        let sent = ledger.contents.get(&batch.key()).map(|s| s.event);
        verdict.broken("P4", ledger.at(end.event), what, sent.into_iter().chain([end.event]).collect());
    }
}

/// Sequences wrap at 2^31 (Kafka's `DefaultRecordBatch.incrementSequence`).
fn next_sequence(batch: &BatchInfo) -> i32 {
    batch.base_sequence.wrapping_add(batch.last_delta).wrapping_add(1) & i32::MAX
}

fn in_order(ledger: &Ledger, key: &PartKey, part: &Part, end: &Final, verdict: &mut Verdict) {
    let mut last: BTreeMap<i64, &BatchInfo> = BTreeMap::new();
    for batch in end.batches.iter().filter(|b| b.producer_id >= 0 && !b.is_control()) {
        let before = last.insert(batch.producer_id, batch);
        let Some(before) = before else { continue };
        // Damage may hide what lies between.
        if end.damaged.range(before.base..batch.base).next().is_some() {
            continue;
        }
        let expected = match batch.producer_epoch.cmp(&before.producer_epoch) {
            std::cmp::Ordering::Equal => next_sequence(before),
            std::cmp::Ordering::Greater => 0,
            std::cmp::Ordering::Less => -1,
        };
        if batch.base_sequence != expected {
            let what = format!(
                "{}: producer {} epoch {}: sequence {} at {} follows {} epoch {} at {}",
                part.name(key),
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.base,
                before.base_sequence,
                before.producer_epoch,
                before.base
            );
            verdict.broken("P4", ledger.at(end.event), what, vec![end.event]);
        }
    }
}

/// What is known of a producer on a partition when an answer comes.
#[derive(Default)]
struct Known {
    /// The sequence after each acknowledged batch, with the event of the acknowledgement.
    acked: BTreeMap<i32, Index>,
}

fn refusals(ledger: &Ledger, verdict: &mut Verdict) {
    let mut known: BTreeMap<(PartKey, Producer), Known> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        let Event::ProduceDone { sent, answer: Ok(Produced { code, .. }), .. } = &stamped.event else {
            continue;
        };
        let Some(sent) = ledger.sent.get(sent).filter(|s| s.batch.producer_id >= 0) else { continue };
        let Some(id) = sent.place.id.filter(|id| !ledger.deleted.contains_key(id)) else { continue };
        let (key, b) = ((id, sent.place.partition), sent.batch);
        let known = known.entry((key, (b.producer_id, b.producer_epoch))).or_default();
        let name = || format!("{}-{}", sent.place.topic, key.1);
        match *code {
            0 => drop(known.acked.insert(next_sequence(b), event)),
            OUT_OF_ORDER_SEQUENCE_NUMBER => {
                // Only if the one before was acknowledged when this one was sent.
                let before = known.acked.get(&b.base_sequence).filter(|ack| **ack < sent.event);
                if let Some(ack) = before {
                    let what = format!(
                        "{}: sequence {} of producer {} was refused, though the one before it was acknowledged",
                        name(),
                        b.base_sequence,
                        b.producer_id
                    );
                    verdict.broken("P4", stamped.at, what, vec![*ack, sent.event, event]);
                }
            }
            DUPLICATE_SEQUENCE_NUMBER => is_a_repetition(ledger, key, sent, event, verdict),
            _ => {}
        }
    }
}

fn is_a_repetition(
    ledger: &Ledger,
    key: PartKey,
    sent: &super::ledger::Sent,
    event: Index,
    verdict: &mut Verdict,
) {
    let Some(end) = ledger.parts.get(&key).and_then(|p| p.end.as_ref()) else { return };
    // Below the log start it may have been.
    let is_there = end.batches.iter().any(|b| b.is_same_content(sent.batch));
    if end.log_start > 0 || is_there || !end.damaged.is_empty() {
        return;
    }
    let what = format!(
        "{}-{}: sequence {} of producer {} was called a repetition and is not there",
        sent.place.topic, key.1, sent.batch.base_sequence, sent.batch.producer_id
    );
    verdict.broken("P4", ledger.at(event), what, vec![sent.event, event]);
}

#[cfg(test)]
mod tests {
    use super::super::bed::Story;
    use crate::client::records::Identity;
    use crate::history::{Event, Lost, Produced, Who};

    fn identity(sequence: i32) -> Identity {
        Identity { id: 5, epoch: 0, sequence }
    }

    #[test]
    fn a_producer_id_that_is_given_out_twice_is_p4() {
        let mut story = Story::new();
        for (id, epoch, broken) in [(5, 0, false), (6, 0, false), (5, 1, false), (5, 0, true)] {
            let (who, started) = (Who(0), story.now);
            story.record(Event::ProducerId { who, started, answer: Ok((0, id, epoch)) });
            assert_eq!(story.broken() == ["P4"], broken);
        }
    }

    #[test]
    fn batches_in_order_with_a_retry_are_fine() {
        let mut story = Story::new();
        story.produce_as(identity(0));
        let bytes = story.make(identity(2));
        let first = story.send(&bytes, -1, None);
        let base = story.store(&bytes);
        story.answered(first, Err(Lost::TimedOut));
        let again = story.send(&bytes, -1, Some(first));
        story.done(again, base);
        story.produce_as(identity(4));
        story.produce_as(Identity { id: 5, epoch: 1, sequence: 0 });
        story.produce_as(Identity { id: 6, epoch: 0, sequence: 8 });
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }

    #[test]
    fn a_retry_that_was_appended_again_is_seen() {
        let mut story = Story::new();
        let bytes = story.make(identity(0));
        let first = story.send(&bytes, -1, None);
        story.store(&bytes);
        story.answered(first, Err(Lost::TimedOut));
        let again = story.send(&bytes, -1, Some(first));
        let base = story.store(&bytes);
        story.done(again, base);
        story.finish();
        assert_eq!(story.broken(), ["P4"]);
    }

    #[test]
    fn a_plain_batch_that_is_there_twice_is_seen() {
        let mut story = Story::new();
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        let base = story.store(&bytes);
        story.store(&bytes);
        story.done(sent, base);
        story.finish();
        assert_eq!(story.broken(), ["P3", "P4"], "and there is more than was sent");
    }

    #[test]
    fn a_gap_and_a_swap_of_sequences_are_seen() {
        for sequences in [[0, 4, 2], [0, 2, 6], [0, 4, 8]] {
            let mut story = Story::new();
            for sequence in sequences {
                story.produce_as(identity(sequence));
            }
            story.finish();
            assert_eq!(story.broken(), ["P4"], "{sequences:?}");
        }
    }

    #[test]
    fn sequences_wrap() {
        let mut story = Story::new();
        for sequence in [i32::MAX - 3, i32::MAX - 1, 0, 2] {
            story.produce_as(identity(sequence));
        }
        story.finish();
        assert_eq!(story.verdict().violations, []);
        let mut story = Story::new();
        for sequence in [i32::MAX - 1, 1] {
            story.produce_as(identity(sequence));
        }
        story.finish();
        assert_eq!(story.broken(), ["P4"]);
    }

    fn refused(story: &mut Story, sequence: i32, code: i16) {
        let bytes = story.make(identity(sequence));
        let sent = story.send(&bytes, -1, None);
        story.answered(sent, Ok(Produced { code, base: -1, log_start: -1 }));
    }

    #[test]
    fn the_next_in_order_must_not_be_refused() {
        let mut story = Story::new();
        story.produce_as(identity(0));
        refused(&mut story, 2, 45);
        story.finish();
        assert_eq!(story.broken(), ["P4"]);
    }

    #[test]
    fn one_whose_predecessor_failed_may_be_refused() {
        let mut story = Story::new();
        story.produce_as(identity(0));
        refused(&mut story, 2, 56);
        refused(&mut story, 4, 45);
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }

    #[test]
    fn what_came_after_its_successor_may_be_refused_and_is_no_repetition() {
        for (code, broken) in [(45, vec![]), (46, vec!["P4"])] {
            let mut story = Story::new();
            story.produce_as(identity(2));
            refused(&mut story, 0, code);
            story.finish();
            assert_eq!(story.broken(), broken, "code {code}");
        }
    }

    #[test]
    fn a_repetition_must_be_there() {
        let mut story = Story::new();
        story.produce_as(identity(0));
        refused(&mut story, 2, 46);
        story.finish();
        assert_eq!(story.broken(), ["P4"]);
    }
}
