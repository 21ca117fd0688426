use super::super::bed::{manifest, place, Story, DIR};
use super::super::Dial;
use crate::client::records::Identity;
use crate::history::*;
use serde_json::json;
use std::time::Duration;

fn three() -> Story {
    let mut story = Story::new();
    for _ in 0..3 {
        story.produce();
    }
    story
}

#[test]
fn an_honest_broker_breaks_nothing() {
    let mut story = three();
    story.read(0);
    story.read(3);
    story.finish();
    assert_eq!(story.verdict().violations, []);
}

#[test]
fn an_acknowledged_batch_that_is_gone_is_p1() {
    let mut story = three();
    story.log.pop();
    story.finish();
    assert_eq!(story.broken(), ["P1", "P6"], "the high watermark fell with it");
    let v = story.verdict().violations;
    assert!(v.iter().any(|v| v.what.contains("acknowledged at 4..6 is not there")), "{v:?}");
}

#[test]
fn an_acknowledged_batch_with_another_in_its_place_is_p1() {
    let mut story = three();
    let other = story.make(Identity::NONE);
    story.send(&other, -1, None);
    story.log.pop();
    story.store(&other);
    story.finish();
    assert_eq!(story.broken(), ["P1"]);
}

/// A torn batch that recovery believed, whose retry was called a repetition.
#[test]
fn an_acknowledged_batch_that_is_there_in_part_is_p1() {
    let mut story = three();
    let whole = story.log.pop().expect("three batches");
    story.log.push(BatchInfo { records: 99, sound: false, ..whole });
    story.finish();
    assert_eq!(story.broken(), ["P1", "P9"], "and nobody sent what is served");
    let v = story.verdict().violations;
    assert!(v.iter().any(|v| v.what.contains("acknowledged at 4..6 is there in part only")), "{v:?}");
}

/// The log jumped ahead; nobody could read all of the hole.
#[test]
fn offsets_that_no_record_was_sent_for_are_p3() {
    let mut story = three();
    let bytes = story.make(Identity::NONE);
    let sent = story.send(&bytes, -1, None);
    story.done(sent, 6);
    assert_eq!(story.verdict().violations, []);
    let bytes = story.make(Identity::NONE);
    let sent = story.send(&bytes, -1, None);
    story.done(sent, 1_000_008);
    assert_eq!(story.broken(), ["P3"]);
}

#[test]
fn an_acknowledged_batch_elsewhere_is_p3() {
    let mut story = Story::new();
    let bytes = story.make(Identity::NONE);
    let sent = story.send(&bytes, -1, None);
    story.produce();
    story.store(&bytes);
    story.done(sent, 4);
    story.produce();
    story.finish();
    assert!(story.broken().contains(&"P3"));
    assert!(!story.broken().contains(&"P1"));
}

#[test]
fn only_acks_all_is_promised() {
    let mut story = three();
    let bytes = story.make(Identity::NONE);
    let sent = story.send(&bytes, 1, None);
    story.done(sent, 6);
    story.finish();
    assert_eq!(story.verdict().violations, []);
}

/// No answer: it may be there or not, and both are right.
#[test]
fn what_was_not_answered_may_be_there_or_not() {
    for is_there in [false, true] {
        let mut story = three();
        let bytes = story.make(Identity::NONE);
        let sent = story.send(&bytes, -1, None);
        story.answered(sent, Err(Lost::TimedOut));
        if is_there {
            story.store(&bytes);
        }
        story.produce();
        story.finish();
        assert_eq!(story.verdict().violations, []);
    }
}

#[test]
fn what_lies_below_the_log_start_is_not_missed() {
    let mut story = three();
    let sent = story.record(Event::DeleteRecordsSent { who: Who(2), at: place(), to: 4 });
    story.record(Event::DeleteRecordsDone { who: Who(2), sent, answer: Ok((0, 4)) });
    story.log_start = 4;
    story.finish();
    assert_eq!(story.verdict().violations, []);
}

#[test]
fn a_deleted_topic_is_not_missed() {
    let mut story = three();
    story.record(Event::DeleteTopicSent { who: Who(2), topic: "t".into(), id: super::super::bed::ID });
    story.log.clear();
    story.finish();
    assert!(!story.broken().contains(&"P1"), "{:?}", story.verdict());
}

#[test]
fn what_was_read_and_is_gone_is_p2() {
    let mut story = three();
    let bytes = story.make(Identity::NONE);
    story.send(&bytes, 1, None);
    story.store(&bytes);
    story.read(0);
    story.log.pop();
    story.finish();
    assert_eq!(story.broken(), ["P2", "P6"]);
}

#[test]
fn what_was_read_and_changed_is_p2() {
    let mut story = three();
    story.read(0);
    story.log[1].records ^= 1;
    story.read(0);
    assert!(story.broken().contains(&"P2"));
}

#[test]
fn records_past_the_high_watermark_are_p2() {
    let mut story = three();
    let mut fetched = story.fetched(story.log.clone());
    (fetched.hwm, fetched.lso) = (5, 5);
    story.fetch(Who(1), 0, fetched);
    assert_eq!(story.broken(), ["P2", "P6"], "6 was acknowledged, too");
}

#[test]
fn a_gap_is_p3() {
    let mut story = three();
    story.log.remove(1);
    let fetched = story.fetched(story.log.clone());
    story.fetch(Who(1), 0, fetched);
    assert_eq!(story.broken(), ["P3"]);
    let mut story = three();
    story.log.remove(1);
    story.finish();
    assert_eq!(story.broken(), ["P1", "P3"]);
}

#[test]
fn an_answer_that_skips_records_or_goes_back_is_seen() {
    let mut story = three();
    let fetched = story.fetched(story.log[1..].to_vec());
    story.fetch(Who(1), 0, fetched);
    assert_eq!(story.broken(), ["P3"]);
    let mut story = three();
    story.fetch(Who(1), 2, story.fetched(story.log.clone()));
    assert_eq!(story.broken(), ["P2"]);
    let mut story = three();
    story.fetch(Who(1), 3, story.fetched(story.log[1..].to_vec()));
    assert_eq!(story.verdict().violations, [], "3 is inside the batch at 2");
}

#[test]
fn an_end_before_the_high_watermark_is_p3() {
    let mut story = Story::new();
    story.record(Event::FinalRead { at: place(), log_start: 0, hwm: 3 });
    assert_eq!(story.broken(), ["P3"]);
}

#[test]
fn an_offset_that_was_acknowledged_twice_is_p3() {
    let mut story = three();
    let bytes = story.make(Identity::NONE);
    let sent = story.send(&bytes, -1, None);
    story.done(sent, 3);
    assert_eq!(story.broken(), ["P3"]);
}

/// A retry of an idempotent batch is answered with where the batch is.
#[test]
fn one_batch_may_be_acknowledged_twice() {
    let mut story = Story::new();
    let bytes = story.make(Identity { id: 1, epoch: 0, sequence: 0 });
    let first = story.send(&bytes, -1, None);
    let base = story.store(&bytes);
    let again = story.send(&bytes, -1, Some(first));
    story.done(first, base);
    story.done(again, base);
    story.finish();
    assert_eq!(story.verdict().violations, []);
}

#[test]
fn bytes_that_are_not_the_client_s_are_p9() {
    let bend: [fn(&mut BatchInfo); 5] = [
        |b| b.max_timestamp += 1,
        |b| b.sound = false,
        |b| b.records ^= 1,
        |b| b.attributes |= 0x10,
        |b| b.size += 1,
    ];
    for bend in bend {
        let mut story = three();
        let mut fetched = story.fetched(story.log.clone());
        bend(&mut fetched.batches[1]);
        story.fetch(Who(1), 0, fetched);
        assert_eq!(story.broken(), ["P9"]);
    }
    let mut story = three();
    let mut fetched = story.fetched(story.log.clone());
    fetched.left_over = 3;
    story.fetch(Who(1), 0, fetched);
    assert_eq!(story.broken(), ["P9"]);
}

#[test]
fn under_log_append_time_the_broker_s_time_is_allowed() {
    let mut story = Story::new();
    let configs = vec![("message.timestamp.type".into(), "LogAppendTime".into())];
    story.record(Event::CreateTopicSent { who: Who::FOUNDER, topic: "t".into(), partitions: 1, configs });
    for _ in 0..3 {
        story.produce();
    }
    for batch in &mut story.log {
        batch.attributes |= 0x08;
        (batch.max_timestamp, batch.crc) = (5, 77);
    }
    story.read(0);
    story.finish();
    assert_eq!(story.verdict().violations, []);
}

#[test]
fn opened_records_are_p9() {
    let mut story = three();
    story.evidence.records_opened = 1;
    assert_eq!(story.broken(), ["P9"]);
}

#[test]
fn the_media_are_asked_too() {
    let mut story = three();
    story.finish();
    story.evidence.media.insert(format!("{DIR}/00000001-manifest.json"), manifest(1, 0, 0, json!([])));
    let log = format!("{DIR}/00000001-{:020}.log", 0);
    story.evidence.media.insert(log.clone(), story.bytes.concat().into());
    assert_eq!(story.verdict().violations, []);
    let whole = story.evidence.media[&log].clone();
    story.evidence.media.insert(log, whole.slice(..whole.len() - 1));
    assert_eq!(story.broken(), ["P1"]);
    assert!(story.verdict().violations[0].what.contains("the media"));
}

#[test]
fn damage_is_served_around_and_nothing_else_may_be_missing() {
    let mut story = three();
    story.record(Event::FaultIn { id: 1, kind: FaultKind::Damage, what: "bit rot".into() });
    let (who, at, started) = (Who::PROVER, place(), story.now);
    let first = story.fetched(vec![story.log[0]]);
    story.fetch(Who::PROVER, 0, first);
    for offset in 2..4 {
        let answer = Ok(Fetched { code: 2, hwm: -1, lso: -1, log_start: -1, batches: vec![], left_over: 0 });
        let at = at.clone();
        story.record(Event::FetchDone {
            who,
            started,
            at,
            offset,
            max_bytes: 1,
            from: Some(FIRST_HOST),
            answer,
        });
    }
    let last = story.fetched(vec![story.log[2]]);
    story.fetch(Who::PROVER, 4, last);
    story.record(Event::FinalRead { at, log_start: 0, hwm: 6 });
    assert_eq!(story.verdict().violations, []);
}

#[test]
fn under_a_dial_above_1_a_crash_may_take_acknowledged_records() {
    let mut story = three();
    story.evidence.terms.dial = Dial::PageCache { messages: 10, ms: Duration::from_secs(1) };
    story.log.pop();
    story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::PowerCut });
    story.finish();
    assert_eq!(story.verdict().violations, []);
    assert_eq!(story.verdict().lost_records, 2);
}

#[test]
fn offsets_that_a_crash_freed_are_given_out_again() {
    let mut story = three();
    let gone = story.log.pop().expect("a batch");
    story.produce();
    assert_eq!(story.broken(), ["P3"]);
    assert_eq!(gone.base, 4);
    story.evidence.terms.dial = Dial::PageCache { messages: 10, ms: Duration::from_secs(1) };
    story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::PowerCut });
    assert_eq!(story.verdict().violations, []);
}

#[test]
fn a_crash_takes_the_end_of_the_log_and_nothing_before_it() {
    let mut story = three();
    story.evidence.terms.dial = Dial::PageCache { messages: 10, ms: Duration::from_secs(1) };
    story.log.remove(1);
    story.record(Event::Broker { broker: 0, host: crate::history::FIRST_HOST, life: Life::PowerCut });
    story.finish();
    assert_eq!(story.broken(), ["P1", "P3"]);
}
