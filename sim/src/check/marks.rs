//! P6: high watermark and log start only rise, as any client can see them.
//!
//! An answer shows a value that was so at some time between its request and itself. So of two answers only
//! those are comparable of which one was there before the other was asked for.

use super::ledger::{Ledger, Mark};
use super::{Dial, Verdict};

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    for (key, part) in &ledger.parts {
        // What a crash may take back with a dial above 1 takes the high watermark along.
        let may_fall = ledger.terms.dial != Dial::Durable && ledger.lost_a_page_cache();
        if !may_fall {
            only_rises(&part.name(key), "high watermark", &part.hwm, verdict);
        }
        only_rises(&part.name(key), "log start", &part.log_start, verdict);
    }
}

/// `marks` are in the order in which they came.
fn only_rises(partition: &str, what: &str, marks: &[Mark], verdict: &mut Verdict) {
    let mut asked: Vec<&Mark> = marks.iter().filter(|m| !m.is_bound).collect();
    asked.sort_by_key(|m| (m.from, m.event));
    let mut answered = marks.iter().peekable();
    let mut highest: Option<&Mark> = None;
    for mark in asked {
        while let Some(earlier) = answered.next_if(|m| m.at <= mark.from && m.event < mark.event) {
            if highest.is_none_or(|h| h.value < earlier.value) {
                highest = Some(earlier);
            }
        }
        if let Some(h) = highest.filter(|h| h.value > mark.value) {
            let what = format!("{partition}: the {what} was {} and is {}", h.value, mark.value);
            verdict.broken("P6", mark.at, what, vec![h.event, mark.event]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story};
    use crate::history::{Event, FaultKind, Life, Listed, Who};

    fn listed(story: &mut Story, started_at: std::time::Duration, timestamp: i64, offset: i64) {
        let answer = Ok(Listed { code: 0, offset, timestamp: -1, epoch: 1 });
        let (who, at) = (Who(1), place());
        story.record(Event::ListOffsetsDone {
            who,
            started: started_at,
            at,
            timestamp,
            committed: false,
            from: None,
            answer,
        });
    }

    #[test]
    fn marks_that_rise_are_fine() {
        let mut story = Story::new();
        story.produce();
        story.read(0);
        story.produce();
        story.read(2);
        assert!(story.broken().is_empty());
    }

    #[test]
    fn a_high_watermark_that_falls_is_seen() {
        let mut story = Story::new();
        for (now, hwm) in [(10, 5), (20, 4)] {
            story.now = std::time::Duration::from_millis(now);
            let began = story.now;
            listed(&mut story, began, -1, hwm);
        }
        assert_eq!(story.broken(), ["P6"]);
    }

    #[test]
    fn a_high_watermark_below_what_was_acknowledged_is_seen() {
        let mut story = Story::new();
        story.produce();
        story.produce();
        let began = story.now;
        listed(&mut story, began, -1, 2);
        assert_eq!(story.broken(), ["P6"]);
    }

    #[test]
    fn a_log_start_that_falls_is_seen() {
        let mut story = Story::new();
        story.produce();
        story.produce();
        story.record(Event::DeleteRecordsSent { who: Who(2), at: place(), to: 4 });
        story.log_start = 4;
        let fetched = story.fetched(Vec::new());
        story.fetch(Who(1), 4, fetched);
        let began = story.now;
        listed(&mut story, began, -2, 3);
        assert_eq!(story.broken(), ["P6"]);
    }

    /// The one that was asked for later may have been answered from an earlier moment.
    #[test]
    fn answers_that_were_under_way_together_can_t_be_compared() {
        let mut story = Story::new();
        let began = story.now;
        listed(&mut story, began, -1, 5);
        listed(&mut story, began, -1, 4);
        assert!(story.broken().is_empty());
    }

    #[test]
    fn under_a_dial_above_1_a_crash_may_take_the_high_watermark_back() {
        let mut story = Story::new();
        story.evidence.terms.dial =
            super::super::Dial::PageCache { messages: 100, ms: std::time::Duration::from_secs(1) };
        for hwm in [5, 4] {
            let began = story.now;
            listed(&mut story, began, -1, hwm);
        }
        assert_eq!(story.broken(), ["P6"], "nothing crashed");
        story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::PowerCut });
        story.record(Event::FaultIn { id: 0, kind: FaultKind::Other, what: String::new() });
        assert!(story.broken().is_empty());
    }
}
