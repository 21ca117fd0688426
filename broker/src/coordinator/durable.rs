//! The durable state of a slot: the fold of its log.
//!
//! One function, [`Durable::apply`], serves the load and the running slot, so the state after a restart is
//! the state before it. Only what is durable is ever applied: an offset that can be seen here cannot be
//! taken back by a crash.

use super::any::Doc;
use super::pending::PendingOffsets;
use super::record::{Committed, Entry, Key, Record, Value};
use super::transaction::TransactionDoc;
use crate::types::TopicId;
use std::collections::BTreeMap;

/// A partition of one incarnation of a topic: a recreated topic inherits no offsets.
pub type Place = (TopicId, i32);

/// What is kept of one group, with the bytes that each part takes in the log.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    doc: Option<(Doc, usize)>,
    offsets: BTreeMap<Place, (Committed, usize)>,
    pending: PendingOffsets,
}

impl Kept {
    pub fn doc(&self) -> Option<&Doc> {
        self.doc.as_ref().map(|(doc, _)| doc)
    }

    pub fn offset(&self, place: &Place) -> Option<&Committed> {
        self.offsets.get(place).map(|(c, _)| c)
    }

    pub fn offsets(&self) -> impl Iterator<Item = (&Place, &Committed)> {
        self.offsets.iter().map(|(place, (c, _))| (place, c))
    }

    /// Offsets of transactions that are not over.
    pub fn pending(&self) -> &PendingOffsets {
        &self.pending
    }

    fn size(&self) -> usize {
        let offsets: usize = self.offsets.values().map(|(_, n)| n).sum();
        self.doc.as_ref().map_or(0, |(_, n)| *n) + offsets + self.pending.size()
    }
}

/// A snapshot that is being read.
#[derive(Debug)]
struct Staging {
    id: u64,
    records: u64,
    state: Box<Durable>,
}

/// Everything that a slot keeps.
#[derive(Debug, Default)]
pub struct Durable {
    groups: BTreeMap<String, Kept>,
    /// By transactional id, with the bytes that each takes in the log.
    transactions: BTreeMap<String, (TransactionDoc, usize)>,
    /// Bytes of the records that would state all this.
    size: usize,
    /// Of the last offset that was taken in.
    order: u64,
    format: Option<(u32, String)>,
    staging: Option<Staging>,
}

impl Durable {
    pub fn groups(&self) -> &BTreeMap<String, Kept> {
        &self.groups
    }

    pub fn group(&self, id: &str) -> Option<&Kept> {
        self.groups.get(id)
    }

    pub fn transactions(&self) -> impl Iterator<Item = (&String, &TransactionDoc)> {
        self.transactions.iter().map(|(id, (doc, _))| (id, doc))
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// How group ids are spread over slots: the number of slots and the hash. `None` for an empty log.
    pub fn format(&self) -> Option<(u32, &str)> {
        self.format.as_ref().map(|(slots, hash)| (*slots, hash.as_str()))
    }

    /// Takes the next record of the log.
    pub fn apply(&mut self, entry: &Entry) {
        match entry.snapshot {
            None => self.set(&entry.record, entry.size),
            Some(id) => self.stage(id, entry),
        }
    }

    /// Records of a snapshot count once all of them are there. One that a crash cut short is passed over:
    /// the log was not trimmed for it.
    fn stage(&mut self, id: u64, entry: &Entry) {
        if entry.record.value == Value::SnapshotBegin {
            self.staging = Some(Staging { id, records: 0, state: Box::default() });
            return;
        }
        let Some(staging) = self.staging.as_mut().filter(|s| s.id == id) else { return };
        match entry.record.value {
            Value::SnapshotEnd { records } => {
                let whole = staging.records == records;
                if let Some(staging) = self.staging.take().filter(|_| whole) {
                    *self = *staging.state;
                }
            }
            _ => {
                staging.records += 1;
                staging.state.set(&entry.record, entry.size);
            }
        }
    }

    fn set(&mut self, record: &Record, size: usize) {
        match &record.key {
            Key::Slot => {
                if let Value::Format { slots, hash } = &record.value {
                    self.format = Some((*slots, hash.clone()));
                }
            }
            Key::Group { group } => self.set_group(group, &record.value, size),
            Key::Offset { group, topic_id, partition } => {
                self.set_offset(group, (*topic_id, *partition), &record.value, size)
            }
            Key::Transaction { id } => self.set_transaction(id, &record.value, size),
            Key::PendingOffset { group, producer_id, topic_id, partition } => {
                if let Value::Pending(pending) = &record.value {
                    self.order += 1;
                    let kept = self.groups.entry(group.clone()).or_default();
                    let place = (*topic_id, *partition);
                    if let Some(old) = kept.pending.put(*producer_id, place, self.order, pending, size) {
                        self.size = self.size + size - old;
                    }
                }
            }
            Key::GroupTransaction { group, producer_id } => {
                if let Value::Ended { number, commit } = &record.value {
                    self.end_in_group(group, *producer_id, *number, *commit);
                }
            }
        }
    }

    fn set_transaction(&mut self, id: &str, value: &Value, size: usize) {
        match value {
            Value::Transaction(doc) => {
                let old = self.transactions.insert(id.to_owned(), (doc.clone(), size));
                self.size = self.size + size - old.map_or(0, |(_, n)| n);
            }
            Value::Joined { number, participants } => {
                if let Some((doc, bytes)) = self.transactions.get_mut(id) {
                    doc.join(*number, participants);
                    *bytes += size;
                    self.size += size;
                }
            }
            Value::Deleted => {
                let old = self.transactions.remove(id);
                self.size -= old.map_or(0, |(_, n)| n);
            }
            _ => {}
        }
    }

    fn end_in_group(&mut self, group: &str, producer_id: i64, number: u64, commit: bool) {
        let Some(kept) = self.groups.get_mut(group) else { return };
        let Some(ended) = kept.pending.end(producer_id, number) else { return };
        self.size -= ended.size();
        for (place, offset, order, size) in ended.counting().filter(|_| commit) {
            kept.pending.overtake(&place, order);
            let old = kept.offsets.insert(place, (offset, size));
            self.size = self.size + size - old.map_or(0, |(_, n)| n);
        }
        self.drop_hollow(group);
    }

    fn set_group(&mut self, group: &str, value: &Value, size: usize) {
        match value {
            Value::Group(doc) => self.set_doc(group, Doc::Classic(doc.clone()), size),
            Value::ConsumerGroup(doc) => self.set_doc(group, Doc::Consumer(doc.clone()), size),
            Value::Forgotten => {
                let old = self.groups.get_mut(group).and_then(|kept| kept.doc.take());
                self.size -= old.map_or(0, |(_, n)| n);
                self.drop_hollow(group);
            }
            Value::Deleted => {
                let old = self.groups.remove(group);
                self.size -= old.map_or(0, |kept| kept.size());
            }
            _ => {}
        }
    }

    fn set_doc(&mut self, group: &str, doc: Doc, size: usize) {
        let kept = self.groups.entry(group.to_owned()).or_default();
        let old = kept.doc.replace((doc, size));
        self.size = self.size + size - old.map_or(0, |(_, n)| n);
    }

    fn set_offset(&mut self, group: &str, place: Place, value: &Value, size: usize) {
        if let Value::Offset(committed) = value {
            self.order += 1;
            let kept = self.groups.entry(group.to_owned()).or_default();
            kept.pending.overtake(&place, self.order);
            let old = kept.offsets.insert(place, (committed.clone(), size));
            self.size = self.size + size - old.map_or(0, |(_, n)| n);
            return;
        }
        let Some(kept) = self.groups.get_mut(group) else { return };
        let hit = match value {
            Value::Deleted => {
                kept.pending.overtake(&place, u64::MAX);
                true
            }
            Value::Expired { committed_at } => {
                kept.offset(&place).is_some_and(|c| c.committed_at == *committed_at)
            }
            _ => false,
        };
        if hit {
            let old = kept.offsets.remove(&place);
            self.size -= old.map_or(0, |(_, n)| n);
            self.drop_hollow(group);
        }
    }

    fn drop_hollow(&mut self, group: &str) {
        let hollow = |kept: &Kept| kept.doc.is_none() && kept.offsets.is_empty() && kept.pending.is_empty();
        if self.groups.get(group).is_some_and(hollow) {
            self.groups.remove(group);
        }
    }

    /// The records that state all this, for a snapshot.
    pub fn records(&self) -> Vec<Record> {
        let format = self
            .format
            .iter()
            .map(|(slots, hash)| Record::slot(Value::Format { slots: *slots, hash: hash.clone() }));
        let groups = self.groups.iter().flat_map(|(group, kept)| {
            let doc = kept.doc().map(|doc| Record::group(group, doc.clone().value()));
            let offsets = kept
                .offsets()
                .map(|(place, c)| Record::offset(group, place.0, place.1, Value::Offset(c.clone())));
            let pending = kept.pending.all().into_iter();
            let pending = pending.map(|(id, place, p)| Record::pending(group, id, place, p));
            doc.into_iter().chain(offsets).chain(pending)
        });
        let transactions = self.transactions();
        let transactions =
            transactions.map(|(id, doc)| Record::transaction(id, Value::Transaction(doc.clone())));
        format.chain(groups).chain(transactions).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Pending;
    use super::super::transaction::{Init, Transaction};
    use super::super::transactions::Participant;
    use super::*;
    use crate::types::Epoch;
    use proptest::prelude::*;

    fn entry(snapshot: Option<u64>, record: Record) -> Entry {
        Entry { size: format!("{record:?}").len(), record, epoch: Epoch(1), snapshot }
    }

    fn offset(group: &str, partition: i32, offset: i64) -> Record {
        let committed = Committed {
            topic: "t".into(),
            offset,
            leader_epoch: -1,
            metadata: String::new(),
            committed_at: offset,
            expires_at: None,
        };
        Record::offset(group, TopicId::default(), partition, Value::Offset(committed))
    }

    fn doc(group: &str, generation: i32) -> Record {
        let mut doc = super::super::group::Group::new().to_doc();
        doc.generation = generation;
        Record::group(group, Value::Group(doc))
    }

    fn consumer_doc(group: &str, epoch: i32) -> Record {
        let doc = super::super::consumer::ConsumerGroup::after(epoch, None).to_doc();
        Record::group(group, Value::ConsumerGroup(doc))
    }

    fn pending(group: &str, producer_id: i64, partition: i32, number: u64) -> Record {
        let Value::Offset(offset) = offset(group, partition, 100 + number as i64).value else {
            unreachable!()
        };
        let pending = Pending { number, epoch: 0, overtaken: false, offset };
        Record::pending(group, producer_id, (TopicId::default(), partition), pending)
    }

    /// Ongoing.
    fn transaction(number: u64) -> TransactionDoc {
        let now = Default::default();
        let mut txn = Transaction::new(7);
        let (ready, _) = txn.init(now, 1, None, None).unwrap();
        let Init::Ready(producer) = ready else { unreachable!() };
        txn.add(now, producer, vec![Participant::Group("g".into())]).unwrap();
        TransactionDoc { number, ..txn.to_doc() }
    }

    fn sum(state: &Durable) -> usize {
        let transactions: usize = state.transactions.values().map(|(_, n)| n).sum();
        transactions + state.groups().values().map(Kept::size).sum::<usize>()
    }

    fn snapshot(of: &Durable, id: u64) -> Vec<Entry> {
        let records = of.records();
        let end = Value::SnapshotEnd { records: records.len() as u64 };
        let ends = [Record::slot(end)];
        let begin = [Record::slot(Value::SnapshotBegin)];
        begin.into_iter().chain(records).chain(ends).map(|r| entry(Some(id), r)).collect()
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let group = prop_oneof![Just("a"), Just("b")];
        (group, 0..3i32, 0..4i64, 0..12u8).prop_map(|(g, p, n, kind)| match kind {
            0 => doc(g, n as i32),
            1 => Record::group(g, Value::Forgotten),
            2 => Record::group(g, Value::Deleted),
            3 => Record::offset(g, TopicId::default(), p, Value::Deleted),
            4 => Record::offset(g, TopicId::default(), p, Value::Expired { committed_at: n }),
            5 => consumer_doc(g, n as i32),
            6 | 7 => pending(g, n % 2, p, n as u64 / 2),
            8 => Record::ended(g, n % 2, n as u64 / 2, p > 0),
            9 => Record::transaction(g, Value::Transaction(transaction(n as u64))),
            10 => {
                let participants = vec![Participant::Partition(TopicId::default(), p)];
                Record::transaction(g, Value::Joined { number: n as u64, participants })
            }
            _ => offset(g, p, n),
        })
    }

    proptest! {
        /// A snapshot anywhere in the log, whole or cut short, changes nothing; and with a whole one, the log
        /// before it is not needed.
        #[test]
        fn a_snapshot_states_what_the_log_before_it_stated(
            before in proptest::collection::vec(any_record(), 0..30),
            after in proptest::collection::vec(any_record(), 0..30),
            cut in 0..40usize,
        ) {
            let mut plain = Durable::default();
            for r in &before { plain.apply(&entry(None, r.clone())); }
            let snap = snapshot(&plain, 7);
            let mut trimmed = Durable::default();
            for e in &snap { trimmed.apply(e); }
            let mut torn = Durable::default();
            for r in &before { torn.apply(&entry(None, r.clone())); }
            for e in snap.iter().take(cut) { torn.apply(e); }
            for r in &after {
                for state in [&mut plain, &mut trimmed, &mut torn] {
                    state.apply(&entry(None, r.clone()));
                }
            }
            prop_assert_eq!(plain.records(), trimmed.records());
            prop_assert_eq!(plain.records(), torn.records());
            for state in [&plain, &trimmed, &torn] {
                prop_assert_eq!(state.size(), sum(state));
            }
        }
    }

    /// Hole 21: the deletion of one offset must leave a log that loads.
    #[test]
    fn hole_21_a_deleted_offset_takes_no_other_with_it() {
        let mut state = Durable::default();
        for r in [offset("g", 0, 10), offset("g", 1, 11)] {
            state.apply(&entry(None, r));
        }
        state.apply(&entry(None, Record::offset("g", TopicId::default(), 0, Value::Deleted)));
        let kept = state.group("g").unwrap();
        assert!(kept.offset(&(TopicId::default(), 0)).is_none());
        assert_eq!(kept.offset(&(TopicId::default(), 1)).unwrap().offset, 11);
    }

    #[test]
    fn an_expiry_spares_the_commit_that_overtook_it() {
        let mut state = Durable::default();
        state.apply(&entry(None, offset("g", 0, 10)));
        state.apply(&entry(None, offset("g", 0, 20)));
        let expiry = Value::Expired { committed_at: 10 };
        state.apply(&entry(None, Record::offset("g", TopicId::default(), 0, expiry)));
        assert_eq!(state.group("g").unwrap().offset(&(TopicId::default(), 0)).unwrap().offset, 20);
    }
}
