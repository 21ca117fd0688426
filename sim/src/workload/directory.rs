//! Which topic a name stands for, and when that is certain.
//!
//! Produce and Fetch name topics, and a name can be given to another topic. A client learns the id from Metadata
//! or CreateTopics; from then on it is certain until a deletion of *that id* is sent, since only our own
//! clients delete, and delete by id. A request whose name was certain from its sending to its answer
//! concerned that id. One that was under way while a deletion was says nothing certain.

use super::spec::TopicSpec;
use crate::client::Said;
use crate::history::{Event, History, Place, Who};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Shared by all clients of a life; clones are the same directory.
#[derive(Clone, Default)]
pub struct Directory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    topics: BTreeMap<Arc<str>, Known>,
    /// Ids of which a deletion was sent.
    deleted: BTreeSet<Uuid>,
    /// Whether somebody else may commit to it.
    groups: BTreeMap<Arc<str>, bool>,
    /// Leader and leader epoch, by who said it last of which partition.
    said: BTreeMap<(IpAddr, Uuid, i32), (i32, i32)>,
    /// How topics of a name are made.
    specs: BTreeMap<Arc<str>, TopicSpec>,
    /// How many processes had a transactional id so far.
    incarnations: BTreeMap<Arc<str>, u32>,
    longest_transaction: Option<Duration>,
}

struct Known {
    id: Uuid,
    partitions: i32,
}

impl Directory {
    /// A broker says that `topic` is `id`.
    pub fn saw(&self, history: &History, who: Who, topic: &Arc<str>, id: Uuid, partitions: i32) {
        let mut inner = self.0.lock();
        if id.is_nil() || inner.deleted.contains(&id) {
            return;
        }
        // A topic only grows; a broker that was woken may tell of fewer.
        let is_news = inner.topics.get(topic).is_none_or(|k| k.id != id || k.partitions < partitions);
        if is_news {
            inner.topics.insert(topic.clone(), Known { id, partitions });
            history.record(Event::TopicSeen { who, topic: topic.clone(), id, partitions });
        }
    }

    /// What a broker's metadata says of a partition; recorded if it is not what that one said last.
    pub fn said(&self, history: &History, who: Who, said: Said) {
        let Said { by, asked, topic, id, partition, leader, epoch } = said;
        let last = self.0.lock().said.insert((by, id, partition), (leader, epoch));
        if last != Some((leader, epoch)) {
            let at = Place { topic: topic.clone(), partition, id: Some(id) };
            history.record(Event::LeaderShown { who, by, asked, at, leader, epoch });
        }
    }

    /// A deletion of `id` is about to be sent.
    pub fn deleting(&self, id: Uuid) {
        let mut inner = self.0.lock();
        inner.deleted.insert(id);
        inner.topics.retain(|_, known| known.id != id);
    }

    /// A partition, as a request that is sent now names it.
    pub fn place(&self, topic: &Arc<str>, partition: i32) -> Place {
        Place { topic: topic.clone(), partition, id: self.id(topic) }
    }

    /// The same, now that the answer is here.
    pub fn still(&self, place: &Place) -> Place {
        Place { id: place.id.filter(|id| self.id(&place.topic) == Some(*id)), ..place.clone() }
    }

    pub fn id(&self, topic: &Arc<str>) -> Option<Uuid> {
        self.0.lock().topics.get(topic).map(|k| k.id)
    }

    /// Topics that surely exist, with their partitions as last seen.
    pub fn topics(&self) -> Vec<(Arc<str>, i32)> {
        self.0.lock().topics.iter().map(|(name, k)| (name.clone(), k.partitions)).collect()
    }

    pub fn note_spec(&self, spec: &TopicSpec) {
        self.0.lock().specs.insert(spec.name.as_str().into(), spec.clone());
    }

    /// How a topic of this name was made.
    pub fn spec(&self, topic: &Arc<str>) -> Option<TopicSpec> {
        self.0.lock().specs.get(topic).cloned()
    }

    pub fn note_group(&self, group: &Arc<str>) {
        self.0.lock().groups.entry(group.clone()).or_insert(true);
    }

    /// A group whose offsets are its members' alone: outputs go with them.
    pub fn note_pipeline(&self, group: &Arc<str>) {
        self.0.lock().groups.insert(group.clone(), false);
    }

    /// Whether somebody else may commit to a group.
    pub fn is_open(&self, group: &Arc<str>) -> bool {
        self.0.lock().groups.get(group).copied().unwrap_or(true)
    }

    /// Another process takes a transactional id; its transactions last for so long at most. Returns which one it is,
    /// from 1 on.
    pub fn next_incarnation(&self, id: &Arc<str>, timeout: Duration) -> u32 {
        let mut inner = self.0.lock();
        inner.longest_transaction = inner.longest_transaction.max(Some(timeout));
        let n = inner.incarnations.entry(id.clone()).or_default();
        *n += 1;
        *n
    }

    /// After how long the last transaction is aborted, if there is any.
    pub fn longest_transaction(&self) -> Option<Duration> {
        self.0.lock().longest_transaction
    }

    /// Groups that anybody used.
    pub fn groups(&self) -> Vec<Arc<str>> {
        self.0.lock().groups.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[madsim::test]
    async fn a_name_is_uncertain_while_its_topic_is_deleted_and_certain_again_as_another() {
        let (directory, history) = (Directory::default(), History::default());
        let (topic, old, new): (Arc<str>, _, _) = ("t".into(), Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(directory.place(&topic, 0).id, None);
        directory.saw(&history, Who(0), &topic, old, 1);
        let sent = directory.place(&topic, 0);
        assert_eq!(directory.still(&sent).id, Some(old));
        directory.deleting(old);
        assert_eq!(directory.still(&sent).id, None, "it may have met either");
        // A late answer from before the deletion makes nothing certain.
        directory.saw(&history, Who(0), &topic, old, 1);
        assert_eq!(directory.id(&topic), None);
        directory.saw(&history, Who(0), &topic, new, 1);
        assert_eq!(directory.still(&sent).id, None);
        assert_eq!(directory.place(&topic, 0).id, Some(new));
    }

    #[madsim::test]
    async fn a_topic_has_as_many_partitions_as_anybody_ever_saw() {
        let (directory, history) = (Directory::default(), History::default());
        let (topic, id): (Arc<str>, _) = ("t".into(), Uuid::from_u128(1));
        for (seen, known) in [(1, 1), (3, 3), (2, 3)] {
            directory.saw(&history, Who(0), &topic, id, seen);
            assert_eq!(directory.topics(), [(topic.clone(), known)]);
        }
        directory.saw(&history, Who(0), &topic, Uuid::from_u128(2), 1);
        assert_eq!(directory.topics(), [(topic, 1)], "another topic of that name");
    }
}
