//! A transactional id as the slot's log keeps it.

use super::*;
use crate::coordinator::record::json_len;
use serde::{Deserialize, Serialize};

/// A transactional id's document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionDoc {
    pub state: State,
    pub number: u64,
    pub producer: Producer,
    pub last_epoch: i16,
    pub previous_id: Option<i64>,
    pub next_id: Option<i64>,
    pub timeout_ms: i32,
    /// Milliseconds since the epoch.
    pub started_at: Option<i64>,
    /// Milliseconds since the epoch.
    pub updated_at: i64,
    pub participants: BTreeSet<Participant>,
}

impl TransactionDoc {
    /// Takes in who joined transaction `number`.
    pub fn join(&mut self, number: u64, joined: &[Participant]) {
        if self.state == State::Ongoing && self.number == number {
            self.participants.extend(joined.iter().cloned());
        }
    }

    /// At least as many bytes as it takes in the log.
    pub fn rough_size(&self) -> usize {
        500 + rough_size(&self.participants)
    }
}

/// At least as many bytes as they take in the log.
pub fn rough_size<'a>(participants: impl IntoIterator<Item = &'a Participant>) -> usize {
    let one = |p: &Participant| match p {
        Participant::Partition(..) => 80,
        Participant::Group(group) => 20 + json_len(group),
    };
    participants.into_iter().map(one).sum()
}

impl Transaction {
    /// As it is to be persisted.
    pub fn to_doc(&self) -> TransactionDoc {
        TransactionDoc {
            state: self.state,
            number: self.number,
            producer: self.producer,
            last_epoch: self.last_epoch,
            previous_id: self.previous_id,
            next_id: self.next_id,
            timeout_ms: self.timeout_ms,
            started_at: self.started_at,
            updated_at: self.updated_at,
            participants: self.participants.clone(),
        }
    }

    /// As it goes on after a restart or a takeover. How much of an open transaction's time has passed is not kept.
    pub fn from_doc(doc: &TransactionDoc, now: Now) -> Self {
        let mut txn = Transaction {
            state: doc.state,
            number: doc.number,
            producer: doc.producer,
            last_epoch: doc.last_epoch,
            previous_id: doc.previous_id,
            next_id: doc.next_id,
            timeout_ms: doc.timeout_ms,
            started_at: doc.started_at,
            updated_at: doc.updated_at,
            participants: doc.participants.clone(),
            weight: rough_size(&doc.participants),
            deadline: None,
        };
        txn.deadline = (txn.state == State::Ongoing).then(|| now.boot + txn.timeout());
        txn
    }
}
