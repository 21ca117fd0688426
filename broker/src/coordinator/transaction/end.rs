//! How a transaction ends.

use super::*;

/// What EndTxn led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Call again with a producer id that nobody had before.
    NeedsId,
    /// What the producer goes on under.
    Ready(Producer),
}

impl Transaction {
    /// EndTxn. `version2` (EndTxn 5): every end raises the epoch, or brings another producer id, so that nothing that
    /// was sent for this transaction can hit the next (KIP-890); and an abort may end what never began.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING; PRODUCER_FENCED, of a commit that found its transaction aborted as well; INVALID_TXN_STATE for
    /// what cannot be ended so; CONCURRENT_TRANSACTIONS until everybody was told of what was decided alike.
    pub fn end(
        &mut self,
        now: Now,
        producer: Producer,
        commit: bool,
        version2: bool,
        fresh: Option<i64>,
    ) -> Result<(End, Change), E> {
        let repeated = version2 && self.is_former(producer);
        if !repeated {
            self.check(producer)?;
        }
        let unchanged = |end| Ok((End::Ready(end), Change::Nothing));
        match (self.state, commit) {
            // InitProducerId, or the next transaction, has come since.
            (State::Ongoing | State::Empty, _) if repeated => Err(E::ProducerFenced),
            (State::Ongoing, _) => Ok(self.end_open(now, commit, version2, fresh)),
            (State::PrepareCommit, true) | (State::PrepareAbort, false) => Err(E::ConcurrentTransactions),
            // Meant for the next transaction, which has not begun: this one's outcome is still being told.
            (State::PrepareCommit, false) | (State::PrepareAbort, true) if version2 && !repeated => {
                Err(E::ConcurrentTransactions)
            }
            // No client repeats an abort as a commit: time was up while the commit was on its way. It had no effect, and is
            // fenced as in the first protocol; INVALID_TXN_STATE would be the end of the client (KAFKA-20785).
            (State::PrepareAbort | State::CompleteAbort, true) if repeated => Err(E::ProducerFenced),
            // Reaped under the last epoch of all, which no client gets.
            (State::CompleteAbort, false) if repeated && self.producer.epoch > LAST_EPOCH => {
                Ok(self.end_nothing(now, producer.epoch, fresh))
            }
            (State::CompleteCommit, true) | (State::CompleteAbort, false) if repeated || !version2 => {
                unchanged(self.producer)
            }
            // Nothing is open: to abort that is no error, and fences what may still be on its way.
            (State::Empty | State::CompleteCommit | State::CompleteAbort, false) if version2 && !repeated => {
                Ok(self.end_nothing(now, producer.epoch, fresh))
            }
            _ => Err(E::InvalidTxnState),
        }
    }

    fn end_open(&mut self, now: Now, commit: bool, version2: bool, fresh: Option<i64>) -> (End, Change) {
        if !version2 {
            self.decide(now, commit);
            return (End::Ready(self.producer), Change::Whole);
        }
        if self.is_exhausted() {
            let Some(id) = fresh else { return (End::NeedsId, Change::Nothing) };
            reached!("producer-epoch-exhausted");
            self.next_id = Some(id);
        }
        self.last_epoch = self.producer.epoch;
        self.producer.epoch = self.producer.epoch.saturating_add(1);
        self.decide(now, commit);
        let next = self.next_id.map(|id| Producer { id, epoch: 0 });
        (End::Ready(next.unwrap_or(self.producer)), Change::Whole)
    }

    fn end_nothing(&mut self, now: Now, last: i16, fresh: Option<i64>) -> (End, Change) {
        if !self.succeed(Some(last), fresh) {
            return (End::NeedsId, Change::Nothing);
        }
        // A transaction of its own, without participants: a number has one outcome.
        self.number += 1;
        self.state = State::CompleteAbort;
        self.updated_at = now.wall_ms;
        (End::Ready(self.producer), Change::Whole)
    }

    pub(super) fn decide(&mut self, now: Now, commit: bool) {
        self.state = if commit { State::PrepareCommit } else { State::PrepareAbort };
        self.updated_at = now.wall_ms;
        self.deadline = None;
    }

    /// Everybody was told how transaction `number` ended. False: it is over already.
    pub fn complete(&mut self, now: Now, number: u64) -> bool {
        if !self.is_decided() || self.number != number {
            return false;
        }
        let commit = self.state == State::PrepareCommit;
        self.state = if commit { State::CompleteCommit } else { State::CompleteAbort };
        if let Some(id) = self.next_id.take() {
            self.previous_id = Some(self.producer.id);
            self.producer = Producer { id, epoch: 0 };
        }
        self.participants.clear();
        self.weight = 0;
        self.started_at = None;
        self.updated_at = now.wall_ms;
        true
    }

    /// Aborts the open transaction if its time is up. Its producer is fenced, and may go on by InitProducerId with the
    /// epoch that it has (KIP-588). False: it is not up.
    pub fn reap(&mut self, now: Now) -> bool {
        let up = self.state == State::Ongoing && self.deadline.is_some_and(|at| at <= now.boot);
        if up {
            self.fence(now, true);
        }
        up
    }
}
