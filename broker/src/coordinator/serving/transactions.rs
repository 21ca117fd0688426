//! What producers ask of their transactional ids, and what the driver of markers has to know.

use super::super::transaction::{Change, End, Init, Transaction};
use super::super::transactions::{Marker, Participant, Producer};
use super::super::{durable::Durable, group::Now};
use super::{Gate, Record, Seq, Serving, Value};
use kafka_protocol::ResponseError as E;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

struct Live {
    txn: Transaction,
    armed: Option<Duration>,
    /// The last submission about it.
    seq: Seq,
    /// Its outcome was decided by an earlier coordinator, or before a restart.
    inherited: bool,
}

/// The transactional ids of a slot as they are decided on, ahead of what is durable.
#[derive(Default)]
pub(super) struct Transactions {
    live: BTreeMap<String, Live>,
    /// Those whose outcome has to be told.
    decided: BTreeSet<String>,
    timers: BTreeSet<(Duration, String)>,
    /// Something was added to `decided` since the driver was told.
    news: bool,
}

impl Transactions {
    pub fn from_durable(durable: &Durable, now: Now) -> Self {
        let mut all = Transactions::default();
        for (id, doc) in durable.transactions() {
            let txn = Transaction::from_doc(doc, now);
            let inherited = txn.is_decided();
            all.live.insert(id.clone(), Live { txn, armed: None, seq: 0, inherited });
            all.arm(id);
        }
        all
    }

    /// Keeps timers and the list of the decided in step with transaction `id`.
    fn arm(&mut self, id: &str) {
        let Some(live) = self.live.get_mut(id) else { return };
        let due = live.txn.deadline();
        if let Some(old) = std::mem::replace(&mut live.armed, due) {
            self.timers.remove(&(old, id.to_owned()));
        }
        if let Some(at) = due {
            self.timers.insert((at, id.to_owned()));
        }
        match live.txn.is_decided() {
            true => self.news |= self.decided.insert(id.to_owned()),
            false => drop(self.decided.remove(id)),
        }
    }
}

/// An outcome that all participants have to be told.
pub struct Outcome {
    pub id: String,
    pub marker: Marker,
    pub number: u64,
    pub participants: Vec<Participant>,
    /// Opens when the decision is durable: before that nobody is told.
    pub gate: Gate,
    /// Decided before this serving began.
    pub inherited: bool,
}

/// An answer and what it rests on, or that a producer id is needed first.
pub enum Step<T> {
    NeedsId,
    Done(Result<T, E>, Gate),
}

impl Serving {
    /// InitProducerId. `fresh`: a producer id that nobody had before, if there is one at hand.
    pub fn init_transaction(
        &mut self,
        id: &str,
        now: Now,
        timeout_ms: i32,
        current: Option<Producer>,
        fresh: Option<i64>,
    ) -> Step<Producer> {
        let known = self.transactions.live.contains_key(id);
        if !known {
            let Some(fresh) = fresh else { return Step::NeedsId };
            let live = Live { txn: Transaction::new(fresh), armed: None, seq: 0, inherited: false };
            self.transactions.live.insert(id.to_owned(), live);
        }
        let result = self.change(id, |txn| txn.init(now, timeout_ms, current, fresh.filter(|_| known)));
        let result = match result {
            Ok(Init::NeedsId) => return Step::NeedsId,
            Ok(Init::Ready(producer)) => Ok(producer),
            Ok(Init::Aborting) => Err(E::ConcurrentTransactions),
            Err(e) => Err(e),
        };
        Step::Done(result, self.transaction_gate(id))
    }

    /// AddPartitionsToTxn, AddOffsetsToTxn.
    pub fn add_participants(
        &mut self,
        id: &str,
        now: Now,
        producer: Producer,
        participants: Vec<Participant>,
    ) -> (Result<(), E>, Gate) {
        let result = self.change(id, |txn| Ok(((), txn.add(now, producer, participants)?)));
        (result, self.transaction_gate(id))
    }

    /// See [`Transaction::verify`].
    pub fn verify_participant(
        &mut self,
        id: &str,
        now: Now,
        producer: Producer,
        participant: Participant,
        add: bool,
    ) -> (Result<u64, E>, Gate) {
        let result = self.change(id, |txn| txn.verify(now, producer, participant, add));
        (result, self.transaction_gate(id))
    }

    /// EndTxn.
    pub fn end_transaction(
        &mut self,
        id: &str,
        now: Now,
        producer: Producer,
        commit: bool,
        version2: bool,
        fresh: Option<i64>,
    ) -> Step<Producer> {
        let result = match self.change(id, |txn| txn.end(now, producer, commit, version2, fresh)) {
            Ok(End::NeedsId) => return Step::NeedsId,
            Ok(End::Ready(producer)) => Ok(producer),
            Err(e) => Err(e),
        };
        Step::Done(result, self.transaction_gate(id))
    }

    /// All participants were told of transaction `number`, durably.
    pub fn complete_transaction(&mut self, id: &str, now: Now, number: u64) -> Gate {
        // Who lost its id meanwhile has nothing to complete.
        let _known = self.change(id, |txn| match txn.complete(now, number) {
            true => Ok(((), Change::Whole)),
            false => Ok(((), Change::Nothing)),
        });
        self.transaction_gate(id)
    }

    /// Aborts what is open for longer than its producer asked for. How many.
    pub fn reap_transactions(&mut self, now: Now) -> usize {
        let due = self.transactions.timers.iter().take_while(|(at, _)| *at <= now.boot);
        let due: Vec<String> = due.map(|(_, id)| id.clone()).collect();
        let reap = |txn: &mut Transaction| match txn.reap(now) {
            true => Ok((true, Change::Whole)),
            false => Ok((false, Change::Nothing)),
        };
        due.iter().filter(|id| self.change(id, reap) == Ok(true)).count()
    }

    /// Forgets ids under which nothing is open and nothing has happened for so long.
    pub fn expire_transactions(&mut self, now: Now, after: Duration) {
        let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        let live = self.transactions.live.iter();
        let expired = live.filter(|(_, live)| live.seq <= self.completed && live.txn.is_expired(now, after));
        let expired: Vec<String> = expired.map(|(id, _)| id.clone()).collect();
        for id in &expired {
            self.transactions.live.remove(id);
        }
        self.submit_in_pieces(expired.iter().map(|id| Record::transaction(id, Value::Deleted)));
    }

    /// Outcomes that have to be told, without those of `driven`.
    pub fn outcomes(&mut self, driven: &BTreeSet<String>) -> Vec<Outcome> {
        let ids: Vec<String> = self.transactions.decided.difference(driven).cloned().collect();
        ids.into_iter().filter_map(|id| self.outcome(id)).collect()
    }

    fn outcome(&mut self, id: String) -> Option<Outcome> {
        let gate = self.transaction_gate(&id);
        let live = self.transactions.live.get(&id)?;
        let Producer { id: producer_id, epoch: producer_epoch } = live.txn.producer();
        let number = live.txn.number();
        let marker = Marker {
            producer_id,
            producer_epoch,
            commit: live.txn.is_to_commit(),
            coordinator_epoch: self.epoch.wire(),
            number: Some(number),
        };
        let participants = live.txn.participants().iter().cloned().collect();
        Some(Outcome { id, marker, number, participants, gate, inherited: live.inherited })
    }

    /// Whether an outcome was decided since this was last asked.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.transactions.news)
    }

    pub fn transaction(&self, id: &str) -> Option<&Transaction> {
        self.transactions.live.get(id).map(|live| &live.txn)
    }

    pub fn transactions(&self) -> impl Iterator<Item = (&String, &Transaction)> {
        self.transactions.live.iter().map(|(id, live)| (id, &live.txn))
    }

    /// Opens when all that was decided on about `id` so far is durable.
    pub fn transaction_gate(&mut self, id: &str) -> Gate {
        let seq = self.transactions.live.get(id).map_or(self.submitted, |live| live.seq);
        self.gate(seq)
    }

    /// One input to one transactional id, and what follows from it.
    fn change<R>(
        &mut self,
        id: &str,
        input: impl FnOnce(&mut Transaction) -> Result<(R, Change), E>,
    ) -> Result<R, E> {
        let live = self.transactions.live.get_mut(id).ok_or(E::InvalidProducerIdMapping)?;
        let (result, change) = input(&mut live.txn)?;
        let value = match change {
            Change::Nothing => return Ok(result),
            Change::Whole => Value::Transaction(live.txn.to_doc()),
            Change::Joined(participants) => Value::Joined { number: live.txn.number(), participants },
        };
        live.inherited = false;
        let seq = self.submit(vec![Record::transaction(id, value)]);
        if let Some(live) = self.transactions.live.get_mut(id) {
            live.seq = seq;
        }
        self.transactions.arm(id);
        Ok(result)
    }
}
