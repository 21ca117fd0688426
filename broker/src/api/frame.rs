//! Responses as they go over the wire.

use super::dispatch::Hangup;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::{Encodable, HeaderVersion};

/// What a request gets.
#[derive(Debug)]
pub enum Answer {
    /// A response frame, its length prefix included, in pieces to be written one after another.
    Frame(Vec<Bytes>),
    /// Nothing: produce with `acks=0`.
    Silence,
}

impl Answer {
    /// Bytes that go over the wire.
    pub(super) fn len(&self) -> usize {
        match self {
            Answer::Frame(pieces) => pieces.iter().map(Bytes::len).sum(),
            Answer::Silence => 0,
        }
    }
}

/// Encodes a response frame. The header's version follows the request's (KIP-511 keeps that of
/// ApiVersions at 0), and an encoding error closes the connection: the client could not read on.
pub(super) fn encode<R: Encodable + HeaderVersion>(
    correlation_id: i32,
    version: i16,
    response: &R,
) -> Result<Answer, Hangup> {
    let failed = |e| Hangup::new(format!("the response cannot be encoded: {e}"));
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    let header_version = R::header_version(version);
    let size = header.compute_size(header_version).map_err(failed)?
        + response.compute_size(version).map_err(failed)?;
    let announced =
        i32::try_from(size).map_err(|_| Hangup::new(format!("the response would have {size} bytes")))?;
    let mut buf = BytesMut::with_capacity(4 + size);
    buf.put_i32(announced);
    header.encode(&mut buf, header_version).map_err(failed)?;
    response.encode(&mut buf, version).map_err(failed)?;
    debug_assert_eq!(buf.len(), 4 + size);
    Ok(Answer::Frame(vec![buf.freeze()]))
}

/// A body that was encoded by hand, behind a version-0 response header.
pub(super) fn with_header_v0(correlation_id: i32, body: Bytes) -> Result<Answer, Hangup> {
    let mut head = BytesMut::with_capacity(8);
    let size = i32::try_from(4 + body.len()).map_err(|_| Hangup::new("the response would be too long"))?;
    head.put_i32(size);
    head.put_i32(correlation_id);
    Ok(Answer::Frame(vec![head.freeze(), body]))
}
