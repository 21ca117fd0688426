//! Encodes a fetch response without copying its records.
//!
//! The library copies byte strings into its buffer; here large records go out as the pieces that storage returned.
//! The library still encodes each row, with empty records; their place is at the row's end, which is checked.

use crate::api::partitions::IDS_SINCE;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, NodeEndpoint, PartitionData};
use kafka_protocol::messages::FetchResponse;
use kafka_protocol::protocol::Encodable;

/// The first version with compact lengths and tagged fields.
const FLEXIBLE_SINCE: i16 = 12;
/// The first version with the addresses of leaders, a tagged field of the body.
const ENDPOINTS_SINCE: i16 = 16;
/// The first version with an error code and a session id at the top.
const SESSIONS_SINCE: i16 = 7;

/// Records of fewer bytes are copied: a piece of its own costs more.
const WORTH_A_PIECE: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub(in crate::api) enum EncodeError {
    #[error("{0}")]
    Library(String),
    #[error("a length of {0}")]
    TooLong(usize),
    #[error("a row does not end as expected")]
    Row,
    #[error("the body does not end as expected")]
    End,
}

/// The response's body, in pieces.
pub(in crate::api) fn pieces(version: i16, response: FetchResponse) -> Result<Vec<Bytes>, EncodeError> {
    let mut out = Pieces { version, done: Vec::new(), open: BytesMut::with_capacity(256) };
    out.open.put_i32(response.throttle_time_ms);
    if version >= SESSIONS_SINCE {
        out.open.put_i16(response.error_code);
        out.open.put_i32(response.session_id);
    }
    out.count(response.responses.len())?;
    for topic in response.responses {
        out.topic(topic)?;
    }
    out.end(response.node_endpoints)?;
    out.close();
    Ok(out.done)
}

struct Pieces {
    version: i16,
    done: Vec<Bytes>,
    open: BytesMut,
}

impl Pieces {
    fn is_flexible(&self) -> bool {
        self.version >= FLEXIBLE_SINCE
    }

    fn topic(&mut self, topic: FetchableTopicResponse) -> Result<(), EncodeError> {
        let name = topic.topic.as_bytes();
        if self.version >= IDS_SINCE {
            self.open.put_slice(topic.topic_id.as_bytes());
        } else if self.is_flexible() {
            self.count(name.len())?;
            self.open.put_slice(name);
        } else {
            self.open.put_i16(i16::try_from(name.len()).map_err(|_| EncodeError::TooLong(name.len()))?);
            self.open.put_slice(name);
        }
        self.count(topic.partitions.len())?;
        for row in topic.partitions {
            self.row(row)?;
        }
        self.no_tags();
        Ok(())
    }

    /// The body's tagged fields, as the library writes them behind an empty response.
    fn end(&mut self, endpoints: Vec<NodeEndpoint>) -> Result<(), EncodeError> {
        if self.version < ENDPOINTS_SINCE || endpoints.is_empty() {
            self.no_tags();
            return Ok(());
        }
        let mut whole = BytesMut::new();
        let empty = FetchResponse::default().with_node_endpoints(endpoints);
        empty.encode(&mut whole, self.version).map_err(|e| EncodeError::Library(e.to_string()))?;
        // Throttle time, error code, session id, and an array of none.
        let tags = whole.get(4 + 2 + 4 + 1..).ok_or(EncodeError::End)?;
        self.open.put_slice(tags);
        Ok(())
    }

    fn row(&mut self, mut row: PartitionData) -> Result<(), EncodeError> {
        let records = row.records.replace(Bytes::new()).unwrap_or_default();
        row.encode(&mut self.open, self.version).map_err(|e| EncodeError::Library(e.to_string()))?;
        if records.is_empty() {
            return Ok(());
        }
        // The empty records, and behind them no tagged fields.
        let end: &[u8] = if self.is_flexible() { &[1, 0] } else { &[0, 0, 0, 0] };
        if !self.open.ends_with(end) {
            return Err(EncodeError::Row);
        }
        self.open.truncate(self.open.len() - end.len());
        self.count(records.len())?;
        self.splice(records);
        self.no_tags();
        Ok(())
    }

    fn splice(&mut self, records: Bytes) {
        if records.len() < WORTH_A_PIECE {
            self.open.put_slice(&records);
        } else {
            self.close();
            self.done.push(records);
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push(self.open.split().freeze());
        }
    }

    /// The length of an array, or of records (and in flexible versions of a string).
    fn count(&mut self, n: usize) -> Result<(), EncodeError> {
        let n32 = i32::try_from(n).map_err(|_| EncodeError::TooLong(n))?;
        if self.is_flexible() {
            let mut n = n32 as u32 + 1;
            while n >= 0x80 {
                self.open.put_u8(n as u8 | 0x80);
                n >>= 7;
            }
            self.open.put_u8(n as u8);
        } else {
            self.open.put_i32(n32);
        }
        Ok(())
    }

    fn no_tags(&mut self) {
        if self.is_flexible() {
            self.open.put_u8(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::fetch_response::{EpochEndOffset, LeaderIdAndEpoch};
    use kafka_protocol::messages::{BrokerId, TopicName};
    use kafka_protocol::protocol::StrBytes;
    use uuid::Uuid;

    fn row(index: i32, records: usize) -> PartitionData {
        PartitionData::default()
            .with_partition_index(index)
            .with_high_watermark(1 << 40)
            .with_last_stable_offset(9)
            .with_log_start_offset(3)
            .with_records(Some(Bytes::from(vec![index as u8; records])))
    }

    fn topic(name: &'static str, rows: Vec<PartitionData>) -> FetchableTopicResponse {
        FetchableTopicResponse::default()
            .with_topic(TopicName(StrBytes::from_static_str(name)))
            .with_topic_id(Uuid::from_u128(name.len() as u128))
            .with_partitions(rows)
    }

    fn responses() -> Vec<FetchResponse> {
        let failed = row(3, 0).with_error_code(1).with_aborted_transactions(None);
        let diverged = EpochEndOffset::default().with_epoch(4).with_end_offset(77);
        vec![
            FetchResponse::default(),
            FetchResponse::default().with_error_code(70),
            FetchResponse::default().with_responses(vec![
                topic("a", vec![row(0, 0), row(1, 1), row(2, 127), failed.clone()]),
                topic("", vec![]),
                topic("a.longer_name", vec![row(0, 100_000), row(1, 4096), row(2, 4095), row(7, 0)]),
            ]),
            FetchResponse::default().with_responses(vec![topic(
                "t",
                vec![row(0, 0).with_diverging_epoch(diverged), row(1, 5000)],
            )]),
        ]
    }

    /// Rows that were led elsewhere, beside one that was not.
    fn moved() -> Vec<FetchResponse> {
        let leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(3)).with_leader_epoch(9);
        let away = row(0, 0).with_error_code(6).with_current_leader(leader);
        let node = |id, host| {
            let node = NodeEndpoint::default().with_node_id(BrokerId(id)).with_port(9092).with_rack(None);
            node.with_host(StrBytes::from_static_str(host))
        };
        let response = FetchResponse::default().with_responses(vec![topic("t", vec![away, row(1, 10_000)])]);
        vec![
            response.clone().with_node_endpoints(vec![node(3, "a.host")]),
            response.with_node_endpoints(vec![node(3, "a.host"), node(200, "b")]),
        ]
    }

    #[test]
    fn the_bytes_are_those_of_the_library_in_every_version() {
        for version in 4..=17 {
            let latest = if version >= ENDPOINTS_SINCE { moved() } else { vec![] };
            for response in responses().into_iter().chain(latest) {
                let mut expected = BytesMut::new();
                response.encode(&mut expected, version).unwrap();
                let got = pieces(version, response).unwrap().concat();
                assert_eq!(got, expected, "version {version}");
            }
        }
    }

    #[test]
    fn large_records_are_not_copied() {
        let records = Bytes::from(vec![1; 1 << 20]);
        let response = FetchResponse::default()
            .with_responses(vec![topic("t", vec![row(0, 0).with_records(Some(records.clone()))])]);
        let pieces = pieces(12, response).unwrap();
        assert!(pieces.iter().any(|p| p.as_ptr() == records.as_ptr() && p.len() == records.len()));
    }
}
