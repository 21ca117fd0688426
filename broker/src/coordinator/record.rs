//! What stands in a slot's log: Kafka record batches (magic 2) whose keys and values are small JSON
//! documents.
//!
//! ```text
//! key    {"v":1,"key":{"offset":{"group":"g","topic_id":"…","partition":0}}}
//! value  {"v":1,"epoch":3,"value":{"offset":{"topic":"t","offset":42,…}}}
//! ```
//!
//! A batch is applied whole or not at all: it holds what must be seen together, such as the partitions of
//! one commit. `epoch` is the leader epoch under which the record was decided on. Storage stamps every
//! batch with the epoch under which it was *written*; where the two differ, the decision rested on a state
//! that a later leader may have changed, and the record does not count (see [`Batch::counts`]). So a write
//! that slips over a change of leadership is undone by whoever reads the log.
//!
//! `snapshot` marks the records that repeat the state for the sake of trimming the log. They count only
//! together, from `begin` to `end`.

use super::consumer::ConsumerDoc;
use super::group::GroupDoc;
use super::transaction::{self, TransactionDoc};
use super::transactions::Participant;
use crate::types::{Epoch, Offset, TopicId};
use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::records::{
    Compression, Record as WireRecord, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions,
    TimestampType,
};
use serde::{Deserialize, Serialize};

/// The format's version. A log with another one is not loaded.
const VERSION: u32 = 1;

/// Bytes of a group's document without the assignments, and bytes of the assignments in it: both together must
/// fit into one batch.
pub const MAX_GROUP_BYTES: usize = 7 << 20;

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// The log itself.
    Slot,
    Group {
        group: String,
    },
    Offset {
        group: String,
        topic_id: TopicId,
        partition: i32,
    },
    /// A transactional id. What wrote logs before knew none, nor the two below.
    Transaction {
        id: String,
    },
    /// An offset of a transaction that is open in a group.
    PendingOffset {
        group: String,
        producer_id: i64,
        topic_id: TopicId,
        partition: i32,
    },
    /// A producer's transaction in a group.
    GroupTransaction {
        group: String,
        producer_id: i64,
    },
}

/// What is now so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Of [`Key::Slot`]: how group ids are spread. The first record of a log.
    Format {
        slots: u32,
        hash: String,
    },
    /// Of [`Key::Slot`]: a snapshot begins, and ends after so many records.
    SnapshotBegin,
    SnapshotEnd {
        records: u64,
    },
    /// Of [`Key::Group`]: it is of the classic protocol.
    Group(GroupDoc),
    /// Of [`Key::Group`]: it is of the consumer protocol (KIP-848). What wrote logs before knew none.
    ConsumerGroup(ConsumerDoc),
    /// Of [`Key::Group`]: the document is gone, the offsets stay.
    Forgotten,
    /// Of [`Key::Group`]: the group and all its offsets are gone. Of [`Key::Offset`]: the offset is. Of
    /// [`Key::Transaction`]: the id is.
    Deleted,
    /// Of [`Key::Offset`].
    Offset(Committed),
    /// Of [`Key::Offset`]: gone, if it is still the one that was committed at this time. A commit that was
    /// under way when the expiry was decided on is not hit.
    Expired {
        committed_at: i64,
    },
    /// Of [`Key::Transaction`].
    Transaction(TransactionDoc),
    /// Of [`Key::Transaction`]: these take part, too, in the open transaction of this number.
    Joined {
        number: u64,
        participants: Vec<Participant>,
    },
    /// Of [`Key::PendingOffset`].
    Pending(Pending),
    /// Of [`Key::GroupTransaction`]: the transaction of this number is over, and its offsets with it.
    Ended {
        number: u64,
        commit: bool,
    },
}

/// An offset that counts once its transaction has committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    pub number: u64,
    /// That the producer wrote under.
    pub epoch: i16,
    /// A later commit or deletion has had its effect; this one will have none.
    pub overtaken: bool,
    pub offset: Committed,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    pub topic: String,
    pub offset: i64,
    /// -1 if the client did not say.
    pub leader_epoch: i32,
    pub metadata: String,
    /// Milliseconds since the epoch.
    pub committed_at: i64,
    /// Milliseconds since the epoch, if the client asked for a retention time of its own (OffsetCommit up to
    /// version 4).
    pub expires_at: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub value: Value,
}

impl Record {
    pub fn group(group: &str, value: Value) -> Self {
        Record { key: Key::Group { group: group.to_owned() }, value }
    }

    pub fn offset(group: &str, topic_id: TopicId, partition: i32, value: Value) -> Self {
        Record { key: Key::Offset { group: group.to_owned(), topic_id, partition }, value }
    }

    pub fn slot(value: Value) -> Self {
        Record { key: Key::Slot, value }
    }

    pub fn transaction(id: &str, value: Value) -> Self {
        Record { key: Key::Transaction { id: id.to_owned() }, value }
    }

    pub fn pending(group: &str, producer_id: i64, place: (TopicId, i32), pending: Pending) -> Self {
        let (topic_id, partition) = place;
        let key = Key::PendingOffset { group: group.to_owned(), producer_id, topic_id, partition };
        Record { key, value: Value::Pending(pending) }
    }

    pub fn ended(group: &str, producer_id: i64, number: u64, commit: bool) -> Self {
        let key = Key::GroupTransaction { group: group.to_owned(), producer_id };
        Record { key, value: Value::Ended { number, commit } }
    }

    /// At least as many bytes as it takes in the log.
    pub fn rough_size(&self) -> usize {
        let key = match &self.key {
            Key::Slot => 0,
            Key::Group { group }
            | Key::Offset { group, .. }
            | Key::PendingOffset { group, .. }
            | Key::GroupTransaction { group, .. } => json_len(group),
            Key::Transaction { id } => json_len(id),
        };
        let value = match &self.value {
            Value::Group(doc) => doc.rough_size(),
            Value::ConsumerGroup(doc) => doc.rough_size(),
            Value::Offset(committed) | Value::Pending(Pending { offset: committed, .. }) => {
                json_len(&committed.topic) + json_len(&committed.metadata)
            }
            Value::Transaction(doc) => doc.rough_size(),
            Value::Joined { participants, .. } => transaction::rough_size(participants),
            _ => 0,
        };
        500 + key + value
    }
}

/// Bytes of a string in JSON at most.
pub fn json_len(s: &str) -> usize {
    let byte = |b: u8| match b {
        b'"' | b'\\' => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    s.bytes().map(byte).sum()
}

/// `records` in pieces of about `max` bytes, one larger record excepted.
pub fn split(records: impl IntoIterator<Item = Record>, max: usize) -> Vec<Vec<Record>> {
    let mut all = Vec::new();
    let mut piece = Vec::new();
    let mut bytes = 0;
    for record in records {
        let size = record.rough_size();
        if bytes + size > max && !piece.is_empty() {
            all.push(std::mem::take(&mut piece));
            bytes = 0;
        }
        bytes += size;
        piece.push(record);
    }
    if !piece.is_empty() {
        all.push(piece);
    }
    all
}

#[derive(Serialize, Deserialize)]
struct KeyDoc<K> {
    v: u32,
    key: K,
}

#[derive(Serialize, Deserialize)]
struct ValueDoc<V> {
    v: u32,
    epoch: Epoch,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<u64>,
    value: V,
}

/// A record as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub record: Record,
    /// The leader epoch under which it was decided on.
    pub epoch: Epoch,
    pub snapshot: Option<u64>,
    /// Bytes of key and value.
    pub size: usize,
}

/// A batch as it stands in the log.
#[derive(Clone, Debug)]
pub struct Batch {
    pub end: Offset,
    /// The leader epoch under which it was written, as storage stamped it.
    pub written: i32,
    pub entries: Vec<Entry>,
}

impl Batch {
    /// Whether it was written by the leader that decided on it.
    pub fn counts(&self) -> bool {
        self.entries.iter().all(|e| e.epoch.wire() == self.written)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("record at offset {0}: {1}")]
    Record(i64, serde_json::Error),
    #[error("record at offset {0} has format version {1}, known is {VERSION}")]
    Version(i64, u32),
    #[error("record at offset {0} has no key or no value")]
    Hollow(i64),
    #[error("record batch: {0}")]
    Batch(String),
    #[error("cannot write as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// One batch of `records`, and the bytes of keys and values of each.
pub fn encode(
    epoch: Epoch,
    snapshot: Option<u64>,
    wall_ms: i64,
    records: &[Record],
) -> Result<(Bytes, Vec<usize>), FormatError> {
    let mut wire = Vec::with_capacity(records.len());
    let mut sizes = Vec::with_capacity(records.len());
    for (at, record) in (0i64..).zip(records) {
        let key = serde_json::to_vec(&KeyDoc { v: VERSION, key: &record.key })?;
        let value = serde_json::to_vec(&ValueDoc { v: VERSION, epoch, snapshot, value: &record.value })?;
        sizes.push(key.len() + value.len());
        wire.push(wire_record(at, wall_ms, key.into(), value.into()));
    }
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    let mut buf = BytesMut::new();
    RecordBatchEncoder::encode(&mut buf, &wire, &options).map_err(|e| FormatError::Batch(e.to_string()))?;
    Ok((buf.freeze(), sizes))
}

fn wire_record(at: i64, timestamp: i64, key: Bytes, value: Bytes) -> WireRecord {
    WireRecord {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset: at,
        // Makes the batch's base sequence -1: no producer.
        sequence: i32::try_from(at).unwrap_or(i32::MAX) - 1,
        timestamp,
        key: Some(key),
        value: Some(value),
        headers: IndexMap::new(),
    }
}

/// The batches in `bytes`, which are whole.
pub fn decode(mut bytes: Bytes) -> Result<Vec<Batch>, FormatError> {
    let sets = RecordBatchDecoder::decode_all(&mut bytes).map_err(|e| FormatError::Batch(e.to_string()))?;
    sets.iter().map(|set| decode_batch(&set.records)).collect()
}

fn decode_batch(records: &[WireRecord]) -> Result<Batch, FormatError> {
    let Some(last) = records.last() else {
        return Err(FormatError::Batch("holds no record".to_owned()));
    };
    Ok(Batch {
        end: Offset(last.offset).plus(1),
        written: last.partition_leader_epoch,
        entries: records.iter().map(decode_record).collect::<Result<_, _>>()?,
    })
}

fn decode_record(record: &WireRecord) -> Result<Entry, FormatError> {
    decode_entry(record.offset, record.key.as_deref(), record.value.as_deref())
}

/// One record, from its key and value.
pub fn decode_entry(at: i64, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Entry, FormatError> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let (Some(key), Some(value)) = (key, value) else {
        return Err(FormatError::Hollow(at));
    };
    let bad = |e| FormatError::Record(at, e);
    for doc in [key, value] {
        let Version { v } = serde_json::from_slice(doc).map_err(bad)?;
        if v != VERSION {
            return Err(FormatError::Version(at, v));
        }
    }
    let key_doc: KeyDoc<Key> = serde_json::from_slice(key).map_err(bad)?;
    let value_doc: ValueDoc<Value> = serde_json::from_slice(value).map_err(bad)?;
    Ok(Entry {
        record: Record { key: key_doc.key, value: value_doc.value },
        epoch: value_doc.epoch,
        snapshot: value_doc.snapshot,
        size: key.len() + value.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(partition: i32) -> Record {
        let committed = Committed {
            topic: "t\"ö".to_owned(),
            offset: 42,
            leader_epoch: -1,
            metadata: "m".to_owned(),
            committed_at: 1,
            expires_at: None,
        };
        Record::offset("../../g", TopicId(uuid::Uuid::from_u128(7)), partition, Value::Offset(committed))
    }

    #[test]
    fn a_batch_reads_back_as_it_was_written() {
        let records = vec![commit(0), commit(1), Record::group("g", Value::Deleted)];
        let (bytes, sizes) = encode(Epoch(3), Some(9), 1000, &records).unwrap();
        let batches = decode(bytes).unwrap();
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].end, Offset(3));
        let back: Vec<Record> = batches[0].entries.iter().map(|e| e.record.clone()).collect();
        assert_eq!(back, records);
        assert_eq!(batches[0].entries.iter().map(|e| e.size).collect::<Vec<_>>(), sizes);
        assert!(batches[0].entries.iter().all(|e| e.epoch == Epoch(3) && e.snapshot == Some(9)));
    }

    #[test]
    fn the_rough_size_is_never_too_small() {
        let mut doc = crate::coordinator::group::Group::new().to_doc();
        let texts = ["", "plain", "\0\u{1}\"\\\n", "\u{202e}ö"].map(|t| t.repeat(50));
        for text in &texts {
            doc.protocol_type = Some(text.clone());
            doc.leader = Some(text.clone());
            doc.members.push(crate::coordinator::group::MemberDoc {
                id: text.clone(),
                instance: Some(text.clone()),
                client_id: text.clone(),
                client_host: text.clone(),
                session_ms: u64::MAX,
                rebalance_ms: u64::MAX,
                protocols: Vec::new(),
                assignment: Bytes::from(text.clone()),
            });
            let offset = Committed {
                topic: text.clone(),
                offset: i64::MIN,
                leader_epoch: i32::MIN,
                metadata: text.clone(),
                committed_at: i64::MIN,
                expires_at: Some(i64::MIN),
            };
            let mut txn = crate::coordinator::transaction::Transaction::new(i64::MIN).to_doc();
            (txn.previous_id, txn.next_id) = (Some(i64::MIN), Some(i64::MIN));
            (txn.number, txn.updated_at, txn.started_at) = (u64::MAX, i64::MIN, Some(i64::MIN));
            (txn.last_epoch, txn.timeout_ms) = (i16::MIN, i32::MIN);
            let part = Participant::Partition(TopicId::default(), i32::MIN);
            txn.participants = [part, Participant::Group(text.clone())].into();
            let participants = txn.participants.iter().cloned().collect();
            let pending =
                Pending { number: u64::MAX, epoch: i16::MIN, overtaken: false, offset: offset.clone() };
            let records = [
                Record::group(text, Value::Group(doc.clone())),
                Record::offset(text, TopicId::default(), i32::MIN, Value::Offset(offset)),
                Record::transaction(text, Value::Transaction(txn)),
                Record::transaction(text, Value::Joined { number: u64::MAX, participants }),
                Record::pending(text, i64::MIN, (TopicId::default(), i32::MIN), pending),
                Record::ended(text, i64::MIN, u64::MAX, false),
            ];
            let (_, sizes) = encode(Epoch(u32::MAX), Some(u64::MAX), 0, &records).unwrap();
            for (record, size) in records.iter().zip(sizes) {
                assert!(size <= record.rough_size(), "{size} > {}: {record:?}", record.rough_size());
            }
        }
    }

    #[test]
    fn a_split_keeps_every_record_in_order() {
        let records: Vec<Record> = (0..10).map(commit).collect();
        let pieces = split(records.clone(), 3 * records[0].rough_size());
        assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), vec![3, 3, 3, 1]);
        assert_eq!(pieces.concat(), records);
        assert_eq!(split(records.clone(), 1).len(), 10);
        assert!(split(Vec::new(), 1).is_empty());
    }

    #[test]
    fn the_header_is_that_of_a_plain_producer() {
        let (bytes, _) = encode(Epoch(3), None, 1000, &[commit(0), commit(1)]).unwrap();
        assert_eq!(bytes[43..51], (-1i64).to_be_bytes(), "producer id");
        assert_eq!(bytes[53..57], (-1i32).to_be_bytes(), "base sequence");
        assert_eq!(bytes[57..61], 2i32.to_be_bytes(), "record count");
    }

    #[test]
    fn a_batch_that_another_epoch_wrote_does_not_count() {
        let (bytes, _) = encode(Epoch(3), None, 1000, &[commit(0)]).unwrap();
        let mut batch = decode(bytes).unwrap().remove(0);
        batch.written = 3;
        assert!(batch.counts());
        batch.written = 4;
        assert!(!batch.counts());
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(decode(Bytes::from_static(b"no batch")).is_err());
        let (good, _) = encode(Epoch(3), None, 1000, &[commit(0)]).unwrap();
        for cut in 0..good.len() {
            if cut > 0 {
                assert!(decode(good.slice(..cut)).is_err(), "cut at {cut}");
            }
        }
    }
}
