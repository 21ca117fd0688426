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
//! # Where aborted transactions are kept
//! In the producer snapshot, one list per partition, instead of a file per segment as Kafka does: it is then right exactly
//! when the producers' state is, there is no second file to recover, and a fetch needs no reading. What it costs is a
//! snapshot that grows with the aborted transactions that retention has not taken yet, some 60 bytes each.

use super::batch::{self, Header, HEADER_LEN};
use crate::types::{Epoch, Offset};
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a transaction ended, as its coordinator tells every partition of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    pub producer_id: i64,
    /// That of the transaction's records, or a later one that fences them.
    pub producer_epoch: i16,
    pub commit: bool,
    pub coordinator_epoch: i32,
    /// Which transaction of the producer's it ends. `None`: whichever is open (WriteTxnMarkers of an admin tool).
    pub number: Option<u64>,
    /// Where the open transaction begins, as [`MarkerError::Unverified`] said.
    pub first: Option<Offset>,
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
}

impl Default for Standing {
    fn default() -> Standing {
        Standing { epoch: -1, coordinator_epoch: -1, open: None, marker: None }
    }
}

impl Standing {
    pub fn is_default(&self) -> bool {
        *self == Standing::default()
    }
}

/// An aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {
    pub producer_id: i64,
    pub first: Offset,
    /// Offset of its marker.
    pub last: Offset,
    /// Everything below was decided when the marker was written: transactions that end later begin here or later.
    pub stable: Offset,
}

/// The aborted transactions that have something in `from..to`, by first offset. `all` is by last offset.
pub fn aborted_within(all: &[Aborted], from: Offset, to: Offset) -> Vec<Aborted> {
    let mut found = Vec::new();
    for a in all.iter().skip(all.partition_point(|a| a.last < from)) {
        if a.first < to {
            found.push(*a);
        }
        if a.stable >= to {
            break;
        }
    }
    found.sort_by_key(|a| a.first);
    found
}

/// What is to be done about a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Write,
    /// Nothing is open that it could end. The offset is that of the last marker, which may not be durable yet.
    Done(Option<Offset>),
}

/// Judges a marker against what is known of its producer. `epoch`: the highest that was seen; -1 if it is unknown.
pub fn judge(m: &Marker, s: &Standing, epoch: i16) -> Result<Verdict, MarkerError> {
    if m.coordinator_epoch < s.coordinator_epoch {
        return Err(MarkerError::CoordinatorFenced {
            got: m.coordinator_epoch,
            current: s.coordinator_epoch,
        });
    }
    if m.producer_epoch < epoch {
        return Err(MarkerError::InvalidProducerEpoch { got: m.producer_epoch, current: epoch });
    }
    let Some(open) = s.open else {
        // Who is known by a lower epoch is fenced for good. Who is not known must be verified before he writes anyway.
        let fences = epoch >= 0 && m.producer_epoch > epoch;
        return Ok(if fences { Verdict::Write } else { Verdict::Done(s.marker) });
    };
    match (m.number, open.number) {
        (None, _) => Ok(Verdict::Write),
        (Some(got), Some(number)) if got == number => Ok(Verdict::Write),
        (Some(got), Some(number)) if got < number => Ok(Verdict::Done(s.marker)),
        (Some(got), Some(open)) => Err(MarkerError::OfAnother { got, open }),
        (Some(_), None) if m.first == Some(open.first) => Ok(Verdict::Write),
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

/// The record of a marker, between the fixed head of the batch and its end (Kafka docs: *Control Batches*): a key of
/// version and type, a value of version and coordinator epoch.
const RECORD: [u8; 17] = [0x20, 0, 0, 0, 0x08, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0];
const TYPE: usize = 8;
const COORDINATOR: usize = 12;

/// A marker as it goes to the log, but for base offset and leader epoch. `now`: wall time in ms.
pub fn encode_marker(m: &Marker, now: i64) -> Bytes {
    let mut record = RECORD;
    if let Some(kind) = record.get_mut(TYPE) {
        *kind = u8::from(m.commit);
    }
    if let Some(epoch) = record.get_mut(COORDINATOR..COORDINATOR + 4) {
        epoch.copy_from_slice(&m.coordinator_epoch.to_be_bytes());
    }
    let mut covered = BytesMut::new();
    covered.put_i16(0x30);
    covered.put_i32(0);
    covered.put_i64(now);
    covered.put_i64(now);
    covered.put_i64(m.producer_id);
    covered.put_i16(m.producer_epoch);
    covered.put_i32(-1);
    covered.put_i32(1);
    covered.put_slice(&record);
    let mut b = BytesMut::with_capacity(HEADER_LEN + record.len());
    b.put_i64(0);
    b.put_i32((covered.len() + 9) as i32);
    b.put_i32(Epoch::default().wire());
    b.put_i8(2);
    b.put_u32(crc32c::crc32c(&covered));
    b.put_slice(&covered);
    b.freeze()
}

/// Whether a control batch commits, and its coordinator's epoch. `None`: it is no marker that this module wrote.
pub fn decode_marker(h: &Header, bytes: &[u8]) -> Option<(bool, i32)> {
    if !h.is_control() || !batch::crc_matches(bytes, h) {
        return None;
    }
    let record: &[u8; 17] = bytes.get(HEADER_LEN..)?.try_into().ok()?;
    let kind = record.get(TYPE)?;
    let epoch: [u8; 4] = record.get(COORDINATOR..COORDINATOR + 4)?.try_into().ok()?;
    let mut plain = *record;
    plain.get_mut(TYPE).into_iter().for_each(|b| *b = 0);
    plain.get_mut(COORDINATOR..COORDINATOR + 4)?.fill(0);
    (plain == RECORD && *kind <= 1).then(|| (*kind == 1, i32::from_be_bytes(epoch)))
}
