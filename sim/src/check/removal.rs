//! P1: the log start moves only where it was told to: by DeleteRecords, or by a retention that is set.
//!
//! What lies below it is gone for good, so a log start that moves by itself is a loss. Retention removes whole segments,
//! and of a segment every record is older than `retention.ms`, or all that follows it is still `retention.bytes` long
//! (Kafka: `UnifiedLog.deleteOldSegments`). Where segments end a client can't know, so each batch below the log start
//! is judged on its own: it was asked to go, or was old enough, or had enough behind it. Clocks that jump excuse every age.

use super::ledger::{Ledger, Mark, Part, PartKey};
use super::retention::{Retention, Settings};
use super::{Dial, Verdict};
use crate::history::{Answer, BatchInfo, Code, Event, Index};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    // What a crash took back with a dial above 1 is not known to be below the log start.
    if ledger.terms.dial != Dial::Durable && ledger.lost_a_page_cache() {
        return;
    }
    let settings = Settings::new(ledger);
    let requests = Requests::new(ledger);
    let sent = SentBytes::new(ledger);
    for (key, part) in &ledger.parts {
        let retention = settings.of(ledger, key.0, part.topic.as_ref());
        let log = Log { batches: batches(part), sent: sent.of(key, part), retention };
        let deleted = requests.of(key, part);
        if let Some((mark, what)) = first_loss(part, &log, &deleted) {
            let request = deleted.iter().rev().find(|d| d.at <= mark.at).map(|d| d.event);
            let events = request.into_iter().chain([mark.event]).collect();
            verdict.broken("P1", mark.at, format!("{}: {what}", part.name(key)), events);
        }
    }
}

/// One is enough: all later ones show it, too.
fn first_loss<'a>(part: &'a Part, log: &Log, deleted: &[Deleted]) -> Option<(&'a Mark, String)> {
    let mut judged = 0;
    for mark in &part.log_start {
        let asked = deleted.iter().filter(|d| d.at <= mark.at).map(|d| d.to).max().unwrap_or(0);
        if mark.value > asked && !log.retention.is_possible(mark.at) {
            let what = format!("the log start is {}, and nobody asked for more than {asked}", mark.value);
            return Some((mark, what));
        }
        for (i, batch) in log.batches.iter().enumerate().skip(judged) {
            if batch.info.base >= mark.value {
                break;
            }
            // Only DeleteRecords ends inside of a batch.
            let is_whole = batch.end <= mark.value;
            if batch.end.min(mark.value) > asked && !(is_whole && log.may_go(i, mark.at)) {
                let what = format!(
                    "the log start is {}, and what was at {} should be kept: DeleteRecords asked for no more than \
                     {asked}, and it was neither too old nor too much",
                    mark.value, batch.info.base
                );
                return Some((mark, what));
            }
            if is_whole {
                judged = i + 1;
            }
        }
    }
    None
}

/// A batch that was at a known offset.
struct Batch {
    info: BatchInfo,
    end: i64,
    /// Bytes of known batches up to its end.
    up_to: u64,
}

/// What is known of a partition's log.
struct Log<'a> {
    /// By offset.
    batches: Vec<Batch>,
    sent: Vec<(Duration, u64)>,
    retention: Retention<'a>,
}

impl Log<'_> {
    /// Whether retention may have removed batch number `i` by `at`.
    fn may_go(&self, i: usize, at: Duration) -> bool {
        let Some(batch) = self.batches.get(i) else { return true };
        if self.retention.oldest_kept(at).is_some_and(|oldest| batch.info.max_timestamp <= oldest) {
            return true;
        }
        // What was sent by then and is not known to lie before its end may lie behind it.
        let sent_by = |at: Duration| {
            let n = self.sent.partition_point(|(sent, _)| *sent <= at);
            n.checked_sub(1).and_then(|last| self.sent.get(last)).map_or(0, |(_, bytes)| *bytes)
        };
        self.retention.is_too_large(at, |at| sent_by(at).saturating_sub(batch.up_to))
    }
}

/// What was acknowledged or read, by offset.
fn batches(part: &Part) -> Vec<Batch> {
    let acked = part.acks.iter().map(|a| BatchInfo { base: a.base, ..*a.sent.batch });
    let read = part.reads.iter().map(|r| *r.batch);
    // One that was read is as it is stored.
    let known: BTreeMap<i64, BatchInfo> = acked.chain(read).map(|b| (b.base, b)).collect();
    let mut up_to = 0;
    let batch = |info: BatchInfo| {
        up_to += u64::from(info.size);
        Batch { info, end: info.end(), up_to }
    };
    known.into_values().map(batch).collect()
}

/// Bytes of batches that were sent, each once, by when.
#[derive(Default)]
struct SentBytes<'a> {
    by_part: BTreeMap<PartKey, Bytes>,
    by_name: BTreeMap<(&'a Arc<str>, i32), Bytes>,
    /// Checksums of what was sent where the topic was certain.
    crcs: BTreeSet<(PartKey, u32)>,
}

/// When, and how many.
type Bytes = Vec<(Duration, u64)>;

impl<'a> SentBytes<'a> {
    fn new(ledger: &Ledger<'a>) -> SentBytes<'a> {
        let mut all = SentBytes::default();
        for sent in ledger.sent.values().filter(|s| !s.is_retry) {
            let (at, partition) = (sent.place, sent.place.partition);
            let list = match at.id {
                Some(id) => {
                    all.crcs.insert(((id, partition), sent.batch.crc));
                    all.by_part.entry((id, partition)).or_default()
                }
                None => all.by_name.entry((&at.topic, partition)).or_default(),
            };
            list.push((sent.at, u64::from(sent.batch.size)));
        }
        all
    }

    /// In order, each with all that came before.
    fn of(&self, key: &PartKey, part: &Part) -> Vec<(Duration, u64)> {
        let of_name = part.topic.as_ref().and_then(|t| self.by_name.get(&(t, key.1)));
        let lists = self.by_part.get(key).into_iter().chain(of_name);
        let mut all: Vec<(Duration, u64)> = lists.flatten().copied().collect();
        // Sent while the name was another topic's, and yet here: how early, nobody knows.
        let known = batches(part).into_iter().map(|b| b.info);
        let strays = known.filter(|info| !self.crcs.contains(&(*key, info.crc)));
        all.extend(strays.map(|info| (Duration::ZERO, u64::from(info.size))));
        all.sort();
        let mut sum = 0;
        for (_, bytes) in &mut all {
            sum += *bytes;
            *bytes = sum;
        }
        all
    }
}

/// A DeleteRecords, and how far at most it may have moved the log start.
#[derive(Clone, Copy)]
struct Deleted {
    at: Duration,
    event: Index,
    to: i64,
}

#[derive(Default)]
struct Requests<'a> {
    by_part: BTreeMap<PartKey, Vec<Deleted>>,
    /// Whichever topic it met.
    by_name: BTreeMap<(&'a Arc<str>, i32), Vec<Deleted>>,
}

impl<'a> Requests<'a> {
    fn new(ledger: &Ledger<'a>) -> Requests<'a> {
        let answers: BTreeMap<Index, &Answer<(Code, i64)>> = ledger
            .events
            .iter()
            .filter_map(|s| match &s.event {
                Event::DeleteRecordsDone { sent, answer, .. } => Some((*sent, answer)),
                _ => None,
            })
            .collect();
        let mut all = Requests::default();
        for (event, stamped) in ledger.events.iter().enumerate() {
            let Event::DeleteRecordsSent { at: place, to, .. } = &stamped.event else { continue };
            let to = match (to, answers.get(&event)) {
                (0.., _) => *to,
                // Up to the high watermark, wherever that was.
                (_, Some(Ok((0, low)))) => *low,
                _ => i64::MAX,
            };
            let deleted = Deleted { at: stamped.at, event, to };
            let list = match place.id {
                Some(id) => all.by_part.entry((id, place.partition)).or_default(),
                None => all.by_name.entry((&place.topic, place.partition)).or_default(),
            };
            list.push(deleted);
        }
        all
    }

    fn of(&self, key: &PartKey, part: &Part) -> Vec<Deleted> {
        let of_name = part.topic.as_ref().and_then(|t| self.by_name.get(&(t, key.1)));
        let lists = self.by_part.get(key).into_iter().chain(of_name);
        let mut all: Vec<Deleted> = lists.flatten().copied().collect();
        all.sort_by_key(|d| d.event);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story, ID};
    use crate::history::*;
    use std::time::Duration;

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

    /// Records are of the second second. Returns the request.
    fn set(story: &mut Story, key: &str, value: &str) -> Index {
        let (who, topic, id) = (Who(0), "t".into(), Some(ID));
        let (key, value) = (key.to_string(), Some(value.to_string()));
        story.record(Event::AlterConfigSent { who, topic, id, key, value })
    }

    fn at(story: &mut Story, millis: u64) {
        story.now = Duration::from_millis(millis);
    }

    #[test]
    fn retention_by_age_takes_what_is_old_enough() {
        for (millis, is_fine) in [(5900, false), (6100, true)] {
            let mut story = Story::new();
            story.produce();
            story.produce();
            set(&mut story, "retention.ms", "5000");
            at(&mut story, millis);
            trimmed(&mut story);
            assert_eq!(story.broken().is_empty(), is_fine, "at {millis}");
        }
    }

    #[test]
    fn an_age_that_was_acknowledged_away_takes_nothing_later() {
        for (is_acknowledged, is_fine) in [(true, false), (false, true)] {
            let mut story = Story::new();
            story.produce();
            story.produce();
            let sent = set(&mut story, "retention.ms", "5000");
            story.record(Event::AlterConfigDone { who: Who(0), sent, answer: Ok(0) });
            at(&mut story, 3000);
            let sent = set(&mut story, "retention.ms", "-1");
            if is_acknowledged {
                story.record(Event::AlterConfigDone { who: Who(0), sent, answer: Ok(0) });
            }
            at(&mut story, 6100);
            trimmed(&mut story);
            assert_eq!(story.broken().is_empty(), is_fine, "{is_acknowledged}");
        }
    }

    #[test]
    fn retention_by_size_leaves_that_many_bytes() {
        let size = {
            let mut story = Story::new();
            story.produce();
            story.log[0].size
        };
        for (bytes, is_fine) in [(size, true), (size + 1, false)] {
            let mut story = Story::new();
            story.produce();
            story.produce();
            set(&mut story, "retention.bytes", &bytes.to_string());
            trimmed(&mut story);
            assert_eq!(story.broken().is_empty(), is_fine, "{bytes}");
        }
    }

    #[test]
    fn only_delete_records_ends_inside_of_a_batch() {
        let mut story = Story::new();
        story.produce();
        story.produce();
        set(&mut story, "retention.bytes", "0");
        story.log_start = 1;
        story.read(1);
        assert_eq!(story.broken(), ["P1"]);
    }
}
