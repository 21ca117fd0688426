//! Sets of partitions, and how they stand in a group's document.
//!
//! A group names many partitions of few topics, and rewrites its document with every change. So a topic's id
//! stands there once, in a table, and its partitions as ranges: `{"0":"0-3,7","2":"5"}`.

use crate::coordinator::durable::Place;
use crate::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};

/// Partitions of topics, by topic.
pub type Partitions = BTreeSet<Place>;

/// More partitions than any topic has.
const BEYOND: i32 = 1 << 24;

/// By the index of the topic's id in the document's table.
pub(super) type Ranges = BTreeMap<usize, String>;

/// The ids that a document names.
#[derive(Debug, Default)]
pub(super) struct Table {
    ids: Vec<TopicId>,
    index: BTreeMap<TopicId, usize>,
}

impl Table {
    pub fn into_ids(self) -> Vec<TopicId> {
        self.ids
    }

    fn of(&mut self, id: TopicId) -> usize {
        let next = self.ids.len();
        let index = *self.index.entry(id).or_insert(next);
        if index == next {
            self.ids.push(id);
        }
        index
    }

    pub fn write(&mut self, partitions: &Partitions) -> Ranges {
        let mut by_topic: BTreeMap<usize, Vec<i32>> = BTreeMap::new();
        for (id, partition) in partitions {
            by_topic.entry(self.of(*id)).or_default().push(*partition);
        }
        by_topic.into_iter().map(|(topic, sorted)| (topic, ranges(&sorted))).collect()
    }
}

fn ranges(sorted: &[i32]) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for p in sorted {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*p) => *last = *p,
            _ => runs.push((*p, *p)),
        }
    }
    let run = |(first, last): (i32, i32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

/// What [`Table::write`] wrote; `None` if nobody wrote this.
pub(super) fn read(ids: &[TopicId], written: &Ranges) -> Option<Partitions> {
    let mut partitions = Partitions::new();
    for (topic, text) in written {
        let id = *ids.get(*topic)?;
        for run in text.split(',') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
            if first < 0 || last < first || last >= BEYOND {
                return None;
            }
            partitions.extend((first..=last).map(|p| (id, p)));
        }
    }
    Some(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u128) -> TopicId {
        TopicId(uuid::Uuid::from_u128(n))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(all in proptest::collection::btree_set((0..4u128, 0..40i32), 0..60)) {
            let all: Partitions = all.into_iter().map(|(t, p)| (id(t), p)).collect();
            let mut table = Table::default();
            let written = table.write(&all);
            prop_assert_eq!(read(&table.into_ids(), &written), Some(all));
        }
    }

    #[test]
    fn runs_are_short_and_nonsense_is_none() {
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9-10");
        let ids = [id(1)];
        for bad in ["", "x", "3-1", "-1", "0-999999999", "1,,2"] {
            assert_eq!(read(&ids, &Ranges::from([(0, bad.to_owned())])), None, "{bad}");
        }
        assert_eq!(
            read(&ids, &Ranges::from([(1, "0".to_owned())])),
            None,
            "a topic that is not in the table"
        );
    }
}
