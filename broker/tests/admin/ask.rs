//! A broker to ask, and what the tests ask for, in few words.

use crate::common::{batch_of, topic_name, Client, TestBroker};
use highwater::config::BrokerConfig;
use kafka_protocol::messages::alter_configs_request::{
    AlterConfigsResource as LegacyResource, AlterableConfig as LegacyConfig,
};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
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

pub const TOPIC: i8 = 2;
pub const BROKER: i8 = 4;
pub const SET: i8 = 0;
pub const DELETE: i8 = 1;
pub const APPEND: i8 = 2;
pub const SUBTRACT: i8 = 3;

/// A broker that can be killed.
pub struct Admin {
    broker: TestBroker,
    settings: Vec<(&'static str, &'static str)>,
}

impl Admin {
    pub async fn start(settings: &[(&'static str, &'static str)]) -> Admin {
        let settings = [&[("listeners", "127.0.0.1:0")], settings].concat();
        let config = BrokerConfig::with(&settings).expect("settings that are allowed");
        Admin { broker: TestBroker::start(|c| *c = config).await, settings }
    }

    /// As `kill -9` does, and starts it again on the same volume.
    pub async fn kill_and_restart(self) -> Admin {
        let volume = self.broker.volume.clone();
        volume.crash_process();
        drop(self.broker);
        let config = BrokerConfig::with(&self.settings).expect("settings that are allowed");
        Admin { broker: TestBroker::start_on(volume, |c| *c = config).await, settings: self.settings }
    }

    pub async fn client(&self) -> Client {
        self.broker.client().await
    }

    pub fn addr(&self) -> SocketAddr {
        self.broker.node.local_addr()
    }

    pub fn id(&self) -> i32 {
        self.broker.node.broker().config.broker_id.0
    }
}

pub fn text(s: &str) -> StrBytes {
    StrBytes::from_string(s.to_owned())
}

/// A batch of `count` records that take `size` bytes each. The broker does not open them.
pub fn batch(count: i32, size: usize) -> bytes::Bytes {
    batch_of(1_700_000_000_000, count, 0, &vec![b'r'; count as usize * size])
}

pub fn new_topic(name: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(-1)
}

pub fn with_config(topic: CreatableTopic, name: &str, value: &str) -> CreatableTopic {
    let mut configs = topic.configs.clone();
    configs.push(CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value))));
    topic.with_configs(configs)
}

pub fn create_request(topics: Vec<CreatableTopic>) -> CreateTopicsRequest {
    CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(10_000)
}

pub async fn create(client: &mut Client, topic: CreatableTopic) -> CreatableTopicResult {
    let mut response = client.call(7, &create_request(vec![topic])).await;
    assert_eq!(response.topics.len(), 1);
    response.topics.remove(0)
}

pub async fn created(client: &mut Client, topic: CreatableTopic) -> CreatableTopicResult {
    let result = create(client, topic).await;
    assert_eq!((result.error_code, &result.error_message), (0, &None));
    result
}

pub fn named(name: &str) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(Some(topic_name(name)))
}

pub fn by_id(id: Uuid) -> MetadataRequestTopic {
    MetadataRequestTopic::default().with_name(None).with_topic_id(id)
}

pub fn metadata_request(topics: Option<Vec<MetadataRequestTopic>>, may_create: bool) -> MetadataRequest {
    MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(may_create)
}

pub async fn described(client: &mut Client, topic: MetadataRequestTopic) -> MetadataResponseTopic {
    let mut response = client.call(12, &metadata_request(Some(vec![topic]), false)).await;
    assert_eq!(response.topics.len(), 1);
    response.topics.remove(0)
}

pub async fn all_names(client: &mut Client) -> Vec<String> {
    let response = client.call(12, &metadata_request(None, false)).await;
    response.topics.iter().map(|t| t.name.as_ref().map(|n| n.to_string()).unwrap_or_default()).collect()
}

pub async fn delete(client: &mut Client, name: &str) -> i16 {
    let request =
        DeleteTopicsRequest::default().with_topic_names(vec![topic_name(name)]).with_timeout_ms(10_000);
    client.call(5, &request).await.responses[0].error_code
}

pub async fn configs(client: &mut Client, kind: i8, name: &str) -> DescribeConfigsResult {
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

pub fn config<'a>(result: &'a DescribeConfigsResult, key: &str) -> &'a DescribeConfigsResourceResult {
    result.configs.iter().find(|c| c.name.as_str() == key).unwrap_or_else(|| panic!("{key} is described"))
}

/// Value and source of a topic's config.
pub async fn value(client: &mut Client, topic: &str, key: &str) -> (String, i8) {
    let result = configs(client, TOPIC, topic).await;
    let config = config(&result, key);
    (config.value.clone().map(|v| v.to_string()).unwrap_or_default(), config.config_source)
}

pub async fn alter(client: &mut Client, kind: i8, name: &str, changes: &[(&str, i8, Option<&str>)]) -> i16 {
    alter_request(client, kind, name, changes, false).await
}

pub async fn alter_request(
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

pub async fn replace_configs(client: &mut Client, topic: &str, pairs: &[(&str, &str)]) -> i16 {
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
pub async fn produce(client: &mut Client, topic: &str, records: bytes::Bytes) -> (i16, i64) {
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
pub async fn delete_records(client: &mut Client, topic: &str, offset: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(offset);
    let topic = DeleteRecordsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let response = client.call(2, &request).await;
    let partition = &response.topics[0].partitions[0];
    (partition.error_code, partition.low_watermark)
}
