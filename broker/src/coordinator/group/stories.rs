//! What happens in a group, told input by input.

use super::*;
use ResponseError as E;

/// A group with a clock and a client's eye view of it.
struct Table {
    group: Group,
    limits: Limits,
    now: Now,
    next: Token,
    answers: BTreeMap<Token, Reply>,
    persisted: u32,
}

impl Table {
    fn new() -> Self {
        Table {
            group: Group::new(),
            limits: Limits { initial_delay: Duration::ZERO, ..Limits::default() },
            now: Now::default(),
            next: 0,
            answers: BTreeMap::new(),
            persisted: 0,
        }
    }

    fn take(&mut self, out: Out) {
        for (token, reply) in out.replies {
            assert!(self.answers.insert(token, reply).is_none(), "token {token} is answered twice");
        }
        self.persisted += u32::from(out.persist);
    }

    fn join_with(&mut self, input: JoinInput) -> Token {
        self.next += 1;
        let token = self.next;
        let mut out = Out::default();
        let input = JoinInput { fresh_id: format!("id-{token}"), ..input };
        self.group.join(self.now, &self.limits, input, token, &mut out);
        self.take(out);
        token
    }

    fn join(&mut self, member: &str) -> Token {
        self.join_with(JoinInput { member_id: member.to_owned(), ..plain() })
    }

    fn join_static(&mut self, member: &str, instance: &str) -> Token {
        let instance = Some(instance.to_owned());
        self.join_with(JoinInput { member_id: member.to_owned(), instance, ..plain() })
    }

    fn sync(&mut self, member: &str, generation: i32, assignments: &[(&str, &'static str)]) -> Token {
        self.next += 1;
        let input = SyncInput {
            member_id: member.to_owned(),
            generation,
            assignments: assignments.iter().map(|(m, a)| (m.to_string(), Bytes::from(*a))).collect(),
            ..SyncInput::default()
        };
        let mut out = Out::default();
        self.group.sync(self.now, input, self.next, &mut out);
        self.take(out);
        self.next
    }

    fn leave(&mut self, member: &str, instance: Option<&str>) -> Result<String, E> {
        let mut out = Out::default();
        let result = self.group.leave(self.now, &self.limits, member, instance, &mut out);
        self.take(out);
        result
    }

    fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), E> {
        self.group.heartbeat(self.now, &caller(member, generation))
    }

    fn commit(&mut self, member: &str, generation: i32) -> Result<(), E> {
        self.group.may_commit(self.now, &caller(member, generation))
    }

    fn pass(&mut self, time: Duration) {
        self.now.boot += time;
        self.now.wall_ms += time.as_millis() as i64;
        let mut out = Out::default();
        self.group.tick(self.now, &self.limits, &mut out);
        self.take(out);
    }

    fn joined(&self, token: Token) -> &JoinReply {
        match self.answers.get(&token) {
            Some(Reply::Join(reply)) => reply,
            other => panic!("no join answer for {token}: {other:?}"),
        }
    }

    fn synced(&self, token: Token) -> &SyncReply {
        match self.answers.get(&token) {
            Some(Reply::Sync(reply)) => reply,
            other => panic!("no sync answer for {token}: {other:?}"),
        }
    }

    fn waits(&self, token: Token) -> bool {
        !self.answers.contains_key(&token)
    }

    /// A stable group of one member; its id.
    fn with_one(&mut self) -> String {
        let token = self.join("");
        let id = self.joined(token).member_id.clone();
        let sync = self.sync(&id, 1, &[(&id, "all")]);
        assert_eq!(self.synced(sync).assignment, "all");
        assert_eq!(self.group.state(), State::Stable);
        id
    }

    /// A stable group of two members in generation 2; leader and follower.
    fn with_two(&mut self) -> (String, String) {
        let one = self.with_one();
        let token = self.join("");
        let rejoin = self.join(&one);
        let two = self.joined(token).member_id.clone();
        assert_eq!(self.joined(rejoin).leader, one);
        self.sync(&two, 2, &[]);
        self.sync(&one, 2, &[(&one, "half"), (&two, "other half")]);
        assert_eq!(self.group.state(), State::Stable);
        (one, two)
    }
}

fn plain() -> JoinInput {
    JoinInput {
        client_id: "c".to_owned(),
        session: Duration::from_secs(10),
        rebalance: Duration::from_secs(60),
        protocol_type: "consumer".to_owned(),
        protocols: protocols(&["range"]),
        ..JoinInput::default()
    }
}

fn protocols(names: &[&str]) -> Vec<(String, Bytes)> {
    names.iter().map(|n| (n.to_string(), Bytes::from(format!("{n} metadata")))).collect()
}

fn caller(member: &str, generation: i32) -> Caller {
    Caller { member_id: member.to_owned(), instance: None, generation }
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn the_first_member_leads_and_gets_what_it_assigns() {
    let mut t = Table::new();
    let token = t.join("");
    let reply = t.joined(token).clone();
    assert_eq!((reply.error, reply.generation), (None, 1));
    assert_eq!(reply.leader, reply.member_id);
    assert_eq!(reply.protocol_name.as_deref(), Some("range"));
    assert_eq!(reply.members.len(), 1);
    assert_eq!(reply.members[0].metadata, "range metadata");
    let sync = t.sync(&reply.member_id, 1, &[(&reply.member_id, "p0")]);
    assert_eq!(t.synced(sync).assignment, "p0");
    assert_eq!(t.persisted, 2, "the generation before the member learns it, then the assignment");
}

#[test]
fn a_second_member_makes_the_first_rejoin() {
    let mut t = Table::new();
    let one = t.with_one();
    let second = t.join("");
    assert!(t.waits(second));
    assert_eq!(t.heartbeat(&one, 1), Err(E::RebalanceInProgress));
    let rejoin = t.join(&one);
    assert_eq!(t.joined(rejoin).generation, 2);
    assert_eq!(t.joined(rejoin).members.len(), 2);
    assert_eq!(t.joined(second).members.len(), 0, "only the leader needs the roster");
    let two = t.joined(second).member_id.clone();
    let waiting = t.sync(&two, 2, &[]);
    assert!(t.waits(waiting));
    t.sync(&one, 2, &[(&two, "everything")]);
    assert_eq!(t.synced(waiting).assignment, "everything");
    assert_eq!(t.group.members()[&one].assignment, "", "who got nothing got an empty assignment");
}

#[test]
fn a_dynamic_member_is_first_told_its_id() {
    let mut t = Table::new();
    let token = t.join_with(JoinInput { require_known_id: true, ..plain() });
    let refused = t.joined(token).clone();
    assert_eq!(refused.error, Some(E::MemberIdRequired));
    assert!(t.group.members().is_empty());
    let known = JoinInput { member_id: refused.member_id.clone(), require_known_id: true, ..plain() };
    let again = t.join_with(known);
    assert_eq!(t.joined(again).member_id, refused.member_id);
    assert_eq!(t.joined(again).error, None);
}

#[test]
fn a_promised_id_holds_up_the_rebalance_until_it_lapses() {
    let mut t = Table::new();
    let one = t.with_one();
    t.join_with(JoinInput { require_known_id: true, ..plain() });
    let rejoin = t.join(&one);
    assert!(t.waits(rejoin));
    t.pass(secs(11));
    assert_eq!(t.joined(rejoin).generation, 2);
}

#[test]
fn an_unknown_member_id_is_refused_everywhere() {
    let mut t = Table::new();
    t.with_one();
    let join = t.join("nobody");
    assert_eq!(t.joined(join).error, Some(E::UnknownMemberId));
    let sync = t.sync("nobody", 1, &[]);
    assert_eq!(t.synced(sync).error, Some(E::UnknownMemberId));
    assert_eq!(t.heartbeat("nobody", 1), Err(E::UnknownMemberId));
    assert_eq!(t.commit("nobody", 1), Err(E::UnknownMemberId));
    assert_eq!(t.leave("nobody", None), Err(E::UnknownMemberId));
    assert_eq!(t.group.state(), State::Stable);
}

#[test]
fn another_generation_is_refused_everywhere() {
    let mut t = Table::new();
    let one = t.with_one();
    for generation in [0, 2] {
        assert_eq!(t.heartbeat(&one, generation), Err(E::IllegalGeneration));
        assert_eq!(t.commit(&one, generation), Err(E::IllegalGeneration));
        let sync = t.sync(&one, generation, &[]);
        assert_eq!(t.synced(sync).error, Some(E::IllegalGeneration));
    }
}

#[test]
fn a_member_of_other_protocols_is_refused_and_the_group_goes_on() {
    let mut t = Table::new();
    t.with_one();
    let other_protocol = JoinInput { protocols: protocols(&["sticky"]), ..plain() };
    let other_type = JoinInput { protocol_type: "connect".to_owned(), ..plain() };
    let none = JoinInput { protocols: Vec::new(), ..plain() };
    for input in [other_protocol, other_type, none] {
        let token = t.join_with(input);
        assert_eq!(t.joined(token).error, Some(E::InconsistentGroupProtocol));
    }
    assert_eq!(t.group.state(), State::Stable);
    let mut empty = Table::new();
    let token = empty.join_with(JoinInput { protocol_type: String::new(), ..plain() });
    assert_eq!(empty.joined(token).error, Some(E::InconsistentGroupProtocol));
}

#[test]
fn the_protocol_that_most_prefer_among_those_all_speak_is_chosen() {
    let mut t = Table::new();
    t.limits.initial_delay = secs(3);
    let ask =
        |t: &mut Table, names: &[&str]| t.join_with(JoinInput { protocols: protocols(names), ..plain() });
    let first = ask(&mut t, &["a", "b", "c"]);
    ask(&mut t, &["b", "a"]);
    ask(&mut t, &["c", "b", "a"]);
    t.pass(secs(3));
    t.pass(secs(3));
    // c is not spoken by all; the third's vote goes to b.
    assert_eq!(t.joined(first).protocol_name.as_deref(), Some("b"));
}

#[test]
fn the_first_rebalance_waits_for_more_members_but_not_for_ever() {
    let mut t = Table::new();
    t.limits.initial_delay = secs(3);
    let first = t.join("");
    t.pass(secs(2));
    assert!(t.waits(first));
    let second = t.join("");
    t.pass(secs(1));
    assert!(t.waits(first), "a newcomer extends the wait");
    t.pass(secs(3));
    assert_eq!(t.joined(first).generation, 1);
    assert_eq!(t.joined(second).generation, 1);
    assert_eq!(t.group.members().len(), 2);
}

#[test]
fn who_does_not_rejoin_in_time_is_out() {
    let mut t = Table::new();
    let (one, two) = t.with_two();
    let third = t.join("");
    t.join(&one);
    for _ in 0..12 {
        t.pass(secs(5));
        let _ = t.heartbeat(&two, 2);
    }
    assert_eq!(t.joined(third).generation, 3);
    assert!(
        !t.group.members().contains_key(&two),
        "alive, but it did not rejoin within its rebalance timeout"
    );
    assert_eq!(t.heartbeat(&two, 3), Err(E::UnknownMemberId));
}

#[test]
fn who_falls_silent_is_out_after_its_session_timeout() {
    let mut t = Table::new();
    let (one, two) = t.with_two();
    t.pass(secs(9));
    assert_eq!(t.heartbeat(&one, 2), Ok(()));
    t.pass(secs(2));
    assert!(!t.group.members().contains_key(&two));
    assert_eq!(t.heartbeat(&one, 2), Err(E::RebalanceInProgress));
}

#[test]
fn a_commit_is_a_sign_of_life() {
    let mut t = Table::new();
    let one = t.with_one();
    for _ in 0..5 {
        t.pass(secs(9));
        assert_eq!(t.commit(&one, 1), Ok(()));
    }
}

#[test]
fn who_joined_but_never_syncs_is_out_after_its_rebalance_timeout() {
    let mut t = Table::new();
    let one = t.with_one();
    let second = t.join("");
    t.join(&one);
    let two = t.joined(second).member_id.clone();
    let waiting = t.sync(&two, 2, &[]);
    // The leader sends heartbeats but no assignment.
    for _ in 0..13 {
        t.pass(secs(5));
        let _ = t.heartbeat(&one, 2);
    }
    assert_eq!(t.synced(waiting).error, Some(E::RebalanceInProgress));
    assert!(!t.group.members().contains_key(&one));
}

#[test]
fn while_the_assignment_is_open_heartbeats_pass_and_commits_do_not() {
    let mut t = Table::new();
    let token = t.join("");
    let id = t.joined(token).member_id.clone();
    assert_eq!(t.heartbeat(&id, 1), Ok(()));
    assert_eq!(t.commit(&id, 1), Err(E::RebalanceInProgress));
}

#[test]
fn a_commit_during_the_gathering_counts_for_the_old_generation() {
    let mut t = Table::new();
    let one = t.with_one();
    t.join("");
    assert_eq!(t.group.state(), State::PreparingRebalance);
    assert_eq!(t.commit(&one, 1), Ok(()));
}

#[test]
fn a_client_without_a_group_commits_only_while_the_group_is_empty() {
    let mut t = Table::new();
    assert_eq!(t.commit("", -1), Ok(()));
    let one = t.with_one();
    assert_eq!(t.commit("", -1), Err(E::UnknownMemberId));
    assert_eq!(t.commit(&one, -1), Err(E::IllegalGeneration));
    t.leave(&one, None).unwrap();
    assert_eq!(t.commit("", -1), Ok(()));
    assert_eq!(t.commit(&one, 1), Err(E::UnknownMemberId));
}

#[test]
fn the_last_one_to_leave_empties_the_group_in_a_new_generation() {
    let mut t = Table::new();
    let one = t.with_one();
    t.now.wall_ms = 5000;
    assert_eq!(t.leave(&one, None), Ok(one.clone()));
    assert_eq!(t.group.state(), State::Empty);
    assert_eq!(t.group.generation(), 2);
    assert_eq!(t.group.empty_since(), Some(5000));
    let again = t.join("");
    assert_eq!(t.joined(again).generation, 3);
}

#[test]
fn a_leader_that_leaves_is_followed_by_another() {
    let mut t = Table::new();
    let (one, two) = t.with_two();
    t.leave(&one, None).unwrap();
    let rejoin = t.join(&two);
    assert_eq!(t.joined(rejoin).leader, two);
    assert_eq!(t.joined(rejoin).members.len(), 1);
}

#[test]
fn a_full_group_takes_no_more() {
    let mut t = Table::new();
    t.limits.max_size = 1;
    let one = t.with_one();
    let refused = t.join("");
    assert_eq!(t.joined(refused).error, Some(E::GroupMaxSizeReached));
    let rejoin = t.join(&one);
    assert_eq!(t.joined(rejoin).error, None);
}

#[test]
fn a_follower_that_asks_again_gets_the_same_answer() {
    let mut t = Table::new();
    let (_, two) = t.with_two();
    let again = t.join(&two);
    assert_eq!(t.joined(again).generation, 2);
    assert_eq!(t.group.state(), State::Stable);
    let sync = t.sync(&two, 2, &[]);
    assert_eq!(t.synced(sync).assignment, "other half");
}

#[test]
fn a_follower_with_a_new_subscription_starts_a_rebalance() {
    let mut t = Table::new();
    let (_, two) = t.with_two();
    let changed = vec![("range".to_owned(), Bytes::from("other topics"))];
    let token = t.join_with(JoinInput { member_id: two, protocols: changed, ..plain() });
    assert!(t.waits(token));
    assert_eq!(t.group.state(), State::PreparingRebalance);
}

#[test]
fn a_join_sent_twice_is_answered_twice() {
    let mut t = Table::new();
    let one = t.with_one();
    t.join("");
    t.join_with(JoinInput { require_known_id: true, ..plain() });
    let first = t.join(&one);
    assert!(t.waits(first));
    let second = t.join(&one);
    assert_eq!(t.joined(first).error, Some(E::RebalanceInProgress));
    assert!(t.waits(second));
}

#[test]
fn a_restarted_static_member_takes_its_place_without_a_rebalance() {
    let mut t = Table::new();
    let token = t.join_static("", "i");
    let old = t.joined(token).member_id.clone();
    t.sync(&old, 1, &[(&old, "p0")]);
    let restarted = t.join_static("", "i");
    let reply = t.joined(restarted).clone();
    assert_eq!((reply.error, reply.generation), (None, 1));
    assert_ne!(reply.member_id, old);
    assert_eq!(reply.leader, old, "a client that takes itself for the leader would assign anew");
    let sync = t.sync(&reply.member_id, 1, &[]);
    assert_eq!(t.synced(sync).assignment, "p0");
    assert_eq!(t.group.state(), State::Stable);
}

#[test]
fn a_leader_that_can_skip_the_assignment_is_told_to() {
    let mut t = Table::new();
    let token = t.join_static("", "i");
    let old = t.joined(token).member_id.clone();
    t.sync(&old, 1, &[(&old, "p0")]);
    let input = JoinInput { instance: Some("i".to_owned()), may_skip_assignment: true, ..plain() };
    let restarted = t.join_with(input);
    let reply = t.joined(restarted);
    assert!(reply.skip_assignment);
    assert_eq!(reply.leader, reply.member_id);
    assert_eq!(reply.members.len(), 1);
}

#[test]
fn a_static_member_may_be_silent_for_a_rebalance_and_keeps_its_place() {
    let mut t = Table::new();
    let first = t.join_static("", "a");
    let a = t.joined(first).member_id.clone();
    t.sync(&a, 1, &[]);
    let second = t.join_static("", "b");
    // `a` is away: it is not thrown out when the rebalance timeout passes, only when its session does.
    t.join_with(JoinInput {
        member_id: a.clone(),
        instance: Some("a".to_owned()),
        session: secs(1000),
        ..plain()
    });
    let b = t.joined(second).member_id.clone();
    t.sync(&a, 2, &[]);
    t.sync(&b, 2, &[]);
    let third = t.join_static("", "c");
    t.join_static(&b, "b");
    t.pass(secs(61));
    assert_eq!(t.joined(third).generation, 3);
    assert!(t.group.members().contains_key(&a));
}

#[test]
fn static_members_leave_by_instance_alone() {
    let mut t = Table::new();
    let token = t.join_static("", "i");
    let id = t.joined(token).member_id.clone();
    assert_eq!(t.leave("someone", Some("i")), Err(E::FencedInstanceId));
    assert_eq!(t.leave("", Some("j")), Err(E::UnknownMemberId));
    assert_eq!(t.leave("", Some("i")), Ok(id));
    assert_eq!(t.group.state(), State::Empty);
}

/// Field case 53: two clients with one `group.instance.id`, under an older protocol version.
#[test]
fn case_53_the_older_of_two_static_twins_is_fenced_and_the_group_is_not_stuck() {
    let mut t = Table::new();
    // A leader of JoinGroup version 2: dynamic, without a known id.
    let leader = t.with_one();
    let first = t.join_static("", "twin");
    t.join(&leader);
    let older = t.joined(first).member_id.clone();
    let waiting = t.sync(&older, 2, &[]);
    assert!(t.waits(waiting));

    // The twin comes while the older waits for its assignment.
    let second = t.join_static("", "twin");
    assert_eq!(t.synced(waiting).error, Some(E::FencedInstanceId));
    let fenced = Caller { member_id: older.clone(), instance: Some("twin".to_owned()), generation: 2 };
    assert_eq!(t.group.heartbeat(t.now, &fenced), Err(E::FencedInstanceId));
    assert_eq!(t.group.may_commit(t.now, &fenced), Err(E::FencedInstanceId));
    let rejoin = t.join_static(&older, "twin");
    assert_eq!(t.joined(rejoin).error, Some(E::FencedInstanceId));

    // And a third while the second waits to join.
    assert!(t.waits(second));
    let third = t.join_static("", "twin");
    assert_eq!(t.joined(second).error, Some(E::FencedInstanceId));
    t.join(&leader);
    let newer = t.joined(third).member_id.clone();
    assert_eq!(t.joined(third).error, None);
    let generation = t.group.generation();
    let sync = t.sync(&newer, generation, &[]);
    t.sync(&leader, generation, &[(&newer, "p0")]);
    assert_eq!(t.synced(sync).assignment, "p0");
    assert_eq!(t.group.state(), State::Stable);
}

/// Hole 24 (groups dropped on any change of assignment): what is persisted is enough to go on.
#[test]
fn hole_24_a_group_survives_its_coordinator() {
    let mut t = Table::new();
    let (one, two) = t.with_two();
    t.pass(secs(9));
    let text = serde_json::to_string(&t.group.to_doc()).unwrap();
    let doc: GroupDoc = serde_json::from_str(&text).unwrap();
    t.group = Group::from_doc(&doc, t.now);
    assert_eq!(t.group.state(), State::Stable);
    t.pass(secs(9));
    assert_eq!(t.heartbeat(&one, 2), Ok(()), "session timers start anew");
    assert_eq!(t.commit(&two, 2), Ok(()));
    let sync = t.sync(&two, 2, &[]);
    assert_eq!(t.synced(sync).assignment, "other half");
}

#[test]
fn a_generation_whose_assignment_was_lost_waits_for_it_again() {
    let mut t = Table::new();
    let token = t.join("");
    let id = t.joined(token).member_id.clone();
    t.group = Group::from_doc(&t.group.to_doc(), t.now);
    assert_eq!(t.group.state(), State::CompletingRebalance);
    let sync = t.sync(&id, 1, &[(&id, "p0")]);
    assert_eq!(t.synced(sync).assignment, "p0");
}
