//! One pass over a fetch request's partitions.
//!
//! Promises: a file that does not answer costs its own row an error (KAFKA_STORAGE_ERROR) and the others a short
//! delay; a partition whose log failed and heals is read on, as far as it is durable.

use super::allotment::{Allotment, Portion};
use super::held::Held;
use super::{FIRST_WITH_ZSTD, OPENING_PATIENCE};
use crate::api::partitions::Named;
use crate::api::patience::SIDE_BY_SIDE;
use crate::api::{batches, partitions, RequestContext};
use crate::rt::Clock;
use crate::storage::{Bound, Marks, Partition, ReadError, ReadRequest};
use crate::types::{Epoch, Offset};
use bytes::Bytes;
use futures::stream::{self, FuturesUnordered, StreamExt};
use futures::FutureExt;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData,
};
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kafka_protocol::ResponseError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const READ_COMMITTED: i8 = 1;

/// Whether the client is to see what is committed, and nothing else.
pub(super) fn is_committed(req: &FetchRequest) -> bool {
    req.isolation_level == READ_COMMITTED
}

/// How long a fetch waits for the volume while it has nothing else to answer with. Shorter than clients wait
/// for an answer (30 s), and long enough for the largest batch on a slow volume.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long a fetch that has records waits for further ones, and how long it waits when a file of it was late.
const STRAGGLER_PATIENCE: Duration = Duration::from_secs(2);

/// A partition that is asked for.
pub(super) struct Row {
    pub asked: FetchPartition,
    pub partition: Result<Arc<Partition>, ResponseError>,
}

/// All partitions of the request, in its order.
pub(super) fn find_all(cx: &RequestContext, req: &FetchRequest) -> Vec<Row> {
    let all = req.topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p)));
    let row = |(t, p): (&FetchTopic, &FetchPartition)| {
        let topic = Named::in_version(cx.api_version, &t.topic, t.topic_id);
        Row { asked: p.clone(), partition: partitions::find_named(cx, &topic, p.partition) }
    };
    all.map(row).collect()
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
            committed: is_committed(req),
            clock: cx.broker.env.clock.clone(),
            held: cx.broker.fetched.clone(),
            allotment: Allotment::new(max_bytes),
            bytes: 0,
            is_urgent: rows.is_empty(),
            has_late: false,
        };
        let mut rows = VecDeque::from(rows);
        let mut answers = Vec::with_capacity(rows.len());
        while !rows.is_empty() {
            reader.read_wave(&mut rows, &mut answers).await;
        }
        let mut answers = answers.into_iter();
        let topic = |t: &FetchTopic| {
            let partitions = answers.by_ref().take(t.partitions.len()).collect();
            FetchableTopicResponse::default()
                .with_topic(t.topic.clone())
                .with_topic_id(t.topic_id)
                .with_partitions(partitions)
        };
        let topics = req.topics.iter().map(topic).collect();
        let response = FetchResponse::default().with_responses(topics);
        Pass { response, bytes: reader.bytes, is_urgent: reader.is_urgent }
    }
}

/// Has all partitions open side by side, for a while. A partition that heals after a failure is readable all
/// the time, as far as it is durable.
async fn open_all(rows: &[Row]) {
    let closed: Vec<Arc<Partition>> =
        rows.iter().filter_map(|r| r.partition.as_ref().ok()).filter(|p| !p.is_readable()).cloned().collect();
    if !closed.is_empty() {
        let opening = stream::iter(closed).for_each_concurrent(SIDE_BY_SIDE, |p| async move {
            let _ = p.marks().await;
        });
        // Who did not open is found out when it is read.
        let _ = tokio::time::timeout(OPENING_PATIENCE, opening).await;
    }
}

/// Reads the rows in waves: as many side by side as the response has room for if each brings all that it may.
/// What each row gets is what it would get if all were read one after another.
struct Reader {
    version: i16,
    committed: bool,
    clock: Arc<dyn Clock>,
    held: Held,
    allotment: Allotment,
    bytes: usize,
    is_urgent: bool,
    /// A file did not answer in time; no more than [`STRAGGLER_PATIENCE`] is spent on each later wave.
    has_late: bool,
}

type Found = Result<Outcome, ResponseError>;

/// What a partition has for the client.
enum Outcome {
    /// With the aborted transactions that have something in them.
    Records(Bytes, Marks, Vec<AbortedTransaction>),
    /// The log parted from what the client read (KIP-595): where they last agreed.
    Diverged(EpochEndOffset, Marks),
}

impl Outcome {
    fn len(&self) -> usize {
        match self {
            Outcome::Records(records, ..) => records.len(),
            Outcome::Diverged(..) => 0,
        }
    }
}

impl Reader {
    /// Answers the next rows.
    async fn read_wave(&mut self, rows: &mut VecDeque<Row>, answers: &mut Vec<PartitionData>) {
        let wave = self.next_wave(rows);
        let found = self.read_side_by_side(&wave).await;
        for ((row, portion), found) in wave.into_iter().zip(found) {
            self.has_late |= found.is_none();
            let found = found.unwrap_or(Err(ResponseError::KafkaStorageError));
            let due = self.allotment.portion(row.asked.partition_max_bytes);
            let found = match is_due(&row.asked, &found, portion, due, self.committed) {
                true => found,
                false => self.read_again(&row, due).await,
            };
            answers.push(self.answer(&row, found));
        }
    }

    fn next_wave(&self, rows: &mut VecDeque<Row>) -> Vec<(Row, Portion)> {
        let mut wave = Vec::new();
        let mut ahead = self.allotment;
        while let Some(row) = rows.front() {
            let asked = row.asked.partition_max_bytes;
            let portion = ahead.portion(asked);
            let is_short = portion.max_bytes < self.allotment.portion(asked).max_bytes;
            if !wave.is_empty() && (is_short || wave.len() == SIDE_BY_SIDE) {
                break;
            }
            ahead.gave(if has_nothing_yet(row, self.committed) { 0 } else { portion.max_bytes });
            wave.extend(rows.pop_front().map(|row| (row, portion)));
        }
        wave
    }

    /// What each row of the wave has; `None` did not say so in time. Nobody waits long for a file that does not
    /// answer when others did.
    async fn read_side_by_side(&self, wave: &[(Row, Portion)]) -> Vec<Option<Found>> {
        let mut all: Vec<Option<Found>> = wave.iter().map(|_| None).collect();
        let read = |(i, (row, portion)): (usize, &(Row, Portion))| {
            let (partition, asked, portion) = (row.partition.clone(), row.asked.clone(), *portion);
            async move { (i, self.read_row(partition, &asked, portion).await) }
        };
        let mut reads: FuturesUnordered<_> = wave.iter().enumerate().map(read).collect();
        let mut until = self.clock.boot().saturating_add(self.patience());
        loop {
            let left = until.saturating_sub(self.clock.boot());
            let Ok(Some((i, found))) = tokio::time::timeout(left, reads.next()).await else { return all };
            if found.as_ref().is_ok_and(|o| o.len() > 0) {
                until = until.min(self.clock.boot().saturating_add(STRAGGLER_PATIENCE));
            }
            if let Some(place) = all.get_mut(i) {
                *place = Some(found);
            }
        }
    }

    async fn read_again(&mut self, row: &Row, due: Portion) -> Found {
        let read = self.read_row(row.partition.clone(), &row.asked, due);
        match tokio::time::timeout(self.patience(), read).await {
            Ok(found) => found,
            Err(_) => {
                self.has_late = true;
                Err(ResponseError::KafkaStorageError)
            }
        }
    }

    fn patience(&self) -> Duration {
        match self.has_late || self.bytes > 0 {
            true => STRAGGLER_PATIENCE,
            false => READ_PATIENCE,
        }
    }

    async fn read_row(
        &self,
        partition: Result<Arc<Partition>, ResponseError>,
        asked: &FetchPartition,
        portion: Portion,
    ) -> Found {
        let partition = partition?;
        if !partition.is_readable() {
            // Either it says at once why not, or it still opens, and was waited for already.
            let opening = partition.marks().now_or_never();
            opening
                .unwrap_or(Err(ReadError::NotLeader))
                .map_err(|e| partitions::read_error(&e, asked.current_leader_epoch))?;
        }
        self.read_partition(&partition, asked, portion).await
    }

    fn answer(&mut self, row: &Row, found: Found) -> PartitionData {
        let data = PartitionData::default().with_partition_index(row.asked.partition);
        match found {
            Ok(Outcome::Records(records, marks, aborted)) => {
                self.allotment.gave(records.len());
                self.bytes += records.len();
                let aborted = self.committed.then_some(aborted);
                self.show(data, marks).with_aborted_transactions(aborted).with_records(Some(records))
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
        partition: &Arc<Partition>,
        asked: &FetchPartition,
        portion: Portion,
    ) -> Result<Outcome, ResponseError> {
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
        let read = partition.read(request).await.map_err(failed)?;
        partitions::check_epoch(believed, &read.marks)?;
        if self.version < FIRST_WITH_ZSTD && batches::has_zstd(&read.records) {
            return Err(ResponseError::UnsupportedCompressionType);
        }
        let aborted = read.aborted.iter().map(|a| {
            AbortedTransaction::default().with_producer_id(a.producer_id.into()).with_first_offset(a.first.0)
        });
        let aborted = aborted.collect();
        Ok(Outcome::Records(self.held.hold(read.records), read.marks, aborted))
    }

    /// Whether the client's last record is not of this log, as Kafka's `Partition.readRecords` decides it.
    async fn diverged(
        &self,
        partition: &Arc<Partition>,
        asked: &FetchPartition,
    ) -> Result<Option<Outcome>, ResponseError> {
        let believed = asked.current_leader_epoch;
        let failed = |e| partitions::read_error(&e, believed);
        let marks = partition.marks().await.map_err(failed)?;
        partitions::check_epoch(believed, &marks)?;
        let fetched = Epoch(u32::try_from(asked.last_fetched_epoch).unwrap_or(0));
        let end = match fetched > marks.epoch {
            true => None,
            false => partition.epoch_end(fetched).await.map_err(failed)?,
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

/// Where the log ends for the client.
fn end(marks: &Marks, committed: bool) -> i64 {
    if committed {
        marks.lso.0
    } else {
        marks.hwm.0
    }
}

/// Whether the log ends where the client stands: then nothing is set aside for it.
fn has_nothing_yet(row: &Row, committed: bool) -> bool {
    let marks = |p: &Arc<Partition>| p.marks().now_or_never().and_then(Result::ok);
    let marks = row.partition.as_ref().ok().filter(|p| p.is_readable()).and_then(marks);
    marks.is_some_and(|m| row.asked.fetch_offset >= end(&m, committed))
}

/// Whether what was found by reading `read` is what reading `due` brings: all rows before it are known now.
fn is_due(asked: &FetchPartition, found: &Found, read: Portion, due: Portion, committed: bool) -> bool {
    let Ok(Outcome::Records(records, marks, _)) = found else { return true };
    match due.at_least_one {
        true => read.at_least_one || !records.is_empty() || asked.fetch_offset >= end(marks, committed),
        false => records.len() <= due.max_bytes,
    }
}
