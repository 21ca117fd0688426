//! What the group APIs share: from Kafka's messages to the coordinator's terms and back.

use crate::coordinator::group::Caller;
use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::time::Duration;

pub(super) fn text(s: impl Into<String>) -> StrBytes {
    StrBytes::from_string(s.into())
}

pub(super) fn optional_string(s: Option<StrBytes>) -> Option<String> {
    s.map(|s| s.to_string())
}

pub(super) fn caller(member_id: &StrBytes, instance: Option<StrBytes>, generation: i32) -> Caller {
    Caller { member_id: member_id.to_string(), instance: optional_string(instance), generation }
}

/// A copy: what a group keeps must not hold on to the frame that it came in, nor to all that lay beside it there.
pub(super) fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Milliseconds on the wire; a negative number is none at all.
pub(super) fn millis(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

pub(super) fn code(error: Option<ResponseError>) -> i16 {
    error.map_or(0, |e| e.code())
}
