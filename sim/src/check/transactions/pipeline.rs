//! P7 and P8 for consume-transform-produce: each input is in the committed outputs exactly once, and the group's
//! offsets are where the outputs are.
//!
//! A step says which offsets of which partition its output was made of. Of the steps that are shown in the end, no two overlap, and
//! between them nothing is missing that a consumer is shown; the last ends where the group's offset stands, and nothing that a
//! consumer is shown lies between the two.

use super::Txns;
use crate::check::ledger::{Ledger, PartKey};
use crate::check::Verdict;
use crate::history::{BatchInfo, CommittedOffset, Event, Index, Place};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Step {
    event: Index,
    from: i64,
    to: i64,
}

type Input<'a> = (&'a Arc<str>, PartKey);

pub(super) fn check(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    let mut inputs: BTreeMap<Input, (&Place, Vec<Step>)> = BTreeMap::new();
    let mut offsets: BTreeMap<Input, (Index, i64)> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::PipeStep { group, input, from, to, sent, .. } => {
                let Some(id) = input.id else { continue };
                let (_, steps) = inputs.entry((group, (id, input.partition))).or_insert((input, Vec::new()));
                if is_shown(ledger, txns, *sent) {
                    steps.push(Step { event, from: *from, to: *to });
                }
            }
            Event::OffsetsFetched { group, answer: Ok(rows), stable: true, .. } => {
                for CommittedOffset { at, code, offset, .. } in rows {
                    if let (Some(id), 0) = (at.id, code) {
                        offsets.insert((group, (id, at.partition)), (event, *offset));
                    }
                }
            }
            _ => {}
        }
    }
    for (input, (place, mut steps)) in inputs {
        steps.sort_by_key(|s| (s.from, s.to));
        let name = format!("group {}, {}-{}", input.0, place.topic, place.partition);
        once(ledger, &name, &steps, verdict);
        let Some(shown) = shown(ledger, txns, &input.1) else { continue };
        let offset = offsets.get(&input).copied();
        nothing_missing(ledger, &name, &shown, &steps, offset, verdict);
    }
}

fn is_shown(ledger: &Ledger, txns: &Txns, sent: Index) -> bool {
    let Some(content) = ledger.sent.get(&sent).map(|s| s.batch.key()) else { return false };
    txns.place(ledger, sent).is_some_and(|(_, shown)| shown.contents.contains(&content))
}

/// The batches of an input that a consumer is shown in the end.
fn shown<'a>(ledger: &Ledger<'a>, txns: &Txns, key: &PartKey) -> Option<Vec<&'a BatchInfo>> {
    let shown = txns.shown.get(key)?;
    let end = ledger.parts.get(key)?.end.as_ref()?;
    Some(end.batches.iter().copied().filter(|b| shown.contents.contains(&b.key())).collect())
}

fn once(ledger: &Ledger, name: &str, steps: &[Step], verdict: &mut Verdict) {
    for pair in steps.windows(2) {
        let [a, b] = pair else { continue };
        if b.from < a.to {
            let what = format!("{name}: {}..{} and {}..{} both have an output", a.from, a.to, b.from, b.to);
            verdict.broken("P7", ledger.at(a.event.max(b.event)), what, vec![a.event, b.event]);
        }
    }
}

fn nothing_missing(
    ledger: &Ledger,
    name: &str,
    shown: &[&BatchInfo],
    steps: &[Step],
    offset: Option<(Index, i64)>,
    verdict: &mut Verdict,
) {
    let Some((read, offset)) = offset else { return };
    let offset = offset.max(0);
    for batch in shown.iter().filter(|b| b.base < offset) {
        let is_done = steps.iter().any(|s| s.from < batch.end() && batch.base < s.to);
        if !is_done {
            let what =
                format!("{name}: the group is at {offset}, and the batch at {} has no output", batch.base);
            verdict.broken("P7", ledger.at(read), what, vec![read]);
            return;
        }
    }
    if let Some(last) = steps.iter().max_by_key(|s| s.to).filter(|s| s.to > offset) {
        let what =
            format!("{name}: the group is at {offset}, and {}..{} has an output already", last.from, last.to);
        verdict.broken("P8", ledger.at(read), what, vec![last.event, read]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::Bank;

    fn after(steps: &[(i64, i64)], offset: i64) -> Vec<&'static str> {
        let mut bank = Bank::new();
        for _ in 0..4 {
            bank.plain(0);
        }
        for (n, (from, to)) in steps.iter().enumerate() {
            let txn = bank.begin(n as i16 + 1);
            let sent = bank.write(txn, 1);
            bank.step(txn, (*from, *to), sent);
            bank.commit(txn, Ok(0));
            bank.mark(n as i16 + 1, &[1], true);
        }
        bank.finish();
        bank.stable_offset(0, offset);
        bank.broken()
    }

    #[test]
    fn each_input_once_is_fine() {
        assert!(after(&[(0, 1), (1, 4)], 4).is_empty());
        assert!(after(&[(0, 2)], 2).is_empty(), "the rest is still to come");
    }

    #[test]
    fn twice_or_never_is_p7() {
        assert_eq!(after(&[(0, 2), (1, 4)], 4), ["P7"]);
        assert_eq!(after(&[(0, 1), (2, 4)], 4), ["P7"]);
        assert_eq!(after(&[(0, 2)], 4), ["P7"]);
    }

    #[test]
    fn an_offset_behind_its_outputs_is_p8() {
        assert_eq!(after(&[(0, 2), (2, 4)], 2), ["P8"]);
    }
}
