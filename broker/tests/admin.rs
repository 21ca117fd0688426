//! Topics, configs, records and producer ids, as admin clients ask for them over the wire.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use common::{batch_of, topic_name, Client, TestBroker};
use highwater::config::BrokerConfig;
use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as LegacyResource, AlterableConfig as LegacyConfig,
};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use std::net::SocketAddr;
use uuid::Uuid;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// A broker that can be killed.
struct Admin {
    broker: TestBroker,
    settings: Vec<(&'static str, &'static str)>,
}

impl Admin {
    async fn start(settings: &[(&'static str, &'static str)]) -> Admin {
        let settings = [&[("listeners", "127.0.0.1:0")], settings].concat();
        let config = BrokerConfig::with(&settings).expect("settings that are allowed");
        Admin { broker: TestBroker::start(|c| *c = config).await, settings }
    }

    /// As `kill -9` does, and starts it again on the same volume.
    async fn kill_and_restart(self) -> Admin {
        let volume = self.broker.volume.clone();
        volume.crash_process();
        drop(self.broker);
        let config = BrokerConfig::with(&self.settings).expect("settings that are allowed");
        Admin { broker: TestBroker::start_on(volume, |c| *c = config).await, settings: self.settings }
    }

    async fn client(&self) -> Client {
        self.broker.client().await
    }

    fn addr(&self) -> SocketAddr {
        self.broker.node.local_addr()
    }

    fn id(&self) -> i32 {
        self.broker.node.broker().config.broker_id.0
    }
}

// What the tests ask for, in few words.

fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

/// A batch of `count` records that take `size` bytes each. The broker does not open them.
fn batch(count: i32, size: usize) -> bytes::Bytes {
    batch_of(1_700_000_000_000, count, 0, &vec![b'r'; count as usize * size])
}

fn new_topic(name: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(-1)
}

fn with_config(topic: CreatableTopic, name: &str, value: &str) -> CreatableTopic {
    let mut configs = topic.configs.clone();
    configs.push(CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value))));
    topic.with_configs(configs)
}

fn create_request(topics: Vec<CreatableTopic>) -> CreateTopicsRequest {
    CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(10_000)
}

async fn create(client: &mut Client, topic: CreatableTopic) -> CreatableTopicResult {
    let mut response = client.call(7, &create_request(vec![topic])).await;
    assert_eq!(response.topics.len(), 1);
    response.topics.remove(0)
}

async fn created(client: &mut Client, topic: CreatableTopic) -> CreatableTopicResult {
    let result = create(client, topic).await;
    assert_eq!((result.error_code, &result.error_message), (0, &None));
    result
}

fn named(name: &str) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(Some(topic_name(name)))
}

fn by_id(id: Uuid) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(None).with_topic_id(id)
}

fn metadata_request(topics: Option<Vec<MetadataRequestTopic>>, may_create: bool) -> MetadataRequest {
    MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(may_create)
}

async fn described(client: &mut Client, topic: MetadataRequestTopic) -> MetadataResponseTopic {
    let mut response = client.call(12, &metadata_request(Some(vec![topic]), false)).await;
    assert_eq!(response.topics.len(), 1);
    response.topics.remove(0)
}

async fn all_names(client: &mut Client) -> Vec<String> {
    let response = client.call(12, &metadata_request(None, false)).await;
    response.topics.iter().map(|t| t.name.as_ref().map(|n| n.to_string()).unwrap_or_default()).collect()
}

async fn delete(client: &mut Client, name: &str) -> i16 {
    let request =
        DeleteTopicsRequest::default().with_topic_names(vec![topic_name(name)]).with_timeout_ms(10_000);
    client.call(5, &request).await.responses[0].error_code
}

async fn configs(client: &mut Client, kind: i8, name: &str) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(true);
    client.call(4, &request).await.results.remove(0)
}

fn config<'a>(result: &'a DescribeConfigsResult, key: &str) -> &'a DescribeConfigsResourceResult {
    result.configs.iter().find(|c| c.name.as_str() == key).unwrap_or_else(|| panic!("{key} is described"))
}

/// Value and source of a topic's config.
async fn value(client: &mut Client, topic: &str, key: &str) -> (String, i8) {
    let result = configs(client, TOPIC, topic).await;
    let config = config(&result, key);
    (config.value.clone().map(|v| v.to_string()).unwrap_or_default(), config.config_source)
}

async fn alter(client: &mut Client, kind: i8, name: &str, changes: &[(&str, i8, Option<&str>)]) -> i16 {
    alter_request(client, kind, name, changes, false).await
}

async fn alter_request(
    client: &mut Client,
    kind: i8,
    name: &str,
    changes: &[(&str, i8, Option<&str>)],
    validate_only: bool,
) -> i16 {
    let changes = changes.iter().map(|(key, operation, value)| {
        AlterableConfig::default()
            .with_name(text(key))
            .with_config_operation(*operation)
            .with_value(value.map(text))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(changes.collect());
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource])
        .with_validate_only(validate_only);
    client.call(1, &request).await.responses[0].error_code
}

async fn replace_configs(client: &mut Client, topic: &str, pairs: &[(&str, &str)]) -> i16 {
    let configs =
        pairs.iter().map(|(k, v)| LegacyConfig::default().with_name(text(k)).with_value(Some(text(v))));
    let resource = LegacyResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configs(configs.collect());
    client.call(2, &AlterConfigsRequest::default().with_resources(vec![resource])).await.responses[0]
        .error_code
}

/// Produces one batch; error code and base offset.
async fn produce(client: &mut Client, topic: &str, records: bytes::Bytes) -> (i16, i64) {
    let data = PartitionProduceData::default().with_index(0).with_records(Some(records));
    let topic = TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![topic]);
    let response = client.call(9, &request).await;
    let partition = &response.responses[0].partition_responses[0];
    (partition.error_code, partition.base_offset)
}

/// DeleteRecords on partition 0; error code and low watermark.
async fn delete_records(client: &mut Client, topic: &str, offset: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(offset);
    let topic = DeleteRecordsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let response = client.call(2, &request).await;
    let partition = &response.topics[0].partitions[0];
    (partition.error_code, partition.low_watermark)
}

// Topics

#[tokio::test]
async fn a_topic_is_created_with_what_was_asked_for_and_shown_so() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let made = created(&mut client, with_config(new_topic("orders", 3), "retention.ms", "1000")).await;
    assert_eq!((made.num_partitions, made.replication_factor), (3, 1));
    assert!(!made.topic_id.is_nil());
    let retention = made
        .configs
        .iter()
        .flatten()
        .find(|c| c.name.as_str() == "retention.ms")
        .expect("configs are in the answer");
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("1000"), 1));

    let shown = described(&mut client, named("orders")).await;
    assert_eq!((shown.error_code, shown.topic_id, shown.is_internal), (0, made.topic_id, false));
    assert_eq!(shown.topic_authorized_operations, i32::MIN);
    let id = BrokerId(broker.id());
    for (index, p) in (0..3).zip(&shown.partitions) {
        assert_eq!((p.error_code, p.partition_index, p.leader_id), (0, index, id));
        assert_eq!((&p.replica_nodes, &p.isr_nodes), (&vec![id], &vec![id]));
    }
    assert_eq!(shown.partitions.len(), 3);
    assert_eq!(described(&mut client, by_id(made.topic_id)).await.name, Some(topic_name("orders")));
}

#[tokio::test]
async fn metadata_says_where_the_broker_is_in_every_version() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("t", 1)).await;
    for version in 0..=12 {
        let all = if version == 0 { Some(vec![]) } else { None };
        let request = metadata_request(all, true)
            .with_include_topic_authorized_operations(version >= 8)
            .with_include_cluster_authorized_operations((8..=10).contains(&version));
        let response = client.call(version, &request).await;
        let this = &response.brokers[0];
        assert_eq!((this.node_id.0, this.host.as_str()), (broker.id(), "127.0.0.1"), "v{version}");
        assert_eq!(this.port, i32::from(broker.addr().port()), "v{version}");
        assert_eq!(this.rack, None, "v{version}");
        assert_eq!(response.topics.len(), 1, "v{version}");
        if version >= 1 {
            assert_eq!(response.controller_id.0, broker.id(), "v{version}");
        }
        if version >= 2 {
            assert_eq!(response.cluster_id.as_ref().map(|c| c.len()), Some(22), "v{version}");
        }
        if version >= 8 {
            assert_eq!(response.topics[0].topic_authorized_operations, 3576, "v{version}");
        }
        if (8..=10).contains(&version) {
            assert_eq!(response.cluster_authorized_operations, 8096, "v{version}");
        }
        if version >= 1 {
            let none = client.call(version, &metadata_request(Some(vec![]), true)).await;
            assert!(none.topics.is_empty(), "v{version}");
        }
    }
}

#[tokio::test]
async fn a_topic_that_is_asked_for_is_made_if_the_client_and_the_broker_let_it() {
    let broker = Admin::start(&[("num.partitions", "2")]).await;
    let mut client = broker.client().await;
    let ask = |name: &str, may| metadata_request(Some(vec![named(name)]), may);

    assert_eq!(client.call(9, &ask("t", false)).await.topics[0].error_code, 3);
    assert!(all_names(&mut client).await.is_empty());
    let made = client.call(9, &ask("t", true)).await;
    assert_eq!((made.topics[0].error_code, made.topics[0].partitions.len()), (0, 2));
    // Version 3 has no field to forbid it.
    assert_eq!(client.call(3, &ask("u", true)).await.topics[0].error_code, 0);
    for bad in ["no/topic", "..", "__cluster", ""] {
        assert_eq!(client.call(9, &ask(bad, true)).await.topics[0].error_code, 17, "{bad:?}");
        assert_eq!(client.call(9, &ask(bad, false)).await.topics[0].error_code, 17, "{bad:?}");
    }
    assert_eq!(all_names(&mut client).await, ["t", "u"]);

    let broker = Admin::start(&[("auto.create.topics.enable", "false")]).await;
    let mut client = broker.client().await;
    assert_eq!(client.call(9, &ask("t", true)).await.topics[0].error_code, 3);
    assert!(all_names(&mut client).await.is_empty());
}

#[tokio::test]
async fn clients_that_ask_for_a_new_topic_at_once_get_the_same_one() {
    let broker = Admin::start(&[]).await;
    let asks = (0..8).map(|_| async {
        let mut client = broker.client().await;
        let response = client.call(12, &metadata_request(Some(vec![named("t")]), true)).await;
        (response.topics[0].error_code, response.topics[0].topic_id)
    });
    let answers = futures::future::join_all(asks).await;
    assert!(!answers[0].1.is_nil());
    assert!(answers.iter().all(|a| *a == (0, answers[0].1)), "{answers:?}");
}

#[tokio::test]
async fn a_recreated_topic_is_another_one() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let first = created(&mut client, new_topic("t", 1)).await.topic_id;
    assert_eq!(delete(&mut client, "t").await, 0);
    assert_eq!(delete(&mut client, "t").await, 3);
    assert_eq!(described(&mut client, named("t")).await.error_code, 3);
    let gone = described(&mut client, by_id(first)).await;
    assert_eq!((gone.error_code, gone.name, gone.topic_id), (100, None, first));

    let second = created(&mut client, new_topic("t", 1)).await.topic_id;
    assert_ne!(first, second);
    let by_id = |id| {
        let state = DeleteTopicState::default().with_name(None).with_topic_id(id);
        DeleteTopicsRequest::default().with_topics(vec![state]).with_timeout_ms(10_000)
    };
    let missed = client.call(6, &by_id(first)).await;
    assert_eq!((missed.responses[0].error_code, missed.responses[0].name.clone()), (100, None));
    let hit = client.call(6, &by_id(second)).await;
    assert_eq!((hit.responses[0].error_code, hit.responses[0].name.clone()), (0, Some(topic_name("t"))));
    assert!(all_names(&mut client).await.is_empty());
}

#[tokio::test]
async fn what_cannot_be_created_gets_kafkas_error_and_a_sentence() {
    let broker = Admin::start(&[("max.partitions.per.request", "100"), ("max.partitions", "150")]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("there", 1)).await;
    let assigned = |broker| {
        let one = CreatableReplicaAssignment::default().with_partition_index(0).with_broker_ids(vec![broker]);
        new_topic("assigned", -1).with_assignments(vec![one])
    };
    let cases = [
        (new_topic("there", 1), 36),
        (new_topic("a/b", 1), 17),
        (new_topic("t", 0), 37),
        (new_topic("t", -2), 37),
        (new_topic("t", 1).with_replication_factor(3), 38),
        (new_topic("t", 1).with_replication_factor(0), 38),
        (assigned(BrokerId(broker.id() + 1)), 39),
        (with_config(new_topic("t", 1), "retention.mss", "1"), 40),
        (with_config(new_topic("t", 1), "retention.ms", "soon"), 40),
        (new_topic("t", 101), 44),
        (new_topic("t", i32::MAX), 44),
    ];
    for (topic, code) in cases {
        let result = create(&mut client, topic.clone()).await;
        assert_eq!(result.error_code, code, "{topic:?}: {:?}", result.error_message);
        assert!(result.error_message.is_some_and(|m| !m.is_empty()), "{topic:?}");
        assert!(result.topic_id.is_nil());
    }
    assert_eq!(all_names(&mut client).await, ["there"]);
    created(&mut client, assigned(BrokerId(broker.id()))).await;

    created(&mut client, new_topic("many", 100)).await;
    let full = create(&mut client, new_topic("more", 49)).await;
    assert_eq!(full.error_code, 44);
    assert!(full.error_message.is_some_and(|m| m.contains("max.partitions")));
}

#[tokio::test]
async fn each_topic_of_a_request_stands_for_itself() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let topics =
        vec![new_topic("a", 1), new_topic("b", 0), new_topic("c", 1), new_topic("d", 1), new_topic("c", 2)];
    let response = client.call(7, &create_request(topics)).await;
    let codes: Vec<_> = response.topics.iter().map(|t| (t.name.to_string(), t.error_code)).collect();
    let expected = [("a", 0), ("b", 37), ("c", 42), ("d", 0)].map(|(n, c)| (n.to_owned(), c));
    assert_eq!(codes, expected);
    assert_eq!(all_names(&mut client).await, ["a", "d"]);
}

#[tokio::test]
async fn what_is_only_validated_is_not_made() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let dry = |topic| create_request(vec![topic]).with_validate_only(true);
    let fine = client.call(7, &dry(new_topic("t", 4))).await;
    assert_eq!((fine.topics[0].error_code, fine.topics[0].num_partitions), (0, 4));
    assert!(fine.topics[0].topic_id.is_nil());
    let bad = client.call(7, &dry(with_config(new_topic("t", 4), "segment.ms", "x"))).await;
    assert_eq!(bad.topics[0].error_code, 40);
    assert!(all_names(&mut client).await.is_empty());

    created(&mut client, new_topic("t", 1)).await;
    let more =
        CreatePartitionsTopic::default().with_name(topic_name("t")).with_count(5).with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![more])
        .with_timeout_ms(10_000)
        .with_validate_only(true);
    assert_eq!(client.call(3, &request).await.results[0].error_code, 0);
    assert_eq!(described(&mut client, named("t")).await.partitions.len(), 1);
    assert_eq!(alter_request(&mut client, TOPIC, "t", &[("segment.ms", SET, Some("7"))], true).await, 0);
    assert_eq!(value(&mut client, "t", "segment.ms").await.1, 5);
}

#[tokio::test]
async fn a_topic_grows_and_never_shrinks() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let id = created(&mut client, new_topic("t", 2)).await.topic_id;
    for (count, code) in [(2, 37), (1, 37), (0, 37), (4, 0)] {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name("t"))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        assert_eq!(client.call(3, &request).await.results[0].error_code, code, "{count}");
    }
    let shown = described(&mut client, named("t")).await;
    assert_eq!((shown.partitions.len(), shown.topic_id), (4, id));
    assert!(shown.partitions.iter().all(|p| p.error_code == 0));
}

#[tokio::test]
async fn topics_configs_and_producer_ids_outlive_a_kill() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let id = created(&mut client, with_config(new_topic("t", 3), "segment.ms", "5000")).await.topic_id;
    created(&mut client, new_topic("gone", 1)).await;
    assert_eq!(delete(&mut client, "gone").await, 0);
    let first = client.call(4, &InitProducerIdRequest::default().with_transactional_id(None)).await;

    let broker = broker.kill_and_restart().await;
    let mut client = broker.client().await;
    assert_eq!(all_names(&mut client).await, ["t"]);
    let shown = described(&mut client, named("t")).await;
    assert_eq!((shown.topic_id, shown.partitions.len()), (id, 3));
    assert_eq!(value(&mut client, "t", "segment.ms").await, ("5000".to_owned(), 1));
    let second = client.call(4, &InitProducerIdRequest::default().with_transactional_id(None)).await;
    assert_eq!((first.error_code, second.error_code), (0, 0));
    assert_ne!(first.producer_id, second.producer_id);
}

// Configs

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

// Records

#[tokio::test]
async fn case_40_delete_records_edges() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, new_topic("t", 1)).await;
    for offset in [0, 10, 20] {
        assert_eq!(produce(&mut client, "t", batch(10, 100)).await, (0, offset));
    }
    assert_eq!(delete_records(&mut client, "t", 12).await, (0, 12));
    assert_eq!(
        delete_records(&mut client, "t", 5).await,
        (0, 12),
        "below the start: nothing happens, no error"
    );
    assert_eq!(delete_records(&mut client, "t", 0).await, (0, 12));
    assert_eq!(delete_records(&mut client, "t", 31).await, (1, -1), "past the high watermark");
    assert_eq!(delete_records(&mut client, "t", -2).await, (1, -1));
    assert_eq!(delete_records(&mut client, "t", -1).await, (0, 30), "-1 is the high watermark");
    assert_eq!(delete_records(&mut client, "t", -1).await, (0, 30), "a full purge, twice");
    assert_eq!(delete_records(&mut client, "t", 30).await, (0, 30));
    assert_eq!(produce(&mut client, "t", batch(1, 100)).await, (0, 30), "still writable");
    assert_eq!(delete_records(&mut client, "no-such-topic", 0).await, (3, -1));

    created(&mut client, with_config(new_topic("c", 1), "cleanup.policy", "compact")).await;
    assert_eq!(delete_records(&mut client, "c", -1).await, (44, -1));
}

#[tokio::test]
async fn what_delete_records_took_is_off_the_disk_and_stays_away() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    created(&mut client, with_config(new_topic("t", 1), "segment.bytes", "1048576")).await;
    for _ in 0..4 {
        assert_eq!(produce(&mut client, "t", batch(1, 700 << 10)).await.0, 0);
    }
    let before = log_size(&mut client, "t").await;
    assert!(before > 4 * (700 << 10), "{before}");
    assert_eq!(delete_records(&mut client, "t", -1).await, (0, 4));
    let after = log_size(&mut client, "t").await;
    assert!(after < 1 << 20, "{after} of {before} bytes are left");

    drop(client);
    let broker = broker.kill_and_restart().await;
    let mut client = broker.client().await;
    assert_eq!(delete_records(&mut client, "t", 0).await, (0, 4), "the log start outlives a kill");
}

async fn log_size(client: &mut Client, topic: &str) -> i64 {
    let response = client.call(4, &DescribeLogDirsRequest::default().with_topics(None)).await;
    let dir = &response.results[0];
    assert_eq!((response.error_code, dir.error_code), (0, 0));
    assert!(dir.total_bytes >= dir.usable_bytes && dir.usable_bytes > 0);
    let topic = dir.topics.iter().find(|t| t.name == topic_name(topic)).expect("the topic is there");
    assert!(topic.partitions.iter().all(|p| !p.is_future_key && p.offset_lag == 0));
    topic.partitions.iter().map(|p| p.partition_size).sum()
}

// The rest

#[tokio::test]
async fn producers_get_ids_of_their_own_and_transactions_are_refused() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    let mut ids = std::collections::BTreeSet::new();
    for version in 0..=4 {
        let response =
            client.call(version, &InitProducerIdRequest::default().with_transactional_id(None)).await;
        assert_eq!((response.error_code, response.producer_epoch), (0, 0), "v{version}");
        assert!(ids.insert(response.producer_id.0), "v{version}");
        let transactional =
            InitProducerIdRequest::default().with_transactional_id(Some(TransactionalId(text("t"))));
        let refused = client.call(version, &transactional).await;
        assert_eq!((refused.error_code, refused.producer_id.0, refused.producer_epoch), (35, -1, -1));
    }
    let again = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_producer_id(ProducerId(0))
        .with_producer_epoch(3);
    let again = client.call(4, &again).await;
    assert_eq!((again.error_code, again.producer_epoch), (0, 0));
    assert!(ids.insert(again.producer_id.0));
}

#[tokio::test]
async fn the_cluster_is_one_broker_that_moves_nothing() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    for version in 0..=1 {
        let cluster = client.call(version, &DescribeClusterRequest::default()).await;
        assert_eq!(
            (cluster.error_code, cluster.controller_id.0, cluster.cluster_id.len()),
            (0, broker.id(), 22)
        );
        assert_eq!(cluster.brokers[0].port, i32::from(broker.addr().port()));
    }
    let controllers = DescribeClusterRequest::default().with_endpoint_type(2);
    assert_eq!(client.call(1, &controllers).await.error_code, 114);
    let moving = client.call(0, &ListPartitionReassignmentsRequest::default().with_topics(None)).await;
    assert_eq!((moving.error_code, moving.topics.len()), (0, 0));
}

#[tokio::test]
async fn answers_can_be_read_in_every_version_that_is_listed() {
    let broker = Admin::start(&[]).await;
    let mut client = broker.client().await;
    for version in 2..=7 {
        let name = format!("t{version}");
        let topics = vec![new_topic(&name, 1), new_topic("a/b", 1)];
        let response = client.call(version, &create_request(topics)).await;
        assert_eq!((response.topics[0].error_code, response.topics[1].error_code), (0, 17), "v{version}");
    }
    for version in 0..=3 {
        let topic = |name, count| {
            CreatePartitionsTopic::default()
                .with_name(topic_name(name))
                .with_count(count)
                .with_assignments(None)
        };
        let topics = vec![topic("t2", version as i32 + 2), topic("none", 2)];
        let request = CreatePartitionsRequest::default().with_topics(topics).with_timeout_ms(10_000);
        let response = client.call(version, &request).await;
        assert_eq!((response.results[0].error_code, response.results[1].error_code), (0, 3), "v{version}");
    }
    for version in 1..=6 {
        let names = [format!("t{}", version + 1), "none".to_owned()];
        let request = DeleteTopicsRequest::default().with_timeout_ms(10_000);
        let request = if version == 6 {
            let state = |n: &String| DeleteTopicState::default().with_name(Some(topic_name(n)));
            request.with_topics(names.iter().map(state).collect())
        } else {
            request.with_topic_names(names.iter().map(|n| topic_name(n)).collect())
        };
        let response = client.call(version, &request).await;
        assert_eq!(
            (response.responses[0].error_code, response.responses[1].error_code),
            (0, 3),
            "v{version}"
        );
    }
    for version in 1..=4 {
        let response = client.call(version, &DescribeLogDirsRequest::default().with_topics(None)).await;
        assert_eq!(response.results[0].error_code, 0, "v{version}");
    }
    for version in 0..=2 {
        let legacy = LegacyResource::default().with_resource_type(TOPIC).with_resource_name(text("none"));
        let request = AlterConfigsRequest::default().with_resources(vec![legacy]);
        assert_eq!(client.call(version, &request).await.responses[0].error_code, 3, "v{version}");
        let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(0);
        let topic =
            DeleteRecordsTopic::default().with_name(topic_name("none")).with_partitions(vec![partition]);
        let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(1000);
        assert_eq!(client.call(version, &request).await.topics[0].partitions[0].error_code, 3, "v{version}");
    }
    for version in 0..=1 {
        let resource =
            AlterConfigsResource::default().with_resource_type(TOPIC).with_resource_name(text("none"));
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(client.call(version, &request).await.responses[0].error_code, 3, "v{version}");
    }
}
