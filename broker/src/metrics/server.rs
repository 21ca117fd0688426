//! Counted by the listener and the dispatcher.

use super::seconds_histogram;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::ApiKey;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use std::fmt;
use std::time::Duration;

type Histograms = Family<ApiLabel, Histogram, fn() -> Histogram>;

/// Connections, requests and their bytes.
#[derive(Debug)]
pub struct ServerMetrics {
    /// Connections that are open.
    pub connections: Gauge,
    pub connections_accepted: Counter,
    /// Closed at once, because `max.connections` was reached.
    pub connections_refused: Counter,
    /// Bytes of request and response frames, length prefixes included.
    pub request_bytes: Counter,
    pub response_bytes: Counter,
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) request_seconds: Histograms,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        ServerMetrics {
            connections: Gauge::default(),
            connections_accepted: Counter::default(),
            connections_refused: Counter::default(),
            request_bytes: Counter::default(),
            response_bytes: Counter::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds_histogram),
        }
    }
}

impl ServerMetrics {
    /// Counts one request that was answered, or for `acks=0` would have been: the first error in it (0 is
    /// none), and the time from its last byte read to its answer ready to be sent.
    pub fn answered(&self, api: ApiKey, error: i16, took: Duration) {
        let api = api as i16;
        self.requests.get_or_create(&RequestLabels { api, error }).inc();
        self.request_seconds.get_or_create(&ApiLabel { api }).observe(took.as_secs_f64());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestLabels {
    api: i16,
    error: i16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ApiLabel {
    api: i16,
}

impl EncodeLabelSet for RequestLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> fmt::Result {
        [("api", api_name(self.api)), ("error", error_name(self.error))].encode(encoder)
    }
}

impl EncodeLabelSet for ApiLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> fmt::Result {
        [("api", api_name(self.api))].encode(encoder)
    }
}

fn api_name(key: i16) -> String {
    ApiKey::try_from(key).map_or_else(|()| key.to_string(), |api| format!("{api:?}"))
}

/// Kafka's constant for an error code.
fn error_name(code: i16) -> String {
    let Some(error) = ResponseError::try_from_code(code) else { return "NONE".to_owned() };
    let mut name = String::new();
    for c in format!("{error:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kafkas_names() {
        assert_eq!(error_name(0), "NONE");
        assert_eq!(error_name(3), "UNKNOWN_TOPIC_OR_PARTITION");
        assert_eq!(error_name(56), "KAFKA_STORAGE_ERROR");
        assert_eq!(api_name(0), "Produce");
        assert_eq!(api_name(18), "ApiVersions");
    }
}
