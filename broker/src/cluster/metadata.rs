//! The cluster's metadata: what topics there are, and what is being deleted; pure changes to it, and
//! its disk form.
//!
//! One file holds all of it, `__cluster/metadata/{controller epoch}-metadata.json`, written by the
//! controller of that epoch and replaced as a whole (see [`super::store`]). A change validates first and
//! then changes, so a refused one leaves nothing behind.

use super::admin::AdminError;
use super::election::Candidate;
use super::error::StartError;
use super::layout::LeaseKey;
use super::names::check_topic_name;
use super::requests::Answered;
use crate::types::{Epoch, TopicId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const KNOWN: u32 = 2;

/// No topic has more partitions, whatever the limits of the day were (`max.partitions`, which the API
/// checks): a file that says so was not written by a controller.
const MAX_PARTITIONS: i32 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metadata {
    pub format: u32,
    /// Rises by one with each write, over all epochs.
    pub change: u64,
    /// Who wrote it; `None` only before the first write.
    pub controller: Option<Stamp>,
    pub topics: BTreeMap<String, TopicMeta>,
    /// Topics that are no more, but whose files may still be there.
    pub deleting: BTreeMap<TopicId, String>,
    /// Who coordinates the groups of each slot, and under which lease.
    #[serde(default)]
    pub slots: Vec<Option<LeaseKey>>,
    /// What was answered last under each lease that asked ([`super::requests`]) and may stand.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<LeaseKey, Answered>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub epoch: Epoch,
    #[serde(flatten)]
    pub by: Candidate,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicMeta {
    pub id: TopicId,
    pub partitions: i32,
    /// By Kafka's names, as they were set.
    pub configs: BTreeMap<String, String>,
    /// Who leads each partition, and under which lease; may be shorter than there are partitions.
    ///
    /// This only proposes: a broker acts on it under its present lease alone, and the partition's directory decides.
    #[serde(default)]
    pub leaders: Vec<Option<LeaseKey>>,
    /// The leader epoch from which on each leader opens its partition: what brokers that do not lead show to clients.
    /// As long as `leaders`, or shorter: then it is 0, and not known. See [`super::assign`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<Epoch>,
    /// By partition: who gave it up because the volume did not answer him, though his lease may stand, and from which leader
    /// epoch on a claim of his counts again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disowned: BTreeMap<i32, BTreeMap<LeaseKey, Epoch>>,
}

impl Default for Metadata {
    fn default() -> Self {
        Metadata {
            format: KNOWN,
            change: 0,
            controller: None,
            topics: BTreeMap::new(),
            deleting: BTreeMap::new(),
            slots: Vec::new(),
            answers: BTreeMap::new(),
        }
    }
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        // Maps with string keys, numbers and strings always encode.
        let mut b = serde_json::to_vec_pretty(self).unwrap_or_default();
        assert!(!b.is_empty(), "metadata that does not encode must not replace what stands");
        b.push(b'\n');
        b
    }

    pub fn decode(path: &str, bytes: &[u8]) -> Result<Self, StartError> {
        #[derive(Deserialize)]
        struct Number {
            format: u32,
        }
        let unreadable =
            |e: serde_json::Error| StartError::Unreadable { path: path.into(), why: e.to_string() };
        let Number { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format > KNOWN {
            return Err(StartError::FormatNewer { path: path.into(), found: format, known: KNOWN });
        }
        let mut read: Metadata = serde_json::from_slice(bytes).map_err(unreadable)?;
        read.format = KNOWN;
        match read.unsound() {
            None => Ok(read),
            Some(why) => Err(StartError::Unreadable { path: path.into(), why }),
        }
    }

    /// What no controller would have written: names become paths, so they are checked again.
    fn unsound(&self) -> Option<String> {
        for (name, topic) in &self.topics {
            let too_many =
                topic.partitions > MAX_PARTITIONS || topic.leaders.len() > topic.partitions.max(0) as usize;
            if check_topic_name(name).is_err() || topic.partitions < 1 || too_many {
                return Some(format!("topic {name:?} with {} partitions cannot be", topic.partitions));
            }
        }
        self.deleting
            .values()
            .find(|n| check_topic_name(n).is_err())
            .map(|n| format!("topic name {n:?} cannot be"))
    }

    pub fn create_topic(&mut self, name: &str, topic: TopicMeta) -> Result<(), AdminError> {
        check_topic_name(name)?;
        if self.topics.contains_key(name) {
            return Err(AdminError::TopicExists(name.into()));
        }
        if let Some(twin) = self.twin(name) {
            return Err(AdminError::InvalidTopic(format!(
                "topic '{name}' collides with existing topic '{twin}'"
            )));
        }
        check_partitions(topic.partitions)?;
        if self.deleting.contains_key(&topic.id) {
            // A request that is carried out a second time.
            return Err(AdminError::TopicExists(name.into()));
        }
        self.topics.insert(name.into(), topic);
        Ok(())
    }

    /// The topic whose metric names would be the same: '.' and '_' count as one (Kafka:
    /// `Topic.hasCollision`).
    fn twin(&self, name: &str) -> Option<&String> {
        let folded = name.replace('.', "_");
        if !folded.contains('_') {
            return None;
        }
        self.topics.keys().find(|other| other.len() == name.len() && other.replace('.', "_") == folded)
    }

    /// Returns the id under which the topic's files are to be deleted.
    pub fn delete_topic(&mut self, name: &str) -> Result<TopicId, AdminError> {
        let topic = self.topics.remove(name).ok_or_else(|| AdminError::UnknownTopic(name.into()))?;
        self.deleting.insert(topic.id, name.into());
        Ok(topic.id)
    }

    /// The files of a deleted topic are gone.
    pub fn deletion_done(&mut self, id: TopicId) {
        self.deleting.remove(&id);
    }

    pub fn create_partitions(&mut self, name: &str, total: i32) -> Result<(), AdminError> {
        let topic = self.topics.get_mut(name).ok_or_else(|| AdminError::UnknownTopic(name.into()))?;
        check_partitions(total)?;
        if total <= topic.partitions {
            return Err(AdminError::InvalidPartitions(format!(
                "topic {name} has {} partitions, {total} is not more",
                topic.partitions
            )));
        }
        topic.partitions = total;
        Ok(())
    }

    /// What was assigned to somebody else meanwhile, or deleted, stays as it is.
    pub fn raise_epochs(&mut self, lease: LeaseKey, epochs: &[(TopicId, i32, Epoch)]) {
        let mut topics: BTreeMap<TopicId, &mut TopicMeta> =
            self.topics.values_mut().map(|t| (t.id, t)).collect();
        for (id, index, epoch) in epochs {
            let (Some(topic), Ok(index)) = (topics.get_mut(id), usize::try_from(*index)) else { continue };
            if topic.leaders.get(index) == Some(&Some(lease)) {
                if let Some(shown) = topic.epochs.get_mut(index) {
                    *shown = (*shown).max(*epoch);
                }
            }
        }
    }

    /// Who led these partitions under `lease` gave them up, for good below the epoch named with each. Those that are still his
    /// have no leader then, and the next one comes from that epoch on. Of those that are another's already, and wait for his
    /// word, it is noted; deleted ones stay as they are.
    pub fn disown(&mut self, lease: LeaseKey, partitions: &[(TopicId, i32, Epoch)]) {
        let mut topics: BTreeMap<TopicId, &mut TopicMeta> =
            self.topics.values_mut().map(|t| (t.id, t)).collect();
        for (id, number, below) in partitions {
            let (Some(topic), Ok(index)) = (topics.get_mut(id), usize::try_from(*number)) else { continue };
            let (Some(leader), Some(shown)) = (topic.leaders.get_mut(index), topic.epochs.get_mut(index))
            else {
                continue;
            };
            if *leader == Some(lease) {
                // Given back under a later assignment meanwhile: nobody waits for a word about the earlier one.
                if *shown >= *below {
                    continue;
                }
                *leader = None;
            }
            // Openings that failed may have claimed beyond the present assignment; the next one is to be above them.
            if shown.of_next_assignment() < *below {
                *shown = Epoch(below.0 - 1);
            }
            let by = topic.disowned.entry(*number).or_default().entry(lease).or_default();
            *by = (*by).max(*below);
        }
    }

    /// Forgets what was said of leases that are over: that they are says more.
    pub fn forget(&mut self, is_over: impl Fn(LeaseKey) -> bool) {
        self.answers.retain(|lease, _| !is_over(*lease));
        for topic in self.topics.values_mut() {
            topic.disowned.values_mut().for_each(|by| by.retain(|lease, _| !is_over(*lease)));
            topic.disowned.retain(|_, by| !by.is_empty());
        }
    }

    pub fn topic_mut(&mut self, name: &str) -> Result<&mut TopicMeta, AdminError> {
        self.topics.get_mut(name).ok_or_else(|| AdminError::UnknownTopic(name.into()))
    }
}

fn check_partitions(n: i32) -> Result<(), AdminError> {
    match n {
        1..=MAX_PARTITIONS => Ok(()),
        _ => Err(AdminError::InvalidPartitions(format!(
            "{n} partitions: a topic has at least 1 and at most {MAX_PARTITIONS}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(n: u128, partitions: i32) -> TopicMeta {
        TopicMeta { id: TopicId(uuid::Uuid::from_u128(n)), partitions, ..TopicMeta::default() }
    }

    #[test]
    fn metadata_is_read_back_as_written() {
        let mut m = Metadata::default();
        m.create_topic("orders", topic(500, 3)).expect("legal");
        m.create_topic("gone", topic(501, 1)).expect("legal");
        m.delete_topic("gone").expect("there");
        m.topic_mut("orders").expect("there").configs.insert("retention.ms".into(), "5".into());
        m.controller = Some(Stamp {
            epoch: Epoch(3),
            by: Candidate {
                broker: crate::types::BrokerId(1),
                incarnation: uuid::Uuid::from_u128(7),
                lease: 4,
            },
        });
        assert_eq!(Metadata::decode("m", &m.encode()).expect("sound"), m);
    }

    #[test]
    fn what_was_given_up_is_noted_of_whoever_gave_it_up() {
        let lease = |number| LeaseKey { broker: crate::types::BrokerId(1), number };
        let (first, second) = (lease(1), lease(2));
        let mut m = Metadata::default();
        let id = topic(500, 3).id;
        let leaders = vec![Some(first), Some(second), Some(first)];
        let epochs = vec![Epoch(256), Epoch(512), Epoch(768)];
        m.create_topic("t", TopicMeta { leaders, epochs, ..topic(500, 3) }).expect("legal");
        // Still its own, after failed openings beyond its room; another's already; its own again, under a later assignment.
        m.disown(
            first,
            &[(id, 0, Epoch(1024)), (id, 1, Epoch(512)), (id, 2, Epoch(512)), (id, 9, Epoch(512))],
        );
        let t = m.topic_mut("t").expect("there");
        assert_eq!(t.leaders, [None, Some(second), Some(first)]);
        assert_eq!(t.epochs[0].of_next_assignment(), Epoch(1024));
        assert_eq!(t.epochs[1..], [Epoch(512), Epoch(768)]);
        let noted: Vec<_> = t.disowned.iter().map(|(n, by)| (*n, by.clone())).collect();
        assert_eq!(
            noted,
            [(0, BTreeMap::from([(first, Epoch(1024))])), (1, BTreeMap::from([(first, Epoch(512))]))]
        );
    }

    #[test]
    fn every_cut_of_the_file_is_refused() {
        let mut m = Metadata::default();
        m.create_topic("orders", topic(500, 3)).expect("legal");
        let whole = m.encode();
        for cut in 0..whole.len() - 2 {
            let r = Metadata::decode("m", &whole[..cut]);
            assert!(matches!(r, Err(StartError::Unreadable { .. })), "{cut} bytes were taken for whole");
        }
    }

    #[test]
    fn a_name_that_leads_out_of_the_volume_is_refused_though_the_file_has_it() {
        let evil = r#"{"format":1,"change":1,"controller":null,"topics":{},
            "deleting":{"00000000-0000-0000-0000-000000000200":"../.."}}"#;
        assert!(matches!(Metadata::decode("m", evil.as_bytes()), Err(StartError::Unreadable { .. })));
    }

    #[test]
    fn dots_and_underscores_collide() {
        let mut m = Metadata::default();
        m.create_topic("a.b_c", topic(500, 1)).expect("legal");
        assert!(matches!(m.create_topic("a_b.c", topic(501, 1)), Err(AdminError::InvalidTopic(_))));
        assert!(matches!(m.create_topic("a.b_c", topic(501, 1)), Err(AdminError::TopicExists(_))));
        m.create_topic("a-b-c", topic(502, 1)).expect("a dash is no dot");
    }

    #[test]
    fn refused_changes_change_nothing() {
        let mut m = Metadata::default();
        m.create_topic("t", topic(500, 2)).expect("legal");
        let before = m.clone();
        assert!(m.create_topic("u", topic(501, 0)).is_err());
        assert!(m.create_topic("u", topic(501, i32::MAX)).is_err());
        assert!(m.create_partitions("t", 2).is_err());
        assert!(m.create_partitions("nope", 3).is_err());
        assert!(m.delete_topic("nope").is_err());
        assert_eq!(m, before);
    }
}
