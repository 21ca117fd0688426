//! What happens in a consumer group, told input by input.

use super::*;
use crate::coordinator::group::Out;
use ConsumerError as E;

impl Lookup for BTreeMap<String, Topic> {
    fn topic(&self, name: &str) -> Option<Topic> {
        self.get(name).copied()
    }
}

pub(super) fn limits() -> ConsumerLimits {
    ConsumerLimits {
        session: Duration::from_secs(45),
        heartbeat: Duration::from_secs(5),
        max_size: 10,
        assignors: vec![Assignor::Uniform, Assignor::Range],
    }
}

/// A group with a clock, and topic "t" of four partitions.
struct Table {
    group: ConsumerGroup,
    limits: ConsumerLimits,
    topics: BTreeMap<String, Topic>,
    now: Now,
    persisted: u32,
}

fn place(topic: u128, partition: i32) -> crate::coordinator::durable::Place {
    (TopicId(uuid::Uuid::from_u128(topic)), partition)
}

/// Partitions of topic 1.
fn of_t(partitions: &[i32]) -> Partitions {
    partitions.iter().map(|p| place(1, *p)).collect()
}

fn joining(member: &str) -> HeartbeatInput {
    HeartbeatInput {
        member_id: member.to_owned(),
        rebalance: Some(Duration::from_secs(60)),
        subscribed: Some(BTreeSet::from(["t".to_owned()])),
        owned: Some(Partitions::new()),
        fresh_id: "fresh".to_owned(),
        ..HeartbeatInput::default()
    }
}

fn staying(member: &str, epoch: i32) -> HeartbeatInput {
    HeartbeatInput { member_id: member.to_owned(), epoch, ..HeartbeatInput::default() }
}

fn of_instance(instance: &str, input: HeartbeatInput) -> HeartbeatInput {
    HeartbeatInput { instance: Some(instance.to_owned()), ..input }
}

impl Table {
    fn new() -> Self {
        let mut table = Table {
            group: ConsumerGroup::after(0, None),
            limits: limits(),
            topics: BTreeMap::new(),
            now: Now::default(),
            persisted: 0,
        };
        table.topic("t", 1, 4);
        table
    }

    fn topic(&mut self, name: &str, id: u128, partitions: i32) {
        self.topics.insert(name.to_owned(), Topic { id: place(id, 0).0, partitions });
    }

    fn take(&mut self, out: Out) {
        self.persisted += u32::from(out.persist);
        assert!(out.replies.is_empty());
    }

    fn say(&mut self, input: HeartbeatInput) -> Result<HeartbeatReply, E> {
        let mut out = Out::default();
        let result = self.group.heartbeat(self.now, &self.limits, &self.topics, &input, &mut out);
        assert!(result.is_ok() || !out.persist, "a refusal changes nothing");
        self.take(out);
        result
    }

    fn join(&mut self, member: &str) -> HeartbeatReply {
        self.say(joining(member)).unwrap()
    }

    /// A heartbeat that says nothing new.
    fn beat(&mut self, member: &str, epoch: i32) -> (i32, Option<Partitions>) {
        let reply = self.say(staying(member, epoch)).unwrap();
        (reply.epoch, reply.assignment)
    }

    /// A heartbeat that says what the member has.
    fn has(&mut self, member: &str, epoch: i32, owned: &[i32]) -> (i32, Option<Partitions>) {
        let reply = self.say(HeartbeatInput { owned: Some(of_t(owned)), ..staying(member, epoch) }).unwrap();
        (reply.epoch, reply.assignment)
    }

    fn pass(&mut self, time: Duration) {
        self.now.boot += time;
        self.now.wall_ms += time.as_millis() as i64;
        let mut out = Out::default();
        self.group.tick(self.now, &self.limits, &self.topics, &mut out);
        self.take(out);
    }

    fn refresh(&mut self) {
        let mut out = Out::default();
        self.group.refresh(&self.limits, &self.topics, &mut out);
        self.take(out);
    }

    fn takeover(&mut self) {
        let doc = self.group.to_doc();
        let text = serde_json::to_string(&doc).unwrap();
        assert!(text.len() <= doc.rough_size(), "{} > {}", text.len(), doc.rough_size());
        let read: ConsumerDoc = serde_json::from_str(&text).unwrap();
        assert_eq!(read, doc);
        self.group = ConsumerGroup::from_doc(&read, &self.limits, self.now);
        assert_eq!(self.group.to_doc(), doc);
    }

    /// Members "a" and "b" with two partitions each, at epoch 2.
    fn with_two(&mut self) {
        self.join("a");
        self.has("a", 1, &[0, 1, 2, 3]);
        self.join("b");
        assert_eq!(self.beat("a", 1), (1, Some(of_t(&[0, 1]))));
        assert_eq!(self.has("a", 1, &[0, 1]), (2, None));
        assert_eq!(self.beat("b", 2), (2, Some(of_t(&[2, 3]))));
        assert_eq!(self.group.state(), ConsumerState::Stable);
    }
}

#[test]
fn the_first_member_gets_everything_at_once() {
    let mut t = Table::new();
    assert_eq!(t.group.state(), ConsumerState::Empty);
    let reply = t.join("a");
    assert_eq!((reply.member_id.as_str(), reply.epoch), ("a", 1));
    assert_eq!(reply.assignment, Some(of_t(&[0, 1, 2, 3])));
    assert_eq!(t.group.state(), ConsumerState::Stable);
    assert_eq!(t.persisted, 1);
    assert_eq!(t.beat("a", 1), (1, None), "nothing new is not repeated");
    assert_eq!(t.persisted, 1, "and not persisted");
}

#[test]
fn a_member_without_an_id_is_given_one() {
    let mut t = Table::new();
    assert_eq!(t.join("").member_id, "fresh");
    assert_eq!(t.beat("fresh", 1), (1, None));
}

#[test]
fn a_partition_changes_hands_only_when_it_was_given_up() {
    let mut t = Table::new();
    t.join("a");
    let b = t.join("b");
    assert_eq!((b.epoch, b.assignment), (2, Some(Partitions::new())), "all is with a still");
    assert_eq!(t.group.state(), ConsumerState::Reconciling);
    assert_eq!(t.group.progress(&t.group.members()["b"]), Progress::Unreleased);

    assert_eq!(t.beat("a", 1), (1, Some(of_t(&[0, 1]))), "told what to keep, at its old epoch");
    assert_eq!(t.group.progress(&t.group.members()["a"]), Progress::Unrevoked);
    assert_eq!(t.beat("b", 2), (2, None));
    assert_eq!(t.has("a", 1, &[0, 1, 2]), (1, None), "not all is given up");
    assert_eq!(t.beat("b", 2), (2, None));

    assert_eq!(t.has("a", 1, &[0, 1]), (2, None));
    assert_eq!(t.beat("b", 2), (2, Some(of_t(&[2, 3]))));
    assert_eq!(t.group.state(), ConsumerState::Stable);
}

#[test]
fn what_is_released_bit_by_bit_is_given_bit_by_bit() {
    let mut t = Table::new();
    t.with_two();
    // c shall have one of a's or b's.
    t.join("c");
    t.join("d");
    assert_eq!(t.beat("a", 2).1, Some(of_t(&[0])));
    assert_eq!(t.beat("b", 2).1, Some(of_t(&[2])));
    assert_eq!(t.has("b", 2, &[2]).0, 4);
    let got: Vec<_> =
        ["c", "d"].into_iter().map(|m| t.say(staying(m, t.group.members()[m].epoch)).unwrap()).collect();
    let given: Vec<_> = got.iter().filter_map(|r| r.assignment.clone()).collect();
    assert_eq!(given, [of_t(&[3])], "only what b gave up");
    t.has("a", 2, &[0]);
    for m in ["c", "d"] {
        t.beat(m, 4);
    }
    assert_eq!(t.group.state(), ConsumerState::Stable);
}

#[test]
fn a_full_request_is_told_everything_again() {
    let mut t = Table::new();
    t.join("a");
    let full = HeartbeatInput { epoch: 1, owned: Some(of_t(&[0, 1, 2, 3])), ..joining("a") };
    assert_eq!(t.say(full).unwrap().assignment, Some(of_t(&[0, 1, 2, 3])));
}

#[test]
fn who_lost_the_answer_may_speak_in_the_epoch_before_if_it_has_nothing_more() {
    let mut t = Table::new();
    t.with_two();
    t.join("c");
    t.beat("b", 2);
    let told = t.has("b", 2, &[2]);
    assert_eq!(told.0, 3);
    // The answer is lost; b asks again, in full.
    let again = HeartbeatInput { epoch: 2, owned: Some(of_t(&[2])), ..joining("b") };
    let reply = t.say(again).unwrap();
    assert_eq!((reply.epoch, reply.assignment), (3, Some(of_t(&[2]))));
    let fenced = |said| Err(E::FencedEpoch { said, is: 3 });
    assert_eq!(t.say(staying("b", 2)), fenced(2), "it does not say what it has");
    let more = HeartbeatInput { owned: Some(of_t(&[2, 3])), ..staying("b", 2) };
    assert_eq!(t.say(more), fenced(2), "it has what it gave up");
    assert_eq!(t.say(HeartbeatInput { owned: Some(of_t(&[])), ..staying("b", 1) }), fenced(1));
    assert_eq!(t.say(staying("b", 4)), fenced(4));
}

#[test]
fn who_is_fenced_joins_again_with_nothing() {
    let mut t = Table::new();
    t.with_two();
    let again = t.join("b");
    assert_eq!((again.epoch, again.assignment), (2, Some(of_t(&[2, 3]))), "no epoch for the others");
    t.join("c");
    // b is to give something up, and begins anew instead: that gives it up.
    assert_eq!(t.beat("b", 2).1, Some(of_t(&[2])));
    let again = t.join("b");
    assert_eq!((again.epoch, again.assignment), (3, Some(of_t(&[2]))));
    assert_eq!(t.beat("c", 3).1, Some(of_t(&[3])));
}

#[test]
fn a_member_that_leaves_frees_what_it_had() {
    let mut t = Table::new();
    t.with_two();
    let left = t.say(staying("a", LEAVE)).unwrap();
    assert_eq!((left.epoch, left.assignment), (-1, None));
    assert_eq!(t.beat("b", 2), (3, Some(of_t(&[0, 1, 2, 3]))));
    assert_eq!(t.say(staying("a", 2)), Err(E::UnknownMember));
    assert_eq!(t.say(staying("a", LEAVE)), Err(E::UnknownMember));
    t.now.wall_ms = 77;
    t.say(staying("b", LEAVE)).unwrap();
    assert_eq!(t.group.state(), ConsumerState::Empty);
    assert_eq!((t.group.empty_since(), t.group.epoch()), (Some(77), 4));
    t.join("a");
    assert_eq!((t.group.empty_since(), t.group.epoch()), (None, 5), "epochs go on");
}

#[test]
fn a_silent_member_is_out_after_its_session() {
    let mut t = Table::new();
    t.with_two();
    t.pass(Duration::from_secs(30));
    t.beat("b", 2);
    t.pass(Duration::from_millis(14_999));
    assert!(t.group.members().contains_key("a"));
    t.pass(Duration::from_millis(1));
    assert_eq!(t.beat("b", 2), (3, Some(of_t(&[0, 1, 2, 3]))));
    assert_eq!(t.say(staying("a", 2)), Err(E::UnknownMember));
}

#[test]
fn a_member_that_does_not_give_up_in_time_is_out_though_it_lives() {
    let mut t = Table::new();
    t.join("a");
    t.join("b");
    t.beat("a", 1);
    for _ in 0..5 {
        t.pass(Duration::from_secs(10));
        t.beat("a", 1);
        t.beat("b", 2);
    }
    t.pass(Duration::from_secs(10));
    assert_eq!(t.say(staying("a", 1)), Err(E::UnknownMember));
    assert_eq!(t.beat("b", 2), (3, Some(of_t(&[0, 1, 2, 3]))));
}

#[test]
fn a_static_member_comes_back_to_what_it_had() {
    let mut t = Table::new();
    t.say(of_instance("i", joining("a"))).unwrap();
    assert_eq!(t.say(of_instance("i", joining("a2"))), Err(E::UnreleasedInstance("a".to_owned())));
    let left = t.say(of_instance("i", staying("a", LEAVE_STATIC))).unwrap();
    assert_eq!((left.epoch, left.assignment), (-2, None));
    let b = t.join("b");
    assert_eq!(b.assignment, Some(Partitions::new()), "they wait for who is away");

    let back = t.say(of_instance("i", joining("a2"))).unwrap();
    assert_eq!((back.member_id.as_str(), back.epoch), ("a2", 2), "and b's epoch stands");
    assert_eq!(back.assignment.unwrap().len(), 2, "what is not b's now");
    assert_eq!(t.beat("b", 2).1.unwrap().len(), 2);
    assert_eq!(t.say(of_instance("i", staying("a", 1))), Err(E::FencedInstance));
    assert_eq!(t.say(staying("a", 1)), Err(E::UnknownMember));
}

#[test]
fn a_static_member_that_stays_away_is_out_after_a_session() {
    let mut t = Table::new();
    t.say(of_instance("i", joining("a"))).unwrap();
    t.join("b");
    t.say(of_instance("i", staying("a", LEAVE_STATIC))).unwrap();
    t.pass(Duration::from_secs(44));
    t.beat("b", 2);
    t.pass(Duration::from_secs(1));
    assert_eq!(t.beat("b", 2), (3, Some(of_t(&[0, 1, 2, 3]))));
    t.say(of_instance("i", joining("a"))).unwrap();
}

#[test]
fn a_static_member_that_leaves_for_good_is_out_at_once() {
    let mut t = Table::new();
    t.say(of_instance("i", joining("a"))).unwrap();
    t.say(of_instance("i", staying("a", LEAVE))).unwrap();
    assert_eq!(t.group.state(), ConsumerState::Empty);
    t.say(of_instance("i", joining("b"))).unwrap();
    let mut out = Out::default();
    let removed = t.group.remove_instance(t.now, &t.limits, &t.topics, "i", &mut out);
    assert_eq!((removed, out.persist), (Ok("b".to_owned()), true));
    let again = t.group.remove_instance(t.now, &t.limits, &t.topics, "i", &mut out);
    assert_eq!(again, Err(E::UnknownMember));
}

#[test]
fn another_subscription_is_another_epoch_and_the_same_is_not() {
    let mut t = Table::new();
    t.topic("u", 2, 2);
    t.with_two();
    let subscribed = |names: &[&str]| Some(names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>());
    let same = HeartbeatInput { subscribed: subscribed(&["t"]), ..staying("a", 2) };
    assert_eq!(t.say(same).unwrap().epoch, 2);
    let both = HeartbeatInput { subscribed: subscribed(&["t", "u"]), ..staying("a", 2) };
    let reply = t.say(both).unwrap();
    assert_eq!(t.group.epoch(), 3);
    // a alone may have u; to make up for it, b gets one of a's.
    assert_eq!(reply.assignment.map(|a| a.len()), Some(1));
    assert_eq!(reply.epoch, 2, "first it gives up");
}

#[test]
fn topics_that_come_grow_or_go_are_another_epoch() {
    let mut t = Table::new();
    t.topics.clear();
    assert_eq!(t.join("a").assignment, Some(Partitions::new()), "no such topic yet");
    t.refresh();
    assert_eq!((t.group.epoch(), t.persisted), (1, 1), "nothing happened");
    t.topic("other", 9, 3);
    t.refresh();
    assert_eq!(t.group.epoch(), 1, "nobody subscribes to that");
    t.topic("t", 1, 1);
    t.refresh();
    assert_eq!(t.beat("a", 1), (2, Some(of_t(&[0]))));
    t.topic("t", 1, 2);
    t.refresh();
    assert_eq!(t.beat("a", 2), (3, Some(of_t(&[0, 1]))));
    // Deleted and created again: another topic.
    t.topic("t", 7, 1);
    t.refresh();
    assert_eq!(t.beat("a", 3), (3, Some(Partitions::new())));
    assert_eq!(t.has("a", 3, &[]), (4, Some(Partitions::from([place(7, 0)]))));
    t.topics.clear();
    t.refresh();
    assert_eq!(t.beat("a", 4), (4, Some(Partitions::new())));
    assert_eq!(t.has("a", 4, &[]), (5, None));
    assert_eq!(t.group.state(), ConsumerState::Stable);
}

#[test]
fn most_wishes_decide_on_the_assignor() {
    let mut t = Table::new();
    let wish = |m: &str, assignor: &str| HeartbeatInput { assignor: Some(assignor.to_owned()), ..joining(m) };
    t.join("a");
    assert_eq!(t.group.assignor(), Assignor::Uniform, "the first of the list");
    t.say(wish("b", "range")).unwrap();
    assert_eq!(t.group.assignor(), Assignor::Range);
    t.say(wish("c", "uniform")).unwrap();
    assert_eq!(t.group.assignor(), Assignor::Uniform);
    let refused = t.say(wish("d", "sticky"));
    let unsupported =
        E::UnsupportedAssignor { wanted: "sticky".to_owned(), served: "uniform, range".to_owned() };
    assert_eq!(refused, Err(unsupported));
    t.limits.assignors = vec![Assignor::Range];
    assert!(matches!(t.say(wish("d", "uniform")), Err(E::UnsupportedAssignor { .. })));
    // A wish that changes moves the group on.
    t.limits = limits();
    let epoch = t.group.epoch();
    let other = HeartbeatInput { assignor: Some("range".to_owned()), ..staying("c", epoch) };
    t.say(other).unwrap();
    assert_eq!((t.group.epoch(), t.group.assignor()), (epoch + 1, Assignor::Range));
}

#[test]
fn a_group_is_full_for_new_members_only() {
    let mut t = Table::new();
    t.limits.max_size = 2;
    t.join("a");
    t.say(of_instance("i", joining("b"))).unwrap();
    assert_eq!(t.say(joining("c")), Err(E::Full));
    t.join("a");
    t.say(of_instance("i", staying("b", LEAVE_STATIC))).unwrap();
    t.say(of_instance("i", joining("b2"))).unwrap();
}

#[test]
fn a_subscription_that_no_document_has_room_for_is_refused() {
    let mut t = Table::new();
    let long = |n: usize| "x".repeat(n);
    let names = (0..300).map(|n| format!("{n}{}", long(20_000))).collect();
    let refused = t.say(HeartbeatInput { subscribed: Some(names), ..joining("a") });
    assert_eq!(refused, Err(E::Full));
    assert!(t.group.is_deserted());
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let mut t = Table::new();
    t.join("a");
    let none = || None;
    for (wrong, why) in [
        (staying("a", -3), "epoch"),
        (staying("", 1), "member id"),
        (staying("a", LEAVE_STATIC), "instance"),
        (of_instance("", staying("a", 1)), "instance"),
        (HeartbeatInput { rack: Some(String::new()), ..staying("a", 1) }, "rack"),
        (HeartbeatInput { rebalance: None, ..joining("b") }, "rebalance"),
        (HeartbeatInput { subscribed: None, ..joining("b") }, "subscribes"),
        (HeartbeatInput { owned: none(), ..joining("b") }, "partitions"),
        (HeartbeatInput { owned: Some(of_t(&[0])), ..joining("b") }, "partitions"),
    ] {
        let refused = t.say(wrong).unwrap_err();
        assert!(matches!(&refused, E::Invalid(text) if text.contains(why)), "{refused:?}, not of {why}");
    }
    assert_eq!(t.say(staying("ghost", 1)), Err(E::UnknownMember));
    assert_eq!(t.say(of_instance("ghost", staying("a", 1))), Err(E::UnknownMember));
    assert_eq!(t.persisted, 1);
}

#[test]
fn a_member_commits_in_its_epoch_and_in_no_other() {
    let mut t = Table::new();
    t.join("a");
    t.join("b");
    t.beat("a", 1);
    assert_eq!(t.group.check_member("a", 1), Ok(()), "what it gives up it may commit first");
    t.has("a", 1, &[0, 1]);
    assert_eq!(t.group.check_member("a", 1), Err(E::StaleEpoch));
    assert_eq!(t.group.check_member("a", 2), Ok(()));
    assert_eq!(t.group.check_member("a", -1), Err(E::StaleEpoch));
    assert_eq!(t.group.check_member("ghost", 2), Err(E::UnknownMember));
    t.say(of_instance("i", joining("s"))).unwrap();
    t.say(of_instance("i", staying("s", LEAVE_STATIC))).unwrap();
    assert_eq!(t.group.check_member("s", LEAVE_STATIC), Err(E::StaleEpoch), "it is away");
}

#[test]
fn a_takeover_in_the_middle_of_everything_changes_nothing_for_anybody() {
    let mut t = Table::new();
    t.topic("u", 2, 3);
    t.say(of_instance("i", joining("s"))).unwrap();
    t.takeover();
    t.say(of_instance("i", staying("s", LEAVE_STATIC))).unwrap();
    t.takeover();
    t.say(of_instance("i", joining("s2"))).unwrap();
    t.join("b");
    t.takeover();
    assert_eq!(t.beat("s2", 1).1, Some(of_t(&[0, 1])));
    t.takeover();
    assert_eq!(t.group.progress(&t.group.members()["s2"]), Progress::Unrevoked);
    assert_eq!(t.beat("b", 2), (2, None), "s2 still has it");
    assert_eq!(t.has("s2", 1, &[0, 1]), (2, None));
    t.takeover();
    assert_eq!(t.beat("b", 2), (2, Some(of_t(&[2, 3]))));
    t.takeover();
    assert_eq!(t.beat("s2", 2), (2, None));
    assert_eq!(t.beat("b", 2), (2, None));
    assert_eq!(t.group.state(), ConsumerState::Stable);
    // Whoever is gone with the old coordinator is found out by the new one.
    t.takeover();
    t.pass(Duration::from_secs(45));
    assert_eq!(t.group.state(), ConsumerState::Empty);
    t.takeover();
    assert_eq!(t.group.epoch(), 3);
}

#[test]
fn more_partitions_than_a_group_can_hold_are_left_out_by_topic() {
    let mut t = Table::new();
    t.topic("a", 2, MAX_PARTITIONS as i32 - 3);
    t.topic("z", 3, 1);
    let names = ["a", "t", "z"].map(str::to_owned);
    let reply = t.say(HeartbeatInput { subscribed: Some(names.into()), ..joining("m") }).unwrap();
    assert_eq!(reply.assignment.unwrap().len(), MAX_PARTITIONS - 3);
    t.takeover();
}
