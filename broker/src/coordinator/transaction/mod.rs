//! The state machine of one transactional id (KIP-98, KIP-360, KIP-890).
//!
//! Inputs and the time go in; answers and what is to be persisted come out. Nothing here waits, reads a clock or
//! draws a number, so every interleaving can be tested as a plain sequence of calls.
//!
//! What it promises: number and epoch only rise, until a new producer id starts the epochs anew; a transaction has
//! one outcome; who holds neither the current epoch nor, for a repeated request, the one before changes nothing; and
//! nothing starts while an outcome is being told. What it does not: durability, nor that everybody was told. The slot
//! holds answers back until the change is durable, and the driver says when all participants know
//! ([`Transaction::complete`]).
//!
//! ```text
//!  Empty ──add──▶ Ongoing ──end──▶ PrepareCommit ──all told──▶ CompleteCommit ──add──▶ Ongoing
//!    ▲               └─end, time is up, another InitProducerId──▶ PrepareAbort ──▶ CompleteAbort
//!    └──────────────────────────InitProducerId────────────────────────────────────────┘
//! ```

mod doc;
mod end;
mod init;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod stories;

pub use doc::{rough_size, TransactionDoc};
pub use end::End;
pub use init::Init;

use super::group::Now;
use super::transactions::{Participant, Producer, TransactionState as State};
use crate::reached;
use kafka_protocol::ResponseError as E;
use std::collections::BTreeSet;
use std::time::Duration;

/// No epoch, as Kafka's wire has it.
pub const NO_EPOCH: i16 = -1;

/// The last epoch that a client gets; the one after it is for fencing alone (KIP-360).
pub const LAST_EPOCH: i16 = i16::MAX - 1;

/// Bytes of a transactional id with all participants: it must fit into one batch of the slot's log.
const MAX_BYTES: usize = 7 << 20;

/// What is to be persisted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    Whole,
    /// These now take part in the open transaction.
    Joined(Vec<Participant>),
}

/// One transactional id.
#[derive(Clone, Debug)]
pub struct Transaction {
    state: State,
    number: u64,
    producer: Producer,
    /// The epoch before, while its holder may repeat the request that ended it.
    last_epoch: i16,
    /// The producer id before.
    previous_id: Option<i64>,
    /// The producer id from the end of this transaction on.
    next_id: Option<i64>,
    timeout_ms: i32,
    started_at: Option<i64>,
    updated_at: i64,
    participants: BTreeSet<Participant>,
    /// Bytes of `participants` at most.
    weight: usize,
    deadline: Option<Duration>,
}

impl Transaction {
    /// Under a producer id that nobody had before.
    pub fn new(producer_id: i64) -> Self {
        Transaction {
            state: State::Empty,
            number: 0,
            producer: Producer { id: producer_id, epoch: NO_EPOCH },
            last_epoch: NO_EPOCH,
            previous_id: None,
            next_id: None,
            timeout_ms: 0,
            started_at: None,
            updated_at: 0,
            participants: BTreeSet::new(),
            weight: 0,
            deadline: None,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Of the transaction that is open or was last.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn producer(&self) -> Producer {
        self.producer
    }

    pub fn timeout_ms(&self) -> i32 {
        self.timeout_ms
    }

    /// Milliseconds since the epoch, while a transaction is open.
    pub fn started_at(&self) -> Option<i64> {
        self.started_at
    }

    pub fn participants(&self) -> &BTreeSet<Participant> {
        &self.participants
    }

    /// When [`Transaction::reap`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Whether the outcome is decided and not everybody was told.
    pub fn is_decided(&self) -> bool {
        matches!(self.state, State::PrepareCommit | State::PrepareAbort)
    }

    /// Which way it is decided.
    pub fn is_to_commit(&self) -> bool {
        self.state == State::PrepareCommit
    }

    /// Whether nothing is open, and nothing has happened for so long (`transactional.id.expiration.ms`).
    pub fn is_expired(&self, now: Now, after_ms: i64) -> bool {
        self.is_idle() && now.wall_ms.saturating_sub(self.updated_at) >= after_ms
    }

    fn is_idle(&self) -> bool {
        matches!(self.state, State::Empty | State::CompleteCommit | State::CompleteAbort)
    }

    fn is_exhausted(&self) -> bool {
        self.producer.epoch >= LAST_EPOCH
    }

    /// Whether `producer` has been succeeded by the one that we have, and by nobody else: who repeats a request whose
    /// answer it did not get.
    fn is_former(&self, producer: Producer) -> bool {
        if self.last_epoch == NO_EPOCH || producer.epoch != self.last_epoch {
            return false;
        }
        match producer.id == self.producer.id {
            true => producer.epoch < self.producer.epoch,
            false => Some(producer.id) == self.previous_id && producer.epoch >= LAST_EPOCH,
        }
    }

    fn check(&self, producer: Producer) -> Result<(), E> {
        // Told at the end that is being made known, it is early.
        if self.next_id == Some(producer.id) && producer.epoch == 0 {
            return Err(E::ConcurrentTransactions);
        }
        if producer.id != self.producer.id {
            return Err(E::InvalidProducerIdMapping);
        }
        match producer.epoch == self.producer.epoch {
            true => Ok(()),
            false => Err(E::ProducerFenced),
        }
    }

    /// AddPartitionsToTxn and AddOffsetsToTxn: `new` take part, in a transaction that starts here if none is open.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS; INVALID_REQUEST if they are too many.
    pub fn add(&mut self, now: Now, producer: Producer, new: Vec<Participant>) -> Result<Change, E> {
        self.check(producer)?;
        if self.is_decided() {
            return Err(E::ConcurrentTransactions);
        }
        if new.is_empty() {
            return Ok(Change::Nothing);
        }
        let starts = self.state != State::Ongoing;
        let known = |p: &Participant| !starts && self.participants.contains(p);
        let new: Vec<_> = new.into_iter().filter(|p| !known(p)).collect();
        let weight = if starts { 0 } else { self.weight } + rough_size(&new);
        if weight > MAX_BYTES {
            return Err(E::InvalidRequest);
        }
        if !starts && new.is_empty() {
            return Ok(Change::Nothing);
        }
        self.weight = weight;
        if !starts {
            self.participants.extend(new.iter().cloned());
            return Ok(Change::Joined(new));
        }
        self.state = State::Ongoing;
        self.number += 1;
        self.started_at = Some(now.wall_ms);
        self.updated_at = now.wall_ms;
        self.participants = new.into_iter().collect();
        self.deadline = Some(now.boot + self.timeout());
        Ok(Change::Whole)
    }

    /// The number of the open transaction in which `participant` takes part (KIP-890); `add`: from now on, if it did
    /// not. While an outcome is being told nobody is confirmed: a participant that was told already would take the
    /// transaction for open again, and nobody would ever end it there.
    ///
    /// # Errors
    /// As [`Transaction::add`]; INVALID_TXN_STATE if it takes no part.
    pub fn verify(
        &mut self,
        now: Now,
        producer: Producer,
        participant: Participant,
        add: bool,
    ) -> Result<(u64, Change), E> {
        if add {
            let change = self.add(now, producer, vec![participant])?;
            return Ok((self.number, change));
        }
        self.check(producer)?;
        match self.state {
            State::PrepareCommit | State::PrepareAbort => Err(E::ConcurrentTransactions),
            State::Ongoing if self.participants.contains(&participant) => Ok((self.number, Change::Nothing)),
            _ => Err(E::InvalidTxnState),
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0))
    }
}
