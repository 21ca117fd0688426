//! Hand-made histories of transactions: two partitions of one topic, an honest broker, and what a test bends.

use crate::check::{judge, Evidence, Violation};
use crate::client::committed::visible;
use crate::client::records::{self, Identity};
use crate::history::*;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(7);
const PRODUCER: i64 = 40;

pub struct Bank {
    evidence: Evidence,
    now: Duration,
    logs: [Vec<BatchInfo>; 2],
    sequences: BTreeMap<(i16, i32), i32>,
    /// What was sent, by the event.
    bytes: BTreeMap<Index, (i32, Bytes)>,
    epochs: BTreeMap<Index, i16>,
    next: u64,
    /// Says of aborted transactions that they are.
    pub hide_aborted: bool,
    /// The last stable offset is where a transaction is open.
    pub stop_at_open: bool,
    /// The last stable offset, whatever is open.
    pub lso: Option<i64>,
}

fn place(partition: i32) -> Place {
    Place { topic: "t".into(), partition, id: Some(ID) }
}

fn txn_id() -> Arc<str> {
    "bank".into()
}

impl Bank {
    /// With an incarnation that has epoch 1.
    pub fn new() -> Bank {
        let mut bank = Bank {
            evidence: Evidence::default(),
            now: Duration::ZERO,
            logs: Default::default(),
            sequences: BTreeMap::new(),
            bytes: BTreeMap::new(),
            epochs: BTreeMap::new(),
            next: 0,
            hide_aborted: true,
            stop_at_open: true,
            lso: None,
        };
        bank.init(1);
        bank
    }

    fn record(&mut self, event: Event) -> Index {
        self.now += Duration::from_millis(1);
        self.evidence.history.push(Stamped { at: self.now, event });
        self.evidence.history.len() - 1
    }

    pub fn init(&mut self, epoch: i16) {
        let (who, started, id, incarnation) = (Who(0), self.now, txn_id(), epoch as u32);
        let answer = Ok((0, PRODUCER, epoch));
        self.record(Event::TxnInit { who, started, id, incarnation, current: None, answer });
    }

    pub fn begin(&mut self, epoch: i16) -> Index {
        let txn = self.record(Event::TxnBegun {
            who: Who(0),
            id: txn_id(),
            incarnation: epoch as u32,
            producer: (PRODUCER, epoch),
            version2: false,
            timeout: Duration::from_secs(60),
        });
        self.epochs.insert(txn, epoch);
        txn
    }

    /// Hands a batch to the broker, which keeps it not.
    pub fn send(&mut self, txn: Index, partition: i32, answer: Answer<Produced>) -> Index {
        let epoch = self.epochs[&txn];
        let sequence = self.sequences.entry((epoch, partition)).or_default();
        let identity = Identity { id: PRODUCER, epoch, sequence: *sequence };
        *sequence += 1;
        self.next += 1;
        let bytes = records::transactional(identity, 1000, &[Bytes::from(format!("{}", self.next))]);
        let batch = BatchInfo::parse(&bytes).expect("a batch");
        let at = place(partition);
        let sent = self.record(Event::ProduceSent { who: Who(0), at, acks: -1, batch, retry_of: None });
        self.record(Event::TxnPart { txn, sent });
        self.bytes.insert(sent, (partition, bytes));
        let is_stored = matches!(answer, Ok(Produced { code: 0, .. }));
        if is_stored {
            self.store(sent);
        }
        let from = Some(FIRST_HOST);
        self.record(Event::ProduceDone { who: Who(0), sent, from, arrived: None, answer });
        sent
    }

    /// A batch, sent, stored and acknowledged.
    pub fn write(&mut self, txn: Index, partition: i32) -> Index {
        let base = self.end(partition);
        self.send(txn, partition, Ok(Produced { code: 0, base, log_start: 0 }))
    }

    pub fn store(&mut self, sent: Index) {
        let (partition, bytes) = self.bytes[&sent].clone();
        self.append(partition, &bytes);
    }

    fn append(&mut self, partition: i32, bytes: &[u8]) {
        let mut stored = bytes.to_vec();
        stored[..8].copy_from_slice(&self.end(partition).to_be_bytes());
        stored[12..16].copy_from_slice(&1i32.to_be_bytes());
        let batch = BatchInfo::parse(&stored).expect("a batch");
        self.logs[partition as usize].push(batch);
    }

    fn end(&self, partition: i32) -> i64 {
        self.logs[partition as usize].last().map_or(0, |b| b.end())
    }

    /// A record of no transaction.
    pub fn plain(&mut self, partition: i32) {
        self.next += 1;
        let bytes = records::batch(Identity::NONE, 1000, &[Bytes::from(format!("{}", self.next))]);
        let batch = BatchInfo::parse(&bytes).expect("a batch");
        let at = place(partition);
        let sent = self.record(Event::ProduceSent { who: Who(9), at, acks: -1, batch, retry_of: None });
        let base = self.end(partition);
        self.append(partition, &bytes);
        let answer = Ok(Produced { code: 0, base, log_start: 0 });
        self.record(Event::ProduceDone { who: Who(9), sent, from: Some(FIRST_HOST), arrived: None, answer });
    }

    /// A marker of the producer's transaction.
    pub fn mark(&mut self, epoch: i16, partitions: &[i32], commit: bool) {
        let bytes = records::marker(Identity { id: PRODUCER, epoch, sequence: -1 }, 1000, commit);
        for partition in partitions {
            self.append(*partition, &bytes);
        }
    }

    fn ask(&mut self, txn: Index, commit: bool, answer: Answer<Code>) {
        let sent = self.record(Event::TxnEndSent { who: Who(0), txn, commit });
        self.record(Event::TxnEndDone { who: Who(0), sent, answer: answer.map(|code| (code, -1, -1)) });
    }

    pub fn commit(&mut self, txn: Index, answer: Answer<Code>) {
        self.ask(txn, true, answer);
    }

    pub fn abort(&mut self, txn: Index, answer: Answer<Code>) {
        self.ask(txn, false, answer);
    }

    fn stable_end(&self, partition: i32) -> i64 {
        let mut open = BTreeMap::new();
        for batch in self.logs[partition as usize].iter().filter(|b| b.is_transactional()) {
            match batch.is_control() {
                true => drop(open.remove(&batch.producer_id)),
                false => drop(open.entry(batch.producer_id).or_insert(batch.base)),
            }
        }
        let first = open.into_values().min().filter(|_| self.stop_at_open);
        self.lso.or(first).unwrap_or(self.end(partition))
    }

    /// Producer id and first offset of each.
    fn aborted(&self, partition: i32) -> Vec<(i64, i64)> {
        let (mut open, mut aborted) = (BTreeMap::new(), Vec::new());
        for batch in self.logs[partition as usize].iter().filter(|b| b.is_transactional()) {
            match batch.control {
                None => drop(open.entry(batch.producer_id).or_insert(batch.base)),
                Some(0) => aborted.extend(open.remove(&batch.producer_id).map(|f| (batch.producer_id, f))),
                Some(_) => drop(open.remove(&batch.producer_id)),
            }
        }
        aborted.sort_by_key(|(_, first)| *first);
        aborted
    }

    fn fetch(&mut self, who: Who, partition: i32, is_committed: bool) {
        let (lso, hwm) = (self.stable_end(partition), self.end(partition));
        let most = if is_committed { lso } else { hwm };
        let log = &self.logs[partition as usize];
        let batches: Vec<BatchInfo> = log.iter().filter(|b| b.end() <= most).copied().collect();
        let aborted = if self.hide_aborted { self.aborted(partition) } else { Vec::new() };
        let shown = visible(&batches, &aborted);
        let (started, at, max_bytes, from) = (self.now, place(partition), 1 << 20, Some(FIRST_HOST));
        let answer = Ok(Fetched { code: 0, hwm, lso, log_start: 0, batches, left_over: 0 });
        let fetch = self.record(Event::FetchDone { who, started, at, offset: 0, max_bytes, from, answer });
        if is_committed {
            self.record(Event::CommittedRead { who, fetch, aborted, visible: shown });
        }
    }

    /// A consumer of committed records asks where the log ends.
    pub fn ask_end(&mut self, partition: i32) {
        let (who, started, at, from) = (Who(1), self.now, place(partition), Some(FIRST_HOST));
        let answer = Ok(Listed { code: 0, offset: self.stable_end(partition), timestamp: -1, epoch: 1 });
        self.record(Event::ListOffsetsDone {
            who,
            started,
            at,
            timestamp: -1,
            committed: true,
            from,
            answer,
        });
    }

    pub fn read(&mut self, partition: i32) {
        self.fetch(Who(1), partition, true);
    }

    pub fn read_uncommitted(&mut self, partition: i32) {
        self.fetch(Who(1), partition, false);
    }

    /// The prover reads all.
    pub fn finish(&mut self) {
        self.record(Event::Phase(Phase::Prove));
        self.read_all();
    }

    /// Somebody reads all, whatever is still going on.
    pub fn read_all(&mut self) {
        for partition in [0, 1] {
            self.fetch(Who::PROVER, partition, false);
            let (lso, hwm) = (self.stable_end(partition), self.end(partition));
            self.record(Event::FinalRead { at: place(partition), log_start: 0, hwm });
            self.fetch(Who::PROVER, partition, true);
            self.record(Event::FinalCommitted { at: place(partition), lso, hwm });
        }
    }

    pub fn step(&mut self, txn: Index, (from, to): (i64, i64), sent: Index) {
        let (who, group, input) = (Who(0), "g".into(), place(0));
        self.record(Event::PipeStep { who, txn, group, input, from, to, sent });
    }

    /// An offset of partition 0 as part of a transaction.
    pub fn offset_in(&mut self, txn: Index, offset: i64) -> Index {
        let offsets = vec![(place(0), offset)];
        let (who, group, generation, member) = (Who(0), "g".into(), -1, "".into());
        let sent = self.record(Event::CommitSent { who, group, generation, member, offsets });
        self.record(Event::TxnPart { txn, sent });
        self.record(Event::CommitDone { who, sent, answer: Ok(vec![0]) });
        sent
    }

    /// Somebody asks for the group's offset, and is told of that commit, or of none.
    pub fn offset_read(&mut self, stable: bool, commit: Option<(Index, i64)>) {
        let (started, group) = (self.now, "g".into());
        let (offset, commit) = commit.map_or((-1, None), |(sent, offset)| (offset, Some(sent)));
        let answer = Ok(vec![CommittedOffset { at: place(0), code: 0, offset, commit }]);
        self.record(Event::OffsetsFetched { who: Who(1), started, group, stable, answer });
    }

    /// Somebody commits an offset, and the prover sees it.
    pub fn stable_offset(&mut self, partition: i32, offset: i64) {
        let offsets = vec![(place(partition), offset)];
        let (who, group, generation, member) = (Who(0), Arc::<str>::from("g"), -1, "".into());
        let sent = self.record(Event::CommitSent { who, group: group.clone(), generation, member, offsets });
        self.record(Event::CommitDone { who, sent, answer: Ok(vec![0]) });
        let started = self.now;
        let row = CommittedOffset { at: place(partition), code: 0, offset, commit: Some(sent) };
        let answer = Ok(vec![row]);
        self.record(Event::OffsetsFetched { who: Who::PROVER, started, group, stable: true, answer });
    }

    pub fn violations(&self) -> Vec<Violation> {
        judge(&self.evidence).violations
    }

    /// The promises that are broken, each once.
    pub fn broken(&self) -> Vec<&'static str> {
        let mut all: Vec<&str> = self.violations().iter().map(|v| v.promise).collect();
        all.sort();
        all.dedup();
        all
    }
}
