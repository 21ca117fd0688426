//! The cluster's metadata as an immutable picture: topics, their ids, partitions and configs.

use super::layout::LeaseKey;
use super::metadata::{Metadata, TopicMeta};
use crate::config::TopicConfig;
use crate::storage::Assignment;
use crate::types::{BrokerId, Epoch, TopicId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct TopicImage {
    pub name: String,
    pub id: TopicId,
    pub partitions: i32,
    /// What was set on the topic itself, by Kafka's config names.
    pub overrides: BTreeMap<String, String>,
    /// `overrides` over the broker's defaults.
    pub config: Arc<TopicConfig>,
    /// Who leads each partition, and under which lease.
    pub(crate) leaders: Vec<Option<LeaseKey>>,
    /// The leader epoch from which on each of them opens its partition; may be shorter.
    pub(crate) epochs: Vec<Epoch>,
    /// [`TopicMeta::disowned`].
    pub(crate) disowned: BTreeMap<i32, BTreeMap<LeaseKey, Epoch>>,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterImage {
    pub topics: BTreeMap<String, Arc<TopicImage>>,
    pub names: BTreeMap<TopicId, String>,
    slots: Vec<Option<LeaseKey>>,
    controller: Option<LeaseKey>,
}

impl ClusterImage {
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics.get(name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.names.get(&id).and_then(|n| self.topics.get(n))
    }

    /// Who coordinates the groups of `slot`.
    pub fn coordinator(&self, slot: u32) -> Option<BrokerId> {
        self.slots.get(slot as usize).copied().flatten().map(|key| key.broker)
    }

    /// Who made the last change that is known here.
    pub fn controller(&self) -> Option<BrokerId> {
        self.controller.map(|key| key.broker)
    }

    /// What is assigned under the lease `mine`: partitions by topic id and index, and slots, whose topic id is nil.
    pub(super) fn assigned(&self, mine: LeaseKey) -> BTreeMap<(TopicId, i32), Assignment> {
        let of = |leaders: &'_ [Option<LeaseKey>]| {
            let led = (0i32..).zip(leaders).filter(|(_, l)| **l == Some(mine));
            led.map(|(index, _)| index).collect::<Vec<_>>()
        };
        let topics = self
            .topics
            .values()
            .flat_map(|t| of(&t.leaders).into_iter().map(|index| ((t.id, index), t.assignment(index))));
        let slots = of(&self.slots).into_iter();
        topics.chain(slots.map(|index| ((TopicId::default(), index), Assignment::default()))).collect()
    }

    /// The picture of `m`. Topics that are as in `self` are shared with it.
    pub(super) fn next(&self, m: &Metadata, defaults: &Arc<TopicConfig>) -> ClusterImage {
        let mut next = ClusterImage::default();
        for (name, topic) in &m.topics {
            let same = self.topics.get(name).filter(|old| old.shows(topic)).cloned();
            let image = same.unwrap_or_else(|| Arc::new(TopicImage::new(name, topic, defaults)));
            next.topics.insert(name.clone(), image);
            next.names.insert(topic.id, name.clone());
        }
        next.slots.clone_from(&m.slots);
        let by = m.controller.map(|stamp| stamp.by);
        next.controller = by.map(|c| LeaseKey { broker: c.broker, number: c.lease as u32 });
        next
    }
}

impl TopicImage {
    pub(super) fn new(name: &str, topic: &TopicMeta, defaults: &Arc<TopicConfig>) -> TopicImage {
        // Overrides were checked before they were stored. Should this version know less than the one
        // that stored them, the topic is served with the defaults rather than not at all.
        let config = match TopicConfig::resolve(defaults, &topic.configs) {
            _ if topic.configs.is_empty() => defaults.clone(),
            Ok(config) => Arc::new(config),
            Err(e) => {
                tracing::warn!("topic {name} is served with the broker's defaults: {e}");
                defaults.clone()
            }
        };
        TopicImage {
            name: name.into(),
            id: topic.id,
            partitions: topic.partitions,
            overrides: topic.configs.clone(),
            config,
            leaders: topic.leaders.clone(),
            epochs: topic.epochs.clone(),
            disowned: topic.disowned.clone(),
        }
    }

    /// Who is to lead the partition, as far as is known here.
    pub fn leader(&self, index: i32) -> Option<BrokerId> {
        let leader = usize::try_from(index).ok().and_then(|i| self.leaders.get(i).copied().flatten());
        leader.map(|key| key.broker)
    }

    /// The leader epoch that clients are told of where the partition is not led; 0 if there is none.
    pub fn epoch(&self, index: i32) -> Epoch {
        usize::try_from(index).ok().and_then(|i| self.epochs.get(i).copied()).unwrap_or_default()
    }

    /// What its leader is told.
    fn assignment(&self, index: i32) -> Assignment {
        let disowned = self.disowned.get(&index).into_iter().flatten();
        Assignment {
            epoch: self.epoch(index),
            disowned: disowned.map(|(lease, below)| (lease.holder(), *below)).collect(),
        }
    }

    fn shows(&self, topic: &TopicMeta) -> bool {
        self.id == topic.id
            && self.partitions == topic.partitions
            && self.overrides == topic.configs
            && self.leaders == topic.leaders
            && self.epochs == topic.epochs
            && self.disowned == topic.disowned
    }
}
