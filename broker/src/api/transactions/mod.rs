//! The APIs of transactions (KIP-98, KIP-664, KIP-890), and how brokers speak to one another about them.
//!
//! Brokers use Kafka's own requests, with tagged fields for what these have no room for (KIP-482 has every reader skip
//! the tags that it does not know):
//!
//! - AddPartitionsToTxn from a partition's leader asks for the number of the transaction ([`tags::NUMBER`]); from a group's
//!   coordinator it names the group ([`tags::GROUP`]).
//! - WriteTxnMarkers carries the number, and where the open transaction begins once a leader has asked for that
//!   ([`tags::FIRST`]); to a group's coordinator it names the group, and the answer's error is a tag, too.

pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod describe_producers;
pub mod describe_transactions;
pub mod end_txn;
pub mod list_transactions;
mod participants;
mod peers;
pub mod txn_offset_commit;
pub mod write_txn_markers;

pub use participants::BrokerParticipants;
pub(super) use participants::{verify, Claim};

use super::RequestContext;
use crate::coordinator::transactions::Producer;
use kafka_protocol::messages::ProducerId;
use kafka_protocol::ResponseError;

/// Tagged fields between brokers.
mod tags {
    use bytes::Bytes;
    use std::collections::BTreeMap;

    pub const NUMBER: i32 = 0x4857;
    pub const GROUP: i32 = 0x4858;
    pub const FIRST: i32 = 0x4859;
    pub const ERROR: i32 = 0x485a;

    pub type Tags = BTreeMap<i32, Bytes>;

    pub fn int(tags: &Tags, tag: i32) -> Option<u64> {
        Some(u64::from_be_bytes(tags.get(&tag)?.as_ref().try_into().ok()?))
    }

    pub fn of_int(n: u64) -> Bytes {
        Bytes::copy_from_slice(&n.to_be_bytes())
    }

    pub fn text(tags: &Tags, tag: i32) -> Option<String> {
        Some(std::str::from_utf8(tags.get(&tag)?).ok()?.to_owned())
    }
}

fn producer(id: ProducerId, epoch: i16) -> Producer {
    Producer { id: id.0, epoch }
}

/// PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients of a version below `since`, which do not know it (KIP-588).
pub(super) fn as_of(version: i16, since: i16, error: ResponseError) -> ResponseError {
    match error {
        ResponseError::ProducerFenced if version < since => ResponseError::InvalidProducerEpoch,
        other => other,
    }
}
