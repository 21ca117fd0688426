//! An admin: makes, deletes and grows topics, deletes records, changes how long records are kept.
//!
//! Topics are deleted by id, so a request that takes effect late can't hit the next topic of the name.

use super::spec::{Admin, Deed, TopicSpec};
use super::User;
use crate::client::{topic_name, version, Target};
use crate::history::{now, Event, Lost};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{
    CreatePartitionsRequest, DeleteRecordsRequest, DeleteTopicsRequest, IncrementalAlterConfigsRequest,
};
use kafka_protocol::protocol::StrBytes;
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const TIMEOUT_MS: i32 = 10_000;
const PAUSE: Duration = Duration::from_millis(200);
/// Kafka's resource type of a topic.
const TOPIC: i8 = 2;
const SET: i8 = 0;
const DELETE: i8 = 1;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const UNKNOWN_TOPIC_ID: i16 = 100;

pub(super) async fn run(mut user: User, spec: Admin) {
    // Topics of its own, for those that come and go.
    let mut made: Option<Arc<str>> = None;
    let interval = 1.0 / spec.rate.draw(&mut user.rng).max(0.01);
    while !user.is_over() {
        let pause = Duration::from_secs_f64(interval * user.rng.gen_range(0.2..1.8));
        user.pause(pause).await;
        let topics: Vec<(Arc<str>, i32)> = user.ctx.directory.topics();
        let is_mine = |t: &Arc<str>| spec.topics.is_empty() || spec.topics.iter().any(|n| **n == **t);
        let mine: Vec<(Arc<str>, i32)> = topics.into_iter().filter(|(t, _)| is_mine(t)).collect();
        let (Some(deed), Some((topic, partitions))) = (user.pick(&spec.does), user.pick(&mine)) else {
            continue;
        };
        match deed {
            Deed::Recreate => user.recreate(&topic).await,
            Deed::CreateDelete => user.create_delete(&mut made).await,
            Deed::CreatePartitions => {
                let count = (partitions + 1).min(spec.max_partitions);
                if count > partitions {
                    user.create_partitions(&topic, count).await;
                }
            }
            Deed::DeleteRecords => user.delete_records(&topic, partitions).await,
            Deed::AlterConfigs => user.change_retention(&topic, &spec).await,
        }
    }
}

impl User {
    async fn recreate(&mut self, topic: &Arc<str>) {
        let Some(spec) = self.ctx.directory.spec(topic) else { return };
        if !self.delete_until_gone(topic).await {
            return;
        }
        while !self.is_over() && !self.create_topic(topic, &spec).await {
            self.pause(PAUSE).await;
        }
    }

    async fn create_delete(&mut self, made: &mut Option<Arc<str>>) {
        if let Some(topic) = made.take() {
            if !self.delete_until_gone(&topic).await {
                *made = Some(topic);
            }
            return;
        }
        let number: u32 = self.rng.gen_range(0..4);
        let topic: Arc<str> = format!("passing-{}-{number}", self.who.0).into();
        let spec = TopicSpec { name: topic.to_string(), partitions: 1, configs: BTreeMap::new() };
        self.ctx.directory.note_spec(&spec);
        if self.create_topic(&topic, &spec).await {
            *made = Some(topic);
        }
    }

    /// Deletes a topic; tries on while the outcome is not known. Returns whether it is surely gone.
    async fn delete_until_gone(&mut self, topic: &Arc<str>) -> bool {
        let Some(id) = self.ctx.directory.id(topic) else { return false };
        if self.is_over() {
            // Nothing is sent any more: it stays, and is to be read in the end.
            return false;
        }
        self.ctx.directory.deleting(id);
        while !self.is_over() {
            match self.delete_topic(topic, id).await {
                Ok(0 | UNKNOWN_TOPIC_OR_PARTITION | UNKNOWN_TOPIC_ID) => return true,
                _ => self.pause(PAUSE).await,
            }
        }
        false
    }

    async fn delete_topic(&mut self, topic: &Arc<str>, id: Uuid) -> Result<i16, Lost> {
        let who = self.who;
        let sent = self.record(Event::DeleteTopicSent { who, topic: topic.clone(), id });
        let row = DeleteTopicState::default().with_name(None).with_topic_id(id);
        let request = DeleteTopicsRequest::default().with_topics(vec![row]).with_timeout_ms(TIMEOUT_MS);
        let response = self.client.call(&Target::Any, version::DELETE_TOPICS, &request).await;
        let answer = response.map(|r| r.responses.first().map_or(-1, |row| row.error_code));
        self.record(Event::DeleteTopicDone { who, sent, answer: answer.clone() });
        answer
    }

    async fn create_partitions(&mut self, topic: &Arc<str>, count: i32) {
        let started = now();
        let row = CreatePartitionsTopic::default()
            .with_name(topic_name(topic))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![row]).with_timeout_ms(TIMEOUT_MS);
        let response = self.client.call(&Target::Any, version::CREATE_PARTITIONS, &request).await;
        let answer = response.map(|r| r.results.first().map_or(-1, |row| row.error_code));
        let who = self.who;
        self.record(Event::CreatePartitionsDone { who, started, topic: topic.clone(), count, answer });
        self.look(topic).await;
    }

    async fn delete_records(&mut self, topic: &Arc<str>, partitions: i32) {
        let line = (topic.clone(), self.rng.gen_range(0..partitions));
        let Ok(latest) = self.list_offset(&line, super::consumer::LATEST).await else { return };
        let to = match self.rng.gen_range(0..4) {
            0 => -1,
            _ => self.rng.gen_range(0..=latest.offset.max(0)),
        };
        let who = self.who;
        let place = self.ctx.directory.place(topic, line.1);
        let sent = self.record(Event::DeleteRecordsSent { who, at: place, to });
        let row = DeleteRecordsPartition::default().with_partition_index(line.1).with_offset(to);
        let row = DeleteRecordsTopic::default().with_name(topic_name(topic)).with_partitions(vec![row]);
        let request = DeleteRecordsRequest::default().with_topics(vec![row]).with_timeout_ms(TIMEOUT_MS);
        let target = Target::Leader(topic.clone(), line.1);
        let response = self.client.call(&target, version::DELETE_RECORDS, &request).await;
        let answer = response.map(|r| {
            let row = r.topics.first().and_then(|t| t.partitions.first());
            row.map_or((-1, -1), |p| (p.error_code, p.low_watermark))
        });
        self.record(Event::DeleteRecordsDone { who, sent, answer });
    }

    async fn change_retention(&mut self, topic: &Arc<str>, spec: &Admin) {
        let (key, value) = match self.rng.gen_range(0..4) {
            0 => ("retention.ms", None),
            1 => ("retention.bytes", None),
            2 => ("retention.ms", Some(spec.retention_ms.whole(&mut self.rng))),
            _ => ("retention.bytes", Some(spec.retention_bytes.whole(&mut self.rng))),
        };
        let value = value.map(|v| v.to_string());
        self.alter_config(topic, key, value).await;
    }

    /// `None` takes the topic's own value away.
    pub(super) async fn alter_config(&mut self, topic: &Arc<str>, key: &str, value: Option<String>) {
        let who = self.who;
        let id = self.ctx.directory.id(topic);
        let sent = self.record(Event::AlterConfigSent {
            who,
            topic: topic.clone(),
            id,
            key: key.into(),
            value: value.clone(),
        });
        let operation = if value.is_some() { SET } else { DELETE };
        let config = AlterableConfig::default()
            .with_name(StrBytes::from_string(key.to_owned()))
            .with_config_operation(operation)
            .with_value(value.map(StrBytes::from_string));
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(StrBytes::from_string(topic.to_string()))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let target = Target::Any;
        let response = self.client.call(&target, version::INCREMENTAL_ALTER_CONFIGS, &request).await;
        let answer = response.map(|r| r.responses.first().map_or(-1, |row| row.error_code));
        self.record(Event::AlterConfigDone { who, sent, answer });
    }
}
