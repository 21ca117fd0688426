//! Configs: described, changed one by one or as a whole.

use crate::ask::*;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::*;

#[tokio::test]
async fn every_config_of_a_topic_is_described_with_where_it_comes_from() {
    let broker = Admin::start(&[("log.retention.hours", "2")]).await;
    let mut client = broker.client().await;
    created(&mut client, with_config(new_topic("t", 1), "segment.ms", "5000")).await;
    let shown = configs(&mut client, TOPIC, "t").await;
    assert_eq!(shown.error_code, 0);
    assert!(shown
        .configs
        .iter()
        .all(|c| c.config_type != 0 && c.documentation.is_some() && !c.synonyms.is_empty()));

    let set = config(&shown, "segment.ms");
    assert_eq!((set.value.as_deref(), set.config_source), (Some("5000"), 1));
    let from_broker = config(&shown, "retention.ms");
    assert_eq!((from_broker.value.as_deref(), from_broker.config_source), (Some("7200000"), 4));
    let default = config(&shown, "max.message.bytes");
    assert_eq!((default.value.as_deref(), default.config_source), (Some("1048588"), 5));

    let picked = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text("t"))
        .with_configuration_keys(Some(vec![text("segment.ms")]));
    for version in 1..=4 {
        let request = DescribeConfigsRequest::default().with_resources(vec![picked.clone()]);
        let result = client.call(version, &request).await.results.remove(0);
        assert_eq!(result.configs.len(), 1, "v{version}");
        assert!(result.configs[0].synonyms.is_empty(), "v{version}");
        assert_eq!(result.configs[0].documentation.as_deref().unwrap_or_default(), "", "v{version}");
    }
    assert_eq!(configs(&mut client, TOPIC, "u").await.error_code, 3);
    assert_eq!(configs(&mut client, 8, "1").await.error_code, 42);
    assert_eq!(configs(&mut client, 32, "g").await.error_code, 42);
}

#[tokio::test]
async fn a_brokers_configs_are_shown_and_not_changed() {
    let broker = Admin::start(&[("num.partitions", "4")]).await;
    let mut client = broker.client().await;
    let me = broker.id().to_string();
    let shown = configs(&mut client, BROKER, &me).await;
    assert_eq!(shown.error_code, 0);
    let partitions = config(&shown, "num.partitions");
    assert_eq!(
        (partitions.value.as_deref(), partitions.config_source, partitions.read_only),
        (Some("4"), 4, true)
    );
    assert_eq!(configs(&mut client, BROKER, "4711").await.error_code, 42);
    assert!(configs(&mut client, BROKER, "").await.configs.is_empty());
    assert_eq!(alter(&mut client, BROKER, &me, &[("num.partitions", SET, Some("9"))]).await, 42);
    assert_eq!(alter(&mut client, BROKER, "", &[("num.partitions", SET, Some("9"))]).await, 42);
}

#[tokio::test]
async fn configs_are_changed_one_by_one_or_replaced_as_a_whole() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, with_config(new_topic("t", 1), "segment.ms", "5000")).await;

    let change = [("retention.ms", SET, Some("77")), ("cleanup.policy", APPEND, Some("compact"))];
    assert_eq!(alter(&mut client, TOPIC, "t", &change).await, 0);
    assert_eq!(value(&mut client, "t", "segment.ms").await, ("5000".to_owned(), 1));
    assert_eq!(value(&mut client, "t", "retention.ms").await, ("77".to_owned(), 1));
    assert_eq!(value(&mut client, "t", "cleanup.policy").await, ("delete,compact".to_owned(), 1));
    assert_eq!(alter(&mut client, TOPIC, "t", &[("cleanup.policy", SUBTRACT, Some("compact"))]).await, 0);
    assert_eq!(value(&mut client, "t", "cleanup.policy").await.0, "delete");
    assert_eq!(alter(&mut client, TOPIC, "t", &[("segment.ms", DELETE, None)]).await, 0);
    assert_eq!(value(&mut client, "t", "segment.ms").await.1, 5);

    // All of a topic's changes or none.
    let half_bad = [("segment.ms", SET, Some("6000")), ("retention.ms", SET, Some("soon"))];
    assert_eq!(alter(&mut client, TOPIC, "t", &half_bad).await, 40);
    assert_eq!(value(&mut client, "t", "segment.ms").await.1, 5);
    assert_eq!(alter(&mut client, TOPIC, "t", &[("retention.ms", APPEND, Some("1"))]).await, 40);
    assert_eq!(
        alter(&mut client, TOPIC, "t", &[("flush.ms", SET, Some("1")), ("flush.ms", DELETE, None)]).await,
        42
    );
    assert_eq!(alter(&mut client, TOPIC, "u", &[("flush.ms", SET, Some("1"))]).await, 3);

    assert_eq!(replace_configs(&mut client, "t", &[("flush.ms", "9")]).await, 0);
    assert_eq!(value(&mut client, "t", "flush.ms").await, ("9".to_owned(), 1));
    assert_eq!(value(&mut client, "t", "retention.ms").await.1, 5);
    assert_eq!(replace_configs(&mut client, "t", &[("flush.mss", "9")]).await, 40);
    assert_eq!(value(&mut client, "t", "flush.ms").await, ("9".to_owned(), 1));
}

#[tokio::test]
async fn case_24_a_changed_size_limit_holds_from_the_next_batch_on() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("t", 1)).await;
    assert_eq!(produce(&mut client, "t", batch(1, 5 << 10)).await, (0, 0));
    assert_eq!(alter(&mut client, TOPIC, "t", &[("max.message.bytes", SET, Some("1000"))]).await, 0);
    assert_eq!(produce(&mut client, "t", batch(1, 5 << 10)).await.0, 10);
    assert_eq!(produce(&mut client, "t", batch(1, 100)).await, (0, 1));

    let small = [("max.message.bytes", SET, Some("1000000")), ("segment.bytes", SET, Some("1048576"))];
    assert_eq!(alter(&mut client, TOPIC, "t", &small).await, 0);
    assert_eq!(produce(&mut client, "t", batch(1, 5 << 10)).await, (0, 2));
    assert_eq!(alter(&mut client, TOPIC, "t", &[("max.message.bytes", SET, Some("4000000"))]).await, 0);
    assert_eq!(produce(&mut client, "t", batch(1, 2 << 20)).await.0, 18);
    assert_eq!(produce(&mut client, "t", batch(1, 100)).await, (0, 3));
}
