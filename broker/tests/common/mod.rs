//! A broker in this process, and a small client that speaks the wire by hand: it sends what it is told, in the
//! version it is told, and shows frames as they come.

#![allow(dead_code)]

pub mod pair;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use highwater::config::BrokerConfig;
use highwater::metrics::Metrics;
use highwater::rt::{Env, OsClock, OsEntropy, SoloHost};
use highwater::server::Node;
use highwater::volume::MemVolume;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, FetchRequest, FetchResponse, ProduceRequest, RequestHeader, ResponseHeader,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A broker on an in-memory volume, on a port of its own.
pub struct TestBroker {
    pub node: Node,
    pub volume: MemVolume,
    pub metrics: Arc<Metrics>,
}

impl TestBroker {
    pub async fn start(configure: impl FnOnce(&mut BrokerConfig)) -> TestBroker {
        TestBroker::start_on(MemVolume::new(), configure).await
    }

    pub async fn start_on(volume: MemVolume, configure: impl FnOnce(&mut BrokerConfig)) -> TestBroker {
        let mut config = BrokerConfig { listen: "127.0.0.1:0".into(), ..BrokerConfig::default() };
        configure(&mut config);
        let env = Env {
            volume: Arc::new(volume.clone()),
            clock: Arc::new(OsClock),
            entropy: Arc::new(OsEntropy),
            host: Arc::new(SoloHost { name: "test".into(), boot: "boot".into() }),
        };
        let metrics = Arc::new(Metrics::default());
        let node = Node::start(env, Arc::new(config), metrics.clone()).await.expect("the broker starts");
        TestBroker { node, volume, metrics }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.node.local_addr()).await
    }
}

/// One connection.
pub struct Client {
    pub stream: TcpStream,
    correlation_id: i32,
    inbound: BytesMut,
}

impl Client {
    pub async fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).await.expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        Client { stream, correlation_id: 0, inbound: BytesMut::new() }
    }

    /// Sends a request and waits for its response.
    pub async fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let id = self.send(version, request).await;
        self.receive::<R>(version, id).await
    }

    /// Sends a request and returns its correlation id.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.correlation_id += 1;
        let frame = request_frame(version, self.correlation_id, request);
        self.send_bytes(&frame).await;
        self.correlation_id
    }

    /// The next response, which must be that of `correlation_id`, decoded to its last byte.
    pub async fn receive<R: Request>(&mut self, version: i16, correlation_id: i32) -> R::Response {
        let mut frame = self.frame().await.expect("a response, but the connection was closed");
        let header =
            ResponseHeader::decode(&mut frame, R::Response::header_version(version)).expect("header");
        assert_eq!(header.correlation_id, correlation_id, "responses come in the order of the requests");
        let response = R::Response::decode(&mut frame, version).expect("response");
        assert_eq!(frame.len(), 0, "bytes are left over");
        response
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("write");
        // A simulated connection sends only when flushed.
        self.stream.flush().await.expect("flush");
    }

    /// The next frame without its length; `None` once the broker has closed the connection.
    pub async fn frame(&mut self) -> Option<Bytes> {
        tokio::time::timeout(PATIENCE, self.next_frame()).await.expect("the broker answers or closes in time")
    }

    async fn next_frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(prefix) = self.inbound.first_chunk::<4>() {
                let size = i32::from_be_bytes(*prefix) as usize;
                if self.inbound.len() >= 4 + size {
                    self.inbound.advance(4);
                    return Some(self.inbound.split_to(size).freeze());
                }
            }
            match self.stream.read_buf(&mut self.inbound).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub async fn create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let configs = configs.iter().map(|(k, v)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_string(k.to_string()))
                .with_value(Some(StrBytes::from_string(v.to_string())))
        });
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = self.call(7, &request).await;
        assert_eq!(response.topics[0].error_code, 0, "create {name}: {:?}", response.topics[0].error_message);
    }

    /// Produces one batch to one partition and returns that partition's row.
    pub async fn produce(&mut self, topic: &str, partition: i32, records: Bytes) -> PartitionProduceResponse {
        let response = self.call(9, &produce_request(topic, partition, -1, records)).await;
        response.responses[0].partition_responses[0].clone()
    }

    pub async fn fetch(&mut self, version: i16, request: &FetchRequest) -> FetchResponse {
        self.call(version, request).await
    }
}

/// The length, the header in the version that belongs to the request's, and the body.
pub fn request_frame<R: Request>(version: i16, correlation_id: i32, request: &R) -> Bytes {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(StrBytes::from_static_str("test")));
    let mut b = BytesMut::new();
    b.put_i32(0);
    let key = ApiKey::try_from(R::KEY).expect("a key");
    header.encode(&mut b, key.request_header_version(version)).expect("header");
    request.encode(&mut b, version).expect("request");
    let size = b.len() as i32 - 4;
    b[..4].copy_from_slice(&size.to_be_bytes());
    b.freeze()
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

pub fn produce_request(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(records));
    ProduceRequest::default().with_acks(acks).with_timeout_ms(10_000).with_topic_data(vec![
        TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data]),
    ])
}

/// Asks for one partition from `offset` on, without waiting.
pub fn fetch_request(topic: &str, partition: i32, offset: i64) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1 << 20);
    FetchRequest::default()
        .with_max_bytes(10 << 20)
        .with_min_bytes(1)
        .with_topics(vec![FetchTopic::default()
            .with_topic(topic_name(topic))
            .with_partitions(vec![partition])])
}

/// The first partition's row.
pub fn row(response: &FetchResponse) -> &PartitionData {
    &response.responses[0].partitions[0]
}

/// A record batch (magic 2) of one record per value, with offsets from 0, created at `timestamp`.
pub fn batch_at(timestamp: i64, values: &[&str]) -> Bytes {
    let mut records = BytesMut::new();
    for (i, value) in values.iter().enumerate() {
        let mut r = BytesMut::new();
        r.put_u8(0);
        varint(&mut r, 0);
        varint(&mut r, i as i64);
        varint(&mut r, -1);
        varint(&mut r, value.len() as i64);
        r.put_slice(value.as_bytes());
        varint(&mut r, 0);
        varint(&mut records, r.len() as i64);
        records.put_slice(&r);
    }
    batch_of(timestamp, values.len() as i32, 0, &records)
}

pub fn batch(values: &[&str]) -> Bytes {
    batch_at(1_700_000_000_000, values)
}

/// A batch whose records are `payload`, taken as they are; `attributes` names the compression.
pub fn batch_of(timestamp: i64, count: i32, attributes: i16, payload: &[u8]) -> Bytes {
    let mut after_crc = BytesMut::new();
    after_crc.put_i16(attributes);
    after_crc.put_i32(count - 1);
    after_crc.put_i64(timestamp);
    after_crc.put_i64(timestamp);
    after_crc.put_i64(-1);
    after_crc.put_i16(-1);
    after_crc.put_i32(-1);
    after_crc.put_i32(count);
    after_crc.put_slice(payload);
    let mut b = BytesMut::new();
    b.put_i64(0);
    b.put_i32(4 + 1 + 4 + after_crc.len() as i32);
    b.put_i32(-1);
    b.put_i8(2);
    b.put_u32(crc32c::crc32c(&after_crc));
    b.put_slice(&after_crc);
    b.freeze()
}

/// Zigzag, as records have it.
fn varint(b: &mut BytesMut, n: i64) {
    let mut n = ((n << 1) ^ (n >> 63)) as u64;
    while n >= 0x80 {
        b.put_u8(n as u8 | 0x80);
        n >>= 7;
    }
    b.put_u8(n as u8);
}

/// The base offset of each batch in `records`.
pub fn base_offsets(mut records: &[u8]) -> Vec<i64> {
    let mut offsets = Vec::new();
    while records.len() >= 12 {
        offsets.push(i64::from_be_bytes(records[..8].try_into().unwrap()));
        let length = i32::from_be_bytes(records[8..12].try_into().unwrap()) as usize;
        records = &records[12 + length..];
    }
    assert!(records.is_empty(), "whole batches only");
    offsets
}
