//! AlterConfigs (KIP-133): replaces all that was set on a topic. What the request does not name goes back to the
//! broker's default; hence IncrementalAlterConfigs, which clients prefer.

use super::config_resource::alterable;
use super::refusal::{code_and_text, Refusal};
use super::side_by_side::{side_by_side, Times};
use super::RequestContext;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use std::collections::BTreeMap;

pub async fn handle(cx: &RequestContext, req: AlterConfigsRequest) -> AlterConfigsResponse {
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
    AlterConfigsResponse::default().with_responses(side_by_side(work).await)
}

async fn alter(cx: &RequestContext, resource: &AlterConfigsResource, dry_run: bool) -> Result<(), Refusal> {
    let cluster = &cx.broker.cluster;
    let image = cluster.image();
    let topic = alterable(resource.resource_type, &resource.resource_name, &image, cluster.broker_id())?;
    let overrides = replacement(&resource.configs)?;
    let replace = Box::new(move |present: &mut BTreeMap<String, String>| {
        present.clone_from(&overrides);
        Ok(())
    });
    Ok(cluster.alter_topic_config(&topic.name, replace, dry_run).await?)
}

fn replacement(configs: &[AlterableConfig]) -> Result<BTreeMap<String, String>, Refusal> {
    let mut overrides = BTreeMap::new();
    for config in configs {
        let name = config.name.to_string();
        let Some(value) = &config.value else {
            return Err(Refusal::invalid_request(format!(
                "{name} has no value; leave it out to go back to the default"
            )));
        };
        if overrides.insert(name, value.to_string()).is_some() {
            return Err(Refusal::invalid_request(format!("{} is set more than once", config.name.as_str())));
        }
    }
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;

    fn config(name: &'static str, value: Option<&'static str>) -> AlterableConfig {
        AlterableConfig::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(value.map(StrBytes::from_static_str))
    }

    #[test]
    fn each_key_is_set_once_and_to_something() {
        let set = replacement(&[config("a", Some("1")), config("b", Some(""))]).unwrap();
        assert_eq!(set, BTreeMap::from([("a".into(), "1".into()), ("b".into(), "".into())]));
        assert_eq!(replacement(&[config("a", None)]).unwrap_err().code(), 42);
        assert_eq!(replacement(&[config("a", Some("1")), config("a", Some("1"))]).unwrap_err().code(), 42);
    }
}
