//! What a client sends, up to the point where a handler would take over: run by the fuzz target `decode` in
//! `broker/fuzz`, and over random input by the tests below.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // a test support: it fails by panicking

use super::framing::Inbound;
use crate::api::dispatch;
use bytes::{BufMut, BytesMut};

/// As `socket.request.max.bytes`, but near.
const MAX_FRAME: usize = 32 << 10;

/// Anything a client sends is a request or an error: it never panics, and never makes the broker hold much more than
/// arrived (which the fuzz target watches).
pub fn decode(data: &[u8]) {
    stream(data);
    body(data);
}

/// As a stream that comes in pieces.
fn stream(data: &[u8]) {
    let mut inbound = Inbound::new(MAX_FRAME);
    let mut taken = 0;
    for piece in data.chunks(97) {
        inbound.room().put_slice(piece);
        taken += piece.len();
        loop {
            match inbound.next_frame() {
                Ok(Some(frame)) => {
                    assert!(frame.len() <= MAX_FRAME && frame.len() + 4 <= taken);
                    taken -= frame.len() + 4;
                    let _ = dispatch::probe(frame);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert_eq!(inbound.len(), taken);
    }
}

/// As the body of some API that is served: the first byte chooses which, the second its version.
fn body(data: &[u8]) {
    let [api, version, body @ ..] = data else { return };
    let served = &dispatch::TABLE[usize::from(*api) % dispatch::TABLE.len()];
    let versions = served.max - served.min + 1;
    let version = served.min + i16::from(*version) % versions;
    let mut frame = BytesMut::new();
    frame.put_i16(served.key as i16);
    frame.put_i16(version);
    // Correlation id, no client id, and the flexible header's tagged fields: none.
    frame.put_i32(7);
    frame.put_i16(-1);
    if served.key.request_header_version(version) >= 2 {
        frame.put_u8(0);
    }
    frame.put_slice(body);
    let _ = dispatch::probe(frame.freeze());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_from_a_client_are_a_request_or_an_error(data in prop::collection::vec(any::<u8>(), 0..600)) {
            super::decode(&data);
        }
    }
}
