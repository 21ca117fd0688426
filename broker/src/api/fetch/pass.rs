//! One pass over a fetch request's partitions.

use super::allotment::{Allotment, Portion};
use super::{FIRST_WITH_ZSTD, OPENING_PATIENCE};
use crate::api::patience::{Patience, SIDE_BY_SIDE};
use crate::api::{batches, partitions, RequestContext};
use crate::storage::{Bound, LifeName, Marks, Partition, ReadRequest};
use crate::types::{Epoch, Offset};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_protocol::messages::fetch_response::{EpochEndOffset, FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kafka_protocol::ResponseError;
use std::sync::Arc;

const READ_COMMITTED: i8 = 1;

/// A partition that is asked for.
pub(super) struct Row {
    pub asked: FetchPartition,
    pub partition: Result<Arc<Partition>, ResponseError>,
}

/// All partitions of the request, in its order.
pub(super) fn find_all(cx: &RequestContext, req: &FetchRequest) -> Vec<Row> {
    let all = req.topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p)));
    all.map(|(t, p)| Row { asked: p.clone(), partition: partitions::find(cx, &t.topic, p.partition) })
        .collect()
}

/// What a pass brought.
pub(super) struct Pass {
    pub response: FetchResponse,
    pub bytes: usize,
    /// An error, a diverging epoch, or nothing asked: not to be waited on.
    pub is_urgent: bool,
}

impl Pass {
    pub async fn read(cx: &RequestContext, req: &FetchRequest, rows: Vec<Row>, max_bytes: usize) -> Pass {
        open_all(&rows).await;
        let mut reader = Reader {
            version: cx.api_version,
            committed: req.isolation_level == READ_COMMITTED,
            allotment: Allotment::new(max_bytes),
            bytes: 0,
            is_urgent: rows.is_empty(),
            patience: Patience::new(cx),
        };
        let mut rows = rows.into_iter();
        let mut topics = Vec::with_capacity(req.topics.len());
        for topic in &req.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for row in rows.by_ref().take(topic.partitions.len()) {
                partitions.push(reader.read_row(row).await);
            }
            topics.push(
                FetchableTopicResponse::default().with_topic(topic.topic.clone()).with_partitions(partitions),
            );
        }
        let response = FetchResponse::default().with_responses(topics);
        Pass { response, bytes: reader.bytes, is_urgent: reader.is_urgent }
    }
}

fn is_opening(partition: &Partition) -> bool {
    matches!(partition.status().life, LifeName::Closed | LifeName::Opening)
}

/// Has all partitions open side by side, for a while.
async fn open_all(rows: &[Row]) {
    // Owned: the compiler does not see that a closure over borrowed partitions is general enough.
    let partitions = rows.iter().filter_map(|r| r.partition.as_ref().ok());
    let closed: Vec<Arc<Partition>> = partitions.filter(|p| is_opening(p)).cloned().collect();
    if !closed.is_empty() {
        let opening = stream::iter(closed).for_each_concurrent(SIDE_BY_SIDE, |p| async move {
            let _ = p.marks().await;
        });
        // Who did not open is found out when it is read.
        let _ = tokio::time::timeout(OPENING_PATIENCE, opening).await;
    }
}

struct Reader {
    version: i16,
    committed: bool,
    allotment: Allotment,
    bytes: usize,
    is_urgent: bool,
    patience: Patience,
}

/// What a partition has for the client.
enum Outcome {
    Records(Bytes, Marks),
    /// The log parted from what the client read (KIP-595): where they last agreed.
    Diverged(EpochEndOffset, Marks),
}

impl Reader {
    async fn read_row(&mut self, row: Row) -> PartitionData {
        let portion = self.allotment.portion(row.asked.partition_max_bytes);
        let outcome = match &row.partition {
            Ok(partition) => self.read_partition(partition, &row.asked, portion).await,
            Err(code) => Err(*code),
        };
        let data = PartitionData::default().with_partition_index(row.asked.partition);
        match outcome {
            Ok(Outcome::Records(records, marks)) => {
                self.allotment.gave(records.len());
                self.bytes += records.len();
                self.show(data, marks).with_records(Some(records))
            }
            Ok(Outcome::Diverged(end, marks)) => {
                self.is_urgent = true;
                self.show(data, marks).with_diverging_epoch(end)
            }
            Err(code) => {
                self.is_urgent = true;
                // Kafka shows no marks beside an error. Records stay empty, never null: librdkafka takes null
                // for a broken response and asks again at once.
                data.with_error_code(code.code()).with_high_watermark(-1).with_aborted_transactions(None)
            }
        }
    }

    fn show(&self, data: PartitionData, marks: Marks) -> PartitionData {
        data.with_high_watermark(marks.hwm.0)
            .with_last_stable_offset(marks.lso.0)
            .with_log_start_offset(marks.log_start.0)
            .with_aborted_transactions(self.committed.then(Vec::new))
    }

    async fn read_partition(
        &self,
        partition: &std::sync::Arc<Partition>,
        asked: &FetchPartition,
        portion: Portion,
    ) -> Result<Outcome, ResponseError> {
        if is_opening(partition) {
            return Err(ResponseError::NotLeaderOrFollower);
        }
        let believed = asked.current_leader_epoch;
        let failed = |e| partitions::read_error(&e, believed);
        if asked.last_fetched_epoch >= 0 {
            if let Some(diverged) = self.diverged(partition, asked).await? {
                return Ok(diverged);
            }
        }
        let request = ReadRequest {
            from: Offset(asked.fetch_offset),
            max_bytes: portion.max_bytes,
            at_least_one: portion.at_least_one,
            bound: if self.committed { Bound::LastStable } else { Bound::HighWatermark },
        };
        let read = self.patience.bound(partition.read(request)).await.map_err(failed)?;
        partitions::check_epoch(believed, &read.marks)?;
        if self.version < FIRST_WITH_ZSTD && batches::has_zstd(&read.records) {
            return Err(ResponseError::UnsupportedCompressionType);
        }
        Ok(Outcome::Records(read.records, read.marks))
    }

    /// Whether the client's last record is not of this log, as Kafka's `Partition.readRecords` decides it.
    async fn diverged(
        &self,
        partition: &std::sync::Arc<Partition>,
        asked: &FetchPartition,
    ) -> Result<Option<Outcome>, ResponseError> {
        let believed = asked.current_leader_epoch;
        let failed = |e| partitions::read_error(&e, believed);
        let marks = self.patience.bound(partition.marks()).await.map_err(failed)?;
        partitions::check_epoch(believed, &marks)?;
        let fetched = Epoch(u32::try_from(asked.last_fetched_epoch).unwrap_or(0));
        let end = match fetched > marks.epoch {
            true => None,
            false => self.patience.bound(partition.epoch_end(fetched)).await.map_err(failed)?,
        };
        let Some((epoch, end)) = end else { return Err(ResponseError::OffsetOutOfRange) };
        if asked.fetch_offset < marks.log_start.0 {
            return Err(ResponseError::OffsetOutOfRange);
        }
        let parted = epoch < fetched || end.0 < asked.fetch_offset;
        Ok(parted.then(|| {
            let end = EpochEndOffset::default().with_epoch(epoch.wire()).with_end_offset(end.0);
            Outcome::Diverged(end, marks)
        }))
    }
}
