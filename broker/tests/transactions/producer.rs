//! A transactional producer that does by hand what its client library would do.

use crate::common::*;
use bytes::Bytes;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, StrBytes};
use std::collections::BTreeMap;
use std::time::Duration;

pub const FENCED: i16 = 90;
pub const ABORTABLE: i16 = 120;
pub const UNSTABLE: i16 = 88;

/// That a coordinator is elsewhere or not ready, or a transaction not over: tried again.
const PASSING: [i16; 6] = [14, 15, 16, 51, 6, 19];

/// Which of KIP-890's two protocols is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

impl Version {
    pub const BOTH: [Version; 2] = [Version::One, Version::Two];

    pub fn produce(self) -> i16 {
        match self {
            Version::One => 11,
            Version::Two => 12,
        }
    }

    fn end(self) -> i16 {
        match self {
            Version::One => 3,
            Version::Two => 5,
        }
    }
}

pub fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

pub fn txn_id(s: &str) -> TransactionalId {
    TransactionalId(text(s))
}

/// Asks until the answer is no passing error any more.
pub async fn until_settled<R: Request>(
    client: &mut Client,
    version: i16,
    request: &R,
    code: impl Fn(&R::Response) -> i16,
) -> R::Response {
    let began = std::time::Instant::now();
    loop {
        let response = client.call(version, request).await;
        if !PASSING.contains(&code(&response)) {
            return response;
        }
        assert!(began.elapsed() < PATIENCE, "error {} does not pass", code(&response));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub struct Producer {
    pub coordinator: Client,
    pub name: String,
    pub version: Version,
    pub id: ProducerId,
    pub epoch: i16,
    sequences: BTreeMap<(String, i32), i32>,
}

impl Producer {
    /// Takes the transactional id over. `coordinator`: a connection to whoever coordinates it.
    pub async fn init(mut coordinator: Client, name: &str, version: Version) -> Producer {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(txn_id(name)))
            .with_transaction_timeout_ms(60_000);
        let given = until_settled(&mut coordinator, 4, &request, |r| r.error_code).await;
        assert_eq!(given.error_code, 0);
        let (id, epoch) = (given.producer_id, given.producer_epoch);
        Producer { coordinator, name: name.into(), version, id, epoch, sequences: BTreeMap::new() }
    }

    /// Version 1 only: the partitions join the transaction. Their codes.
    pub async fn add(&mut self, topic: &str, partitions: &[i32]) -> Vec<i16> {
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(partitions.to_vec());
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(txn_id(&self.name))
            .with_v3_and_below_producer_id(self.id)
            .with_v3_and_below_producer_epoch(self.epoch)
            .with_v3_and_below_topics(vec![topic]);
        let codes = |r: &AddPartitionsToTxnResponse| -> Vec<i16> {
            let rows = r.results_by_topic_v3_and_below.iter().flat_map(|t| &t.results_by_partition);
            rows.map(|p| p.partition_error_code).collect()
        };
        codes(&until_settled(&mut self.coordinator, 3, &request, |r| codes(r)[0]).await)
    }

    /// The next batch for a partition.
    pub fn batch(&mut self, topic: &str, partition: i32, values: &[&str]) -> Bytes {
        let sequence = self.sequences.entry((topic.to_owned(), partition)).or_default();
        // Markers have the time of day, and a segment ends when what comes is much later than what it began with.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let now = now.as_millis() as i64;
        let batch = transactional(batch_at(now, values), self.id, self.epoch, *sequence);
        *sequence += values.len() as i32;
        batch
    }

    pub fn request(&self, topic: &str, partition: i32, batch: Bytes) -> ProduceRequest {
        produce_request(topic, partition, -1, batch).with_transactional_id(Some(txn_id(&self.name)))
    }

    /// Joins with the partition, if need be, and writes a batch to it over `leader`. The code.
    pub async fn write(&mut self, leader: &mut Client, topic: &str, partition: i32, values: &[&str]) -> i16 {
        if self.version == Version::One {
            assert_eq!(self.add(topic, &[partition]).await, [0]);
        }
        let batch = self.batch(topic, partition, values);
        let request = self.request(topic, partition, batch);
        let code = |r: &ProduceResponse| r.responses[0].partition_responses[0].error_code;
        code(&until_settled(leader, self.version.produce(), &request, code).await)
    }

    pub async fn end(&mut self, commit: bool) -> i16 {
        let request = EndTxnRequest::default()
            .with_transactional_id(txn_id(&self.name))
            .with_producer_id(self.id)
            .with_producer_epoch(self.epoch)
            .with_committed(commit);
        let version = self.version.end();
        let ended = until_settled(&mut self.coordinator, version, &request, |r| r.error_code).await;
        if self.version == Version::Two && ended.error_code == 0 {
            assert!(
                (ended.producer_id, ended.producer_epoch) > (self.id, self.epoch),
                "it goes on under another"
            );
            (self.id, self.epoch) = (ended.producer_id, ended.producer_epoch);
            self.sequences.clear();
        }
        ended.error_code
    }

    /// Commits an offset of a group in the transaction; `group`: a connection to the group's coordinator. The code.
    pub async fn commit_offset(&mut self, group: &mut Client, name: &str, topic: &str, offset: i64) -> i16 {
        if self.version == Version::One {
            let request = AddOffsetsToTxnRequest::default()
                .with_transactional_id(txn_id(&self.name))
                .with_producer_id(self.id)
                .with_producer_epoch(self.epoch)
                .with_group_id(GroupId(text(name)));
            let added = until_settled(&mut self.coordinator, 3, &request, |r| r.error_code).await;
            assert_eq!(added.error_code, 0);
        }
        let partition = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(0)
            .with_committed_offset(offset)
            .with_committed_metadata(Some(text("in a transaction")));
        let topic = TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(txn_id(&self.name))
            .with_group_id(GroupId(text(name)))
            .with_producer_id(self.id)
            .with_producer_epoch(self.epoch)
            .with_topics(vec![topic]);
        let version = match self.version {
            Version::One => 3,
            Version::Two => 5,
        };
        let code = |r: &TxnOffsetCommitResponse| r.topics[0].partitions[0].error_code;
        code(&until_settled(group, version, &request, code).await)
    }
}

/// Makes a batch one of a transaction.
pub fn transactional(batch: Bytes, id: ProducerId, epoch: i16, sequence: i32) -> Bytes {
    let mut b = batch.to_vec();
    b[22] |= 0x10;
    b[43..51].copy_from_slice(&id.0.to_be_bytes());
    b[51..53].copy_from_slice(&epoch.to_be_bytes());
    b[53..57].copy_from_slice(&sequence.to_be_bytes());
    let crc = crc32c::crc32c(&b[21..]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    b.into()
}

/// What a reader of committed records is given of a partition from `offset` on: base offsets of batches, which have one record
/// each, markers among them; the aborted transactions' first offsets; and the last stable offset.
pub async fn committed(
    client: &mut Client,
    topic: &str,
    partition: i32,
    offset: i64,
) -> (Vec<i64>, Vec<i64>, i64) {
    let (mut seen, mut aborted) = (Vec::new(), Vec::new());
    loop {
        let from = seen.last().map_or(offset, |last| last + 1);
        let row = read_committed(client, topic, partition, from).await;
        let more = base_offsets(row.records.as_deref().unwrap_or_default());
        if more.is_empty() {
            aborted.dedup();
            return (seen, aborted, row.last_stable_offset);
        }
        seen.extend(more);
        aborted.extend(row.aborted_transactions.iter().flatten().map(|a| a.first_offset));
    }
}

async fn read_committed(client: &mut Client, topic: &str, partition: i32, offset: i64) -> PartitionData {
    let request = fetch_request(topic, partition, offset).with_isolation_level(1);
    let began = std::time::Instant::now();
    loop {
        let response = client.fetch(11, &request).await;
        if row(&response).error_code == 0 {
            return row(&response).clone();
        }
        assert!(began.elapsed() < PATIENCE, "error {} does not pass", row(&response).error_code);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the partition has nothing undecided before `end`.
pub async fn until_stable(client: &mut Client, topic: &str, partition: i32, end: i64) {
    let began = std::time::Instant::now();
    while committed(client, topic, partition, 0).await.2 < end {
        assert!(began.elapsed() < PATIENCE, "{topic}-{partition} is not stable up to {end}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
