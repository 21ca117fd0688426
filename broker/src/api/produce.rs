//! Produce (KIP-98 batches, versions 3–12).
//!
//! Split in two: [`start`] gives every batch its place in its partition's queue, or in the line for it, and is awaited before
//! the connection's next request starts, so that a pipelining producer's batches keep their order; [`Pending::finish`]
//! waits for durability beside later requests.
//!
//! Decisions:
//! - A transaction's first batch in a partition waits until the transaction's coordinator has confirmed it (KIP-890), and
//!   with it what the connection sent later: sequences must keep their order. All that a transactional producer sends
//!   depends on that coordinator, so nobody else is held up. From version 12 on the partition joins the transaction so.
//! - `timeout_ms` bounds the wait whatever `acks` is (Kafka: for -1 only); 0 or less sets no bound, since
//!   Kafka with one replica never times such a request out, and the watchdog bounds it anyway.
//! - A partition that still opens is waited for, two seconds at most. Neither that nor a full queue holds up the connection's
//!   later requests: one partition that hangs must not keep a client from all others. The back-pressure is what a connection's
//!   requests may hold in memory.
//! - Topics are not created here; clients have that done by Metadata.

use super::transactions::{self, Claim};
use super::{batches, partitions, RequestContext};
use crate::coordinator::transactions::{Participant, Producer};
use crate::storage::{Acks, AppendError, AppendRequest, Appended, Partition, Ticket};
use bytes::Bytes;
use futures::future::join_all;
use futures::FutureExt;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The first version that makes the partition take part in the transaction by itself.
const ADDS_SINCE: i16 = 12;
/// The first version whose clients know TRANSACTION_ABORTABLE.
const ABORTABLE_SINCE: i16 = 11;

/// How long a produce waits for partitions that are opening; then they answer NOT_LEADER_OR_FOLLOWER, which clients
/// try again.
const OPENING_PATIENCE: Duration = Duration::from_secs(2);

/// Versions below this may not carry zstd (KIP-110).
const FIRST_WITH_ZSTD: i16 = 7;

/// A request whose batches are queued, or in line.
pub struct Pending {
    topics: Vec<(TopicName, Vec<Row>)>,
    deadline: Deadline,
}

struct Row {
    index: i32,
    started: Result<Place, Refusal>,
}

/// Why a partition's records were not taken.
struct Refusal {
    code: ResponseError,
    message: Option<String>,
}

impl Refusal {
    fn new(code: ResponseError, message: impl Into<String>) -> Self {
        Refusal { code, message: Some(message.into()) }
    }
}

impl From<ResponseError> for Refusal {
    fn from(code: ResponseError) -> Self {
        Refusal { code, message: None }
    }
}

impl From<AppendError> for Refusal {
    fn from(error: AppendError) -> Self {
        Refusal::new(partitions::append_error(&error), error.to_string())
    }
}

/// Queues the batches of all partitions. Partitions do not wait for one another.
pub async fn start(cx: &RequestContext, req: ProduceRequest) -> Pending {
    let deadline = Deadline::after(cx, req.timeout_ms);
    let terms = terms(&req);
    let txn_id = req.transactional_id.clone();
    let topics = join_all(req.topic_data.into_iter().map(|topic| async {
        let rows = topic
            .partition_data
            .into_iter()
            .map(|p| start_one(cx, &topic.name, p, (&terms, txn_id.as_ref().map(|id| &*id.0))));
        let rows = join_all(rows).await;
        (topic.name, rows)
    }));
    Pending { topics: topics.await, deadline }
}

/// What holds for the whole request: its `acks`, or why nothing of it is taken.
fn terms(req: &ProduceRequest) -> Result<Acks, ResponseError> {
    match req.acks {
        -1 => Ok(Acks::All),
        // Of a transaction nothing may be lost without a word.
        0 | 1 if req.transactional_id.is_some() => Err(ResponseError::InvalidRequiredAcks),
        0 | 1 => Ok(Acks::Written),
        _ => Err(ResponseError::InvalidRequiredAcks),
    }
}

async fn start_one(
    cx: &RequestContext,
    topic: &TopicName,
    data: PartitionProduceData,
    (terms, txn_id): (&Result<Acks, ResponseError>, Option<&str>),
) -> Row {
    let started = async {
        let partition = partitions::find(cx, topic, data.index)?;
        let acks = match terms {
            Ok(acks) => *acks,
            Err(code) => return Err((*code).into()),
        };
        let records = check_records(cx.api_version, data.records)?;
        if let Some(who) = batches::transactional(&records) {
            verify(cx, &partition, txn_id, who).await?;
        }
        Ok(Place::take(partition, AppendRequest { records, acks }).await?)
    };
    Row { index: data.index, started: started.await }
}

/// Sees to it that the transaction's coordinator has confirmed the transaction that a batch belongs to.
async fn verify(
    cx: &RequestContext,
    partition: &Arc<Partition>,
    txn_id: Option<&str>,
    who: Producer,
) -> Result<(), Refusal> {
    let Some(txn_id) = txn_id else { return Err(ResponseError::InvalidRecord.into()) };
    let claim = Claim { txn_id, producer: who, add: cx.api_version >= ADDS_SINCE };
    let spec = partition.spec();
    // Once more if a marker came by meanwhile.
    for _ in 0..2 {
        let asked =
            tokio::time::timeout(OPENING_PATIENCE, partition.needs_verification(who.id, who.epoch)).await;
        let Some(question) = asked.unwrap_or(Err(AppendError::NotLeader))? else { return Ok(()) };
        let participant = Participant::Partition(spec.topic_id, spec.index);
        let number = transactions::verify(&cx.broker, claim, participant).await;
        let number = number.map_err(|e| Refusal::new(refusal(cx.api_version, e), e.to_string()))?;
        if partition.verified(question, number) {
            return Ok(());
        }
    }
    Err(ResponseError::NotEnoughReplicas.into())
}

/// What a producer is told when its transaction is not confirmed (as Kafka's ReplicaManager does it). Clients try again on
/// NOT_ENOUGH_REPLICAS, whatever their age.
fn refusal(version: i16, error: ResponseError) -> ResponseError {
    match error {
        ResponseError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        ResponseError::InvalidTxnState if version >= ABORTABLE_SINCE => ResponseError::TransactionAbortable,
        ResponseError::InvalidTxnState
        | ResponseError::InvalidProducerEpoch
        | ResponseError::InvalidProducerIdMapping
        | ResponseError::InvalidRequest
        | ResponseError::UnknownTopicOrPartition => error,
        _ => ResponseError::NotEnoughReplicas,
    }
}

/// A batch's place in its partition's queue, or in the line for it.
enum Place {
    Queued(Ticket),
    /// The queue is full, or the partition opens. The task goes on whatever this connection is busy with, since others stand
    /// behind it, and even when it is closed: a client that wants no acknowledgement is gone by then. Not for longer than the
    /// watchdog's time.
    InLine(JoinHandle<Result<Ticket, AppendError>>),
}

impl Place {
    /// In the order of calls. Does not wait for room: the connection's later requests may be for partitions that have some.
    async fn take(partition: Arc<Partition>, req: AppendRequest) -> Result<Place, AppendError> {
        let mut append = async move { partition.start_append_soon(req, OPENING_PATIENCE).await }.boxed();
        match futures::poll!(&mut append) {
            Poll::Ready(ticket) => Ok(Place::Queued(ticket?)),
            Poll::Pending => Ok(Place::InLine(tokio::spawn(append))),
        }
    }

    async fn wait(self) -> Result<Appended, AppendError> {
        let ticket = match self {
            Place::Queued(ticket) => ticket,
            // A task that ended in a panic has said so elsewhere.
            Place::InLine(task) => task.await.unwrap_or(Err(AppendError::NotLeader))?,
        };
        ticket.wait().await
    }
}

/// What Kafka checks before it looks at the partition (its `ProduceRequest.validateRecords`); that there is exactly
/// one batch, and of magic 2, is for storage to see.
fn check_records(version: i16, records: Option<Bytes>) -> Result<Bytes, Refusal> {
    let records = records.unwrap_or_default();
    if records.is_empty() {
        return Err(Refusal::new(
            ResponseError::InvalidRecord,
            "a partition's records must be exactly one record batch",
        ));
    }
    if version < FIRST_WITH_ZSTD && batches::has_zstd(&records) {
        return Err(Refusal::new(
            ResponseError::UnsupportedCompressionType,
            format!("produce version {version} does not allow zstd, version {FIRST_WITH_ZSTD} does"),
        ));
    }
    Ok(records)
}

impl Pending {
    /// Waits until every batch is as durable as was asked.
    pub async fn finish(self) -> ProduceResponse {
        let deadline = &self.deadline;
        let topics = join_all(self.topics.into_iter().map(|(name, rows)| async move {
            let rows = join_all(rows.into_iter().map(|row| finish_one(row, deadline))).await;
            TopicProduceResponse::default().with_name(name).with_partition_responses(rows)
        }));
        ProduceResponse::default().with_responses(topics.await)
    }
}

async fn finish_one(row: Row, deadline: &Deadline) -> PartitionProduceResponse {
    let done = match row.started {
        Ok(place) => deadline.bound(place.wait()).await.map_err(Refusal::from),
        Err(refusal) => Err(refusal),
    };
    let response = PartitionProduceResponse::default().with_index(row.index);
    match done {
        Ok(appended) => success(response, appended),
        Err(Refusal { code, message }) => response
            .with_error_code(code.code())
            .with_base_offset(-1)
            .with_error_message(message.map(StrBytes::from_string)),
    }
}

fn success(response: PartitionProduceResponse, appended: Appended) -> PartitionProduceResponse {
    response
        .with_base_offset(appended.base_offset.0)
        .with_log_append_time_ms(appended.log_append_time.unwrap_or(-1))
        .with_log_start_offset(appended.log_start.0)
}

/// When a request's patience ends. Measured on the broker's clock, over start and finish together.
struct Deadline {
    clock: Arc<dyn crate::rt::Clock>,
    at: Option<Duration>,
}

impl Deadline {
    fn after(cx: &RequestContext, timeout_ms: i32) -> Self {
        let clock = cx.broker.env.clock.clone();
        let at = u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0);
        let at = at.map(|ms| clock.boot().saturating_add(Duration::from_millis(ms)));
        Deadline { clock, at }
    }

    async fn bound<T>(&self, work: impl Future<Output = Result<T, AppendError>>) -> Result<T, AppendError> {
        match self.at {
            None => work.await,
            Some(at) => {
                let left = at.saturating_sub(self.clock.boot());
                tokio::time::timeout(left, work).await.unwrap_or(Err(AppendError::TimedOut))
            }
        }
    }
}

/// Versions 0–2 are listed but not served (see [`super::Served`]); who sends one nevertheless gets
/// UNSUPPORTED_VERSION for every partition, in that version's own shape.
pub(super) mod ancient {
    use bytes::{Buf, BufMut, Bytes, BytesMut};
    use kafka_protocol::ResponseError;

    /// The response body, or `None` if the request's body is malformed.
    ///
    /// ```text
    /// request:  acks INT16, timeout INT32, [topic STRING, [index INT32, records BYTES]]
    /// response: [topic STRING, [index INT32, error INT16, base_offset INT64, log_append_time INT64 (v2)]],
    ///           throttle_time INT32 (v1, v2)
    /// ```
    pub fn refuse(version: i16, mut body: Bytes) -> Option<BytesMut> {
        body.try_get_i16().ok()?;
        body.try_get_i32().ok()?;
        let mut out = BytesMut::new();
        let topics = body.try_get_i32().ok()?;
        out.put_i32(topics.max(0));
        for _ in 0..topics {
            let name = take(&mut body, |b| b.try_get_i16().ok().map(i32::from))?;
            out.put_i16(i16::try_from(name.len()).ok()?);
            out.put_slice(&name);
            let partitions = body.try_get_i32().ok()?;
            out.put_i32(partitions.max(0));
            for _ in 0..partitions {
                out.put_i32(body.try_get_i32().ok()?);
                take(&mut body, |b| b.try_get_i32().ok())?;
                out.put_i16(ResponseError::UnsupportedVersion.code());
                out.put_i64(-1);
                if version >= 2 {
                    out.put_i64(-1);
                }
            }
        }
        if version >= 1 {
            out.put_i32(0);
        }
        body.is_empty().then_some(out)
    }

    fn take(body: &mut Bytes, length: impl Fn(&mut Bytes) -> Option<i32>) -> Option<Bytes> {
        let length = length(body)?.max(0) as usize;
        (body.len() >= length).then(|| body.split_to(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{BufMut, BytesMut};

    #[test]
    fn acks_are_minus_one_nought_or_one() {
        let acks = |n| terms(&ProduceRequest::default().with_acks(n));
        assert_eq!(acks(-1), Ok(Acks::All));
        assert_eq!(acks(0), Ok(Acks::Written));
        assert_eq!(acks(1), Ok(Acks::Written));
        for n in [-2, 2, i16::MIN, i16::MAX] {
            assert_eq!(acks(n), Err(ResponseError::InvalidRequiredAcks));
        }
    }

    #[test]
    fn no_records_are_an_invalid_record() {
        for none in [None, Some(Bytes::new())] {
            let refusal = match check_records(11, none) {
                Err(refusal) => refusal,
                Ok(_) => panic!("taken"),
            };
            assert_eq!(refusal.code, ResponseError::InvalidRecord);
        }
    }

    #[test]
    fn case_25_zstd_is_refused_below_version_7() {
        let mut batch = vec![0; 61];
        batch[8..12].copy_from_slice(&49i32.to_be_bytes());
        batch[22] = 4;
        let code = |version| check_records(version, Some(batch.clone().into())).err().map(|r| r.code);
        assert_eq!(code(6), Some(ResponseError::UnsupportedCompressionType));
        assert_eq!(code(7), None);
    }

    fn ancient_request() -> BytesMut {
        let mut b = BytesMut::new();
        b.put_i16(1);
        b.put_i32(1000);
        b.put_i32(1);
        b.put_i16(1);
        b.put_slice(b"t");
        b.put_i32(1);
        b.put_i32(7);
        b.put_i32(3);
        b.put_slice(b"xyz");
        b
    }

    /// Golden bytes by Kafka's ProduceResponse schemas 0–2.
    #[test]
    fn ancient_produce_is_refused_in_its_own_shape() {
        let head = [0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 7, 0, 35].to_vec();
        let unknown = [0xff; 8].to_vec();
        let throttle = [0; 4].to_vec();
        let refuse = |v| ancient::refuse(v, ancient_request().freeze()).unwrap().to_vec();
        assert_eq!(refuse(0), [head.clone(), unknown.clone()].concat());
        assert_eq!(refuse(1), [head.clone(), unknown.clone(), throttle.clone()].concat());
        assert_eq!(refuse(2), [head, unknown.clone(), unknown, throttle].concat());
    }

    #[test]
    fn a_malformed_ancient_produce_is_not_answered() {
        let whole = ancient_request().freeze();
        for n in 0..whole.len() {
            assert!(ancient::refuse(2, whole.slice(..n)).is_none(), "cut at {n}");
        }
    }
}
