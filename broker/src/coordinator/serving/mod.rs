//! The state of a slot while it is served: groups, offsets, and who waits for what. Plain; `slot` drives it.
//!
//! Two rules make it simple:
//! - *Nothing leaves before what it rests on is durable.* Membership changes in memory at once, and every
//!   answer of a group is held back until the last document that the group submitted is in the log.
//!   Offsets change only when their record is durable.
//! - *A failed append ends the serving.* Whether the record is in the log is then unknown, so the whole state
//!   is dropped, all who wait are told, and the slot loads anew. There is nothing to roll back.

mod ends;
mod members;
mod transactions;

pub use ends::{Admission, QUESTION};
pub use transactions::{Outcome, Step};

use super::any::{AnyGroup, Terms};
use super::consumer::ConsumerLimits;
use super::durable::{Durable, Place};
use super::group::{Caller, Group, Now, Out, Reply, Token};
use super::record::{self, Committed, Entry, Record, Value};
use crate::types::{Epoch, TopicId};
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::sync::oneshot;

/// The number of a submission, from 1, in log order.
pub type Seq = u64;

/// Bytes of one batch of records that need not be seen together.
const PIECE: usize = 1 << 20;

pub type Answer = Result<Reply, ResponseError>;

/// Records on their way to the log.
pub struct Submission {
    pub seq: Seq,
    pub records: Vec<Record>,
}

/// Resolves when what an answer rests on is durable.
pub type Gate = oneshot::Receiver<Result<(), ResponseError>>;

enum Waiter {
    Gate(oneshot::Sender<Result<(), ResponseError>>),
    Reply(oneshot::Sender<Answer>, Reply),
}

struct Live {
    group: AnyGroup,
    armed: Option<Duration>,
    /// The last submission of the group's document.
    doc_seq: Seq,
}

pub struct Serving {
    pub epoch: Epoch,
    durable: Durable,
    /// Groups with a document or with promised member ids.
    live: BTreeMap<String, Live>,
    timers: BTreeSet<(Duration, String)>,
    queue: VecDeque<Submission>,
    submitted: Seq,
    /// Handed to the writer.
    taken: Seq,
    completed: Seq,
    waiting: BTreeMap<Seq, Vec<Waiter>>,
    requests: BTreeMap<Token, oneshot::Sender<Answer>>,
    next_token: Token,
    /// Topic ids that the last sweep did not find.
    missing: BTreeSet<TopicId>,
    transactions: transactions::Transactions,
    ends: ends::Ends,
}

/// What one commit asks for.
#[derive(Clone, Debug)]
pub struct CommitInput {
    pub caller: Caller,
    /// Whether the request can name a member epoch (KIP-848): what a consumer group's members commit with.
    pub names_epochs: bool,
    pub offsets: Vec<(Place, Committed)>,
}

impl Serving {
    pub fn new(epoch: Epoch, durable: Durable, limits: &ConsumerLimits, now: Now) -> Self {
        let mut serving = Serving {
            epoch,
            live: BTreeMap::new(),
            timers: BTreeSet::new(),
            queue: VecDeque::new(),
            submitted: 0,
            taken: 0,
            completed: 0,
            waiting: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_token: 0,
            missing: BTreeSet::new(),
            transactions: transactions::Transactions::from_durable(&durable, now),
            ends: ends::Ends::from_durable(&durable),
            durable,
        };
        for (id, kept) in serving.durable.groups() {
            if let Some(doc) = kept.doc() {
                let group = AnyGroup::from_doc(doc, limits, now);
                let live = Live { group, armed: None, doc_seq: 0 };
                serving.live.insert(id.clone(), live);
            }
        }
        let ids: Vec<String> = serving.live.keys().cloned().collect();
        ids.iter().for_each(|id| serving.arm(id));
        serving
    }

    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    pub fn group(&self, id: &str) -> Option<&AnyGroup> {
        self.live.get(id).map(|live| &live.group)
    }

    /// Whether anybody ever joined or committed under this id.
    pub fn knows(&self, id: &str) -> bool {
        self.live.contains_key(id) || self.durable.group(id).is_some()
    }

    /// The ids of all groups.
    pub fn ids(&self) -> BTreeSet<&String> {
        self.live.keys().chain(self.durable.groups().keys()).collect()
    }

    // ---- offsets ----

    /// The gate opens when the offsets are durable, and with that visible.
    pub fn commit(&mut self, id: &str, now: Now, input: CommitInput) -> Result<Gate, ResponseError> {
        if !self.knows(id) && input.caller.generation >= 0 {
            return Err(ResponseError::IllegalGeneration);
        }
        self.step(id, |group, _| group.may_commit(now, &input.caller, input.names_epochs))?;
        if input.offsets.is_empty() {
            return Ok(self.gate(self.doc_seq(id)));
        }
        let records = input.offsets.into_iter();
        let records =
            records.map(|(place, c)| Record::offset(id, place.0, place.1, Value::Offset(c))).collect();
        let seq = self.submit(records);
        Ok(self.gate(seq))
    }

    pub fn delete_offsets(&mut self, id: &str, places: &[Place]) -> Gate {
        let seq = self.submit_in_pieces(places.iter().map(|p| Record::offset(id, p.0, p.1, Value::Deleted)));
        self.gate(seq)
    }

    pub fn delete_group(&mut self, id: &str) -> Result<Gate, ResponseError> {
        if !self.knows(id) {
            return Err(ResponseError::GroupIdNotFound);
        }
        if self.group(id).is_some_and(AnyGroup::has_members) {
            return Err(ResponseError::NonEmptyGroup);
        }
        self.forget_live(id);
        // Offsets of open transactions go, too, as in Kafka.
        self.ends.forget(id);
        let seq = self.submit(vec![Record::group(id, Value::Deleted)]);
        Ok(self.gate(seq))
    }

    // ---- time ----

    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub fn run_timers(&mut self, now: Now, terms: &Terms<'_>) {
        while let Some((at, id)) = self.timers.first().cloned() {
            if at > now.boot {
                return;
            }
            self.timers.remove(&(at, id.clone()));
            if let Some(live) = self.live.get_mut(&id) {
                live.armed = None;
            }
            self.step(&id, |group, out| group.tick(now, terms, out));
        }
    }

    /// Forgets offsets whose time is over (KIP-211: only of groups without members, counted from when the
    /// group became empty or the offset was committed, whichever is later), offsets of topics that two sweeps
    /// in a row did not find, and groups of which nothing is left. What a transaction has yet to decide on stays.
    pub fn sweep(&mut self, now: Now, retention: Duration, exists: impl Fn(TopicId) -> bool) {
        self.ends.sweep(now);
        let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        let mut missing = BTreeSet::new();
        let mut records = Vec::new();
        let mut forgotten = Vec::new();
        for (id, kept) in self.durable.groups() {
            let group = self.group(id);
            let deserted = group.is_none_or(AnyGroup::is_deserted);
            let since = group.and_then(AnyGroup::empty_since).unwrap_or(i64::MIN);
            let mut left = kept.pending().places().count();
            for (place, c) in kept.offsets().filter(|(place, _)| !kept.pending().covers(place)) {
                let over = match c.expires_at {
                    Some(at) => now.wall_ms >= at,
                    None => now.wall_ms.saturating_sub(since.max(c.committed_at)) >= retention,
                };
                let gone = !exists(place.0);
                if gone {
                    missing.insert(place.0);
                }
                if deserted && over || gone && self.missing.contains(&place.0) {
                    let expired = Value::Expired { committed_at: c.committed_at };
                    records.push(Record::offset(id, place.0, place.1, expired));
                } else {
                    left += 1;
                }
            }
            if deserted && left == 0 {
                forgotten.push(id.clone());
            }
        }
        self.missing = missing;
        let hollow = |(id, live): (&String, &Live)| {
            (live.group.is_deserted() && self.durable.group(id).is_none()).then(|| id.clone())
        };
        forgotten.extend(self.live.iter().filter_map(hollow));
        for id in forgotten {
            self.forget_live(&id);
            records.push(Record::group(&id, Value::Forgotten));
        }
        self.submit_in_pieces(records);
    }

    // ---- the log ----

    /// The first record of a new log.
    pub fn submit_format(&mut self, slots: u32, hash: &str) {
        self.submit(vec![Record::slot(Value::Format { slots, hash: hash.to_owned() })]);
    }

    pub fn next_submission(&mut self) -> Option<Submission> {
        let next = self.queue.pop_front()?;
        self.taken = next.seq;
        Some(next)
    }

    /// Whether everything that the writer took is durable.
    pub fn is_written(&self) -> bool {
        self.completed == self.taken
    }

    /// Whether everything that was submitted is durable.
    pub fn is_settled(&self) -> bool {
        self.completed == self.submitted
    }

    /// Submissions that wait for the writer.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Submission `seq` is durable: applies it, and lets go of what waited for it.
    pub fn complete(&mut self, seq: Seq, entries: &[Entry]) {
        assert_eq!(seq, self.completed + 1, "submissions become durable in log order");
        entries.iter().for_each(|entry| self.durable.apply(entry));
        self.completed = seq;
        let later = self.waiting.split_off(&(seq + 1));
        for waiter in std::mem::replace(&mut self.waiting, later).into_values().flatten() {
            // Who waits no longer is not told.
            match waiter {
                Waiter::Gate(tx) => drop(tx.send(Ok(()))),
                Waiter::Reply(tx, reply) => drop(tx.send(Ok(reply))),
            }
        }
    }

    /// The serving ends: everybody who waits is told `error`.
    pub fn end(self, error: ResponseError) {
        for waiter in self.waiting.into_values().flatten() {
            match waiter {
                Waiter::Gate(tx) => drop(tx.send(Err(error))),
                Waiter::Reply(tx, _) => drop(tx.send(Err(error))),
            }
        }
        for tx in self.requests.into_values() {
            drop(tx.send(Err(error)));
        }
    }

    // ---- inside ----

    fn token(&mut self) -> (Token, oneshot::Receiver<Answer>) {
        let (tx, rx) = oneshot::channel();
        self.next_token += 1;
        self.requests.insert(self.next_token, tx);
        (self.next_token, rx)
    }

    fn doc_seq(&self, id: &str) -> Seq {
        self.live.get(id).map_or(self.completed, |live| live.doc_seq)
    }

    /// Opens when all that was decided on in the group so far is durable.
    pub fn group_gate(&mut self, id: &str) -> Gate {
        self.gate(self.doc_seq(id))
    }

    /// Opens when all that was decided on so far is durable.
    pub fn gate_of_all(&mut self) -> Gate {
        self.gate(self.submitted)
    }

    fn gate(&mut self, seq: Seq) -> Gate {
        let (tx, rx) = oneshot::channel();
        match seq <= self.completed {
            true => drop(tx.send(Ok(()))),
            false => self.waiting.entry(seq).or_default().push(Waiter::Gate(tx)),
        }
        rx
    }

    fn submit(&mut self, records: Vec<Record>) -> Seq {
        self.submitted += 1;
        self.queue.push_back(Submission { seq: self.submitted, records });
        self.submitted
    }

    /// Submits records that need not be seen together. The last one's number, or that of what is durable.
    fn submit_in_pieces(&mut self, records: impl IntoIterator<Item = Record>) -> Seq {
        let pieces = record::split(records, PIECE);
        pieces.into_iter().map(|piece| self.submit(piece)).last().unwrap_or(self.completed)
    }

    /// One input to one group, and what follows from it. A group that did not exist and is still nothing
    /// afterwards leaves no trace.
    fn step<R>(&mut self, id: &str, input: impl FnOnce(&mut AnyGroup, &mut Out) -> R) -> R {
        let mut out = Out::default();
        let live = self.live.entry(id.to_owned()).or_insert_with(|| Live {
            group: AnyGroup::Classic(Group::new()),
            armed: None,
            doc_seq: 0,
        });
        let result = input(&mut live.group, &mut out);
        if out.persist {
            let doc = live.group.to_doc();
            let seq = self.submit(vec![Record::group(id, doc.value())]);
            if let Some(live) = self.live.get_mut(id) {
                live.doc_seq = seq;
            }
        }
        let seq = self.doc_seq(id);
        for (token, reply) in out.replies {
            self.release(seq, token, reply);
        }
        self.arm(id);
        self.live
            .get(id)
            .is_some_and(|live| live.group.is_deserted() && live.group.generation() == 0 && live.doc_seq == 0)
            .then(|| self.live.remove(id));
        result
    }

    fn release(&mut self, seq: Seq, token: Token, reply: Reply) {
        let Some(tx) = self.requests.remove(&token) else { return };
        match seq <= self.completed {
            true => drop(tx.send(Ok(reply))),
            false => self.waiting.entry(seq).or_default().push(Waiter::Reply(tx, reply)),
        }
    }

    fn arm(&mut self, id: &str) {
        let Some(live) = self.live.get_mut(id) else { return };
        let due = live.group.next_deadline();
        if let Some(old) = std::mem::replace(&mut live.armed, due) {
            self.timers.remove(&(old, id.to_owned()));
        }
        if let Some(at) = due {
            self.timers.insert((at, id.to_owned()));
        }
    }

    fn forget_live(&mut self, id: &str) {
        if let Some(Live { armed: Some(at), .. }) = self.live.remove(id) {
            self.timers.remove(&(at, id.to_owned()));
        }
    }
}
