//! IncrementalAlterConfigs (KIP-339): sets, deletes, or changes lists of what is set on a topic, all of a topic's
//! changes or none.

use super::config_resource::alterable;
use super::refusal::{code_and_text, Refusal};
use super::side_by_side::{side_by_side, Times};
use super::RequestContext;
use crate::cluster::AdminError;
use crate::config::{topic_entries, topic_key, BrokerConfig, Kind};
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use std::collections::{BTreeMap, BTreeSet};

pub async fn handle(
    cx: &RequestContext,
    req: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let named: Vec<_> =
        req.resources.iter().map(|r| (r.resource_type, r.resource_name.to_string())).collect();
    let mut times = Times::of(named);
    let mut work = Vec::with_capacity(req.resources.len());
    for resource in req.resources {
        let times = match times.take(&(resource.resource_type, resource.resource_name.to_string())) {
            None => continue,
            Some(times) => times,
        };
        work.push(async move {
            let outcome = match times {
                1 => alter(cx, &resource, req.validate_only).await,
                _ => Err(Refusal::invalid_request("the resource stands more than once in the request")),
            };
            let (code, text) = code_and_text(outcome);
            AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(text)
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name)
        });
    }
    IncrementalAlterConfigsResponse::default().with_responses(side_by_side(work).await)
}

async fn alter(cx: &RequestContext, resource: &AlterConfigsResource, dry_run: bool) -> Result<(), Refusal> {
    let cluster = &cx.broker.cluster;
    let image = cluster.image();
    let topic = alterable(resource.resource_type, &resource.resource_name, &image, cluster.broker_id())?;
    let changes = changes(&resource.configs)?;
    let config = cx.broker.config.clone();
    let change =
        Box::new(move |overrides: &mut BTreeMap<String, String>| apply(&changes, overrides, &config));
    Ok(cluster.alter_topic_config(&topic.name, change, dry_run).await?)
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Set(String),
    /// Back to the broker's default.
    Delete,
    /// Adds to a list what it does not hold yet.
    Append(String),
    Subtract(String),
}

/// The changes as asked for, judged by themselves.
fn changes(configs: &[AlterableConfig]) -> Result<Vec<Change>, Refusal> {
    let mut seen = BTreeSet::new();
    configs
        .iter()
        .map(|config| {
            let key = config.name.to_string();
            if !seen.insert(config.name.as_str()) {
                return Err(Refusal::invalid_request(format!("{key} is changed more than once")));
            }
            let value = || match &config.value {
                Some(value) => Ok(value.to_string()),
                None => Err(Refusal::invalid_request(format!("{key} has no value"))),
            };
            let what = match config.config_operation {
                0 => What::Set(value()?),
                1 => What::Delete,
                2 => What::Append(value()?),
                3 => What::Subtract(value()?),
                other => return Err(Refusal::invalid_request(format!("{key}: unknown operation {other}"))),
            };
            Ok(Change { key, what })
        })
        .collect()
}

/// Applies the changes to what is set. Whether the new values are allowed, the cluster checks.
fn apply(
    changes: &[Change],
    overrides: &mut BTreeMap<String, String>,
    broker: &BrokerConfig,
) -> Result<(), AdminError> {
    for Change { key, what } in changes {
        match what {
            What::Set(value) => {
                overrides.insert(key.clone(), value.clone());
            }
            // What is set can be deleted even if this version knows no such key.
            What::Delete => {
                if overrides.remove(key).is_none() && topic_key(key).is_none() {
                    return Err(AdminError::InvalidConfig(format!("unknown topic config {key}")));
                }
            }
            What::Append(items) => {
                let mut list = list(key, overrides, broker)?;
                for item in words(items) {
                    if !list.contains(&item) {
                        list.push(item);
                    }
                }
                overrides.insert(key.clone(), list.join(","));
            }
            What::Subtract(items) => {
                let mut list = list(key, overrides, broker)?;
                let gone = words(items);
                list.retain(|item| !gone.contains(item));
                overrides.insert(key.clone(), list.join(","));
            }
        }
    }
    Ok(())
}

/// The present value of a list: what is set, or else the default that holds.
fn list(
    key: &str,
    overrides: &BTreeMap<String, String>,
    broker: &BrokerConfig,
) -> Result<Vec<String>, AdminError> {
    match topic_key(key).map(|row| row.kind) {
        Some(Kind::List(_)) => {}
        Some(kind) => {
            let message =
                format!("{key} is a {}, only lists can be appended to or subtracted from", kind.name());
            return Err(AdminError::InvalidConfig(message));
        }
        None => return Err(AdminError::InvalidConfig(format!("unknown topic config {key}"))),
    }
    let entry = topic_entries(broker, overrides).into_iter().find(|e| e.name == key);
    Ok(words(&entry.and_then(|e| e.value).unwrap_or_default()))
}

fn words(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;

    const SET: i8 = 0;
    const DELETE: i8 = 1;
    const APPEND: i8 = 2;
    const SUBTRACT: i8 = 3;

    type Asked = (&'static str, i8, Option<&'static str>);

    fn configs(asked: &[Asked]) -> Vec<AlterableConfig> {
        let config = |(name, operation, value): &Asked| {
            AlterableConfig::default()
                .with_name(StrBytes::from_static_str(name))
                .with_config_operation(*operation)
                .with_value(value.map(StrBytes::from_static_str))
        };
        asked.iter().map(config).collect()
    }

    fn after(present: &[(&str, &str)], asked: &[Asked]) -> Result<Vec<(String, String)>, AdminError> {
        let mut overrides = present.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let changes = changes(&configs(asked)).expect("well formed");
        apply(&changes, &mut overrides, &BrokerConfig::default())?;
        Ok(overrides.into_iter().collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn what_is_not_named_stays() {
        let got = after(
            &[("retention.ms", "1"), ("segment.ms", "2")],
            &[("retention.ms", SET, Some("9")), ("flush.ms", SET, Some("3"))],
        );
        assert_eq!(got.unwrap(), pairs(&[("flush.ms", "3"), ("retention.ms", "9"), ("segment.ms", "2")]));
    }

    #[test]
    fn a_deleted_key_goes_back_to_its_default() {
        let got =
            after(&[("retention.ms", "1")], &[("retention.ms", DELETE, None), ("flush.ms", DELETE, None)]);
        assert_eq!(got.unwrap(), []);
        assert!(after(&[], &[("retention.mss", DELETE, None)]).is_err());
        assert_eq!(after(&[("an.old.key", "1")], &[("an.old.key", DELETE, None)]).unwrap(), []);
    }

    #[test]
    fn lists_are_changed_item_by_item_from_the_value_that_holds() {
        let policy = "cleanup.policy";
        assert_eq!(
            after(&[], &[(policy, APPEND, Some("compact, delete"))]).unwrap(),
            pairs(&[(policy, "delete,compact")])
        );
        assert_eq!(
            after(&[(policy, "compact,delete")], &[(policy, SUBTRACT, Some("delete"))]).unwrap(),
            pairs(&[(policy, "compact")])
        );
        assert!(after(&[], &[("retention.ms", APPEND, Some("1"))]).is_err());
        assert!(after(&[], &[("no.such.key", SUBTRACT, Some("1"))]).is_err());
    }

    #[test]
    fn a_request_that_contradicts_itself_is_refused() {
        let refused = |asked: &[Asked]| changes(&configs(asked)).unwrap_err().code();
        assert_eq!(refused(&[("a", SET, Some("1")), ("a", DELETE, None)]), 42);
        assert_eq!(refused(&[("a", SET, None)]), 42);
        assert_eq!(refused(&[("a", APPEND, None)]), 42);
        assert_eq!(refused(&[("a", 4, Some("1"))]), 42);
        assert_eq!(refused(&[("a", -1, Some("1"))]), 42);
    }
}
