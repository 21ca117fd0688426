//! Looking at the coordinators' files offline: the content of slots' logs, and the blocks of producer ids.
//!
//! Writes nothing. The logs' form, as of any partition, is for [`crate::storage::verify`] to check.

use super::producer_ids::{self, block_numbers};
use super::record::{self, Entry, Key, Value};
use super::{slot_of, HASH, SLOTS};
use crate::storage::batch::Header;
use crate::storage::records::Records;
use crate::storage::verify::Finding;
use crate::types::TopicId;
use crate::volume::{Class, Volume, VolumeError};
use prometheus_client::metrics::counter::Counter;
use serde::Deserialize;

/// The directory that holds the slots.
pub const SLOT_DIRS: &str = "__cluster/groups";

/// The slots' directories, each with its slot and the identity that its files carry.
pub fn slots() -> impl Iterator<Item = (String, u32, (TopicId, i32))> {
    (0..SLOTS).map(|n| (slot_dir(n), n, (TopicId::default(), n as i32)))
}

pub(super) fn slot_dir(slot: u32) -> String {
    format!("{SLOT_DIRS}/{slot}")
}

/// What is wrong with the content of a batch in a slot's log; the batch's checksum has been verified.
pub fn slot_batch(slot: u32, h: &Header, batch: &[u8]) -> Option<String> {
    let records = match Records::open(batch, h, &Counter::default()) {
        Ok(records) => records,
        Err(e) => return Some(format!("cannot be opened: {e}")),
    };
    for (at, r) in (h.base_offset..).zip(records) {
        let r = match r {
            Ok(r) => r,
            Err(e) => return Some(format!("the record at offset {at} cannot be read: {e}")),
        };
        let entry = match record::decode_entry(at, r.key.as_deref(), r.value.as_deref()) {
            Ok(entry) => entry,
            Err(e) => return Some(e.to_string()),
        };
        if let Some(what) = nonsense(slot, &entry) {
            return Some(format!("the record at offset {at} {what}"));
        }
    }
    None
}

/// What no coordinator writes.
fn nonsense(slot: u32, entry: &Entry) -> Option<String> {
    let record = &entry.record;
    match (&record.key, &record.value) {
        (Key::Slot, Value::Format { slots, hash }) if (*slots, hash.as_str()) != (SLOTS, HASH) => {
            return Some(format!("spreads groups over {slots} slots by {hash}, not over {SLOTS} by {HASH}"));
        }
        (Key::Slot, Value::Format { .. } | Value::SnapshotBegin | Value::SnapshotEnd { .. })
        | (
            Key::Group { .. },
            Value::Group(_) | Value::ConsumerGroup(_) | Value::Forgotten | Value::Deleted,
        )
        | (Key::Offset { .. }, Value::Offset(_) | Value::Deleted | Value::Expired { .. })
        | (Key::Transaction { .. }, Value::Transaction(_) | Value::Joined { .. } | Value::Deleted)
        | (Key::PendingOffset { .. }, Value::Pending(_))
        | (Key::GroupTransaction { .. }, Value::Ended { .. }) => {}
        _ => return Some("has a value that does not go with its key".into()),
    }
    // A negative offset is no nonsense: Kafka takes any, and kafkajs resets a group by committing -1 or -2.
    match &record.key {
        Key::Group { group }
        | Key::Offset { group, .. }
        | Key::PendingOffset { group, .. }
        | Key::GroupTransaction { group, .. }
            if slot_of(group) != slot =>
        {
            Some(format!("is of group {group:?}, which belongs into slot {}", slot_of(group)))
        }
        Key::Transaction { id } if slot_of(id) != slot => {
            Some(format!("is of transactional id {id:?}, which belongs into slot {}", slot_of(id)))
        }
        Key::Offset { partition, .. } | Key::PendingOffset { partition, .. } if *partition < 0 => {
            Some(format!("is of partition {partition}"))
        }
        _ => None,
    }
}

/// Checks the blocks of producer ids. The name alone is the claim; the content is for people, and empty if its
/// writer died on the way.
pub async fn producer_id_blocks(v: &dyn Volume) -> Vec<Finding> {
    let mut findings = Vec::new();
    let unreadable = |path: &str, e: &VolumeError| Finding {
        path: path.into(),
        byte: None,
        what: format!("cannot be read: {}", e.source),
    };
    let entries = match v.read_dir(producer_ids::DIR, Class::Control).await {
        Ok(entries) => entries,
        Err(e) if e.is_not_found() => return findings,
        Err(e) => return vec![unreadable(producer_ids::DIR, &e)],
    };
    for number in block_numbers(&entries) {
        let path = format!("{}/{}", producer_ids::DIR, producer_ids::file_name(number));
        match read_block(v, &path).await {
            Ok(content) => findings.extend(block(number, &content).map(|what| Finding {
                path: path.clone(),
                byte: None,
                what,
            })),
            // A later block superseded it.
            Err(e) if e.is_not_found() => {}
            Err(e) => findings.push(unreadable(&path, &e)),
        }
    }
    findings
}

/// More than any block has.
const MAX_BLOCK: usize = 4096;

async fn read_block(v: &dyn Volume, path: &str) -> Result<bytes::Bytes, VolumeError> {
    v.open(path, Class::Control).await?.read_at(0, MAX_BLOCK).await
}

fn block(number: u64, content: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Block {
        block: u64,
    }
    if content.is_empty() {
        return None;
    }
    match serde_json::from_slice::<Block>(content) {
        Err(e) => Some(e.to_string()),
        Ok(b) if b.block != number => Some(format!("says that it is block {}", b.block)),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::consumer::ConsumerGroup;
    use super::super::record::{encode, Committed, Pending, Record};
    use super::super::transaction::Transaction;
    use super::*;
    use crate::types::Epoch;

    fn commit(group: &str, partition: i32, offset: i64) -> Record {
        let committed = Committed {
            topic: "t".into(),
            offset,
            leader_epoch: -1,
            metadata: String::new(),
            committed_at: 1,
            expires_at: None,
        };
        Record::offset(group, TopicId::default(), partition, Value::Offset(committed))
    }

    fn judge(slot: u32, records: &[Record]) -> Option<String> {
        let (batch, _) = encode(Epoch(1), None, 1, records).unwrap();
        slot_batch(slot, &Header::parse(&batch).unwrap(), &batch)
    }

    #[test]
    fn what_a_coordinator_writes_is_sound() {
        let format = Record::slot(Value::Format { slots: SLOTS, hash: HASH.into() });
        let txn = Transaction::new(7).to_doc();
        let Value::Offset(offset) = commit("g", 0, 1).value else { unreachable!() };
        let pending = Pending { number: 1, epoch: 0, overtaken: false, offset };
        let consumer = Value::ConsumerGroup(ConsumerGroup::after(3, Some(1)).to_doc());
        let all = [
            format,
            commit("g", 0, 0),
            commit("g", 0, -1),
            Record::group("g", consumer),
            Record::group("g", Value::Deleted),
            Record::transaction("g", Value::Transaction(txn)),
            Record::transaction("g", Value::Joined { number: 1, participants: Vec::new() }),
            Record::transaction("g", Value::Deleted),
            Record::pending("g", 7, (TopicId::default(), 0), pending),
            Record::ended("g", 7, 1, true),
        ];
        assert_eq!(judge(slot_of("g"), &all), None);
    }

    #[test]
    fn what_none_writes_is_named_with_its_offset() {
        let slot = slot_of("g");
        let cases = [
            (commit("g", -1, 7), "partition -1"),
            (Record::group("g", Value::SnapshotBegin), "does not go with its key"),
            (Record::transaction("g", Value::Forgotten), "does not go with its key"),
            (Record::group("g", Value::Ended { number: 1, commit: true }), "does not go with its key"),
            (Record::slot(Value::Format { slots: 3, hash: HASH.into() }), "over 3 slots"),
        ];
        for (wrong, what) in cases {
            let said = judge(slot, &[commit("g", 0, 1), wrong]).unwrap();
            assert!(said.contains(what) && said.contains("offset 1 "), "{said}");
        }
        let other = judge((slot + 1) % SLOTS, &[commit("g", 0, 1)]).unwrap();
        assert!(other.contains("belongs into slot"), "{other}");
        let other = judge((slot + 1) % SLOTS, &[Record::transaction("g", Value::Deleted)]).unwrap();
        assert!(other.contains("transactional id \"g\", which belongs into slot"), "{other}");
    }

    #[test]
    fn a_block_says_its_number_or_nothing() {
        assert_eq!(block(7, b""), None);
        assert_eq!(block(7, b"{\"broker\":1,\"block\":7}\n"), None);
        assert!(block(7, b"{\"broker\":1,\"block\":8}\n").is_some());
        assert!(block(7, b"\xff\0").is_some());
    }
}
