//! Kafka's wire as the bench speaks it: requests are encoded before a run starts, and what a run reads of a
//! response lies at places that its (non-flexible) version fixes, so that the client costs little.

use anyhow::{bail, ensure, Context, Result};
use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::{
    create_topics_request::CreatableTopic,
    fetch_request::{FetchPartition, FetchTopic},
    list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
    metadata_request::MetadataRequestTopic,
    produce_request::{PartitionProduceData, TopicProduceData},
    CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, FindCoordinatorRequest, ListOffsetsRequest,
    MetadataRequest, MetadataResponse, ProduceRequest, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use kafka_protocol::records::{Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

pub const PRODUCE_VERSION: i16 = 7;
pub const FETCH_VERSION: i16 = 11;
const LIST_OFFSETS_VERSION: i16 = 4;
const CREATE_TOPICS_VERSION: i16 = 5;
const DELETE_TOPICS_VERSION: i16 = 4;
const METADATA_VERSION: i16 = 4;
const FIND_COORDINATOR_VERSION: i16 = 4;

/// The longest answer that is read: a bound for what a wrong length can make the bench allocate.
const ANSWER_LIMIT: usize = 256 << 20;

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_string()))
}

/// A request with its length prefix and header.
pub fn frame<R: Request>(version: i16, body: &R) -> Result<Vec<u8>> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(7)
        .with_client_id(Some(StrBytes::from_static_str("highwater-bench")));
    let mut buf = BytesMut::new();
    header.encode(&mut buf, R::header_version(version))?;
    body.encode(&mut buf, version)?;
    let mut out = Vec::with_capacity(buf.len() + 4);
    out.extend_from_slice(&u32::try_from(buf.len())?.to_be_bytes());
    out.extend_from_slice(&buf);
    Ok(out)
}

/// A batch of `records` records which has `size` bytes in all, as near as a record's overhead allows.
pub fn batch(records: usize, size: usize) -> Result<Bytes> {
    let per_record = (size.saturating_sub(61) / records).saturating_sub(10);
    let value = Bytes::from(crate::raw::noise(per_record.max(1)));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as i64;
    let records: Vec<Record> = (0..records as i64)
        .map(|i| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: -1,
            producer_id: -1,
            producer_epoch: -1,
            timestamp_type: TimestampType::Creation,
            offset: i,
            // One below the offset, so that the batch's base sequence is -1: no sequence.
            sequence: i as i32 - 1,
            timestamp: now,
            key: None,
            value: Some(value.clone()),
            headers: Default::default(),
        })
        .collect();
    let mut out = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut out, &records, &options)?;
    Ok(out.freeze())
}

/// A produce request, acks=all, with one batch for each partition named.
pub fn produce(topic: &str, partitions: impl IntoIterator<Item = i32>, records: &Bytes) -> Result<Vec<u8>> {
    let data = partitions
        .into_iter()
        .map(|p| PartitionProduceData::default().with_index(p).with_records(Some(records.clone())))
        .collect();
    let topic = TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(data);
    let body = ProduceRequest::default().with_acks(-1).with_timeout_ms(30_000).with_topic_data(vec![topic]);
    frame(PRODUCE_VERSION, &body)
}

/// A fetch without a session; one offset for each partition from 0 on.
pub fn fetch(
    topic: &str,
    first: i32,
    offsets: &[i64],
    max_wait_ms: i32,
    partition_max: i32,
) -> Result<Vec<u8>> {
    let parts = offsets
        .iter()
        .zip(first..)
        .map(|(&offset, p)| {
            FetchPartition::default()
                .with_partition(p)
                .with_current_leader_epoch(-1)
                .with_fetch_offset(offset)
                .with_log_start_offset(-1)
                .with_partition_max_bytes(partition_max)
        })
        .collect();
    let body = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(vec![FetchTopic::default().with_topic(topic_name(topic)).with_partitions(parts)]);
    frame(FETCH_VERSION, &body)
}

/// A fetch of one partition by a reader of what is committed.
pub fn fetch_committed(
    topic: &str,
    partition: i32,
    offset: i64,
    max_wait_ms: i32,
    partition_max: i32,
) -> Result<Vec<u8>> {
    let part = FetchPartition::default()
        .with_partition(partition)
        .with_current_leader_epoch(-1)
        .with_fetch_offset(offset)
        .with_log_start_offset(-1)
        .with_partition_max_bytes(partition_max);
    let body = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_isolation_level(1)
        .with_session_epoch(-1)
        .with_topics(vec![FetchTopic::default().with_topic(topic_name(topic)).with_partitions(vec![part])]);
    frame(FETCH_VERSION, &body)
}

/// Where a response is read from, front to back.
pub trait Source {
    /// The next `n` bytes, few of them.
    fn pull(&mut self, n: usize) -> Result<&[u8]>;

    fn skip(&mut self, n: usize) -> Result<()>;

    fn i16(&mut self) -> Result<i16> {
        Ok(self.pull(2)?.get_i16())
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(self.pull(4)?.get_i32())
    }

    fn skip_string(&mut self) -> Result<()> {
        let n = self.i16()?;
        self.skip(usize::try_from(n).unwrap_or(0))
    }
}

impl Source for &[u8] {
    fn pull(&mut self, n: usize) -> Result<&[u8]> {
        ensure!(self.len() >= n, "a response ends early");
        let (head, tail) = self.split_at(n);
        *self = tail;
        Ok(head)
    }

    fn skip(&mut self, n: usize) -> Result<()> {
        self.pull(n).map(drop)
    }
}

/// A connection read through a small window, so that what is thrown away stays in the processor's cache, as it does
/// for the raw reader.
pub struct Stream {
    stream: TcpStream,
    window: Vec<u8>,
    at: usize,
    end: usize,
}

impl Stream {
    pub fn new(stream: TcpStream, window: usize) -> Self {
        Stream { stream, window: vec![0; window], at: 0, end: 0 }
    }

    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.stream.write_all(frame).context("sending to the broker")
    }

    fn fill(&mut self) -> Result<()> {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        } else if self.end == self.window.len() {
            self.window.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
        let n = self.stream.read(&mut self.window[self.end..])?;
        ensure!(n > 0, "the broker closed the connection");
        self.end += n;
        Ok(())
    }
}

impl Source for Stream {
    fn pull(&mut self, n: usize) -> Result<&[u8]> {
        while self.end - self.at < n {
            self.fill()?;
        }
        self.at += n;
        Ok(&self.window[self.at - n..self.at])
    }

    fn skip(&mut self, mut n: usize) -> Result<()> {
        loop {
            let here = n.min(self.end - self.at);
            self.at += here;
            n -= here;
            if n == 0 {
                return Ok(());
            }
            self.fill()?;
        }
    }
}

/// Walks a produce response (version 7): calls `each` with every partition and its error code.
pub fn walk_produced(mut body: &[u8], mut each: impl FnMut(i32, i16) -> Result<()>) -> Result<()> {
    body.i32()?;
    for _ in 0..body.i32()? {
        body.skip_string()?;
        for _ in 0..body.i32()? {
            let partition = body.i32()?;
            each(partition, body.i16()?)?;
            body.skip(24)?;
        }
    }
    Ok(())
}

/// How many partitions a produce response acknowledges; an error if one was refused.
pub fn check_produced(body: &[u8]) -> Result<usize> {
    let mut acked = 0;
    walk_produced(body, |partition, error| {
        ensure!(error == 0, "produce to partition {partition} was refused with error {error}");
        acked += 1;
        Ok(())
    })?;
    Ok(acked)
}

/// What a fetch brought from one partition.
pub struct Fetched {
    pub partition: i32,
    pub bytes: usize,
    /// The offset to fetch next, if whole batches came.
    pub next: Option<i64>,
}

/// Walks a fetch response (version 11, without its length) from batch header to batch header; the records stay
/// closed.
pub fn walk_fetched(from: &mut impl Source, mut each: impl FnMut(Fetched)) -> Result<()> {
    from.skip(8)?;
    let error = from.i16()?;
    ensure!(error == 0, "fetch was refused with error {error}");
    from.skip(4)?;
    for _ in 0..from.i32()? {
        from.skip_string()?;
        for _ in 0..from.i32()? {
            let partition = from.i32()?;
            let error = from.i16()?;
            ensure!(error == 0, "fetch of partition {partition} was refused with error {error}");
            from.skip(24)?;
            for _ in 0..from.i32()?.max(0) {
                from.skip(16)?;
            }
            from.skip(4)?;
            let bytes = usize::try_from(from.i32()?).unwrap_or(0);
            each(Fetched { partition, bytes, next: after_last_batch(from, bytes)? });
        }
    }
    Ok(())
}

/// Passes over `left` bytes of batches; the offset that follows the last whole one.
fn after_last_batch(from: &mut impl Source, mut left: usize) -> Result<Option<i64>> {
    const HEAD: usize = 61;
    let mut next = None;
    while left >= HEAD {
        let head = from.pull(HEAD)?;
        let base = (&head[0..8]).get_i64();
        let len = 12 + usize::try_from((&head[8..12]).get_i32()).context("a batch of negative length")?;
        let last = i64::from((&head[23..27]).get_i32());
        left -= HEAD;
        let Some(rest) = len.checked_sub(HEAD).filter(|rest| *rest <= left) else { break };
        from.skip(rest)?;
        left -= rest;
        next = Some(base + last + 1);
    }
    from.skip(left)?;
    Ok(next)
}

/// Reads one response, without its length, into `buf`.
pub fn read_answer(stream: &mut TcpStream, buf: &mut Vec<u8>) -> Result<usize> {
    let mut len = [0u8; 4];
    stream.read_exact(&mut len).context("the broker closed the connection")?;
    let len = u32::from_be_bytes(len) as usize;
    ensure!(len <= ANSWER_LIMIT, "a response claims {len} bytes");
    if buf.len() < len {
        buf.resize(len, 0);
    }
    stream.read_exact(&mut buf[..len]).context("the broker closed the connection")?;
    Ok(len)
}

/// A blocking connection for what is not measured.
pub struct Client {
    stream: TcpStream,
    buf: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        Self::connect_within(addr, Duration::from_secs(5), Duration::from_secs(120))
    }

    /// A connection that is given up if it cannot be made, or an answer does not come, in time.
    pub fn connect_within(addr: SocketAddr, connect: Duration, answer: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, connect)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(answer))?;
        Ok(Client { stream, buf: Vec::new() })
    }

    /// Sends a ready frame and does not wait for the answer.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.stream.write_all(frame).context("sending to the broker")
    }

    /// Whether an answer, or the connection's end, comes within `time`.
    pub fn has_answer(&self, time: Duration) -> Result<bool> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec::try_from(time)?))? > 0)
    }

    /// The next response without its length.
    pub fn receive(&mut self) -> Result<&[u8]> {
        let len = read_answer(&mut self.stream, &mut self.buf)?;
        Ok(&self.buf[..len])
    }

    /// Sends a ready frame and returns the response without its length.
    pub fn exchange(&mut self, frame: &[u8]) -> Result<&[u8]> {
        self.send(frame)?;
        self.receive()
    }

    pub fn call<R: Request>(&mut self, version: i16, body: &R) -> Result<R::Response> {
        let out = frame(version, body)?;
        let mut answer = Bytes::copy_from_slice(self.exchange(&out)?);
        ResponseHeader::decode(&mut answer, R::Response::header_version(version))?;
        R::Response::decode(&mut answer, version)
    }

    /// Creates a topic, and waits until this broker leads each of its partitions.
    pub fn create_topic(&mut self, name: &str, partitions: i32) -> Result<()> {
        self.request_topic(name, partitions)?;
        self.await_open(name, partitions, Duration::from_secs(120))
    }

    /// Creates a topic, whoever is to lead its partitions.
    pub fn request_topic(&mut self, name: &str, partitions: i32) -> Result<()> {
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        let req = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(60_000);
        let answer = self.call(CREATE_TOPICS_VERSION, &req)?;
        for t in answer.topics {
            ensure!(t.error_code == 0, "topic {name} was refused with error {}", t.error_code);
        }
        Ok(())
    }

    /// The brokers that coordinate groups of these names, by this broker's picture.
    pub fn coordinators(&mut self, groups: impl IntoIterator<Item = String>) -> Result<BTreeSet<i32>> {
        let keys = groups.into_iter().map(StrBytes::from_string).collect();
        let req = FindCoordinatorRequest::default().with_coordinator_keys(keys);
        let found = self.call(FIND_COORDINATOR_VERSION, &req)?.coordinators;
        Ok(found.into_iter().filter(|c| c.error_code == 0).map(|c| c.node_id.0).collect())
    }

    /// What this broker knows of the cluster and of one topic.
    pub fn metadata(&mut self, topic: &str) -> Result<MetadataResponse> {
        let topic = MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
        let req = MetadataRequest::default().with_topics(Some(vec![topic]));
        self.call(METADATA_VERSION, &req)
    }

    pub fn delete_topic(&mut self, name: &str) -> Result<()> {
        let req =
            DeleteTopicsRequest::default().with_topic_names(vec![topic_name(name)]).with_timeout_ms(60_000);
        for t in self.call(DELETE_TOPICS_VERSION, &req)?.responses {
            ensure!(t.error_code == 0, "deleting topic {name} failed with error {}", t.error_code);
        }
        Ok(())
    }

    /// Asks for the end of every partition until the broker answers for all: then all are open.
    pub fn await_open(&mut self, topic: &str, partitions: i32, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let mut open = BTreeSet::new();
        loop {
            let missing: Vec<i32> = (0..partitions).filter(|p| !open.contains(p)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            let mut worst = 0;
            for (partition, error, _) in self.ends(topic, &missing)? {
                if error == 0 {
                    open.insert(partition);
                } else {
                    worst = error;
                }
            }
            if start.elapsed() > limit {
                bail!("{} partitions of {topic} are not open after {limit:?} (error {worst})", missing.len());
            }
            if open.len() < partitions as usize {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Partition, error and end offset, as ListOffsets gives them.
    pub fn ends(&mut self, topic: &str, partitions: &[i32]) -> Result<Vec<(i32, i16, i64)>> {
        let parts = partitions
            .iter()
            .map(|&p| {
                ListOffsetsPartition::default()
                    .with_partition_index(p)
                    .with_current_leader_epoch(-1)
                    .with_timestamp(-1)
            })
            .collect();
        let topic = ListOffsetsTopic::default().with_name(topic_name(topic)).with_partitions(parts);
        let req = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
        let answer = self.call(LIST_OFFSETS_VERSION, &req)?;
        let all = answer.topics.into_iter().flat_map(|t| t.partitions);
        Ok(all.map(|p| (p.partition_index, p.error_code, p.offset)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_as_large_as_asked_and_carries_no_sequence() {
        for (records, size) in [(1, 170), (1000, 1 << 20), (100, 16 << 10)] {
            let b = batch(records, size).unwrap();
            assert!(b.len() <= size && b.len() + 2 * records >= size, "{} of {size}", b.len());
            assert_eq!((&b[53..57]).get_i32(), -1, "base sequence");
            assert_eq!(after_last_batch(&mut &b[..], b.len()).unwrap(), Some(records as i64));
            let cut = [&b[..], &b[..], &b[..70]].concat();
            assert_eq!(after_last_batch(&mut &cut[..], cut.len()).unwrap(), Some(records as i64));
        }
    }

    #[test]
    fn a_refused_partition_is_an_error() {
        use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
        use kafka_protocol::messages::ProduceResponse;
        let answer = |error| {
            let parts = (0..3).map(|i| PartitionProduceResponse::default().with_index(i)).collect::<Vec<_>>();
            let mut parts = parts;
            parts[2].error_code = error;
            let t =
                TopicProduceResponse::default().with_name(topic_name("t")).with_partition_responses(parts);
            let mut buf = BytesMut::new();
            ResponseHeader::default().encode(&mut buf, 0).unwrap();
            ProduceResponse::default().with_responses(vec![t]).encode(&mut buf, PRODUCE_VERSION).unwrap();
            buf
        };
        assert_eq!(check_produced(&answer(0)).unwrap(), 3);
        assert!(check_produced(&answer(6)).is_err());
        assert!(check_produced(&answer(0)[..20]).is_err());
    }

    #[test]
    fn a_fetch_response_is_walked_partition_by_partition() {
        use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
        use kafka_protocol::messages::FetchResponse;
        let records = batch(5, 900).unwrap();
        let parts = vec![
            PartitionData::default().with_partition_index(3).with_records(Some(records.clone())),
            PartitionData::default().with_partition_index(4).with_records(Some(Bytes::new())),
        ];
        let t = FetchableTopicResponse::default().with_topic(topic_name("t")).with_partitions(parts);
        let mut buf = BytesMut::new();
        ResponseHeader::default().encode(&mut buf, 0).unwrap();
        FetchResponse::default().with_responses(vec![t]).encode(&mut buf, FETCH_VERSION).unwrap();
        let mut seen = Vec::new();
        walk_fetched(&mut &buf[..], |f| seen.push((f.partition, f.bytes, f.next))).unwrap();
        assert_eq!(seen, vec![(3, records.len(), Some(5)), (4, 0, None)]);
    }
}
