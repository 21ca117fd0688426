//! P1, P2, P3, P9: what was acknowledged or read is there, unchanged, once, without holes, as it was sent.
//!
//! "There" is where two witnesses say so: the final read of a fresh consumer, and the media as our own
//! decoder reads it.

use super::ledger::{Ack, Final, Ledger, Part, PartKey, Read};
use super::{media, Dial, Verdict};
use crate::history::{BatchInfo, Event, Index, Phase};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    if ledger.evidence.records_opened > 0 {
        let what = format!("{} records were opened on produce or fetch", ledger.evidence.records_opened);
        verdict.broken("P9", last_moment(ledger), what, Vec::new());
    }
    fetches(ledger, verdict);
    are_earned(ledger, verdict);
    for (key, part) in &ledger.parts {
        reads_agree(ledger, key, part, verdict);
        acks_agree(ledger, key, part, verdict);
        if ledger.deleted.contains_key(&key.0) {
            continue;
        }
        if let Some(end) = &part.end {
            is_dense(ledger, key, part, end, verdict);
            let there: BTreeMap<i64, &BatchInfo> = end.batches.iter().map(|b| (b.base, *b)).collect();
            let witness =
                Witness { name: "the final read", log_start: end.log_start, event: Some(end.event) };
            acks_are_there(ledger, key, part, &there, &witness, verdict);
            losses_are_clean(ledger, key, part, &there, end, verdict);
            reads_are_there(ledger, key, part, &there, end, verdict);
        }
        on_media(ledger, key, part, verdict);
        cannot_be_read(ledger, key, part, verdict);
    }
}

/// P1: a partition that took records and of which nothing can be read in the end, though its topic was not deleted.
fn cannot_be_read(ledger: &Ledger, key: &PartKey, part: &Part, verdict: &mut Verdict) {
    let was_proven = ledger.events.iter().any(|s| matches!(s.event, Event::Phase(Phase::Prove)));
    let Some(ack) = part.acks.iter().find(|a| a.sent.acks == -1) else { return };
    if part.end.is_none() && was_proven {
        let what = format!("{}: what was acknowledged can't be read in the end", part.name(key));
        verdict.broken("P1", last_moment(ledger), what, vec![ack.event]);
    }
}

fn last_moment(ledger: &Ledger) -> std::time::Duration {
    ledger.events.last().map_or(std::time::Duration::ZERO, |s| s.at)
}

/// P9 and P2, for each answer on its own.
fn fetches(ledger: &Ledger, verdict: &mut Verdict) {
    for (index, stamped) in ledger.events.iter().enumerate() {
        let Event::FetchDone { at: place, offset, answer: Ok(f), .. } = &stamped.event else { continue };
        if f.code != 0 {
            continue;
        }
        let name = format!("{}-{}", place.topic, place.partition);
        let mut broken = |promise, what: String| {
            verdict.broken(promise, stamped.at, format!("{name}: {what}"), vec![index]);
        };
        if f.left_over > 0 {
            broken("P9", format!("{} bytes of no whole batch were served", f.left_over));
        }
        if let Some(first) = f.batches.first().filter(|b| b.end() <= *offset) {
            broken("P2", format!("asked for {offset}, got a batch that ends at {}", first.end()));
        }
        // The batch that holds the offset comes whole.
        if let Some(first) = f.batches.first().filter(|b| b.base > *offset) {
            broken(
                "P3",
                format!("asked for {offset}, got what begins at {}: records were skipped", first.base),
            );
        }
        if let Some(last) = f.batches.last().filter(|b| b.end() > f.hwm) {
            broken("P2", format!("served up to {}, past the high watermark {}", last.end(), f.hwm));
        }
        if f.log_start > f.lso || f.lso > f.hwm {
            broken("P6", format!("log start {}, LSO {}, HWM {} are out of order", f.log_start, f.lso, f.hwm));
        }
        for pair in f.batches.windows(2) {
            if let [a, b] = pair {
                if a.end() != b.base {
                    broken(
                        "P3",
                        format!("in one answer, {} follows the batch that ends at {}", b.base, a.end()),
                    );
                }
            }
        }
    }
}

/// P3: a log holds no more offsets than records were sent to it. One that jumps ahead has a hole, whether or not
/// anybody lives to read it.
fn are_earned(ledger: &Ledger, verdict: &mut Verdict) {
    // By name: whichever topic it stands for, it got no more than this.
    let mut sent: BTreeMap<(&str, i32), i64> = BTreeMap::new();
    let markers = markers(ledger);
    let mut told = BTreeSet::new();
    for (index, stamped) in ledger.events.iter().enumerate() {
        let (place, end, since) = match &stamped.event {
            Event::ProduceSent { at, batch, .. } => {
                *sent.entry((&*at.topic, at.partition)).or_default() += i64::from(batch.last_delta) + 1;
                continue;
            }
            Event::ProduceDone { sent: since, answer: Ok(p), .. } if p.code == 0 && p.base >= 0 => {
                let Some(since) = ledger.sent.get(since) else { continue };
                (since.place, p.base + i64::from(since.batch.last_delta) + 1, Some(since.event))
            }
            Event::FetchDone { at, answer: Ok(f), .. } if f.code == 0 => (at, f.hwm, None),
            _ => continue,
        };
        let name = (&*place.topic, place.partition);
        let mut most = sent.get(&name).copied().unwrap_or_default();
        most += markers.get(&name).map_or(0, |bases| bases.range(..end).count() as i64);
        if end > most && told.insert((&*place.topic, place.partition)) {
            let what = format!(
                "{}-{}: the log reaches {end}, but only {most} records were ever sent to it",
                place.topic, place.partition
            );
            verdict.broken("P3", stamped.at, what, since.into_iter().chain([index]).collect());
        }
    }
}

/// Where brokers wrote markers of transactions, as anybody ever read them.
fn markers<'a>(ledger: &Ledger<'a>) -> BTreeMap<(&'a str, i32), BTreeSet<i64>> {
    let mut all: BTreeMap<(&str, i32), BTreeSet<i64>> = BTreeMap::new();
    for stamped in ledger.events {
        let Event::FetchDone { at, answer: Ok(f), .. } = &stamped.event else { continue };
        for batch in f.batches.iter().filter(|b| b.is_control()) {
            all.entry((&*at.topic, at.partition)).or_default().insert(batch.base);
        }
    }
    all
}

/// P9 for a batch that came back: whether it is one that was sent, and as it was sent.
fn is_as_sent(ledger: &Ledger, part: &Part, name: &str, read: &Read, verdict: &mut Verdict) {
    let b = read.batch;
    let broken = |verdict: &mut Verdict, what: String, mut events: Vec<Index>| {
        events.push(read.event);
        verdict.broken("P9", read.at, format!("{name}: the batch at {} {what}", b.base), events);
    };
    if !b.sound {
        return broken(verdict, "was served with a wrong checksum".into(), Vec::new());
    }
    match ledger.contents.get(&b.key()) {
        // A marker is the brokers' own.
        None if matches!(b.control, Some(0 | 1)) && b.is_transactional() && b.producer_id >= 0 => {}
        None => broken(verdict, "was never sent".into(), Vec::new()),
        Some(sent) if sent.event > read.event => {
            broken(verdict, "was read before it was sent".into(), vec![sent.event])
        }
        Some(sent) if !b.is_verbatim(sent.batch, ledger.is_stamped(part.topic.as_ref())) => {
            broken(verdict, format!("is not as it was sent: {b:?} for {:?}", sent.batch), vec![sent.event])
        }
        Some(_) => {}
    }
}

/// P2 among reads: at one offset, always the same bytes; and no two batches share offsets (P3).
///
/// With a dial above 1 a crash may take back what was read, and the offsets are used again.
fn reads_agree(ledger: &Ledger, key: &PartKey, part: &Part, verdict: &mut Verdict) {
    let name = part.name(key);
    let mut reads: Vec<&Read> = part.reads.iter().collect();
    reads.sort_by_key(|r| (r.batch.base, r.event));
    let may_change = may_lose(ledger);
    let mut before: Option<&Read> = None;
    for read in reads {
        if before.is_none_or(|b| b.batch != read.batch) {
            is_as_sent(ledger, part, &name, read, verdict);
        }
        if let Some(b) = before.filter(|b| !may_change && !is_same(ledger, b.batch, read.batch)) {
            if b.batch.base == read.batch.base {
                let what = format!("{name}: what was read at {} changed", read.batch.base);
                verdict.broken("P2", read.at.max(b.at), what, vec![b.event, read.event]);
            } else if read.batch.base < b.batch.end() {
                let (x, y) = (b.batch, read.batch);
                let what = format!(
                    "{name}: batches {}..{} and {}..{} were both read",
                    x.base,
                    x.end(),
                    y.base,
                    y.end()
                );
                verdict.broken("P3", read.at.max(b.at), what, vec![b.event, read.event]);
            }
        }
        before = Some(read);
    }
}

/// A flipped bit in the leader epoch shows nowhere: it is outside the checksum.
fn is_same(ledger: &Ledger, a: &BatchInfo, b: &BatchInfo) -> bool {
    a == b || (ledger.had_damage() && a.is_equal_but_epoch(b))
}

/// P3 among acknowledgements: no offset was given to two batches.
///
/// Where a crash may take records back, their offsets are given out again.
fn acks_agree(ledger: &Ledger, key: &PartKey, part: &Part, verdict: &mut Verdict) {
    if may_lose(ledger) {
        return;
    }
    let mut acks: Vec<&Ack> = part.acks.iter().filter(|a| a.sent.acks == -1).collect();
    acks.sort_by_key(|a| (a.base, a.event));
    for pair in acks.windows(2) {
        let [a, b] = pair else { continue };
        let again = a.base == b.base && a.sent.batch.is_same_content(b.sent.batch);
        if b.base < a.end() && !again {
            let what = format!(
                "{}: {}..{} and {}..{} were both acknowledged",
                part.name(key),
                a.base,
                a.end(),
                b.base,
                b.end()
            );
            verdict.broken("P3", b.at.max(a.at), what, vec![a.sent.event, a.event, b.sent.event, b.event]);
        }
    }
}

/// P3 in the final read.
fn is_dense(ledger: &Ledger, key: &PartKey, part: &Part, end: &Final, verdict: &mut Verdict) {
    let name = part.name(key);
    let mut broken = |what: String| {
        verdict.broken("P3", ledger.at(end.event), format!("{name}: {what}"), vec![end.event]);
    };
    // What the broker calls damaged is so only if something damaged it.
    let is_rotten = |from, to| ledger.had_damage() && end.damaged.range(from..to).next().is_some();
    let mut next = end.log_start;
    for batch in &end.batches {
        // The first may begin before the log start.
        let is_next =
            batch.base == next || (next == end.log_start && batch.base < next && batch.end() > next);
        let is_damaged = is_rotten(next, batch.base);
        if !is_next && !is_damaged {
            broken(format!("{} is followed by the batch at {}", next, batch.base));
        }
        next = batch.end();
    }
    // Batches may have come since the end was asked for.
    if next < end.hwm && !is_rotten(next, end.hwm) {
        broken(format!("the log ends at {next}, before the high watermark {}", end.hwm));
    }
}

/// Who says that a batch is there.
struct Witness {
    name: &'static str,
    log_start: i64,
    event: Option<Index>,
}

/// Whether records may lawfully be gone.
pub(super) fn may_lose(ledger: &Ledger) -> bool {
    ledger.terms.dial != Dial::Durable && ledger.lost_a_page_cache()
}

/// P1 (and P3: where its acknowledgement says).
fn acks_are_there(
    ledger: &Ledger,
    key: &PartKey,
    part: &Part,
    there: &BTreeMap<i64, &BatchInfo>,
    witness: &Witness,
    verdict: &mut Verdict,
) {
    let is_stamped = ledger.is_stamped(part.topic.as_ref());
    let mut elsewhere: Option<BTreeMap<_, i64>> = None;
    for ack in part.acks.iter().filter(|a| a.sent.acks == -1 && a.end() > witness.log_start) {
        let found = there.get(&ack.base);
        if found.is_some_and(|b| b.is_verbatim(ack.sent.batch, is_stamped)) {
            continue;
        }
        if may_lose(ledger) || is_rotten(ledger, part, ack.base, ack.end()) {
            continue;
        }
        let contents = elsewhere.get_or_insert_with(|| there.values().map(|b| (b.key(), b.base)).collect());
        let (promise, fate) = match (contents.get(&ack.sent.batch.key()), found) {
            (Some(base), _) if *base != ack.base => ("P3", format!("is at {base}")),
            // Its place is taken by its own remains: no reader gets the records back.
            (_, Some(b)) if !b.sound => ("P1", "is there in part only: its checksum is wrong".to_string()),
            (Some(_), _) => ("P9", "is there, but not as it was sent".to_string()),
            (None, Some(_)) => ("P1", "has another batch in its place".to_string()),
            (None, None) => ("P1", "is not there".to_string()),
        };
        let what = format!(
            "{}: what was acknowledged at {}..{} {fate}, says {}",
            part.name(key),
            ack.base,
            ack.end(),
            witness.name
        );
        let events = [Some(ack.sent.event), Some(ack.event), witness.event];
        let at = witness.event.map_or(last_moment(ledger), |e| ledger.at(e));
        verdict.broken(promise, at, what, events.into_iter().flatten().collect());
    }
}

/// With a dial above 1: counts what is gone, and sees that each crash took the end of the log and nothing else.
fn losses_are_clean(
    ledger: &Ledger,
    key: &PartKey,
    part: &Part,
    there: &BTreeMap<i64, &BatchInfo>,
    end: &Final,
    verdict: &mut Verdict,
) {
    if !may_lose(ledger) {
        return;
    }
    let is_stamped = ledger.is_stamped(part.topic.as_ref());
    let crashes: Vec<_> = ledger.page_cache_losses().collect();
    // By the crash that came next: the first that is gone, and the last that is there.
    let mut first_gone: BTreeMap<usize, &Ack> = BTreeMap::new();
    let mut last_there: BTreeMap<usize, &Ack> = BTreeMap::new();
    for ack in part.acks.iter().filter(|a| a.sent.acks == -1 && a.end() > end.log_start) {
        // An answer may still have been on its way when the power went: what is gone may have been there before, and what
        // is there counts only if it surely was.
        let era = crashes.partition_point(|c| *c < ack.sent.at);
        if there.get(&ack.base).is_some_and(|b| b.is_verbatim(ack.sent.batch, is_stamped)) {
            if crashes.partition_point(|c| *c < ledger.at(ack.event)) > era {
                continue;
            }
            let last = last_there.entry(era).or_insert(ack);
            if last.base < ack.base {
                *last = ack;
            }
        } else {
            verdict.lost_records += u64::from(ack.sent.batch.count.unsigned_abs());
            let first = first_gone.entry(era).or_insert(ack);
            if first.base > ack.base {
                *first = ack;
            }
        }
    }
    for (era, gone) in first_gone {
        let Some(kept) = last_there.get(&era).filter(|kept| kept.base > gone.base) else { continue };
        let what = format!(
            "{}: {}..{} is gone, though {}..{} behind it is there",
            part.name(key),
            gone.base,
            gone.end(),
            kept.base,
            kept.end()
        );
        verdict.broken("P1", ledger.at(end.event), what, vec![gone.event, kept.event, end.event]);
    }
}

/// P2: what was read once is there in the end.
fn reads_are_there(
    ledger: &Ledger,
    key: &PartKey,
    part: &Part,
    there: &BTreeMap<i64, &BatchInfo>,
    end: &Final,
    verdict: &mut Verdict,
) {
    if may_lose(ledger) {
        return;
    }
    let mut told = BTreeSet::new();
    for read in part.reads.iter().filter(|r| r.batch.end() > end.log_start) {
        let b = read.batch;
        if there.get(&b.base).is_some_and(|x| is_same(ledger, x, b)) || !told.insert(b.base) {
            continue;
        }
        if is_rotten(ledger, part, b.base, b.end()) {
            continue;
        }
        let what = format!("{}: what was read at {}..{} is gone or changed", part.name(key), b.base, b.end());
        verdict.broken("P2", ledger.at(end.event), what, vec![read.event, end.event]);
    }
}

/// Whether the media was damaged, and the broker says of these offsets that they are.
fn is_rotten(ledger: &Ledger, part: &Part, base: i64, end: i64) -> bool {
    let is_said = part.end.as_ref().is_some_and(|f| f.damaged.range(base..end).next().is_some());
    is_said && ledger.had_damage()
}

/// P1 on the media, by our own decoder. Not if the media was damaged: whatever lies behind a rotten batch is for
/// the final read to find.
fn on_media(ledger: &Ledger, key: &PartKey, part: &Part, verdict: &mut Verdict) {
    let files = &ledger.evidence.media;
    if files.is_empty() || part.acks.is_empty() || ledger.had_damage() {
        return;
    }
    let Some(topic) = &part.topic else { return };
    match media::partition(files, topic, key.0, key.1) {
        Err(why) => {
            let what = format!("{}: the media can't be read: {why}", part.name(key));
            verdict.broken("P1", last_moment(ledger), what, Vec::new());
        }
        Ok(log) => {
            let there = log.batches.iter().map(|b| (b.base, b)).collect();
            let witness = Witness { name: "the media", log_start: log.log_start, event: None };
            acks_are_there(ledger, key, part, &there, &witness, verdict);
        }
    }
}

#[cfg(test)]
mod tests;
