//! ApiVersions (KIP-35, KIP-511): what this broker serves.
//!
//! Two features are listed (KIP-584): `group.version`, at 1, which tells clients that the consumer protocol (KIP-848) is
//! served, and `transaction.version`, at 2, that both parts of KIP-890 are. Nobody can change them: their
//! epoch moves when a release has others, so that a client of brokers of both believes the later. That they could be 0
//! is left out below version 4, whose clients take a minimum of 0 for an error (KIP-1006).

use super::{dispatch::TABLE, RequestContext};
use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;

/// The first version that has features.
const FEATURES: i16 = 3;
/// The first whose clients know a feature that may be absent.
const MINIMUM_0: i16 = 4;

/// 0: without `transaction.version`.
const EPOCH: i64 = 1;

const LEVELS: [(StrBytes, i16); 2] =
    [(StrBytes::from_static_str("group.version"), 1), (StrBytes::from_static_str("transaction.version"), 2)];

pub async fn handle(cx: &RequestContext, req: ApiVersionsRequest) -> ApiVersionsResponse {
    if cx.api_version >= FEATURES
        && !(is_name(&req.client_software_name) && is_name(&req.client_software_version))
    {
        return ApiVersionsResponse::default().with_error_code(ResponseError::InvalidRequest.code());
    }
    with_features(cx.api_version, ApiVersionsResponse::default().with_api_keys(listed()))
}

fn with_features(version: i16, response: ApiVersionsResponse) -> ApiVersionsResponse {
    if version < FEATURES {
        return response;
    }
    let supported = |(name, level): &(StrBytes, i16)| {
        SupportedFeatureKey::default().with_name(name.clone()).with_max_version(*level)
    };
    let finalized = |(name, level): &(StrBytes, i16)| {
        FinalizedFeatureKey::default()
            .with_name(name.clone())
            .with_max_version_level(*level)
            .with_min_version_level(*level)
    };
    response
        .with_supported_features(match version >= MINIMUM_0 {
            true => LEVELS.iter().map(supported).collect(),
            false => Vec::new(),
        })
        .with_finalized_features_epoch(EPOCH)
        .with_finalized_features(LEVELS.iter().map(finalized).collect())
}

/// The answer to a version that is not known, to be encoded as version 0.
pub(super) fn unsupported() -> ApiVersionsResponse {
    ApiVersionsResponse::default()
        .with_error_code(ResponseError::UnsupportedVersion.code())
        .with_api_keys(listed())
}

fn listed() -> Vec<ApiVersion> {
    let mut rows: Vec<_> = TABLE
        .iter()
        .map(|s| {
            ApiVersion::default()
                .with_api_key(s.key as i16)
                .with_min_version(s.listed_min)
                .with_max_version(s.max)
        })
        .collect();
    rows.sort_by_key(|r| r.api_key);
    rows
}

/// KIP-511: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`
fn is_name(s: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = s.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_names_are_checked_as_kip_511_says() {
        for good in ["a", "7", "librdkafka", "apache-kafka-java", "2.0.2", "a--.b"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "a_b", "ä", "a\n"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
