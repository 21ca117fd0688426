//! P4 and P7: who was fenced writes no more. Once an incarnation has its producer id and epoch, nothing that is sent
//! under an older epoch from then on is ever in the log, whether or not anybody is shown it.
//!
//! A batch that was sent before may still arrive, and is judged with its transaction. An end that raises the epoch (KIP-890) is
//! no such moment: it is answered once it is decided, and what reaches a partition before the marker does is part of the
//! transaction yet, and shares its fate.

use super::{Txn, Txns};
use crate::check::ledger::Ledger;
use crate::check::Verdict;
use crate::history::{Event, Index};
use std::collections::BTreeMap;

/// Since when nobody may write under an older epoch.
struct Fence {
    event: Index,
    id: i64,
    epoch: i16,
}

pub(super) fn check(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    let fences = fences(ledger);
    let stored: std::collections::BTreeSet<_> = ledger
        .parts
        .values()
        .filter_map(|p| p.end.as_ref())
        .flat_map(|e| &e.batches)
        .map(|b| b.key())
        .collect();
    for txn in txns.all.values() {
        let Some(fences) = fences.get(&**txn.id) else { continue };
        for (content, sent) in &txn.records {
            let Some(fence) = fences.iter().find(|f| is_behind(txn, *sent, f)) else { continue };
            let acked = txns.acked.get(content);
            let is_shown = txns.shown.values().find(|s| s.contents.contains(content));
            let fate = match (is_shown, stored.contains(content), acked) {
                (Some(_), ..) => ("P7", "is shown"),
                (None, true, _) => ("P4", "is in the log"),
                (None, false, Some(_)) => ("P4", "was acknowledged"),
                _ => continue,
            };
            let place = ledger.sent.get(sent).map(|s| format!("{}-{}", s.place.topic, s.place.partition));
            let what = format!(
                "{}: a record for {} that was sent after epoch {} was given out {}",
                txn.name(),
                place.unwrap_or_default(),
                fence.epoch,
                fate.1
            );
            let seen = is_shown.map(|s| s.event).or(acked.copied());
            let events = [Some(fence.event), Some(*sent), seen].into_iter().flatten().collect();
            verdict.broken(fate.0, ledger.at(seen.unwrap_or(*sent)), what, events);
        }
    }
}

/// By transactional id.
fn fences<'a>(ledger: &Ledger<'a>) -> BTreeMap<&'a str, Vec<Fence>> {
    let mut all: BTreeMap<&str, Vec<Fence>> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        let Event::TxnInit { id: name, answer: Ok((0, id, epoch)), .. } = &stamped.event else { continue };
        all.entry(name).or_default().push(Fence { event, id: *id, epoch: *epoch });
    }
    all
}

fn is_behind(txn: &Txn, first_sent: Index, fence: &Fence) -> bool {
    let (id, epoch) = txn.producer;
    fence.event < first_sent && fence.id == id && fence.epoch > epoch
}

#[cfg(test)]
mod tests {
    use super::super::bed::Bank;
    use crate::history::{Lost, Produced};

    #[test]
    fn a_zombie_that_is_refused_is_none_of_our_business() {
        let mut bank = Bank::new();
        let old = bank.begin(1);
        bank.write(old, 0);
        bank.mark(1, &[0], false);
        bank.init(2);
        bank.send(old, 0, Ok(Produced { code: 47, base: -1, log_start: -1 }));
        bank.commit(old, Ok(90));
        let new = bank.begin(2);
        bank.write(new, 0);
        bank.commit(new, Ok(0));
        bank.mark(2, &[0], true);
        bank.finish();
        assert_eq!(bank.violations(), []);
    }

    #[test]
    fn a_zombie_that_writes_is_p4_and_p7_if_it_is_shown() {
        for (commit, broken) in [(false, vec!["P4"]), (true, vec!["P4", "P7"])] {
            let mut bank = Bank::new();
            let old = bank.begin(1);
            bank.init(2);
            let new = bank.begin(2);
            bank.write(new, 0);
            bank.commit(new, Ok(0));
            bank.mark(2, &[0], true);
            bank.write(old, 0);
            if commit {
                bank.commit(old, Ok(0));
            }
            bank.mark(1, &[0], commit);
            bank.finish();
            assert_eq!(bank.broken(), broken, "{commit}");
        }
    }

    #[test]
    fn what_was_sent_before_the_fence_may_be_there() {
        let mut bank = Bank::new();
        let old = bank.begin(1);
        let first = bank.send(old, 0, Err(Lost::TimedOut));
        bank.init(2);
        bank.store(first);
        bank.mark(1, &[0], false);
        bank.finish();
        assert_eq!(bank.violations(), []);
    }
}
