//! Offsets that transactions commit to groups: before their end, and at it.
//!
//! The hanging offset is kept out as a partition keeps out the hanging record (KIP-890): before the first offset of a
//! transaction the coordinator of the transaction is asked, and if a marker came while it answered, it is asked again.

use super::super::durable::{Durable, Place};
use super::super::group::Now;
use super::super::record::{Committed, Pending, Record};
use super::super::transactions::{Marker, Producer};
use super::{CommitInput, Gate, Seq, Serving};
use crate::reached;
use kafka_protocol::ResponseError as E;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the coordinator of a transaction may take to answer that of a group.
pub const QUESTION: Duration = Duration::from_secs(60);

/// How long a marker is remembered: longer than any question is open.
const MARKED_FOR: Duration = Duration::from_secs(600);

/// What is open in a group, as far as it is decided on, ahead of what is durable.
#[derive(Clone, Copy, Debug)]
struct Open {
    number: u64,
    epoch: i16,
    /// It was there when this serving began.
    inherited: bool,
}

/// The last marker of a producer for a group.
#[derive(Clone, Copy, Debug)]
struct Marked {
    /// The highest seen.
    coordinator_epoch: i32,
    /// When, in the count of markers.
    at: u64,
    /// The submission that the answer rested on.
    seq: Seq,
    since: Duration,
}

/// By group and producer id.
#[derive(Default)]
pub(super) struct Ends {
    open: BTreeMap<(String, i64), Open>,
    marked: BTreeMap<(String, i64), Marked>,
    /// Markers so far.
    count: u64,
}

impl Ends {
    pub fn from_durable(durable: &Durable) -> Self {
        let mut ends = Ends::default();
        for (group, kept) in durable.groups() {
            for (producer_id, open) in kept.pending().open() {
                let open = Open { number: open.number, epoch: open.epoch, inherited: true };
                ends.open.insert((group.clone(), *producer_id), open);
            }
        }
        ends
    }

    /// Forgets markers of which no question can be afraid any more.
    pub fn sweep(&mut self, now: Now) {
        self.marked.retain(|_, marked| now.boot.saturating_sub(marked.since) < MARKED_FOR);
    }

    pub fn forget(&mut self, group: &str) {
        self.open.retain(|(g, _), _| g != group);
    }
}

/// What has to be known before a transaction's offsets are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// They belong to a transaction that is known here.
    Known(u64),
    /// Its coordinator must be asked first. Markers so far.
    Ask(u64),
}

impl Serving {
    /// Whether the caller may commit offsets in a transaction now, and what has to be known before.
    pub fn admit_to_transaction(
        &mut self,
        group: &str,
        now: Now,
        producer: Producer,
        input: &CommitInput,
    ) -> Result<Admission, E> {
        if !self.knows(group) && input.caller.generation >= 0 {
            return Err(E::IllegalGeneration);
        }
        self.step(group, |g, _| g.may_commit_in_transaction(now, &input.caller))?;
        match self.ends.open.get(&(group.to_owned(), producer.id)) {
            Some(open) if open.epoch > producer.epoch => Err(E::InvalidProducerEpoch),
            Some(open) if open.epoch == producer.epoch => Ok(Admission::Known(open.number)),
            _ => Ok(Admission::Ask(self.ends.count)),
        }
    }

    /// Takes the offsets as part of transaction `number`, which its coordinator confirmed after `asked_at`. `None`: a
    /// marker came meanwhile, and it must be asked anew. The gate opens when they are durable; nobody sees them yet.
    pub fn commit_in_transaction(
        &mut self,
        group: &str,
        producer: Producer,
        number: u64,
        asked_at: u64,
        offsets: Vec<(Place, Committed)>,
    ) -> Option<Gate> {
        let key = (group.to_owned(), producer.id);
        let overtaken = self.ends.marked.get(&key).is_some_and(|marked| marked.at > asked_at);
        let known = self.ends.open.get(&key).copied();
        let same = known.is_some_and(|open| open.number == number && open.epoch == producer.epoch);
        if !same && (overtaken || known.is_some_and(|open| open.number >= number)) {
            return None;
        }
        if offsets.is_empty() {
            return Some(self.group_gate(group));
        }
        let open = Open { number, epoch: producer.epoch, inherited: false };
        self.ends.open.entry(key).and_modify(|was| *was = if same { *was } else { open }).or_insert(open);
        let pending = |offset| Pending { number, epoch: producer.epoch, overtaken: false, offset };
        let record = |(place, offset)| Record::pending(group, producer.id, place, pending(offset));
        let seq = self.submit(offsets.into_iter().map(record).collect());
        Some(self.gate(seq))
    }

    /// A marker: the pending offsets of its transaction become visible together, or go. When the gate opens that is
    /// durable. One that comes again, or for a transaction that has nothing here, changes nothing.
    ///
    /// # Errors
    /// TRANSACTION_COORDINATOR_FENCED: a later coordinator has spoken. INVALID_PRODUCER_EPOCH: a later epoch of the
    /// producer has the transaction.
    pub fn end_in_group(&mut self, group: &str, now: Now, marker: &Marker) -> Result<Gate, E> {
        let key = (group.to_owned(), marker.producer_id);
        let marked = self.ends.marked.get(&key).copied();
        if marked.is_some_and(|m| m.coordinator_epoch > marker.coordinator_epoch) {
            return Err(E::TransactionCoordinatorFenced);
        }
        let open = self.ends.open.get(&key).copied();
        let open = open.filter(|open| marker.number.is_none_or(|number| number == open.number));
        if open.is_some_and(|open| open.epoch > marker.producer_epoch) {
            return Err(E::InvalidProducerEpoch);
        }
        let mut seq = marked.map_or(0, |m| m.seq);
        if let Some(open) = open {
            if open.inherited {
                reached!("group-marker-applied-after-takeover");
            }
            seq = self.submit(vec![Record::ended(group, marker.producer_id, open.number, marker.commit)]);
            self.ends.open.remove(&key);
        }
        self.ends.count += 1;
        let (coordinator_epoch, at, since) = (marker.coordinator_epoch, self.ends.count, now.boot);
        self.ends.marked.insert(key, Marked { coordinator_epoch, at, seq, since });
        Ok(self.gate(seq))
    }
}
