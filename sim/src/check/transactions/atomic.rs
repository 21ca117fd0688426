//! P7: of a transaction, a read_committed consumer sees all in the end or nothing, in all partitions alike.

use super::{Decision, Txn, Txns};
use crate::check::ledger::Ledger;
use crate::check::Verdict;
use crate::history::Index;

pub(super) fn check(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    for txn in txns.all.values() {
        is_told_one_thing(ledger, txn, verdict);
        is_whole(ledger, txns, txn, verdict);
    }
}

/// No producer is told that its transaction committed, and that it aborted.
fn is_told_one_thing(ledger: &Ledger, txn: &Txn, verdict: &mut Verdict) {
    let told = |commit: bool| txn.ends.iter().find(|e| e.commit == commit && e.is_acknowledged());
    if let (Some(commit), Some(abort)) = (told(true), told(false)) {
        let events: Vec<Index> =
            [commit, abort].iter().filter_map(|e| e.done).map(|(done, _)| done).collect();
        let at = events.iter().map(|e| ledger.at(*e)).max().unwrap_or_default();
        let what = format!("{} was said to be committed, and to be aborted", txn.name());
        verdict.broken("P7", at, what, events);
    }
}

fn is_whole(ledger: &Ledger, txns: &Txns, txn: &Txn, verdict: &mut Verdict) {
    // The first that is shown, and the first that was acknowledged and is not.
    let (mut shown, mut missing) = (None, None);
    for (content, sent) in &txn.records {
        let Some((key, there)) = txns.place(ledger, *sent) else { continue };
        let found = Some((*sent, key, there.event));
        if there.contents.contains(content) {
            shown = shown.or(found);
        } else if txns.acked.contains_key(content) {
            missing = missing.or(found);
        }
    }
    let place = |sent: Index| match ledger.sent.get(&sent) {
        Some(sent) => format!("{}-{}", sent.place.topic, sent.place.partition),
        None => String::new(),
    };
    let (what, events) = match (txn.decision(), shown, missing) {
        (Decision::Aborted(done), Some((sent, _, end)), _) => {
            let why = match done {
                Some(_) => "was aborted",
                None => "was never committed",
            };
            (format!("{why}, and its record in {} is shown", place(sent)), vec![done, Some(sent), Some(end)])
        }
        (Decision::Committed(done), _, Some((sent, _, end))) => {
            let what = format!("was committed, and its record in {} is not shown", place(sent));
            (what, vec![Some(done), Some(sent), Some(end)])
        }
        (Decision::Open, Some((here, _, end)), Some((gone, ..))) => {
            let what =
                format!("is torn: its record in {} is shown, that in {} is not", place(here), place(gone));
            (what, vec![Some(here), Some(gone), Some(end)])
        }
        _ => return,
    };
    let events: Vec<Index> = events.into_iter().flatten().collect();
    let at = events.iter().map(|e| ledger.at(*e)).max().unwrap_or_default();
    verdict.broken("P7", at, format!("{} {what}", txn.name()), events);
}

#[cfg(test)]
mod tests {
    use super::super::bed::Bank;
    use crate::history::Lost;

    #[test]
    fn what_is_committed_is_shown_and_what_is_aborted_is_not() {
        let mut bank = Bank::new();
        let first = bank.begin(1);
        bank.write(first, 0);
        bank.write(first, 1);
        bank.commit(first, Ok(0));
        bank.mark(1, &[0, 1], true);
        let second = bank.begin(1);
        bank.write(second, 0);
        bank.abort(second, Ok(0));
        bank.mark(1, &[0], false);
        bank.finish();
        assert_eq!(bank.violations(), []);
    }

    #[test]
    fn a_record_of_an_aborted_transaction_that_is_shown_is_p7() {
        for asks in [true, false] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            bank.write(txn, 0);
            if asks {
                bank.abort(txn, Ok(0));
            }
            bank.mark(1, &[0], true);
            bank.finish();
            assert_eq!(bank.broken(), ["P7"], "asks {asks}");
        }
    }

    #[test]
    fn a_committed_transaction_that_is_not_shown_everywhere_is_p7() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.write(txn, 1);
        bank.commit(txn, Ok(0));
        bank.mark(1, &[0], true);
        bank.mark(1, &[1], false);
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }

    #[test]
    fn one_of_which_nobody_was_told_may_end_either_way_but_one_way() {
        for (marks, broken) in [([true, true], false), ([false, false], false), ([true, false], true)] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            bank.write(txn, 0);
            bank.write(txn, 1);
            bank.commit(txn, Err(Lost::TimedOut));
            bank.mark(1, &[0], marks[0]);
            bank.mark(1, &[1], marks[1]);
            bank.finish();
            assert_eq!(bank.broken() == ["P7"], broken, "{marks:?}");
            assert!(broken || bank.broken().is_empty());
        }
    }

    #[test]
    fn a_commit_that_was_refused_is_none() {
        for (code, broken) in [(47, true), (16, false)] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            bank.write(txn, 0);
            bank.commit(txn, Ok(code));
            bank.mark(1, &[0], true);
            bank.finish();
            assert_eq!(bank.broken() == ["P7"], broken, "{code}");
        }
    }

    #[test]
    fn who_is_told_of_a_commit_is_not_told_of_an_abort() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.commit(txn, Ok(0));
        bank.abort(txn, Ok(0));
        bank.mark(1, &[0], true);
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }

    #[test]
    fn offsets_of_a_committed_transaction_are_there_for_who_asks_for_what_is_stable() {
        for (stable, broken) in [(true, true), (false, false)] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            let sent = bank.offset_in(txn, 5);
            bank.commit(txn, Ok(0));
            bank.offset_read(stable, None);
            assert_eq!(bank.broken() == ["P8"], broken, "stable: {stable}");
            assert!(broken || bank.broken().is_empty());
            bank.offset_read(true, Some((sent, 5)));
            assert_eq!(bank.broken() == ["P8"], broken, "stable: {stable}");
        }
    }

    #[test]
    fn offsets_of_what_is_undecided_or_aborted_are_p7() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        let sent = bank.offset_in(txn, 5);
        bank.offset_read(false, Some((sent, 5)));
        bank.commit(txn, Ok(0));
        bank.offset_read(true, Some((sent, 5)));
        assert_eq!(bank.broken(), ["P7"], "too early");
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        let sent = bank.offset_in(txn, 5);
        bank.abort(txn, Ok(0));
        bank.offset_read(true, None);
        assert_eq!(bank.violations(), []);
        bank.offset_read(true, Some((sent, 5)));
        assert_eq!(bank.broken(), ["P7"]);
    }

    /// Nobody was told, and yet it is known: the records are there.
    #[test]
    fn offsets_go_with_the_records() {
        for (shown, broken) in [(true, vec!["P8"]), (false, vec![])] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            bank.write(txn, 0);
            bank.offset_in(txn, 5);
            bank.commit(txn, Err(Lost::TimedOut));
            bank.mark(1, &[0], shown);
            bank.finish();
            bank.offset_read(true, None);
            assert_eq!(bank.broken(), broken, "shown: {shown}");
        }
    }
}
