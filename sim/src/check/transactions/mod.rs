//! P7 and, where a fenced producer writes, P4: transactions, as their clients and their readers saw them.
//!
//! What is known of a transaction is what its producer asked and was told. It *committed* if a commit was acknowledged; it
//! *aborted* if nobody ever asked for its commit, or each that asked was refused; of any other it is open how it ended,
//! but it ended one way, everywhere. A producer id and epoch may have several transactions; which one a batch is of the history
//! says, never the broker.
//!
//! With a dial above 1 a crash may take a marker and leave a record: nothing is judged then.

mod atomic;
mod fenced;
mod pipeline;
mod stable;

#[cfg(test)]
mod bed;

use super::ledger::{Ledger, PartKey};
use super::log::may_lose;
use super::Verdict;
use crate::history::{Answer, BatchInfo, Code, Event, Index, Lost, Phase, Produced, Who};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What identifies a batch ([`BatchInfo::key`]).
type Content = (u64, i64, i16, i32);

/// Codes after which a commit that was asked for may have been done all the same: UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT,
/// NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
/// CONCURRENT_TRANSACTIONS, KAFKA_STORAGE_ERROR.
const MAY_BE_DONE: [Code; 8] = [-1, 7, 13, 14, 15, 16, 51, 56];
const DUPLICATE_SEQUENCE: Code = 46;

/// What an EndTxn was answered.
type Told = Answer<(Code, i64, i16)>;

/// One attempt to end a transaction.
pub(super) struct End<'a> {
    pub sent: Index,
    pub commit: bool,
    pub done: Option<(Index, &'a Told)>,
}

impl End<'_> {
    fn is_acknowledged(&self) -> bool {
        matches!(self.done, Some((_, Ok((0, ..)))))
    }

    /// Whether it surely had no effect.
    fn is_refused(&self) -> bool {
        match self.done {
            Some((_, Ok((code, ..)))) => *code != 0 && !MAY_BE_DONE.contains(code),
            Some((_, Err(Lost::NotSent(_)))) => true,
            _ => false,
        }
    }
}

/// How a transaction ended, by what its producer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Acknowledged with this event.
    Committed(Index),
    /// With this event, or nobody ever asked for anything else.
    Aborted(Option<Index>),
    Open,
}

pub(super) struct Txn<'a> {
    pub event: Index,
    pub at: Duration,
    pub id: &'a Arc<str>,
    pub producer: (i64, i16),
    pub timeout: Duration,
    /// Each batch once, by the event of its first sending.
    pub records: BTreeMap<Content, Index>,
    /// The [`Event::CommitSent`]s.
    pub offsets: Vec<Index>,
    pub ends: Vec<End<'a>>,
}

impl Txn<'_> {
    pub fn decision(&self) -> Decision {
        let mut commits = self.ends.iter().filter(|e| e.commit);
        if let Some(End { done: Some((done, _)), .. }) = commits.clone().find(|e| e.is_acknowledged()) {
            return Decision::Committed(*done);
        }
        if commits.any(|e| !e.is_refused()) {
            return Decision::Open;
        }
        let aborted = self.ends.iter().find(|e| !e.commit && e.is_acknowledged());
        Decision::Aborted(aborted.and_then(|e| e.done).map(|(done, _)| done))
    }

    /// When a commit was first asked for.
    pub fn asked(&self) -> Option<Index> {
        self.ends.iter().filter(|e| e.commit).map(|e| e.sent).min()
    }

    fn name(&self) -> String {
        let (id, epoch) = self.producer;
        format!("transaction {} of {} ({id}, epoch {epoch})", self.event, self.id)
    }
}

/// All that a read_committed consumer is shown of a partition in the end.
#[derive(Default)]
pub(super) struct Shown {
    pub event: Index,
    pub lso: i64,
    pub hwm: i64,
    pub contents: BTreeSet<Content>,
}

/// How a transaction ended, by what there is to see in the end as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Since this event at the latest.
    Committed(Index),
    Aborted,
    Unknown,
}

pub(super) struct Txns<'a> {
    /// By the event of their beginning.
    pub all: BTreeMap<Index, Txn<'a>>,
    /// Whose a batch is.
    pub of: BTreeMap<Content, Index>,
    /// Whose a [`Event::CommitSent`] is.
    pub of_commit: BTreeMap<Index, Index>,
    /// When a batch was first acknowledged.
    pub acked: BTreeMap<Content, Index>,
    pub shown: BTreeMap<PartKey, Shown>,
}

impl<'a> Txns<'a> {
    pub fn new(ledger: &Ledger<'a>) -> Txns<'a> {
        let mut txns = Txns {
            all: BTreeMap::new(),
            of: BTreeMap::new(),
            of_commit: BTreeMap::new(),
            acked: BTreeMap::new(),
            shown: BTreeMap::new(),
        };
        let mut ends: BTreeMap<Index, (Index, usize)> = BTreeMap::new();
        let mut reading: BTreeMap<PartKey, BTreeSet<Content>> = BTreeMap::new();
        // What is recovered from a crash in the midst of it all has open transactions: nobody waited for their end.
        let mut is_settled = false;
        for (event, stamped) in ledger.events.iter().enumerate() {
            match &stamped.event {
                Event::TxnBegun { id, producer, timeout, .. } => {
                    let txn = Txn {
                        event,
                        at: stamped.at,
                        id,
                        producer: *producer,
                        timeout: *timeout,
                        records: BTreeMap::new(),
                        offsets: Vec::new(),
                        ends: Vec::new(),
                    };
                    txns.all.insert(event, txn);
                }
                Event::TxnPart { txn, sent } => txns.note_part(ledger, *txn, *sent),
                Event::TxnEndSent { txn, commit, .. } => {
                    let Some(it) = txns.all.get_mut(txn) else { continue };
                    ends.insert(event, (*txn, it.ends.len()));
                    it.ends.push(End { sent: event, commit: *commit, done: None });
                }
                Event::TxnEndDone { sent, answer, .. } => {
                    let end = ends.get(sent).and_then(|(txn, n)| txns.all.get_mut(txn)?.ends.get_mut(*n));
                    if let Some(end) = end {
                        end.done = Some((event, answer));
                    }
                }
                Event::ProduceDone {
                    sent,
                    answer: Ok(Produced { code: 0 | DUPLICATE_SEQUENCE, .. }),
                    ..
                } => {
                    if let Some(sent) = ledger.sent.get(sent) {
                        txns.acked.entry(sent.batch.key()).or_insert(event);
                    }
                }
                Event::CommittedRead { who: Who::PROVER, fetch, visible, .. } => {
                    let Some((key, batches)) = fetched(ledger, *fetch) else { continue };
                    let seen = batches.iter().filter(|b| visible.contains(&b.base)).map(BatchInfo::key);
                    reading.entry(key).or_default().extend(seen);
                }
                Event::Phase(phase) => is_settled = *phase >= Phase::Prove,
                Event::FinalCommitted { at, lso, hwm } if is_settled => {
                    let Some(id) = at.id else { continue };
                    let key = (id, at.partition);
                    let contents = reading.remove(&key).unwrap_or_default();
                    txns.shown.insert(key, Shown { event, lso: *lso, hwm: *hwm, contents });
                }
                _ => {}
            }
        }
        txns
    }

    fn note_part(&mut self, ledger: &Ledger<'a>, event: Index, sent: Index) {
        let Some(txn) = self.all.get_mut(&event) else { return };
        match ledger.events.get(sent).map(|s| &s.event) {
            Some(Event::ProduceSent { batch, .. }) => {
                txn.records.entry(batch.key()).or_insert(sent);
                self.of.insert(batch.key(), event);
            }
            Some(Event::CommitSent { .. }) => {
                txn.offsets.push(sent);
                self.of_commit.insert(sent, event);
            }
            _ => {}
        }
    }

    /// Whose a batch is.
    pub fn owner(&self, batch: &BatchInfo) -> Option<&Txn<'a>> {
        self.all.get(self.of.get(&batch.key())?)
    }

    /// Where a batch was sent to, if what is there in the end can be held against it: the topic lives, all of it
    /// was read, and nothing of it was lawfully removed or damaged.
    pub fn place<'l>(&'l self, ledger: &Ledger, first_sent: Index) -> Option<(PartKey, &'l Shown)> {
        let sent = ledger.sent.get(&first_sent)?;
        let key = (sent.place.id?, sent.place.partition);
        if ledger.deleted.contains_key(&key.0) {
            return None;
        }
        let end = ledger.parts.get(&key)?.end.as_ref()?;
        let is_whole = end.log_start == 0 && end.damaged.is_empty();
        let shown = self.shown.get(&key)?;
        is_whole.then_some((key, shown))
    }

    pub fn outcome(&self, ledger: &Ledger, txn: &Txn) -> Outcome {
        match txn.decision() {
            Decision::Committed(done) => Outcome::Committed(done),
            Decision::Aborted(_) => Outcome::Aborted,
            Decision::Open => {
                let acked = txn.records.iter().filter(|(content, _)| self.acked.contains_key(content));
                let mut places = acked.filter_map(|(content, sent)| {
                    self.place(ledger, *sent)
                        .map(|(_, shown)| (shown.event, shown.contents.contains(content)))
                });
                match places.next() {
                    Some((event, true)) => Outcome::Committed(event),
                    Some((_, false)) => Outcome::Aborted,
                    None => Outcome::Unknown,
                }
            }
        }
    }
}

/// Partition and batches of a fetch that was answered.
fn fetched<'a>(ledger: &Ledger<'a>, fetch: Index) -> Option<(PartKey, &'a [BatchInfo])> {
    let Event::FetchDone { at, answer: Ok(f), .. } = &ledger.events.get(fetch)?.event else { return None };
    Some(((at.id?, at.partition), &f.batches))
}

pub(super) fn check(ledger: &Ledger, txns: &Txns, verdict: &mut Verdict) {
    // Without transactions the last stable offset is the high watermark, and that is for others to judge.
    if txns.all.is_empty() || may_lose(ledger) {
        return;
    }
    atomic::check(ledger, txns, verdict);
    stable::check(ledger, txns, verdict);
    fenced::check(ledger, txns, verdict);
    pipeline::check(ledger, txns, verdict);
}
