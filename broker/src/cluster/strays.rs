//! Directories of topics and partitions that the metadata does not name.
//!
//! Writes nothing. Beside a running cluster a stray may be one of a topic that was created, or is being deleted, while
//! this looked: what counts is what is there twice, with the metadata read anew.

use super::files;
use super::inspect::{is_no_topic, Inspection, LIMIT};
use crate::storage::verify::Finding;
use crate::types::TopicId;
use crate::volume::{Class, EntryKind, Volume};
use futures::StreamExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Directories that are listed side by side: a shared volume answers slowly, and many at a time.
const AT_ONCE: usize = 8;
/// What a deletion sets aside ends in.
const ASIDE: &str = ".deleted";

/// Why nobody owns a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    UnknownTopic,
    UnknownPartition,
    /// Its topic is listed as being deleted: whoever is controller removes it.
    BeingDeleted,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Why::UnknownTopic => "of no topic that the metadata knows",
            Why::UnknownPartition => "the topic has no such partition",
            Why::BeingDeleted => "of a topic that is being deleted",
        })
    }
}

/// A directory that nobody owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// Relative to the volume's root.
    pub dir: String,
    pub why: Why,
}

/// What the directories of topics hold besides what they should.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Strays {
    pub strays: Vec<Stray>,
    /// What cannot be listed.
    pub findings: Vec<Finding>,
    /// Directories of topic ids, as they were found: topic name, and the directory's own.
    pub incarnations: Vec<(String, String)>,
}

/// Walks over all topics' directories. Without metadata there are no strays: nobody can tell.
pub async fn strays(v: &dyn Volume, known: &Inspection) -> Strays {
    let mut found = Strays::default();
    let root = found.took(dirs(v, "").await);
    let topics: Vec<String> = root.into_iter().filter(|t| !is_no_topic(t)).collect();
    let mut listed = futures::stream::iter(topics)
        .map(|topic| async move { (dirs(v, &topic).await, topic) })
        .buffered(AT_ONCE);
    while let Some((ids, topic)) = listed.next().await {
        let ids = found.took(ids);
        // A topic's own directory goes last: what is left of a deletion that was cut off.
        if ids.is_empty() && known.topics.as_ref().is_some_and(|t| !t.contains_key(&topic)) {
            found.strays.push(Stray { dir: topic.clone(), why: Why::UnknownTopic });
        }
        found.incarnations.extend(ids.into_iter().map(|id| (topic.clone(), id)));
    }
    let Some(topics) = &known.topics else { return found };
    let mut inside = Vec::new();
    for (topic, id) in found.incarnations.clone() {
        match known_as(topics, &topic, &id) {
            Some(partitions) => inside.push((format!("{topic}/{id}"), partitions)),
            None => {
                found.strays.push(Stray { dir: format!("{topic}/{id}"), why: unknown(&known.deleting, &id) })
            }
        }
    }
    let mut listed = futures::stream::iter(inside)
        .map(|(dir, partitions)| async move { (dirs(v, &dir).await, dir, partitions) })
        .buffered(AT_ONCE);
    while let Some((names, dir, partitions)) = listed.next().await {
        for name in found.took(names).into_iter().filter(|n| !is_partition(n, partitions)) {
            found.strays.push(Stray { dir: format!("{dir}/{name}"), why: Why::UnknownPartition });
        }
    }
    found.strays.sort();
    found
}

fn known_as(topics: &BTreeMap<String, (TopicId, i32)>, topic: &str, id: &str) -> Option<i32> {
    topics.get(topic).filter(|(known, _)| known.to_string() == id).map(|(_, partitions)| *partitions)
}

fn unknown(deleting: &BTreeSet<TopicId>, id: &str) -> Why {
    let id = uuid::Uuid::parse_str(id.strip_suffix(ASIDE).unwrap_or(id)).map(TopicId);
    match id {
        Ok(id) if deleting.contains(&id) => Why::BeingDeleted,
        _ => Why::UnknownTopic,
    }
}

fn is_partition(name: &str, partitions: i32) -> bool {
    name.parse::<i32>().is_ok_and(|i| (0..partitions).contains(&i) && i.to_string() == name)
}

/// The directories in a directory; none if it is gone.
///
/// # Errors
/// That it cannot be listed, and why.
pub async fn dirs(v: &dyn Volume, dir: &str) -> Result<Vec<String>, Finding> {
    match files::within(LIMIT, "list", dir, v.read_dir(dir, Class::Data)).await {
        Ok(entries) => {
            let dirs = entries.into_iter().filter(|e| e.kind == EntryKind::Dir);
            Ok(dirs.map(|e| e.name).collect())
        }
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        Err(e) => {
            Err(Finding { path: dir.into(), byte: None, what: format!("cannot be listed: {}", e.source) })
        }
    }
}

impl Strays {
    fn took(&mut self, listed: Result<Vec<String>, Finding>) -> Vec<String> {
        listed.unwrap_or_else(|finding| {
            self.findings.push(finding);
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::MemVolume;

    #[tokio::test]
    async fn each_directory_that_nobody_owns_is_told_with_its_reason() {
        let v = MemVolume::new();
        let [known, deleted, other] = [1, 2, 3].map(|n| TopicId(uuid::Uuid::from_u128(n)));
        for dir in [
            "__cluster".into(),
            "empty".into(),
            "t".into(),
            "lost+found".into(),
            "lost+found/x".into(),
            format!("t/{known}"),
            format!("t/{known}/0"),
            format!("t/{known}/1"),
            format!("t/{known}/00"),
            format!("t/{deleted}.deleted"),
            format!("t/{other}"),
        ] {
            v.mkdir(&dir, Class::Data).await.unwrap();
        }
        let mut i = Inspection {
            topics: Some(BTreeMap::from([("t".into(), (known, 1)), ("unopened".into(), (other, 9))])),
            deleting: BTreeSet::from([deleted]),
            ..Inspection::default()
        };
        let found = strays(&v, &i).await;
        let want = [
            ("empty".into(), Why::UnknownTopic),
            (format!("t/{known}/00"), Why::UnknownPartition),
            (format!("t/{known}/1"), Why::UnknownPartition),
            (format!("t/{deleted}.deleted"), Why::BeingDeleted),
            (format!("t/{other}"), Why::UnknownTopic),
        ];
        assert_eq!(found.strays, want.map(|(dir, why)| Stray { dir, why }));
        assert!(found.findings.is_empty());

        i.topics = None;
        let found = strays(&v, &i).await;
        assert!(found.strays.is_empty(), "without metadata nobody can tell");
        assert_eq!(found.incarnations.len(), 3);
    }
}
