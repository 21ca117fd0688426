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

/// A body that was encoded here and not by the library, behind a response header of version 0 or 1.
pub(super) fn with_header(
    correlation_id: i32,
    header_version: i16,
    body: Vec<Bytes>,
) -> Result<Answer, Hangup> {
    let size = 4 + usize::from(header_version >= 1) + body.iter().map(Bytes::len).sum::<usize>();
    let announced =
        i32::try_from(size).map_err(|_| Hangup::new(format!("the response would have {size} bytes")))?;
    let mut head = BytesMut::with_capacity(9);
    head.put_i32(announced);
    head.put_i32(correlation_id);
    if header_version >= 1 {
        // No tagged fields.
        head.put_u8(0);
    }
    let mut pieces = Vec::with_capacity(1 + body.len());
    pieces.push(head.freeze());
    pieces.extend(body);
    Ok(Answer::Frame(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::{
        ApiVersionsResponse, DescribeClusterResponse, FetchResponse, HeartbeatResponse,
    };

    fn bytes(answer: Result<Answer, Hangup>) -> Vec<u8> {
        match answer {
            Ok(Answer::Frame(pieces)) => pieces.concat(),
            other => panic!("{other:?}"),
        }
    }

    /// Kafka's protocol guide: Response Header v0 is the correlation id; v1 adds tagged fields.
    #[test]
    fn response_headers_follow_the_requests_version_exactly() {
        let heartbeat = HeartbeatResponse::default().with_error_code(27);
        let v0 = [0, 0, 0, 6, 1, 2, 3, 4, 0, 27];
        let v3 = [0, 0, 0, 10, 1, 2, 3, 4, 0, 0, 0, 0, 0, 27];
        let v4 = [0, 0, 0, 12, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 27, 0];
        assert_eq!(bytes(encode(0x01020304, 0, &heartbeat)), v0);
        assert_eq!(bytes(encode(0x01020304, 3, &heartbeat)), v3);
        assert_eq!(bytes(encode(0x01020304, 4, &heartbeat)), v4);
    }

    /// KIP-511: a client that does not know the versions yet must be able to read it.
    #[test]
    fn api_versions_has_header_version_0_for_ever() {
        let body = ApiVersionsResponse::default().with_error_code(35);
        let v0 = [0, 0, 0, 10, 0, 0, 0, 9, 0, 35, 0, 0, 0, 0];
        let v3 = [0, 0, 0, 12, 0, 0, 0, 9, 0, 35, 1, 0, 0, 0, 0, 0];
        assert_eq!(bytes(encode(9, 0, &body)), v0);
        // Default-valued tagged fields are left out: the count of tagged fields is 0.
        assert_eq!(bytes(encode(9, 3, &body)), v3);
    }

    #[test]
    fn a_body_of_our_own_gets_the_same_header() {
        for version in 4..=12 {
            let response = FetchResponse::default();
            let library = bytes(encode(5, version, &response));
            let body = crate::api::fetch::encode::pieces(version, response).unwrap();
            assert_eq!(bytes(with_header(5, FetchResponse::header_version(version), body)), library);
        }
        let always_flexible = bytes(encode(5, 0, &DescribeClusterResponse::default()));
        assert_eq!(always_flexible[8], 0, "header version 1 from the API's version 0 on");
    }
}
