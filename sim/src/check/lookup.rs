//! P3, for times: the offset that belongs to a timestamp is that of the first record at or past it (KIP-79).
//!
//! Held against the final read: all that lies below an offset that was shown was there when it was shown. What
//! retention took since, and topics whose times are the broker's, are left out.

use super::ledger::{Final, Ledger, Part, PartKey};
use super::Verdict;
use crate::history::{BatchInfo, Event, Listed};
use std::collections::BTreeMap;
use std::time::Duration;

/// The broker's own times, or records that only claim to be compressed.
const NOT_OURS: i16 = 0x08 | 0x07;

/// A partition in the end, made for questions about times.
struct Times<'a> {
    end: &'a Final<'a>,
    /// The largest timestamp up to and with each batch.
    largest: Vec<i64>,
    /// The highest high watermark that had been shown by then.
    shown: Vec<(Duration, i64)>,
    is_ours: bool,
}

impl<'a> Times<'a> {
    fn new(part: &Part, end: &'a Final<'a>) -> Times<'a> {
        let mut highest = i64::MIN;
        let rising = part.hwm.iter().map(|m| {
            highest = highest.max(m.value);
            (m.at, highest)
        });
        let shown = rising.collect();
        let mut so_far = i64::MIN;
        let running = end.batches.iter().map(|b| {
            so_far = so_far.max(b.max_timestamp);
            so_far
        });
        let largest = running.collect();
        let is_ours = end.damaged.is_empty() && end.batches.iter().all(|b| b.attributes & NOT_OURS == 0);
        Times { end, largest, shown, is_ours }
    }

    /// The first batch with a record at or past `timestamp`.
    fn first(&self, timestamp: i64) -> Option<&'a BatchInfo> {
        self.end.batches.get(self.largest.partition_point(|t| *t < timestamp)).copied()
    }

    /// The high watermark that anybody had seen by `then`.
    fn shown_by(&self, then: Duration) -> i64 {
        let seen = self.shown.partition_point(|(at, _)| *at <= then);
        seen.checked_sub(1).and_then(|last| self.shown.get(last)).map_or(0, |(_, hwm)| *hwm)
    }

    fn at(&self, offset: i64) -> Option<&'a BatchInfo> {
        let at = self.end.batches.partition_point(|b| b.end() <= offset);
        self.end.batches.get(at).copied().filter(|b| b.base <= offset)
    }
}

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let mut times: BTreeMap<PartKey, Times> = BTreeMap::new();
    for (key, part) in &ledger.parts {
        let Some(end) = &part.end else { continue };
        times.insert(*key, Times::new(part, end));
    }
    for (event, stamped) in ledger.events.iter().enumerate() {
        let Event::ListOffsetsDone { started, at, timestamp, answer: Ok(listed), .. } = &stamped.event else {
            continue;
        };
        let (Some(id), 0, true) = (at.id, listed.code, *timestamp >= 0) else { continue };
        let key = (id, at.partition);
        let Some(times) = times.get(&key).filter(|t| t.is_ours) else { continue };
        let what = match listed.offset {
            -1 => missed(times, *timestamp, *started),
            _ => wrong(times, *timestamp, listed),
        };
        if let Some(what) = what {
            let what = format!("{}-{}: asked for time {timestamp}: {what}", at.topic, at.partition);
            verdict.broken("P3", stamped.at, what, vec![event, times.end.event]);
        }
    }
}

/// Nothing was found: then nothing was there.
fn missed(times: &Times, timestamp: i64, started: Duration) -> Option<String> {
    let first = times.first(timestamp)?;
    // It may have come later than the answer, or lie below the log start since.
    (first.end() <= times.shown_by(started) && first.base >= times.end.log_start)
        .then(|| format!("nothing, though the batch at {} was there", first.base))
}

fn wrong(times: &Times, timestamp: i64, listed: &Listed) -> Option<String> {
    let Listed { offset, timestamp: found, .. } = *listed;
    if found < timestamp {
        return Some(format!("got one of {found}"));
    }
    let batch = times.at(offset)?;
    // Records of a batch are a millisecond apart, as our producers write them.
    let is = batch.base_timestamp + (offset - batch.base);
    if is != found {
        return Some(format!("got {offset}, said to be of {found}, which is of {is}"));
    }
    let first = times.first(timestamp)?;
    let earlier = first.base_timestamp.max(timestamp) - first.base_timestamp + first.base;
    (first.base >= times.end.log_start && earlier < offset)
        .then(|| format!("got {offset}, though {earlier} is the first"))
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story};
    use crate::history::*;

    /// Three batches of two records: times 1000, 1001; 2000, 2001; 3000, 3001.
    fn story() -> Story {
        let mut story = Story::new();
        for i in 0..3 {
            let bytes = {
                let values = [bytes::Bytes::from(format!("{i}a")), bytes::Bytes::from(format!("{i}b"))];
                crate::client::records::batch(crate::client::records::Identity::NONE, 1000 * (i + 1), &values)
            };
            let sent = story.send(&bytes, -1, None);
            let base = story.store(&bytes);
            story.done(sent, base);
        }
        story
    }

    fn ask(story: &mut Story, timestamp: i64, offset: i64, found: i64) {
        let answer = Ok(Listed { code: 0, offset, timestamp: found, epoch: 1 });
        let (who, started, at) = (Who(1), story.now, place());
        story.record(Event::ListOffsetsDone {
            who,
            started,
            at,
            timestamp,
            committed: false,
            from: None,
            answer,
        });
    }

    #[test]
    fn the_first_record_at_or_past_a_time_is_right() {
        let mut story = story();
        for (timestamp, offset, found) in
            [(0, 0, 1000), (1001, 1, 1001), (1002, 2, 2000), (3001, 5, 3001), (3002, -1, -1)]
        {
            ask(&mut story, timestamp, offset, found);
        }
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }

    #[test]
    fn any_other_is_wrong() {
        for (timestamp, offset, found) in
            [(1001, 0, 1001), (1001, 0, 1000), (1001, 2, 2000), (3000, -1, -1), (1500, 3, 2001), (0, 1, 1001)]
        {
            let mut story = story();
            ask(&mut story, timestamp, offset, found);
            story.finish();
            assert_eq!(story.broken(), ["P3"], "{timestamp} {offset}");
        }
    }

    #[test]
    fn what_came_later_is_not_missed() {
        let mut story = Story::new();
        ask(&mut story, 500, -1, -1);
        story.produce();
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }
}
