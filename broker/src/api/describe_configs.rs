//! DescribeConfigs (KIP-133; synonyms, KIP-226; types and documentation, KIP-569): every key with its value, where
//! that comes from, and what it means.

use super::config_resource::{find, Resource};
use super::refusal::Refusal;
use super::{config_view, RequestContext};
use crate::config::{broker_entries, topic_entries, ConfigEntry};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;

pub async fn handle(cx: &RequestContext, req: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let (synonyms, documentation) = (req.include_synonyms, req.include_documentation);
    let results = req.resources.into_iter().map(|resource| {
        let outcome = entries(cx, &resource);
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name);
        match outcome {
            Ok(entries) => result.with_error_message(None).with_configs(
                only(entries, resource.configuration_keys.as_deref())
                    .into_iter()
                    .map(|e| config_view::described(e, synonyms, documentation))
                    .collect(),
            ),
            Err(refusal) => result.with_error_code(refusal.code()).with_error_message(refusal.text()),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

fn entries(cx: &RequestContext, resource: &DescribeConfigsResource) -> Result<Vec<ConfigEntry>, Refusal> {
    let cluster = &cx.broker.cluster;
    let config = &cx.broker.config;
    let found = find(resource.resource_type, &resource.resource_name, &cluster.image(), cluster.broker_id())?;
    Ok(match found {
        Resource::Topic(topic) => topic_entries(config, &topic.overrides),
        Resource::Broker => broker_entries(config),
        // None can be set at run time.
        Resource::AllBrokers => Vec::new(),
    })
}

/// The entries with these names; null or none names all.
fn only(entries: Vec<ConfigEntry>, keys: Option<&[StrBytes]>) -> Vec<ConfigEntry> {
    let keys: BTreeSet<&str> = keys.unwrap_or_default().iter().map(|k| k.as_str()).collect();
    entries.into_iter().filter(|e| keys.is_empty() || keys.contains(e.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BrokerConfig;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn keys_can_be_picked() {
        let names = |keys: Option<&[StrBytes]>| -> Vec<&str> {
            let all = topic_entries(&BrokerConfig::default(), &Default::default());
            only(all, keys).into_iter().map(|e| e.name).collect()
        };
        let key = StrBytes::from_static_str;
        assert_eq!(
            names(Some(&[key("segment.ms"), key("no.such"), key("flush.ms")])),
            ["flush.ms", "segment.ms"]
        );
        assert!(names(None).len() > 20);
        assert_eq!(names(Some(&[])), names(None));
    }

    #[test]
    fn an_answer_can_be_encoded_in_every_version_that_is_served() {
        for version in 1..=4 {
            for asked in [false, true] {
                let entries = broker_entries(&BrokerConfig::default());
                let configs = entries.into_iter().map(|e| config_view::described(e, asked, asked)).collect();
                let result = DescribeConfigsResult::default().with_configs(configs);
                let response = DescribeConfigsResponse::default().with_results(vec![result]);
                response.encode(&mut bytes::BytesMut::new(), version).unwrap();
            }
        }
    }
}
