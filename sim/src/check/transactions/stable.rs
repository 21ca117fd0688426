//! P7 while it goes on: no consumer that asks for what is committed is shown anything else, nor anything past an open
//! transaction; what it was shown stays shown; and in the end nothing is open.
//!
//! A transaction is surely open from the acknowledgement of a record until somebody may have ended it: its producer, an
//! incarnation that asks for the same transactional id, or its timeout.

use super::{Decision, Txn, Txns};
use crate::check::ledger::{Ledger, PartKey};
use crate::check::Verdict;
use crate::history::{BatchInfo, Event, FaultKind, Index};
use std::collections::BTreeMap;
use std::time::Duration;

/// The timestamp that stands for the end.
const LATEST: i64 = -1;

/// Of a transaction's timeout, what surely passes before the coordinator's clock says that it is over.
const SURE: f64 = 0.9;

pub(super) fn check(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    let open = open(ledger, txns);
    let mut highest: BTreeMap<PartKey, Risen> = BTreeMap::new();
    for (event, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::FetchDone { started, at, answer: Ok(f), .. } if f.code == 0 => {
                let Some(id) = at.id else { continue };
                let key = (id, at.partition);
                let read = Read { key, event, from: *started, at: stamped.at, lso: f.lso };
                rises(ledger, highest.entry(key).or_default(), &read, verdict);
                stops_at_the_open(ledger, txns, open.get(&key), &read, verdict);
            }
            Event::ListOffsetsDone {
                started, at, timestamp: LATEST, committed: true, answer: Ok(l), ..
            } if l.code == 0 => {
                let Some(id) = at.id else { continue };
                let key = (id, at.partition);
                let read = Read { key, event, from: *started, at: stamped.at, lso: l.offset };
                rises(ledger, highest.entry(key).or_default(), &read, verdict);
                stops_at_the_open(ledger, txns, open.get(&key), &read, verdict);
            }
            Event::CommittedRead { fetch, aborted, visible, .. } => {
                is_committed(ledger, txns, *fetch, (aborted, visible), verdict);
            }
            _ => {}
        }
    }
    stays_shown(ledger, verdict);
    ends(ledger, txns, verdict);
}

/// A last stable offset that a consumer was told.
struct Read {
    key: PartKey,
    event: Index,
    from: Duration,
    at: Duration,
    lso: i64,
}

impl Read {
    fn name(&self, ledger: &Ledger) -> String {
        ledger.parts.get(&self.key).map_or(String::new(), |p| p.name(&self.key))
    }
}

/// The highest last stable offsets, each when it was known.
#[derive(Default)]
struct Risen(Vec<(Duration, i64, Index)>);

/// Of two answers of which one was there before the other was asked for, the later one shows no less.
fn rises(ledger: &Ledger, risen: &mut Risen, read: &Read, verdict: &mut Verdict) {
    let lso = read.lso;
    let known = risen.0.partition_point(|(at, ..)| *at <= read.from);
    let before = known.checked_sub(1).and_then(|n| risen.0.get(n));
    if let Some((_, before, event)) = before.filter(|(_, before, _)| *before > lso) {
        let what = format!("{}: the last stable offset was {before} and is {lso}", read.name(ledger));
        verdict.broken("P7", read.at, what, vec![*event, read.event]);
    }
    if risen.0.last().is_none_or(|(_, highest, _)| *highest < lso) {
        risen.0.push((read.at, lso, read.event));
    }
}

/// A time in which a transaction was surely open in a partition.
struct Open {
    txn: Index,
    base: i64,
    acked: Index,
    from: Duration,
    until: Duration,
}

fn open(ledger: &Ledger, txns: &Txns) -> BTreeMap<PartKey, Vec<Open>> {
    let mut all: BTreeMap<PartKey, Vec<Open>> = BTreeMap::new();
    // A clock that jumps makes any timeout pass.
    if ledger.faults.iter().any(|f| f.kind == FaultKind::Clock) {
        return all;
    }
    let mut asked: BTreeMap<&str, Vec<Asked>> = BTreeMap::new();
    for stamped in ledger.events {
        if let Event::TxnInit { id, started, answer, .. } = &stamped.event {
            let until = if answer.is_ok() { stamped.at } else { Duration::MAX };
            asked.entry(id).or_default().push(Asked { from: *started, until });
        }
    }
    for (key, part) in &ledger.parts {
        for ack in &part.acks {
            let Some(txn) = txns.owner(ack.sent.batch) else { continue };
            let until = closed(ledger, txn, asked.get(&**txn.id).map_or(&[][..], |a| a));
            if ack.at < until {
                let open = Open { txn: txn.event, base: ack.base, acked: ack.event, from: ack.at, until };
                all.entry(*key).or_default().push(open);
            }
        }
    }
    all
}

/// Somebody asked for a transactional id, and the coordinator may have heard of it at any time from then until then.
struct Asked {
    from: Duration,
    until: Duration,
}

/// When it may have ended at the earliest.
fn closed(ledger: &Ledger, txn: &Txn, asked: &[Asked]) -> Duration {
    let ended = txn.ends.iter().map(|e| ledger.at(e.sent)).min().unwrap_or(Duration::MAX);
    let heard = asked.iter().filter(|a| a.until >= txn.at).map(|a| a.from.max(txn.at));
    let fenced = heard.min().unwrap_or(Duration::MAX);
    ended.min(fenced).min(txn.at + txn.timeout.mul_f64(SURE))
}

fn stops_at_the_open(
    ledger: &Ledger,
    txns: &Txns,
    open: Option<&Vec<Open>>,
    read: &Read,
    verdict: &mut Verdict,
) {
    let passed = open
        .into_iter()
        .flatten()
        .find(|o| o.from <= read.from && o.acked < read.event && read.at < o.until && o.base < read.lso);
    let Some(passed) = passed else { return };
    let name = txns.all.get(&passed.txn).map_or(String::new(), Txn::name);
    let what = format!(
        "{}: the last stable offset {} is past {}, where {name} is open",
        read.name(ledger),
        read.lso,
        passed.base
    );
    verdict.broken("P7", read.at, what, vec![passed.txn, passed.acked, read.event]);
}

/// What one answer showed (Jepsen's aborted and pre-committed reads).
fn is_committed(
    ledger: &Ledger,
    txns: &Txns,
    fetch: Index,
    (aborted, visible): (&[(i64, i64)], &[i64]),
    verdict: &mut Verdict,
) {
    let at = ledger.at(fetch);
    let Some(Event::FetchDone { at: place, answer: Ok(f), .. }) = ledger.events.get(fetch).map(|s| &s.event)
    else {
        return;
    };
    let name = format!("{}-{}", place.topic, place.partition);
    let mut broken = |what: String, events: Vec<Index>| {
        verdict.broken("P7", at, format!("{name}: {what}"), events.into_iter().chain([fetch]).collect());
    };
    if let Some(last) = f.batches.last().filter(|b| b.end() > f.lso) {
        broken(format!("served up to {}, past the last stable offset {}", last.end(), f.lso), Vec::new());
    }
    if !aborted.is_sorted_by_key(|(_, first)| *first) {
        broken(format!("aborted transactions out of order: {aborted:?}"), Vec::new());
    }
    for batch in f.batches.iter().filter(|b| visible.contains(&b.base)) {
        let Some(txn) = txns.owner(batch) else { continue };
        match (txn.decision(), txn.asked()) {
            (Decision::Aborted(done), _) => {
                let events = [Some(txn.event), done].into_iter().flatten().collect();
                broken(format!("{} is shown, of aborted {}", batch.base, txn.name()), events);
            }
            (_, Some(asked)) if asked < fetch => {}
            (_, asked) => {
                let events = [Some(txn.event), asked].into_iter().flatten().collect();
                broken(format!("{} is shown, of undecided {}", batch.base, txn.name()), events);
            }
        }
    }
}

/// A batch that one consumer was shown is not kept from another.
fn stays_shown(ledger: &Ledger, verdict: &mut Verdict) {
    let mut seen: BTreeMap<(PartKey, i64), (bool, Index)> = BTreeMap::new();
    for stamped in ledger.events {
        let Event::CommittedRead { fetch, visible, .. } = &stamped.event else { continue };
        let Some((key, batches)) = super::fetched(ledger, *fetch) else { continue };
        for BatchInfo { base, .. } in batches.iter().filter(|b| !b.is_control()) {
            let is_shown = visible.contains(base);
            let (before, event) = *seen.entry((key, *base)).or_insert((is_shown, *fetch));
            if before != is_shown {
                let name = ledger.parts.get(&key).map_or(String::new(), |p| p.name(&key));
                let what = format!("{name}: the batch at {base} was shown to one and kept from another");
                verdict.broken("P7", stamped.at, what, vec![event, *fetch]);
                seen.insert((key, *base), (is_shown, *fetch));
            }
        }
    }
}

/// In the end the last stable offset is the high watermark, and each transaction has its marker, which says what was
/// decided.
fn ends(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    for (key, shown) in &txns.shown {
        let Some(part) = ledger.parts.get(key) else { continue };
        let (name, at) = (part.name(key), ledger.at(shown.event));
        if shown.lso != shown.hwm {
            let what =
                format!("{name}: in the end the last stable offset is {}, of {}", shown.lso, shown.hwm);
            verdict.broken("P7", at, what, vec![shown.event]);
        }
        let Some(end) = part.end.as_ref().filter(|e| e.damaged.is_empty()) else { continue };
        let mut open: BTreeMap<i64, &BatchInfo> = BTreeMap::new();
        for batch in end.batches.iter().copied().filter(|b| b.is_transactional()) {
            let Some(control) = batch.control else {
                open.entry(batch.producer_id).or_insert(batch);
                continue;
            };
            let Some(first) = open.remove(&batch.producer_id) else { continue };
            let Some(txn) = txns.owner(first) else { continue };
            let is_wrong = match txn.decision() {
                Decision::Committed(_) => control != 1,
                Decision::Aborted(_) => control != 0,
                Decision::Open => false,
            };
            if is_wrong {
                let what = format!(
                    "{name}: the marker at {} says {control}, of {} ({:?})",
                    batch.base,
                    txn.name(),
                    txn.decision()
                );
                verdict.broken("P7", at, what, vec![txn.event, end.event]);
            }
        }
        for first in open.values() {
            let what = format!(
                "{name}: the transaction of producer {} that begins at {} hangs: no marker ends it",
                first.producer_id, first.base
            );
            verdict.broken("P7", at, what, vec![end.event]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::Bank;
    use crate::history::Lost;

    #[test]
    fn a_reader_sees_what_is_committed_and_waits_for_what_is_open() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.plain(0);
        bank.read(0);
        bank.commit(txn, Ok(0));
        bank.mark(1, &[0], true);
        bank.read(0);
        bank.finish();
        assert_eq!(bank.violations(), []);
    }

    #[test]
    fn a_read_before_anybody_asked_for_a_commit_is_p7() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.mark(1, &[0], true);
        bank.read(0);
        bank.commit(txn, Ok(0));
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }

    #[test]
    fn an_aborted_read_is_p7_though_nobody_reads_it_later() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.abort(txn, Ok(0));
        bank.mark(1, &[0], false);
        bank.hide_aborted = false;
        bank.read(0);
        bank.hide_aborted = true;
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }

    #[test]
    fn a_last_stable_offset_past_an_open_transaction_is_p7() {
        for (ends_before, broken) in [(false, true), (true, false)] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            bank.write(txn, 0);
            if ends_before {
                bank.commit(txn, Err(Lost::TimedOut));
            }
            bank.stop_at_open = false;
            bank.plain(0);
            bank.read_uncommitted(0);
            bank.stop_at_open = true;
            if !ends_before {
                bank.commit(txn, Ok(0));
            }
            bank.mark(1, &[0], true);
            bank.finish();
            assert_eq!(bank.broken() == ["P7"], broken, "ends before: {ends_before}");
        }
    }

    #[test]
    fn the_end_for_a_consumer_of_committed_records_is_no_further_than_what_is_open() {
        for (stop_at_open, broken) in [(true, &[][..]), (false, &["P7"])] {
            let mut bank = Bank::new();
            let txn = bank.begin(1);
            bank.write(txn, 0);
            bank.plain(0);
            bank.stop_at_open = stop_at_open;
            bank.ask_end(0);
            bank.stop_at_open = true;
            bank.commit(txn, Ok(0));
            bank.mark(1, &[0], true);
            bank.finish();
            assert_eq!(bank.broken(), broken);
        }
    }

    #[test]
    fn a_last_stable_offset_that_falls_is_p7() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.commit(txn, Ok(0));
        bank.mark(1, &[0], true);
        bank.read(0);
        bank.lso = Some(1);
        bank.read_uncommitted(0);
        bank.lso = None;
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }

    #[test]
    fn a_transaction_that_hangs_in_the_end_is_p7() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.commit(txn, Ok(0));
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }

    #[test]
    fn what_is_recovered_in_the_midst_of_a_transaction_is_not_blamed_for_it() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.commit(txn, Ok(0));
        bank.read_all();
        assert_eq!(bank.violations(), []);
    }

    #[test]
    fn what_one_was_shown_is_not_kept_from_another() {
        let mut bank = Bank::new();
        let txn = bank.begin(1);
        bank.write(txn, 0);
        bank.commit(txn, Err(Lost::TimedOut));
        bank.mark(1, &[0], false);
        bank.hide_aborted = false;
        bank.read(0);
        bank.hide_aborted = true;
        bank.finish();
        assert_eq!(bank.broken(), ["P7"]);
    }
}
