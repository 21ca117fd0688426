//! Making the topics of a life.

use super::spec::TopicSpec;
use super::{Ctx, User};
use crate::client::{topic_name, version, Target};
use crate::history::{Event, Who};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::protocol::StrBytes;
use std::sync::Arc;
use std::time::Duration;

/// Kafka: TOPIC_ALREADY_EXISTS.
const EXISTS: i16 = 36;

/// Makes the topics, and returns once all are there. Call it on the node that it is to run on.
pub async fn create_topics(ctx: &Ctx, topics: &[TopicSpec]) {
    let deadline = ctx.patience();
    let mut user = User::new(ctx, Who::FOUNDER, deadline, ctx.rng(Who::FOUNDER));
    for spec in topics {
        let topic: Arc<str> = spec.name.as_str().into();
        ctx.directory.note_spec(spec);
        while !user.create_topic(&topic, spec).await && !user.is_over() {
            user.pause(Duration::from_millis(200)).await;
        }
    }
}

impl User {
    /// Returns whether the topic is known to be there.
    pub(super) async fn create_topic(&mut self, topic: &Arc<str>, spec: &TopicSpec) -> bool {
        let configs = spec.configs.iter().map(|(k, v)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_string(k.clone()))
                .with_value(Some(StrBytes::from_string(v.clone())))
        });
        let row = CreatableTopic::default()
            .with_name(topic_name(topic))
            .with_num_partitions(spec.partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default().with_topics(vec![row]).with_timeout_ms(10_000);
        let (who, name) = (self.who, topic.clone());
        let configs = spec.configs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let sent =
            self.record(Event::CreateTopicSent { who, topic: name, partitions: spec.partitions, configs });
        let response = self.client.call(&Target::Any, version::CREATE_TOPICS, &request).await;
        let answer = response.map(|r| {
            let row = r.topics.first().cloned().unwrap_or_default();
            (row.error_code, Some(row.topic_id).filter(|id| row.error_code == 0 && !id.is_nil()))
        });
        self.record(Event::CreateTopicDone { who, sent, answer: answer.clone() });
        match answer {
            Ok((0, Some(id))) => {
                self.ctx.directory.saw(&self.ctx.history, who, topic, id, spec.partitions);
                true
            }
            Ok((EXISTS, _)) => self.look(topic).await,
            _ => false,
        }
    }

    /// Asks what `topic` is. Returns whether it is known to be there.
    pub(super) async fn look(&mut self, topic: &Arc<str>) -> bool {
        let Ok(response) = self.client.metadata(Some(topic)).await else { return false };
        for row in response.topics.iter().filter(|t| t.error_code == 0) {
            let partitions = i32::try_from(row.partitions.len()).unwrap_or(i32::MAX);
            self.ctx.directory.saw(&self.ctx.history, self.who, topic, row.topic_id, partitions);
        }
        self.ctx.directory.id(topic).is_some()
    }
}
