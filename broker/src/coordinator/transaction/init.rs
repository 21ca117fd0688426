//! InitProducerId: who holds the transactional id from now on.

use super::*;

/// What InitProducerId led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// Call again with a producer id that nobody had before: the epochs of this one are used up.
    NeedsId,
    Ready(Producer),
    /// The open transaction is aborted, and its producer fenced. To be answered CONCURRENT_TRANSACTIONS.
    Aborting,
}

impl Transaction {
    /// `current`: what the client holds, if it says so: it goes on (KIP-360), and a repeated request is answered
    /// alike. Who says nothing takes over, and fences whoever was there. Without an answer but [`Init::Ready`] nothing
    /// that the client sees has changed.
    ///
    /// # Errors
    /// PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    pub fn init(
        &mut self,
        now: Now,
        timeout_ms: i32,
        current: Option<Producer>,
        fresh: Option<i64>,
    ) -> Result<(Init, Change), E> {
        if let Some(current) = current {
            self.may_go_on(current)?;
        }
        match self.state {
            State::PrepareCommit | State::PrepareAbort => return Err(E::ConcurrentTransactions),
            State::Ongoing => {
                if current.is_some_and(|c| c != self.producer) {
                    return Err(E::ProducerFenced);
                }
                self.fence(now, current.is_some());
                return Ok((Init::Aborting, Change::Whole));
            }
            State::Empty | State::CompleteCommit | State::CompleteAbort => {}
        }
        let repeated = current.is_some_and(|c| self.is_former(c));
        let fits = current.is_none_or(|c| self.producer.epoch == NO_EPOCH || c == self.producer);
        if !fits && !repeated {
            return Err(E::ProducerFenced);
        }
        let answered = repeated && self.producer.epoch <= LAST_EPOCH;
        if !answered && !self.succeed(current.map(|c| c.epoch), fresh) {
            return Ok((Init::NeedsId, Change::Nothing));
        }
        self.state = State::Empty;
        self.timeout_ms = timeout_ms;
        self.started_at = None;
        self.updated_at = now.wall_ms;
        Ok((Init::Ready(self.producer), Change::Whole))
    }

    /// Whether `current` is of a producer id that this transactional id has or, at the end of its epochs, had.
    fn may_go_on(&self, current: Producer) -> Result<(), E> {
        let ours = self.producer.epoch == NO_EPOCH
            || current.id == self.producer.id
            || self.next_id == Some(current.id);
        match ours || self.is_former(current) {
            true => Ok(()),
            false => Err(E::ProducerFenced),
        }
    }

    /// The next epoch, or the first of a fresh id. False: that id is needed. `last`: the epoch whose holder may repeat
    /// its request.
    pub(super) fn succeed(&mut self, last: Option<i16>, fresh: Option<i64>) -> bool {
        if self.is_exhausted() {
            let Some(id) = fresh else { return false };
            reached!("producer-epoch-exhausted");
            self.previous_id = Some(self.producer.id);
            self.producer = Producer { id, epoch: 0 };
        } else {
            self.producer.epoch += 1;
        }
        self.last_epoch = last.unwrap_or(NO_EPOCH);
        true
    }

    /// Aborts the open transaction under an epoch above its producer's, so that every marker fences it where it
    /// writes. That epoch is given to nobody but, if `repeatable`, to that very producer.
    pub(super) fn fence(&mut self, now: Now, repeatable: bool) {
        let last = self.producer.epoch;
        // The highest is reached here alone: no client holds it.
        self.producer.epoch = last.saturating_add(1);
        self.last_epoch = if repeatable { last } else { NO_EPOCH };
        self.decide(now, false);
    }
}
