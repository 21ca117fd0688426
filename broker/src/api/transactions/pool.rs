//! Connections to other brokers.
//!
//! A connection carries one request at a time: answers leave a broker in the order of its requests, and one that waits
//! for a stuck volume must not hold up the next. What is under way to one broker at a time is bounded, in several lanes by what
//! it is about: what piles up for a log that is stuck fills one of them. More waits. A request that is given up takes its connection with it. Every request may be repeated: one that fails on a kept connection,
//! which the other side may have closed meanwhile, is sent once more on a new one.

use crate::api::members;
use crate::rt;
use crate::types::BrokerId;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// The largest answer that is read.
const MAX_ANSWER: usize = 1 << 20;

/// Lanes to each broker.
const LANES: u32 = 16;
/// Requests under way in a lane at a time.
const AT_ONCE: usize = 32;
/// Connections of a lane that are kept for later.
const KEPT: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("broker {0} is not known to be anywhere")]
    Nowhere(BrokerId),
    #[error("broker {peer} at {address}: {source}")]
    Io { peer: BrokerId, address: String, source: io::Error },
    #[error("broker {peer} at {address}: {what}")]
    Answer { peer: BrokerId, address: String, what: String },
}

/// Connections to all brokers, for one kind of request.
pub struct Pool {
    client_id: StrBytes,
    lanes: Mutex<BTreeMap<(BrokerId, u32), Arc<Lane>>>,
}

struct Lane {
    room: Semaphore,
    kept: Mutex<Vec<Connection>>,
}

struct Connection {
    address: String,
    stream: TcpStream,
    correlation_id: i32,
}

impl Pool {
    pub fn new(me: BrokerId) -> Pool {
        let client_id = StrBytes::from_string(format!("highwater-{me}"));
        Pool { client_id, lanes: Mutex::default() }
    }

    /// Sends a request to a broker at `address` and waits for its answer, as long as the caller does. `about`: a hash of what it
    /// is about.
    pub async fn call<R: Request>(
        &self,
        (peer, address): (BrokerId, &str),
        about: u32,
        version: i16,
        request: &R,
    ) -> Result<R::Response, PeerError> {
        let io = |source| PeerError::Io { peer, address: address.to_owned(), source };
        let answer = |what| PeerError::Answer { peer, address: address.to_owned(), what };
        let lane = self.lane(peer, about);
        // It is never closed.
        let _room = lane.room.acquire().await;
        if let Some(mut kept) = lane.take(address) {
            if let Ok(frame) = kept.exchange(version, &self.client_id, request).await {
                let response = decode::<R>(frame, version, kept.correlation_id).map_err(answer)?;
                lane.keep(kept);
                return Ok(response);
            }
        }
        let mut fresh = Connection::open(address).await.map_err(io)?;
        let frame = fresh.exchange(version, &self.client_id, request).await.map_err(io)?;
        let response = decode::<R>(frame, version, fresh.correlation_id).map_err(answer)?;
        lane.keep(fresh);
        Ok(response)
    }

    fn lane(&self, peer: BrokerId, about: u32) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let lane = || Arc::new(Lane { room: Semaphore::new(AT_ONCE), kept: Mutex::default() });
        lanes.entry((peer, about % LANES)).or_insert_with(lane).clone()
    }
}

impl Lane {
    /// The connection that was used last. Those to where the broker was before are closed.
    fn take(&self, address: &str) -> Option<Connection> {
        let mut kept = self.kept.lock();
        kept.retain(|c| c.address == address);
        kept.pop()
    }

    fn keep(&self, connection: Connection) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT {
            kept.push(connection);
        }
    }
}

impl Connection {
    async fn open(address: &str) -> io::Result<Connection> {
        let parts = members::split(address).and_then(|(host, port)| Some((host, u16::try_from(port).ok()?)));
        let (host, port) = parts.ok_or_else(|| io::Error::other("not an address"))?;
        let stream = TcpStream::connect((host, port)).await?;
        rt::tune_connection(&stream)?;
        Ok(Connection { address: address.to_owned(), stream, correlation_id: 0 })
    }

    /// Sends a request and reads one frame.
    async fn exchange<R: Request>(
        &mut self,
        version: i16,
        client_id: &StrBytes,
        request: &R,
    ) -> io::Result<Bytes> {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let frame = frame(version, self.correlation_id, client_id, request).map_err(io::Error::other)?;
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_ANSWER {
            return Err(io::Error::other("the answer is too long"));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await?;
        Ok(answer.into())
    }
}

/// The length, the header in the version that belongs to the request's, and the body.
fn frame<R: Request>(
    version: i16,
    correlation_id: i32,
    client_id: &StrBytes,
    request: &R,
) -> Result<Bytes, String> {
    let key = ApiKey::try_from(R::KEY).map_err(|_| "no such API".to_owned())?;
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(client_id.clone()));
    let mut body = BytesMut::new();
    header.encode(&mut body, key.request_header_version(version)).map_err(|e| e.to_string())?;
    request.encode(&mut body, version).map_err(|e| e.to_string())?;
    let length = i32::try_from(body.len()).map_err(|e| e.to_string())?;
    let mut frame = BytesMut::with_capacity(4 + body.len());
    frame.put_i32(length);
    frame.put(body);
    Ok(frame.freeze())
}

fn decode<R: Request>(mut frame: Bytes, version: i16, correlation_id: i32) -> Result<R::Response, String> {
    let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version));
    let header = header.map_err(|e| e.to_string())?;
    if header.correlation_id != correlation_id {
        return Err("the answer is to another request".to_owned());
    }
    let response = R::Response::decode(&mut frame, version).map_err(|e| e.to_string())?;
    match frame.has_remaining() {
        true => Err("bytes are left over".to_owned()),
        false => Ok(response),
    }
}
