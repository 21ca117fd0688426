//! Produce (KIP-98 batches, versions 3–13).
//!
//! Split in two: [`start`] gives every batch its place in its partition's queue, or in the line for it, and is awaited before
//! the connection's next request starts, so that a pipelining producer's batches keep their order; [`Pending::finish`]
//! waits for durability beside later requests.
//!
//! Decisions:
//! - Transactional batches are appended once their transaction is confirmed ([`super::verification`]); those of others do not
//!   wait for that. Without a transactional id they are refused, with what Kafka says then.
//! - `timeout_ms` bounds the wait whatever `acks` is (Kafka: for -1 only); 0 or less sets no bound, since
//!   Kafka with one replica never times such a request out, and the watchdog bounds it anyway.
//! - A partition that still opens is waited for, two seconds at most. Neither that nor a full queue holds up the connection's
//!   later requests: one partition that hangs must not keep a client from all others. The back-pressure is what a connection's
//!   requests may hold in memory.
//! - From version 13 on topics are named by id (KIP-516): nothing is written to a later topic of the same name; an id of nothing
//!   is answered UNKNOWN_TOPIC_ID.
//! - From version 10 on who came to the wrong broker is told of the leader (KIP-951).
//! - Topics are not created here; clients have that done by Metadata.

use super::leaders::Hints;
use super::partitions::Named;
use super::verification::{self, Batch};
use super::{batches, partitions, RequestContext};
use crate::storage::{Acks, AppendError, AppendRequest, Appended, Partition, Ticket};
use bytes::Bytes;
use futures::future::join_all;
use futures::FutureExt;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// How long a produce waits for partitions that are opening; then they answer NOT_LEADER_OR_FOLLOWER, which clients
/// try again.
const OPENING_PATIENCE: Duration = Duration::from_secs(2);

/// Versions below this may not carry zstd (KIP-110).
const FIRST_WITH_ZSTD: i16 = 7;

/// The first version that names leaders and their addresses.
const FIRST_WITH_LEADERS: i16 = 10;

/// A request whose batches are queued, or in line.
pub struct Pending {
    cx: RequestContext,
    topics: Vec<Topic>,
    deadline: Deadline,
}

struct Topic {
    name: TopicName,
    id: Uuid,
    rows: Vec<Row>,
}

struct Row {
    index: i32,
    started: Result<Place, Refusal>,
}

/// Why a partition's records were not taken.
pub(super) struct Refusal {
    code: ResponseError,
    message: Option<String>,
}

impl Refusal {
    pub(super) fn new(code: ResponseError, message: impl Into<String>) -> Self {
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
    let txn_id: Option<Arc<str>> = req.transactional_id.as_ref().map(|id| Arc::from(id.as_str()));
    let txn_id = &txn_id;
    let topics = join_all(req.topic_data.into_iter().map(|topic| async move {
        let (name, id) = (topic.name, topic.topic_id);
        let rows = topic.partition_data.into_iter().map(|p| {
            let terms = terms.map(|acks| Terms { acks, txn_id: txn_id.clone() });
            start_one(cx, Named::in_version(cx.api_version, &name, id), p, terms)
        });
        let rows = join_all(rows).await;
        Topic { name, id, rows }
    }));
    Pending { topics: topics.await, cx: cx.clone(), deadline }
}

/// What holds for the whole request.
struct Terms {
    acks: Acks,
    txn_id: Option<Arc<str>>,
}

/// The request's `acks`, or why nothing of it is taken.
fn terms(req: &ProduceRequest) -> Result<Acks, ResponseError> {
    let all = req.topic_data.iter().flat_map(|t| &t.partition_data).filter_map(|p| p.records.as_ref());
    let mut producers = all.filter_map(|records| batches::transactional(records)).map(|b| b.producer);
    if let Some(first) = producers.next() {
        if req.transactional_id.is_none() {
            // As Kafka.
            return Err(ResponseError::TransactionalIdAuthorizationFailed);
        }
        if producers.any(|p| p != first) {
            return Err(ResponseError::InvalidProducerIdMapping);
        }
    }
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
    topic: Named<'_>,
    data: PartitionProduceData,
    terms: Result<Terms, ResponseError>,
) -> Row {
    let started = async {
        let partition = partitions::find_named(cx, &topic, data.index)?;
        let Terms { acks, txn_id } = terms?;
        let records = check_records(cx.api_version, data.records)?;
        let batch = batches::transactional(&records);
        let req = AppendRequest { records, acks };
        match txn_id.zip(batch) {
            None => {
                Place::take(async move { Ok(partition.start_append_soon(req, OPENING_PATIENCE).await?) })
                    .await
            }
            Some((txn_id, batch)) => {
                Place::take(in_transaction(cx.clone(), partition, txn_id, batch, req)).await
            }
        }
    };
    Row { index: data.index, started: started.await }
}

async fn in_transaction(
    cx: RequestContext,
    partition: Arc<Partition>,
    txn_id: Arc<str>,
    batch: Batch,
    req: AppendRequest,
) -> Result<Ticket, Refusal> {
    verification::append(&cx, &partition, &txn_id, batch, req, OPENING_PATIENCE).await
}

/// A batch's place in its partition's queue, or in the line for it.
enum Place {
    Queued(Ticket),
    /// The queue is full, the partition opens, or a transaction is to be confirmed. The task goes on whatever this connection
    /// is busy with, since others stand behind it, and even when it is closed: a client that wants no acknowledgement is gone by
    /// then. Not for longer than the watchdog's time.
    InLine(JoinHandle<Result<Ticket, Refusal>>),
}

impl Place {
    /// In the order of calls. Does not wait for room: the connection's later requests may be for partitions that have some.
    async fn take(
        append: impl Future<Output = Result<Ticket, Refusal>> + Send + 'static,
    ) -> Result<Place, Refusal> {
        let mut append = append.boxed();
        match futures::poll!(&mut append) {
            Poll::Ready(ticket) => Ok(Place::Queued(ticket?)),
            Poll::Pending => Ok(Place::InLine(tokio::spawn(append))),
        }
    }

    async fn wait(self) -> Result<Appended, Refusal> {
        let ticket = match self {
            Place::Queued(ticket) => ticket,
            // A task that ended in a panic has said so elsewhere.
            Place::InLine(task) => task.await.unwrap_or_else(|_| Err(AppendError::NotLeader.into()))?,
        };
        Ok(ticket.wait().await?)
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
        let topics = join_all(self.topics.into_iter().map(|topic| async move {
            let rows = join_all(topic.rows.into_iter().map(|row| finish_one(row, deadline))).await;
            TopicProduceResponse::default()
                .with_name(topic.name)
                .with_topic_id(topic.id)
                .with_partition_responses(rows)
        }));
        hinted(&self.cx, topics.await)
    }
}

/// The response with the leader of each partition that is led elsewhere, in versions that have it.
fn hinted(cx: &RequestContext, mut topics: Vec<TopicProduceResponse>) -> ProduceResponse {
    let mut hints = Hints::new(cx);
    let is_moved = |row: &&mut PartitionProduceResponse| {
        cx.api_version >= FIRST_WITH_LEADERS && row.error_code == ResponseError::NotLeaderOrFollower.code()
    };
    for topic in &mut topics {
        let named = Named::in_version(cx.api_version, &topic.name, topic.topic_id);
        for row in topic.partition_responses.iter_mut().filter(is_moved) {
            if let Some((id, epoch)) = hints.leader(&named, row.index) {
                row.current_leader = LeaderIdAndEpoch::default().with_leader_id(id).with_leader_epoch(epoch);
            }
        }
    }
    let endpoints = hints.endpoints().map(|m| {
        NodeEndpoint::default().with_node_id(m.id).with_host(m.host).with_port(m.port).with_rack(None)
    });
    ProduceResponse::default().with_responses(topics).with_node_endpoints(endpoints.collect())
}

async fn finish_one(row: Row, deadline: &Deadline) -> PartitionProduceResponse {
    let done = match row.started {
        Ok(place) => deadline.bound(place.wait()).await,
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

    async fn bound<T>(&self, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        match self.at {
            None => work.await,
            Some(at) => {
                let left = at.saturating_sub(self.clock.boot());
                tokio::time::timeout(left, work).await.unwrap_or_else(|_| Err(AppendError::TimedOut.into()))
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
