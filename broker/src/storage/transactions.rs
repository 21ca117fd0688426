//! Transactions as one partition sees them (KIP-98, KIP-890): which are open, how far readers of committed records may go,
//! and which ones were aborted.
//!
//! Plain state, kept beside the producers' sequences and with the same rule: it is told of batches and markers when they
//! get their offsets, and what is shown or written to disk leaves out what lies past the durable end.
//!
//! # Which marker ends which transaction
//! A coordinator numbers the transactions of a producer. The partition learns the number when the transaction is verified,
//! before its first batch, and a marker says which one it ends: a delayed marker must not tear the next transaction, which
//! may have the same producer epoch. After a crash the number is not known here, since no batch carries it. A marker is
//! then answered with [`MarkerError::Unverified`] and the offset at which the open transaction begins; who still drives that
//! very marker sends it again with that offset. A delayed copy cannot: when it was sent, nobody knew it.
//!
//! A marker carries the number in the log (see [`super::marker`]): what has ended stays known through crashes and takeovers, and
//! a copy of its marker, however late, ends nothing. So a marker is written for a transaction that wrote nothing here,
//! too.

use crate::types::Offset;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a transaction ended, as its coordinator tells all who take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    pub producer_id: i64,
    /// That of the transaction's records, or a later one that fences them.
    pub producer_epoch: i16,
    pub commit: bool,
    pub coordinator_epoch: i32,
    /// Which transaction of the producer's it ends. `None`: whichever is open (WriteTxnMarkers of an admin tool).
    pub number: Option<u64>,
}

/// Why a marker was not written (or, for `Storage` and `NotLeader`, may not have been).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    #[error("this broker does not lead the partition now")]
    NotLeader,
    #[error("the volume failed or does not answer: {0}")]
    Storage(String),
    #[error("the coordinator's epoch {got} is older than {current}")]
    CoordinatorFenced { got: i32, current: i32 },
    #[error("producer epoch {got} is older than {current}")]
    InvalidProducerEpoch { got: i16, current: i16 },
    /// The number of the open transaction is not known here: the marker is to be sent again with this offset, if it is
    /// still to be driven.
    #[error("the open transaction begins at {first}; its number is not known here")]
    Unverified { first: Offset },
    #[error("the marker is of transaction {got}, and {open} is open")]
    OfAnother { got: u64, open: u64 },
}

/// What the transaction's coordinator is asked before the first batch of a transaction. Void as soon as a marker for the
/// producer comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub(super) generation: u64,
    pub(super) nonce: u64,
}

/// A transaction without a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    pub first: Offset,
    pub epoch: i16,
    /// Not known of one that was read back from the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// What markers and transactional batches left behind of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The producer epoch of the last marker; -1 if there was none.
    pub epoch: i16,
    /// That of the last marker's coordinator; -1 if there was none.
    pub coordinator_epoch: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
    /// Offset of the last marker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Offset>,
    /// The highest number of a transaction that ended here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
}

impl Default for Standing {
    fn default() -> Standing {
        Standing { epoch: -1, coordinator_epoch: -1, open: None, marker: None, ended: None }
    }
}

impl Standing {
    pub fn is_default(&self) -> bool {
        *self == Standing::default()
    }
}

/// What is to be done about a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Write,
    /// There is nothing that it could end, or it did so before. The offset is that of the last marker, which may not be durable yet.
    Done(Option<Offset>),
}

/// Judges a marker against what is known of its producer. `first`: where the open transaction begins, as
/// [`MarkerError::Unverified`] said. `epoch`: the highest that was seen; -1 if it is unknown.
pub fn judge(m: &Marker, first: Option<Offset>, s: &Standing, epoch: i16) -> Result<Verdict, MarkerError> {
    if m.coordinator_epoch < s.coordinator_epoch {
        return Err(MarkerError::CoordinatorFenced {
            got: m.coordinator_epoch,
            current: s.coordinator_epoch,
        });
    }
    if m.producer_epoch < epoch {
        return Err(MarkerError::InvalidProducerEpoch { got: m.producer_epoch, current: epoch });
    }
    if m.number.is_some() && m.number <= s.ended {
        return Ok(Verdict::Done(s.marker));
    }
    let Some(open) = s.open else {
        // Without a number, nothing says that it was written before: only what fences is.
        let fences = epoch >= 0 && m.producer_epoch > epoch;
        return Ok(if m.number.is_some() || fences { Verdict::Write } else { Verdict::Done(s.marker) });
    };
    match (m.number, open.number) {
        (None, _) => Ok(Verdict::Write),
        (Some(got), Some(number)) if got == number => Ok(Verdict::Write),
        (Some(got), Some(number)) if got < number => Ok(Verdict::Done(s.marker)),
        (Some(got), Some(open)) => Err(MarkerError::OfAnother { got, open }),
        (Some(_), None) if first == Some(open.first) => Ok(Verdict::Write),
        (Some(_), None) => Err(MarkerError::Unverified { first: open.first }),
    }
}

/// Which transactions may begin here, as their coordinators said.
#[derive(Debug, Default)]
pub struct Verifications {
    asked: BTreeMap<i64, (i16, u64)>,
    granted: BTreeMap<i64, (i16, u64)>,
    next: u64,
}

/// Questions kept at most. Who asks again gets a new one.
const QUESTIONS: usize = 10_000;

impl Verifications {
    /// The nonce of a question about this producer.
    pub fn ask(&mut self, id: i64, epoch: i16) -> u64 {
        if let Some((_, nonce)) = self.asked.get(&id).filter(|(e, _)| *e == epoch) {
            return *nonce;
        }
        if self.asked.len() >= QUESTIONS {
            self.asked.clear();
        }
        self.next += 1;
        self.asked.insert(id, (epoch, self.next));
        self.next
    }

    /// Whether the question still stands; then the next batch of the producer begins transaction `number`.
    pub fn grant(&mut self, q: &Question, number: u64) -> bool {
        let stands = self.asked.get(&q.producer_id) == Some(&(q.producer_epoch, q.nonce));
        if stands {
            if self.granted.len() >= QUESTIONS {
                self.granted.clear();
            }
            self.granted.insert(q.producer_id, (q.producer_epoch, number));
        }
        stands
    }

    pub fn granted(&self, id: i64, epoch: i16) -> Option<u64> {
        self.granted.get(&id).filter(|(e, _)| *e == epoch).map(|(_, number)| *number)
    }

    /// The transaction began, or a marker came by: what was asked and said before is void.
    pub fn forget(&mut self, id: i64) {
        self.asked.remove(&id);
        self.granted.remove(&id);
    }
}
