//! Random interleavings of producers, zombies, lost answers, time and takeovers.

use super::*;
use crate::types::TopicId;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Move {
    /// A client starts, without knowing of any other.
    Start(usize),
    /// It goes on with what it holds.
    GoOn(usize),
    Add(usize, i32),
    Verify(usize, i32, bool),
    End(usize, bool, bool),
    /// The answer to the last call of this client is lost: it holds what it held before.
    Lose(usize),
    /// A participant has the marker durably; when all have, the transaction is complete.
    Tell(i32),
    Wait(u64),
    /// The coordinator is lost: what was persisted goes on.
    Takeover,
}

const CLIENTS: usize = 3;

fn any_move() -> impl Strategy<Value = Move> {
    let who = 0..CLIENTS;
    prop_oneof![
        1 => who.clone().prop_map(Move::Start),
        2 => who.clone().prop_map(Move::GoOn),
        4 => (who.clone(), 0..3).prop_map(|(c, p)| Move::Add(c, p)),
        2 => (who.clone(), 0..3, any::<bool>()).prop_map(|(c, p, add)| Move::Verify(c, p, add)),
        4 => (who.clone(), any::<bool>(), any::<bool>()).prop_map(|(c, w, v)| Move::End(c, w, v)),
        2 => who.prop_map(Move::Lose),
        6 => (0..3).prop_map(Move::Tell),
        1 => (1..1500u64).prop_map(Move::Wait),
        1 => Just(Move::Takeover),
    ]
}

struct World {
    txn: Transaction,
    persisted: TransactionDoc,
    now: Now,
    next_id: i64,
    /// What each client holds, and held before its last call.
    held: [Option<(Producer, Option<Producer>)>; CLIENTS],
    /// Who was told of the transaction that is decided.
    told: BTreeSet<Participant>,
    outcomes: BTreeMap<u64, bool>,
    /// The highest epoch of each producer id, in its markers or given out.
    epochs: BTreeMap<i64, i16>,
    number: u64,
}

impl World {
    /// `epoch`: where the epochs start.
    fn new(epoch: i16) -> Self {
        let mut doc = Transaction::new(0).to_doc();
        doc.producer.epoch = epoch;
        World {
            txn: Transaction::from_doc(&doc, Now::default()),
            persisted: doc,
            now: Now::default(),
            next_id: 1,
            held: [None; CLIENTS],
            told: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            epochs: BTreeMap::new(),
            number: 0,
        }
    }

    fn fresh(&mut self) -> Option<i64> {
        self.next_id += 1;
        Some(self.next_id - 1)
    }

    fn persist(&mut self, change: &Change) {
        match change {
            Change::Nothing => {}
            Change::Whole => self.persisted = self.txn.to_doc(),
            Change::Joined(new) => self.persisted.join(self.txn.number(), new),
        }
        assert_eq!(self.persisted, self.txn.to_doc(), "what was persisted is what is so");
        self.check();
    }

    fn check(&mut self) {
        assert!(self.txn.number() >= self.number, "the number went back");
        self.number = self.txn.number();
        let Producer { id, epoch } = self.txn.producer();
        let highest = self.epochs.entry(id).or_insert(epoch);
        assert!(epoch >= *highest, "the epoch of {id} went back");
        *highest = epoch;
        assert_eq!(*self.epochs.keys().last().unwrap(), id, "a producer id came back");
        match self.txn.state() {
            State::PrepareCommit | State::PrepareAbort => {
                let commit = self.txn.is_to_commit();
                let was = *self.outcomes.entry(self.number).or_insert(commit);
                assert_eq!(was, commit, "two outcomes of {}", self.number);
                assert!(!self.txn.participants().is_empty());
            }
            State::CompleteCommit => assert_eq!(self.outcomes.get(&self.number), Some(&true)),
            State::CompleteAbort => {
                let was = *self.outcomes.entry(self.number).or_insert(false);
                assert!(!was, "two outcomes of {}", self.number);
            }
            State::Ongoing => assert_eq!(self.outcomes.get(&self.number), None, "over, and open again"),
            State::Empty => {}
        }
    }

    fn hold(&mut self, client: usize, producer: Producer) {
        assert!(producer.epoch <= LAST_EPOCH, "a client holds the highest epoch");
        let before = self.held[client].map(|(p, _)| p);
        self.held[client] = Some((producer, before));
    }

    fn init(&mut self, client: usize, current: Option<Producer>) {
        let open = self.txn.state() == State::Ongoing;
        for fresh in [None, self.fresh()] {
            match self.txn.init(self.now, 1000, current, fresh) {
                Ok((Init::NeedsId, change)) => assert_eq!((change, fresh), (Change::Nothing, None)),
                Ok((Init::Ready(producer), change)) => {
                    assert!(!open, "handed over with a transaction open");
                    self.persist(&change);
                    if current.is_none() {
                        let others = self.held.iter().flatten().filter(|(p, _)| *p == producer);
                        assert_eq!(others.count(), 0, "two hold {producer:?}");
                    }
                    return self.hold(client, producer);
                }
                Ok((Init::Aborting, change)) => {
                    assert!(open);
                    return self.persist(&change);
                }
                Err(_) => return self.persist(&Change::Nothing),
            }
        }
        panic!("a fresh id did not do");
    }

    fn end(&mut self, client: usize, producer: Producer, commit: bool, version2: bool) {
        let before = (self.txn.state(), self.txn.number(), self.txn.producer());
        for fresh in [None, self.fresh()] {
            match self.txn.end(self.now, producer, commit, version2, fresh) {
                Ok((End::NeedsId, change)) => assert_eq!((change, fresh), (Change::Nothing, None)),
                Ok((End::Ready(next), change)) => {
                    self.persist(&change);
                    assert_eq!(self.outcomes.get(&self.number), Some(&commit), "answered, and not so");
                    let (state, number, was) = before;
                    if version2 {
                        assert_ne!(next, producer, "the next transaction must not look like this one");
                    }
                    assert!(state != State::Ongoing || producer == was && number == self.number);
                    return self.hold(client, next);
                }
                Err(_) => return self.persist(&Change::Nothing),
            }
        }
        panic!("a fresh id did not do");
    }

    fn tell(&mut self, partition: i32) {
        if !self.txn.is_decided() {
            return self.told.clear();
        }
        self.told.insert(part(partition));
        if self.txn.participants().is_subset(&self.told) {
            self.told.clear();
            assert!(!self.txn.clone().complete(self.now, self.number.wrapping_sub(1)));
            assert!(self.txn.complete(self.now, self.number));
            self.persist(&Change::Whole);
        }
    }

    fn step(&mut self, m: Move) {
        let holds = |world: &World, client: usize| world.held[client].map(|(p, _)| p);
        match m {
            Move::Start(client) => {
                self.held[client] = None;
                self.init(client, None);
            }
            Move::GoOn(client) => {
                if let Some(producer) = holds(self, client) {
                    self.init(client, Some(producer));
                }
            }
            Move::Add(client, partition) => {
                if let Some(producer) = holds(self, client) {
                    let change = self.txn.add(self.now, producer, vec![part(partition)]);
                    let fits = change.is_err() || producer == self.txn.producer();
                    assert!(fits, "{producer:?} is not {:?}", self.txn.producer());
                    self.persist(&change.unwrap_or(Change::Nothing));
                }
            }
            Move::Verify(client, partition, add) => {
                if let Some(producer) = holds(self, client) {
                    let verified = self.txn.verify(self.now, producer, part(partition), add);
                    if let Ok((number, change)) = verified {
                        self.persist(&change);
                        assert_eq!((number, self.txn.state()), (self.number, State::Ongoing));
                        assert!(self.txn.participants().contains(&part(partition)));
                    }
                }
            }
            Move::End(client, commit, version2) => {
                if let Some(producer) = holds(self, client) {
                    self.end(client, producer, commit, version2);
                }
            }
            Move::Lose(client) => {
                self.held[client] = self.held[client].and_then(|(_, was)| Some((was?, None)))
            }
            Move::Tell(partition) => self.tell(partition),
            Move::Wait(ms) => {
                self.now.boot += Duration::from_millis(ms);
                self.now.wall_ms += ms as i64;
                let change = if self.txn.reap(self.now) { Change::Whole } else { Change::Nothing };
                self.persist(&change);
            }
            Move::Takeover => {
                self.txn = Transaction::from_doc(&self.persisted, self.now);
                self.persist(&Change::Nothing);
            }
        }
        if !self.txn.is_decided() {
            self.told.clear();
        }
    }

    /// However it came to this, one producer that behaves gets its transaction through.
    fn settle(&mut self) {
        for _ in 0..3 {
            (0..3).for_each(|p| self.tell(p));
            self.init(0, None);
        }
        let (producer, _) = self.held[0].expect("nobody else is there");
        self.step(Move::Add(0, 1));
        self.end(0, producer, true, true);
        self.tell(1);
        assert_eq!(self.txn.state(), State::CompleteCommit);
    }
}

fn part(partition: i32) -> Participant {
    Participant::Partition(TopicId::default(), partition)
}

proptest! {
    #[test]
    fn numbers_and_epochs_rise_and_a_transaction_has_one_outcome(
        epoch in prop_oneof![Just(NO_EPOCH), LAST_EPOCH - 4..=LAST_EPOCH],
        moves in proptest::collection::vec(any_move(), 1..120),
    ) {
        let mut world = World::new(epoch);
        for m in moves {
            world.step(m);
        }
        world.settle();
    }
}
