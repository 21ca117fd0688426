//! P1: the log start moves only where it was told to: by DeleteRecords, or by a retention that is set.
//!
//! What lies below it is gone for good, so a log start that moves by itself is a loss. With a retention by age or
//! size anywhere in the topic's life only DeleteRecords' own bound is not asked for: how old a record was on the
//! broker's clock, a client can't know.

use super::ledger::{Ledger, PartKey};
use super::Verdict;
use crate::history::{Event, Index};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Configs under which segments go by themselves.
const RETENTION: [&str; 2] = ["retention.ms", "retention.bytes"];

#[derive(Default)]
struct Allowed<'a> {
    by_retention: BTreeSet<Uuid>,
    /// Names that a topic was made under with retention.
    by_name: BTreeSet<&'a Arc<str>>,
    /// How far DeleteRecords may have moved it, with the request that did.
    deleted: BTreeMap<PartKey, (i64, Index)>,
}

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let allowed = allowed(ledger);
    for (key, part) in &ledger.parts {
        let is_free = |topic: &Arc<str>| allowed.by_name.contains(topic);
        if allowed.by_retention.contains(&key.0) || part.topic.as_ref().is_some_and(is_free) {
            continue;
        }
        let (bound, request) = allowed.deleted.get(key).map_or((0, None), |(to, event)| (*to, Some(*event)));
        // One is enough: all later ones show it, too.
        if let Some(mark) = part.log_start.iter().find(|m| m.value > bound) {
            let what = format!(
                "{}: the log start is {}, and nobody asked for more than {bound}",
                part.name(key),
                mark.value
            );
            verdict.broken("P1", mark.at, what, request.into_iter().chain([mark.event]).collect());
        }
    }
}

fn allowed<'a>(ledger: &Ledger<'a>) -> Allowed<'a> {
    let mut allowed = Allowed::default();
    for (event, stamped) in ledger.events.iter().enumerate() {
        match &stamped.event {
            Event::CreateTopicSent { topic, configs, .. }
                if configs.iter().any(|(k, _)| RETENTION.contains(&k.as_str())) =>
            {
                allowed.by_name.insert(topic);
            }
            Event::AlterConfigSent { topic, id, key, value: Some(_), .. }
                if RETENTION.contains(&key.as_str()) =>
            {
                match id {
                    Some(id) => drop(allowed.by_retention.insert(*id)),
                    None => drop(allowed.by_name.insert(topic)),
                }
            }
            Event::DeleteRecordsSent { at, to, .. } => match at.id {
                Some(id) => {
                    let to = if *to < 0 { i64::MAX } else { *to };
                    let most = allowed.deleted.entry((id, at.partition)).or_insert((to, event));
                    if most.0 < to {
                        *most = (to, event);
                    }
                }
                // Whichever topic it met.
                None => drop(allowed.by_name.insert(&at.topic)),
            },
            _ => {}
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story, ID};
    use crate::history::*;

    /// The log begins at 2, and a client sees it.
    fn trimmed(story: &mut Story) {
        story.log_start = 2;
        story.read(2);
    }

    #[test]
    fn a_log_start_that_moves_by_itself_is_p1() {
        let mut story = Story::new();
        story.produce();
        story.produce();
        trimmed(&mut story);
        assert_eq!(story.broken(), ["P1"]);
    }

    #[test]
    fn delete_records_moves_it_as_far_as_it_said() {
        for (to, is_fine) in [(2, true), (-1, true), (1, false)] {
            let mut story = Story::new();
            story.produce();
            story.produce();
            story.record(Event::DeleteRecordsSent { who: Who(0), at: place(), to });
            trimmed(&mut story);
            assert_eq!(story.broken().is_empty(), is_fine, "{to}");
        }
    }

    #[test]
    fn retention_moves_it() {
        let mut story = Story::new();
        story.produce();
        story.produce();
        let (key, value) = ("retention.ms".to_string(), Some("1".to_string()));
        let (who, topic, id) = (Who(0), "t".into(), Some(ID));
        story.record(Event::AlterConfigSent { who, topic, id, key, value });
        trimmed(&mut story);
        assert!(story.broken().is_empty());
    }
}
