//! From a request frame to the work that answers it.
//!
//! [`begin`] reads the header, finds the API, refuses what is not served, decodes the body, and returns
//! the rest as a future. It is called in the order of a connection's requests, one after another, and
//! what must happen in that order (the start of a produce) has happened when it returns.
//!
//! As Kafka does, a request that cannot be answered closes the connection: an unknown API or version
//! (ApiVersions excepted, KIP-511), or a body that does not decode. Bytes left over after a body are
//! ignored, as Kafka ignores them. [`super::guard`] sees every request before the decoder does.

use super::first_error::FirstError;
use super::frame::{encode, Answer};
use super::served::Served;
use super::{api_versions, fetch, frame, guard, produce, Broker, RequestContext};
use bytes::Bytes;
use futures::future::BoxFuture;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the length before every frame.
const LENGTH_PREFIX: u64 = 4;

/// The connection is to be closed, and why. The server logs it in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Hangup(String);

impl Hangup {
    pub fn new(reason: impl Into<String>) -> Self {
        Hangup(reason.into())
    }
}

/// A future that gives the answer.
pub type Reply = BoxFuture<'static, Result<Answer, Hangup>>;

/// A request that was started.
pub struct Started {
    pub work: Work,
    /// Bytes that the request holds beside its frame.
    pub request_bytes: usize,
    /// Bytes that the response may have beyond a small one.
    pub response_bytes: usize,
}

impl Started {
    fn small(work: Work) -> Self {
        Started { work, request_bytes: 0, response_bytes: 0 }
    }
}

/// How the rest of a request is to be run.
pub enum Work {
    /// Beside the connection's other requests, in any order. Given up when the client goes away.
    Beside(Reply),
    /// After the connection's earlier requests of this kind ended. Once begun it goes on to its end even if the
    /// client goes away: a half-done change is worse than one that nobody waits for.
    InTurn(Reply),
    /// In turn as well, but all that it does after its first step is to wait for others, perhaps for hours. Given
    /// up when the client goes away.
    Waiting(Reply),
}

/// Who is on the other side of a connection.
#[derive(Clone)]
pub struct Peer {
    pub broker: Arc<Broker>,
    pub addr: SocketAddr,
}

/// One line per API: `Key, Request, versions => module;`, sorted by nothing but taste. The line serves
/// the API and lists it in ApiVersions.
macro_rules! served {
    ($($key:ident, $request:ident, $min:literal ..= $max:literal => $($module:ident)::+;)*) => {
        /// Everything that is served.
        pub const TABLE: &[Served] = &[
            Served { key: ApiKey::Produce, listed_min: 0, min: 3, max: 13 },
            Served { key: ApiKey::Fetch, listed_min: 4, min: 4, max: 17 },
            $(Served { key: ApiKey::$key, listed_min: $min, min: $min, max: $max },)*
        ];

        fn begin_in_turn(call: Call, key: ApiKey, body: Bytes) -> Result<Work, Hangup> {
            match key {
                $(ApiKey::$key => {
                    let request: $request = decode(body, call.cx.api_version)?;
                    let work: Reply = Box::pin(async move {
                        let response = super::$($module)::+::handle(&call.cx, request).await;
                        call.answer(&response)
                    });
                    Ok(match key {
                        ApiKey::JoinGroup | ApiKey::SyncGroup => Work::Waiting(work),
                        _ => Work::InTurn(work),
                    })
                })*
                _ => Err(Hangup::new(format!("API {key:?} is not served"))),
            }
        }

        /// Decodes a body and drops it; returns the number of bytes left over.
        fn probe_body(key: ApiKey, version: i16, body: Bytes) -> Result<usize, Hangup> {
            match key {
                ApiKey::Produce => probe_as::<ProduceRequest>(version, body),
                ApiKey::Fetch => probe_as::<FetchRequest>(version, body),
                $(ApiKey::$key => probe_as::<$request>(version, body),)*
                _ => Err(Hangup::new(format!("API {key:?} is not served"))),
            }
        }
    };
}

served! {
    ApiVersions, ApiVersionsRequest, 0..=4 => api_versions;
    ListOffsets, ListOffsetsRequest, 1..=8 => list_offsets;
    OffsetForLeaderEpoch, OffsetForLeaderEpochRequest, 2..=4 => offset_for_leader_epoch;
    Metadata, MetadataRequest, 0..=12 => metadata;
    CreateTopics, CreateTopicsRequest, 2..=7 => create_topics;
    DeleteTopics, DeleteTopicsRequest, 1..=6 => delete_topics;
    CreatePartitions, CreatePartitionsRequest, 0..=3 => create_partitions;
    DeleteRecords, DeleteRecordsRequest, 0..=2 => delete_records;
    DescribeConfigs, DescribeConfigsRequest, 1..=4 => describe_configs;
    AlterConfigs, AlterConfigsRequest, 0..=2 => alter_configs;
    IncrementalAlterConfigs, IncrementalAlterConfigsRequest, 0..=1 => incremental_alter_configs;
    InitProducerId, InitProducerIdRequest, 0..=5 => init_producer_id;
    FindCoordinator, FindCoordinatorRequest, 0..=5 => find_coordinator;
    AddPartitionsToTxn, AddPartitionsToTxnRequest, 0..=5 => transactions::add_partitions_to_txn;
    AddOffsetsToTxn, AddOffsetsToTxnRequest, 0..=4 => transactions::add_offsets_to_txn;
    EndTxn, EndTxnRequest, 0..=5 => transactions::end_txn;
    TxnOffsetCommit, TxnOffsetCommitRequest, 0..=5 => transactions::txn_offset_commit;
    WriteTxnMarkers, WriteTxnMarkersRequest, 1..=1 => transactions::write_txn_markers;
    DescribeTransactions, DescribeTransactionsRequest, 0..=0 => transactions::describe_transactions;
    ListTransactions, ListTransactionsRequest, 0..=1 => transactions::list_transactions;
    DescribeProducers, DescribeProducersRequest, 0..=0 => transactions::describe_producers;
    JoinGroup, JoinGroupRequest, 0..=9 => join_group;
    SyncGroup, SyncGroupRequest, 0..=5 => sync_group;
    Heartbeat, HeartbeatRequest, 0..=4 => heartbeat;
    LeaveGroup, LeaveGroupRequest, 0..=5 => leave_group;
    OffsetCommit, OffsetCommitRequest, 2..=9 => offset_commit;
    OffsetFetch, OffsetFetchRequest, 1..=9 => offset_fetch;
    DescribeGroups, DescribeGroupsRequest, 0..=6 => describe_groups;
    ListGroups, ListGroupsRequest, 0..=5 => list_groups;
    DeleteGroups, DeleteGroupsRequest, 0..=2 => delete_groups;
    OffsetDelete, OffsetDeleteRequest, 0..=0 => offset_delete;
    ConsumerGroupHeartbeat, ConsumerGroupHeartbeatRequest, 0..=1 => consumer_group_heartbeat;
    ConsumerGroupDescribe, ConsumerGroupDescribeRequest, 0..=0 => consumer_group_describe;
    DescribeLogDirs, DescribeLogDirsRequest, 1..=4 => describe_log_dirs;
    DescribeCluster, DescribeClusterRequest, 0..=1 => describe_cluster;
    ListPartitionReassignments, ListPartitionReassignmentsRequest, 0..=0 => list_partition_reassignments;
}

/// A request's context together with what its answer needs.
struct Call {
    cx: RequestContext,
    key: ApiKey,
    correlation_id: i32,
    /// When the request had arrived, on the broker's clock.
    arrived: Duration,
}

impl Call {
    fn answer<R: Encodable + HeaderVersion + FirstError>(&self, response: &R) -> Result<Answer, Hangup> {
        self.count(response);
        self.sent(encode(self.correlation_id, self.cx.api_version, response)?)
    }

    /// Its records, if large, are not copied.
    fn answer_fetch(&self, response: FetchResponse) -> Result<Answer, Hangup> {
        self.count(&response);
        let version = self.cx.api_version;
        let body = fetch::encode::pieces(version, response).map_err(|e| Hangup::new(e.to_string()))?;
        self.sent(frame::with_header(self.correlation_id, FetchResponse::header_version(version), body)?)
    }

    fn sent(&self, answer: Answer) -> Result<Answer, Hangup> {
        self.cx.broker.metrics.server.response_bytes.inc_by(answer.len() as u64);
        Ok(answer)
    }

    fn count(&self, response: &impl FirstError) {
        let broker = &self.cx.broker;
        let took = broker.env.clock.boot().saturating_sub(self.arrived);
        broker.metrics.server.answered(self.key, response.first_error(), took);
    }
}

/// Starts one request.
pub async fn begin(peer: &Peer, mut frame: Bytes) -> Result<Started, Hangup> {
    let arrived = peer.broker.env.clock.boot();
    peer.broker.metrics.server.request_bytes.inc_by(LENGTH_PREFIX + frame.len() as u64);
    let start = Start::peek(&frame)?;
    let Some(served) = TABLE.iter().find(|s| s.key as i16 == start.key) else {
        return Err(Hangup::new(format!("unknown API key {} version {}", start.key, start.version)));
    };
    if !served.has(start.version) {
        peer.broker.metrics.server.answered(
            served.key,
            ResponseError::UnsupportedVersion.code(),
            Duration::ZERO,
        );
        return refuse_version(served, &start, frame).map(Started::small);
    }
    let named =
        |e: &dyn std::fmt::Display| Hangup::new(format!("{:?} version {}: {e}", served.key, start.version));
    let header =
        decode_header(&mut frame, served.key.request_header_version(start.version)).map_err(|e| named(&e))?;
    let weight = guard::check_body(served.key, start.version, &frame).map_err(|e| named(&e))?;
    let cx = RequestContext {
        broker: peer.broker.clone(),
        api_version: start.version,
        client_id: header.client_id.map(|s| s.to_string()).unwrap_or_default(),
        client_host: peer.addr.ip(),
    };
    let call = Call { cx, key: served.key, correlation_id: start.correlation_id, arrived };
    let mut started = match served.key {
        ApiKey::Produce => begin_produce(call, frame).await,
        ApiKey::Fetch => begin_fetch(call, frame),
        key => begin_in_turn(call, key, frame).map(Started::small),
    }
    .map_err(|e| named(&e))?;
    started.request_bytes = weight.bytes();
    Ok(started)
}

/// Queues the batches now; the answer waits for them to be durable.
async fn begin_produce(call: Call, body: Bytes) -> Result<Started, Hangup> {
    let request: ProduceRequest = decode(body, call.cx.api_version)?;
    let wants_answer = request.acks != 0;
    let pending = produce::start(&call.cx, request).await;
    Ok(Started::small(Work::Beside(Box::pin(async move {
        let response = pending.finish().await;
        if wants_answer {
            return call.answer(&response);
        }
        call.count(&response);
        match response.first_error() {
            0 => Ok(Answer::Silence),
            // As Kafka: there is no other way to let an acks=0 producer know.
            code => Err(Hangup::new(format!("produce with acks=0 failed with error {code}"))),
        }
    }))))
}

fn begin_fetch(call: Call, body: Bytes) -> Result<Started, Hangup> {
    let request: FetchRequest = decode(body, call.cx.api_version)?;
    let response_bytes = fetch::max_bytes(&call.cx, &request);
    let work = Work::Beside(Box::pin(async move {
        let response = fetch::handle(&call.cx, request).await;
        call.answer_fetch(response)
    }));
    Ok(Started { work, request_bytes: 0, response_bytes })
}

/// The first eight bytes, which all header versions share.
struct Start {
    key: i16,
    version: i16,
    correlation_id: i32,
}

impl Start {
    fn peek(frame: &[u8]) -> Result<Start, Hangup> {
        match *frame {
            [k0, k1, v0, v1, c0, c1, c2, c3, ..] => Ok(Start {
                key: i16::from_be_bytes([k0, k1]),
                version: i16::from_be_bytes([v0, v1]),
                correlation_id: i32::from_be_bytes([c0, c1, c2, c3]),
            }),
            _ => Err(Hangup::new(format!("a request of {} bytes", frame.len()))),
        }
    }
}

/// A known API in a version that is not served.
fn refuse_version(served: &Served, start: &Start, mut frame: Bytes) -> Result<Work, Hangup> {
    match served.key {
        ApiKey::ApiVersions => {
            // KIP-511: a version-0 body that names what is supported, so that the client can try again.
            let answer = encode(start.correlation_id, 0, &api_versions::unsupported());
            Ok(Work::Beside(Box::pin(async move { answer })))
        }
        ApiKey::Produce if (0..=2).contains(&start.version) => {
            let malformed = || Hangup::new(format!("Produce version {}: malformed", start.version));
            decode_header(&mut frame, 1)?;
            let body = produce::ancient::refuse(start.version, frame).ok_or_else(malformed)?;
            let answer = frame::with_header(start.correlation_id, 0, vec![body.freeze()]);
            Ok(Work::Beside(Box::pin(async move { answer })))
        }
        key => Err(Hangup::new(format!("unsupported version {} of {key:?}", start.version))),
    }
}

/// What is done with a frame before anything is decided: guard, then decoder. It is what fuzzers and tests drive.
/// Returns the number of bytes left over behind the body.
pub fn probe(mut frame: Bytes) -> Result<usize, Hangup> {
    let start = Start::peek(&frame)?;
    let served = TABLE.iter().find(|s| s.key as i16 == start.key && s.has(start.version));
    let key = served.ok_or_else(|| Hangup::new("not served"))?.key;
    decode_header(&mut frame, key.request_header_version(start.version))?;
    guard::check_body(key, start.version, &frame).map_err(|e| Hangup::new(e.to_string()))?;
    probe_body(key, start.version, frame)
}

fn probe_as<R: Decodable>(version: i16, mut body: Bytes) -> Result<usize, Hangup> {
    R::decode(&mut body, version).map_err(|e| Hangup::new(e.to_string()))?;
    Ok(body.len())
}

fn decode_header(frame: &mut Bytes, version: i16) -> Result<RequestHeader, Hangup> {
    guard::check_header(frame, version).map_err(|e| Hangup::new(format!("header: {e}")))?;
    RequestHeader::decode(frame, version).map_err(|e| Hangup::new(format!("header: {e}")))
}

fn decode<R: Decodable>(mut body: Bytes, version: i16) -> Result<R, Hangup> {
    R::decode(&mut body, version).map_err(|e| Hangup::new(e.to_string()))
}
