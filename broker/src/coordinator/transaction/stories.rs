//! What happens to a transactional id, told input by input.

use super::*;
use crate::types::TopicId;

/// A transactional id with a clock and producer ids from 100 on.
struct Table {
    txn: Transaction,
    now: Now,
    next_id: i64,
    changes: usize,
}

impl Table {
    fn new() -> Self {
        Table { txn: Transaction::new(99), now: Now::default(), next_id: 100, changes: 0 }
    }

    /// As it stands just before the epochs of its producer id are used up.
    fn at_last_epoch() -> (Table, Producer) {
        let mut t = Table::new();
        let mut doc = t.txn.to_doc();
        doc.producer.epoch = LAST_EPOCH - 1;
        doc.timeout_ms = 1000;
        t.txn = Transaction::from_doc(&doc, t.now);
        let last = t.init(None).unwrap();
        assert_eq!(last, at(99, LAST_EPOCH));
        (t, last)
    }

    fn take<R>(&mut self, result: Result<(R, Change), E>) -> Result<R, E> {
        let (answer, change) = result?;
        self.changes += usize::from(change != Change::Nothing);
        Ok(answer)
    }

    fn init(&mut self, current: Option<Producer>) -> Result<Producer, E> {
        let mut fresh = None;
        loop {
            let result = self.txn.init(self.now, 1000, current, fresh);
            match self.take(result)? {
                Init::Ready(producer) => return Ok(producer),
                Init::Aborting => return Err(E::ConcurrentTransactions),
                Init::NeedsId => fresh = Some(self.fresh()),
            }
        }
    }

    fn fresh(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn add(&mut self, producer: Producer, partition: i32) -> Result<(), E> {
        let change = self.txn.add(self.now, producer, vec![part(partition)])?;
        self.take(Ok(((), change)))
    }

    fn verify(&mut self, producer: Producer, partition: i32, add: bool) -> Result<u64, E> {
        let result = self.txn.verify(self.now, producer, part(partition), add);
        self.take(result)
    }

    /// EndTxn up to version 4.
    fn end1(&mut self, producer: Producer, commit: bool) -> Result<Producer, E> {
        self.end(producer, commit, false)
    }

    /// EndTxn 5.
    fn end2(&mut self, producer: Producer, commit: bool) -> Result<Producer, E> {
        self.end(producer, commit, true)
    }

    fn end(&mut self, producer: Producer, commit: bool, version2: bool) -> Result<Producer, E> {
        let mut fresh = None;
        loop {
            let result = self.txn.end(self.now, producer, commit, version2, fresh);
            match self.take(result)? {
                End::Ready(producer) => return Ok(producer),
                End::NeedsId => fresh = Some(self.fresh()),
            }
        }
    }

    fn all_told(&mut self) {
        assert!(self.txn.complete(self.now, self.txn.number()));
    }

    fn takeover(&mut self) {
        self.txn = Transaction::from_doc(&self.txn.to_doc(), self.now);
    }
}

fn part(partition: i32) -> Participant {
    Participant::Partition(TopicId::default(), partition)
}

fn at(id: i64, epoch: i16) -> Producer {
    Producer { id, epoch }
}

#[test]
fn a_new_holder_gets_the_next_epoch() {
    let mut t = Table::new();
    assert_eq!(t.init(None), Ok(at(99, 0)));
    assert_eq!(t.init(None), Ok(at(99, 1)));
    assert_eq!(t.add(at(99, 0), 0), Err(E::ProducerFenced));
    assert_eq!(t.add(at(98, 1), 0), Err(E::InvalidProducerIdMapping));
    assert_eq!(t.add(at(99, 1), 0), Ok(()));
}

#[test]
fn who_joins_twice_is_written_once() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    t.add(p, 0).unwrap();
    let changes = t.changes;
    t.add(p, 0).unwrap();
    assert_eq!(t.verify(p, 0, true), Ok(1));
    assert_eq!(t.txn.add(t.now, p, vec![]), Ok(Change::Nothing));
    assert_eq!(t.changes, changes);
    t.add(p, 1).unwrap();
    assert_eq!((t.changes, t.txn.participants().len()), (changes + 1, 2));
}

#[test]
fn more_than_fits_into_a_batch_is_refused_and_what_is_in_stays() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    let many = |from: i32| (from..from + 60_000).map(part).collect::<Vec<_>>();
    assert!(t.txn.add(t.now, p, many(0)).is_ok());
    assert_eq!(t.txn.add(t.now, p, many(60_000)), Err(E::InvalidRequest));
    assert_eq!(t.txn.add(t.now, p, many(0)), Ok(Change::Nothing));
    assert_eq!(t.txn.participants().len(), 60_000);
    assert!(serde_json::to_vec(&t.txn.to_doc()).unwrap().len() <= t.txn.to_doc().rough_size());
}

#[test]
fn a_transaction_is_ended_once_and_told_before_the_next() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    assert_eq!(t.end1(p, true), Err(E::InvalidTxnState), "nothing is open");
    t.add(p, 0).unwrap();
    assert_eq!(t.end1(p, true), Ok(p));
    assert_eq!(t.end1(p, true), Err(E::ConcurrentTransactions));
    assert_eq!(t.end1(p, false), Err(E::InvalidTxnState), "it is decided otherwise");
    assert_eq!(t.add(p, 1), Err(E::ConcurrentTransactions));
    assert_eq!(t.verify(p, 1, true), Err(E::ConcurrentTransactions));
    assert_eq!(t.verify(p, 0, false), Err(E::ConcurrentTransactions));
    assert_eq!(t.init(None), Err(E::ConcurrentTransactions));
    assert_eq!(t.init(Some(p)), Err(E::ConcurrentTransactions));
    t.all_told();
    assert_eq!(t.end1(p, true), Ok(p), "a repeated request");
    assert_eq!(t.end1(p, false), Err(E::InvalidTxnState));
    assert!(!t.txn.complete(t.now, 1), "once");
    assert_eq!(t.verify(p, 0, false), Err(E::InvalidTxnState));
    t.add(p, 0).unwrap();
    assert_eq!(t.txn.number(), 2);
    t.end1(p, false).unwrap();
    assert!(!t.txn.complete(t.now, 1), "what the first's participants say is no word about the second");
}

/// KIP-890, part 2.
#[test]
fn every_end_raises_the_epoch_and_a_repeated_one_is_answered_alike() {
    for commit in [true, false] {
        let mut t = Table::new();
        let p = t.init(None).unwrap();
        t.add(p, 0).unwrap();
        let next = t.end2(p, commit).unwrap();
        assert_eq!(next, at(99, 1));
        assert_eq!(t.end2(p, commit), Err(E::ConcurrentTransactions), "not everybody knows");
        // Who commits what was aborted may have been too late; who aborts what it committed contradicts itself.
        let otherwise = if commit { E::InvalidTxnState } else { E::ProducerFenced };
        assert_eq!(t.end2(p, !commit), Err(otherwise));
        t.takeover();
        t.all_told();
        assert_eq!(t.end2(p, commit), Ok(next));
        assert_eq!(t.end2(p, !commit), Err(otherwise));
        // It went astray for long: the next transaction is open.
        t.add(next, 0).unwrap();
        assert_eq!(t.end2(p, commit), Err(E::ProducerFenced));
        assert_eq!(t.txn.state(), State::Ongoing);
        t.end2(next, true).unwrap();
        assert_eq!(t.end2(p, commit), Err(E::ProducerFenced));
    }
}

#[test]
fn to_abort_what_never_began_is_no_error_and_raises_the_epoch() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    assert_eq!(t.end1(p, false), Err(E::InvalidTxnState));
    assert_eq!(t.end2(p, true), Err(E::InvalidTxnState));
    let next = t.end2(p, false).unwrap();
    assert_eq!((next, t.txn.state(), t.txn.number()), (at(99, 1), State::CompleteAbort, 1));
    assert_eq!(t.end2(p, false), Ok(next), "a repeated request");
    assert_eq!(t.end2(next, false), Ok(at(99, 2)));
    t.add(at(99, 2), 0).unwrap();
    assert_eq!(t.txn.number(), 3);
}

/// INVALID_TXN_STATE is the end of every client; it is answered where Kafka answers it, and nowhere else. The columns are those
/// of the first protocol, which knows no repetition, and of the second: by the epoch of its own, and by the one before.
#[test]
fn what_an_end_is_told_in_each_state() {
    let (its, ct, pf) = (Err(E::InvalidTxnState), Err(E::ConcurrentTransactions), Err(E::ProducerFenced));
    let (same, bumped) = (Ok(at(99, 1)), Ok(at(99, 2)));
    // State; [commit, abort] each.
    let rows = [
        (State::Empty, [its, its], [its, bumped], [pf, pf]),
        (State::PrepareCommit, [ct, its], [ct, ct], [ct, its]),
        (State::PrepareAbort, [its, ct], [ct, ct], [pf, ct]),
        (State::CompleteCommit, [same, its], [its, bumped], [same, its]),
        (State::CompleteAbort, [its, same], [its, bumped], [pf, same]),
    ];
    for (state, first, own, before) in rows {
        for (i, commit) in [true, false].into_iter().enumerate() {
            let end = |producer, version2| {
                let mut t = Table::new();
                let p = t.init(None).unwrap();
                if state == State::Empty {
                    t.init(Some(p)).unwrap();
                } else {
                    t.add(p, 0).unwrap();
                    t.end2(p, matches!(state, State::PrepareCommit | State::CompleteCommit)).unwrap();
                }
                if matches!(state, State::CompleteCommit | State::CompleteAbort) {
                    t.all_told();
                }
                assert_eq!((t.txn.state(), t.txn.producer()), (state, at(99, 1)));
                t.end(producer, commit, version2)
            };
            assert_eq!(end(at(99, 1), false), first[i], "{state:?}, commit {commit}, first protocol");
            assert_eq!(end(at(99, 0), false), pf, "{state:?}, commit {commit}, first protocol, epoch before");
            assert_eq!(end(at(99, 1), true), own[i], "{state:?}, commit {commit}, own epoch");
            assert_eq!(end(at(99, 0), true), before[i], "{state:?}, commit {commit}, epoch before");
        }
    }
}

/// KIP-890, part 1.
#[test]
fn a_partition_learns_the_number_and_who_takes_no_part_does_not() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    assert_eq!(t.verify(p, 0, false), Err(E::InvalidTxnState));
    t.add(p, 0).unwrap();
    assert_eq!(t.verify(p, 0, false), Ok(1));
    assert_eq!(t.verify(p, 1, false), Err(E::InvalidTxnState));
    assert_eq!(t.verify(p, 1, true), Ok(1));
    assert_eq!(t.verify(at(99, -1), 0, false), Err(E::ProducerFenced));
    let next = t.end2(p, true).unwrap();
    assert_eq!(t.verify(next, 0, false), Err(E::ConcurrentTransactions), "it may have its marker");
    for add in [false, true] {
        assert_eq!(t.verify(p, 0, add), Err(E::ProducerFenced));
    }
    assert_eq!(t.verify(next, 0, true), Err(E::ConcurrentTransactions));
    t.all_told();
    assert_eq!(t.verify(p, 0, false), Err(E::ProducerFenced));
    assert_eq!(t.verify(next, 0, true), Ok(2));
}

/// KIP-360.
#[test]
fn who_goes_on_keeps_its_id_and_may_ask_again() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    let q = t.init(Some(p)).unwrap();
    assert_eq!(q, at(99, 1));
    assert_eq!(t.init(Some(p)), Ok(q), "the answer had been lost");
    t.takeover();
    assert_eq!(t.init(Some(p)), Ok(q));
    assert_eq!(t.init(Some(q)), Ok(at(99, 2)));
    assert_eq!(t.init(Some(p)), Err(E::ProducerFenced));
    assert_eq!(t.init(Some(at(7, 2))), Err(E::ProducerFenced));
    // Another one takes over: nobody from before goes on.
    assert_eq!(t.init(None), Ok(at(99, 3)));
    assert_eq!(t.init(Some(at(99, 2))), Err(E::ProducerFenced));
}

#[test]
fn who_goes_on_under_an_id_that_was_forgotten_starts_anew() {
    let mut t = Table::new();
    assert_eq!(t.init(Some(at(7, 5))), Ok(at(99, 0)));
}

#[test]
fn who_comes_anew_aborts_what_is_open_under_an_epoch_that_nobody_has() {
    let mut t = Table::new();
    let zombie = t.init(None).unwrap();
    t.add(zombie, 0).unwrap();
    assert_eq!(t.init(None), Err(E::ConcurrentTransactions));
    assert_eq!((t.txn.state(), t.txn.producer()), (State::PrepareAbort, at(99, 1)));
    assert_eq!(t.init(None), Err(E::ConcurrentTransactions));
    for version2 in [false, true] {
        assert_eq!(t.end(zombie, true, version2), Err(E::ProducerFenced));
    }
    assert_eq!(t.add(zombie, 1), Err(E::ProducerFenced));
    assert_eq!(t.verify(zombie, 0, false), Err(E::ProducerFenced));
    t.all_told();
    assert_eq!(t.end2(zombie, false), Err(E::ProducerFenced));
    assert_eq!(t.init(Some(zombie)), Err(E::ProducerFenced));
    assert_eq!(t.init(None), Ok(at(99, 2)));
}

#[test]
fn who_goes_on_aborts_what_it_has_open_and_then_goes_on() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    t.add(p, 0).unwrap();
    assert_eq!(t.init(Some(at(99, 7))), Err(E::ProducerFenced));
    assert_eq!(t.txn.state(), State::Ongoing, "a stranger aborts nothing");
    assert_eq!(t.init(Some(p)), Err(E::ConcurrentTransactions));
    assert_eq!(t.init(Some(p)), Err(E::ConcurrentTransactions));
    t.all_told();
    assert_eq!(t.init(Some(p)), Ok(at(99, 1)));
}

/// Case 50.
#[test]
fn case_50_time_is_up_at_the_timeout_and_not_before() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    t.now.boot += Duration::from_secs(5);
    assert_eq!(t.txn.deadline(), None);
    t.add(p, 0).unwrap();
    t.now.boot += Duration::from_millis(999);
    t.add(p, 1).unwrap();
    assert!(!t.txn.reap(t.now));
    t.now.boot += Duration::from_millis(1);
    assert!(t.txn.reap(t.now));
    assert!(!t.txn.reap(t.now));
    assert_eq!((t.txn.state(), t.txn.producer()), (State::PrepareAbort, at(99, 1)));
    assert_eq!(t.end1(p, true), Err(E::ProducerFenced));
    // The commit was on its way (KAFKA-20785).
    assert_eq!(t.end2(p, true), Err(E::ProducerFenced));
    t.all_told();
    assert_eq!(t.end2(p, true), Err(E::ProducerFenced));
    assert_eq!(t.add(p, 0), Err(E::ProducerFenced));
    // It was no zombie, only slow: it may go on.
    assert_eq!(t.end2(p, false), Ok(at(99, 1)));
    assert_eq!(t.init(Some(p)), Ok(at(99, 1)));
}

#[test]
fn when_the_epochs_are_used_up_a_new_id_begins() {
    let (mut t, last) = Table::at_last_epoch();
    t.add(last, 0).unwrap();
    t.end1(last, true).unwrap();
    t.all_told();
    assert_eq!(t.init(None), Ok(at(100, 0)));
    assert_eq!(t.add(last, 0), Err(E::InvalidProducerIdMapping));
    assert_eq!(t.init(Some(last)), Err(E::ProducerFenced), "another one has taken over");

    let (mut t, last) = Table::at_last_epoch();
    assert_eq!(t.init(Some(last)), Ok(at(100, 0)));
    assert_eq!(t.init(Some(last)), Ok(at(100, 0)), "the answer had been lost");
    assert_eq!(t.init(Some(at(100, 0))), Ok(at(100, 1)));
    assert_eq!(t.init(Some(last)), Err(E::ProducerFenced));
}

#[test]
fn the_last_end_of_an_id_brings_the_next_id() {
    for commit in [true, false] {
        let (mut t, last) = Table::at_last_epoch();
        t.add(last, 0).unwrap();
        assert_eq!(t.end2(last, commit), Ok(at(100, 0)));
        assert_eq!(t.txn.producer(), at(99, i16::MAX), "markers fence the old id");
        assert_eq!(t.end2(last, commit), Err(E::ConcurrentTransactions));
        // The producer goes on before everybody was told.
        assert_eq!(t.add(at(100, 0), 0), Err(E::ConcurrentTransactions));
        assert_eq!(t.verify(at(100, 0), 0, true), Err(E::ConcurrentTransactions));
        assert_eq!(t.end2(at(100, 0), true), Err(E::ConcurrentTransactions));
        assert_eq!(t.init(Some(at(100, 0))), Err(E::ConcurrentTransactions));
        t.takeover();
        t.all_told();
        assert_eq!(t.end2(last, commit), Ok(at(100, 0)), "a repeated request");
        assert_eq!(t.add(last, 0), Err(E::InvalidProducerIdMapping));
        t.add(at(100, 0), 0).unwrap();
        assert_eq!((t.txn.number(), t.end2(at(100, 0), true)), (2, Ok(at(100, 1))));
    }
    let (mut t, last) = Table::at_last_epoch();
    assert_eq!(t.end2(last, false), Ok(at(100, 0)), "nothing was open");
    assert_eq!(t.end2(last, false), Ok(at(100, 0)));
}

/// The highest epoch fences the last holder, and no client ever holds it.
#[test]
fn nobody_gets_the_highest_epoch() {
    for aborts in 0..2 {
        let (mut t, last) = Table::at_last_epoch();
        t.add(last, 0).unwrap();
        t.now.boot += Duration::from_secs(1);
        assert!(t.txn.reap(t.now));
        assert_eq!(t.txn.producer(), at(99, i16::MAX));
        t.all_told();
        for _ in 0..2 {
            let next = if aborts == 1 { t.end2(last, false) } else { t.init(Some(last)) };
            assert_eq!(next, Ok(at(100, 0)));
        }
        assert_eq!(t.init(None), Ok(at(100, 1)));
    }
    let (mut t, last) = Table::at_last_epoch();
    t.add(last, 0).unwrap();
    assert_eq!(t.init(None), Err(E::ConcurrentTransactions));
    t.all_told();
    assert_eq!(t.init(Some(last)), Err(E::ProducerFenced));
    assert_eq!(t.init(None), Ok(at(100, 0)));
}

#[test]
fn only_what_is_idle_expires() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    let later = |ms| Now { wall_ms: ms, ..Now::default() };
    assert!(!t.txn.is_expired(later(999), 1000) && t.txn.is_expired(later(1000), 1000));
    t.add(p, 0).unwrap();
    assert!(!t.txn.is_expired(later(i64::MAX), 1000));
    t.end1(p, true).unwrap();
    assert!(!t.txn.is_expired(later(i64::MAX), 1000));
    t.all_told();
    assert!(t.txn.is_expired(later(1000), 1000));
}

/// EndTxn 5 is answered before everybody was told: what the producer asks next is of its next transaction.
#[test]
fn an_abort_of_nothing_waits_until_the_commit_before_it_has_been_told() {
    let mut t = Table::new();
    let p = t.init(None).unwrap();
    t.add(p, 0).unwrap();
    let next = t.end2(p, true).unwrap();
    assert_eq!(t.end2(next, false), Err(E::ConcurrentTransactions));
    t.all_told();
    assert!(t.end2(next, false).is_ok());
}
