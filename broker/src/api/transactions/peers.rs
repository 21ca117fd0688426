//! One request to another broker, over a connection of its own.
//!
//! A connection per request costs a round trip more than keeping them. What is asked between brokers is one verification
//! per transaction and partition and one marker each, beside several syncs, and there is no state to go stale.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use kafka_protocol::ResponseError;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Largest answer that is read.
const MAX_ANSWER: usize = 1 << 20;

/// # Errors
/// NETWORK_EXCEPTION if there is no answer, whatever the reason: it may have been done.
pub async fn call<Q, A>(
    address: (&str, u16),
    key: ApiKey,
    version: i16,
    request: &Q,
) -> Result<A, ResponseError>
where
    Q: Encodable + HeaderVersion,
    A: Decodable + HeaderVersion,
{
    let frame = encode(key, version, request).ok_or(ResponseError::InvalidRequest)?;
    let answer = timeout(PATIENCE, exchange(address, frame)).await;
    let answer = answer.map_err(|_| ResponseError::NetworkException)?;
    let mut answer = answer.map_err(|error| {
        tracing::debug!(host = address.0, port = address.1, ?key, %error, "no answer from a broker");
        ResponseError::NetworkException
    })?;
    ResponseHeader::decode(&mut answer, A::header_version(version))
        .ok()
        .and_then(|_| A::decode(&mut answer, version).ok())
        .ok_or(ResponseError::NetworkException)
}

fn encode<Q: Encodable + HeaderVersion>(key: ApiKey, version: i16, request: &Q) -> Option<Bytes> {
    let header = RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_client_id(Some(StrBytes::from_static_str("highwater")));
    let mut body = BytesMut::new();
    header.encode(&mut body, Q::header_version(version)).ok()?;
    request.encode(&mut body, version).ok()?;
    let mut frame = BytesMut::with_capacity(4 + body.len());
    frame.put_i32(i32::try_from(body.len()).ok()?);
    frame.put(body);
    Some(frame.freeze())
}

async fn exchange(address: (&str, u16), frame: Bytes) -> std::io::Result<Bytes> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&frame).await?;
    stream.flush().await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let length = usize::try_from((&head[..]).get_i32()).unwrap_or(usize::MAX);
    if length > MAX_ANSWER {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer.into())
}
