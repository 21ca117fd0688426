//! Consumer groups (KIP-848) on logs that do what a test says.

use super::bed::*;
use crate::coordinator::consumer::{
    ConsumerError, ConsumerState, HeartbeatInput, HeartbeatReply, Partitions, LEAVE,
};
use crate::coordinator::group::{Caller, SyncInput};
use crate::coordinator::{ConsumerDescription, ConsumerLook, GroupKind, GroupSettings, Groups};
use kafka_protocol::ResponseError as E;
use std::time::Duration;
use tokio::time::sleep;

fn joining(member: &str) -> HeartbeatInput {
    HeartbeatInput {
        member_id: member.to_owned(),
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        rebalance: Some(Duration::from_secs(60)),
        subscribed: Some(["t".to_owned()].into()),
        owned: Some(Partitions::new()),
        ..HeartbeatInput::default()
    }
}

fn staying(member: &str, epoch: i32) -> HeartbeatInput {
    HeartbeatInput { member_id: member.to_owned(), epoch, ..HeartbeatInput::default() }
}

fn of_t(partitions: &[i32]) -> Partitions {
    partitions.iter().map(|p| (topic(1), *p)).collect()
}

async fn say(groups: &Groups, input: HeartbeatInput) -> Result<HeartbeatReply, ConsumerError> {
    groups.consumer_heartbeat("g", input).await
}

async fn beat(groups: &Groups, member: &str, epoch: i32) -> (i32, Option<Partitions>) {
    let reply = say(groups, staying(member, epoch)).await.unwrap();
    (reply.epoch, reply.assignment)
}

async fn describe(groups: &Groups) -> ConsumerDescription {
    match groups.look_at_consumer("g").await.unwrap() {
        ConsumerLook::Consumer(description) => *description,
        other => panic!("{other:?}"),
    }
}

fn caller(member: &str, epoch: i32) -> Caller {
    Caller { member_id: member.to_owned(), instance: None, generation: epoch }
}

fn refused<T: std::fmt::Debug>(result: Result<T, ConsumerError>) -> E {
    result.unwrap_err().error()
}

/// Asks until the new coordinator has loaded.
async fn loaded(bed: &Bed) {
    ready(&bed.groups, "g").await;
}

#[test]
fn members_keep_their_epochs_and_partitions_over_takeovers() {
    story(async {
        let bed = Bed::new().await;
        let groups = &bed.groups;
        let a = say(groups, joining("a")).await.unwrap();
        assert_eq!((a.epoch, a.assignment), (1, Some(of_t(&[0, 1]))));
        say(groups, joining("b")).await.unwrap();
        assert_eq!(beat(groups, "a", 1).await, (1, Some(of_t(&[0]))));
        let before = describe(groups).await;
        assert_eq!(before.state, ConsumerState::Reconciling);

        bed.log().depose();
        assert_eq!(refused(say(groups, staying("a", 1)).await), E::NotCoordinator);
        bed.log().lead(2);
        loaded(&bed).await;
        assert_eq!(describe(groups).await, before);
        assert_eq!(beat(groups, "b", 2).await, (2, None), "a did not give it up");
        let gave_up = HeartbeatInput { owned: Some(of_t(&[0])), ..staying("a", 1) };
        assert_eq!(say(groups, gave_up).await.unwrap().epoch, 2);
        bed.log().lead(3);
        loaded(&bed).await;
        assert_eq!(beat(groups, "b", 2).await, (2, Some(of_t(&[1]))));
        bed.log().lead(4);
        loaded(&bed).await;
        assert_eq!(describe(groups).await.state, ConsumerState::Stable);
        assert_eq!(beat(groups, "a", 2).await, (2, None));
        assert_eq!(beat(groups, "b", 2).await, (2, None));
    });
}

#[test]
fn no_member_is_told_what_is_not_durable() {
    story(async {
        let bed = Bed::new().await;
        bed.log().hold();
        let mut joins = Box::pin(say(&bed.groups, joining("a")));
        tokio::select! {
            biased;
            reply = &mut joins => panic!("told {reply:?} before the sync"),
            () = sleep(Duration::from_secs(5)) => {}
        }
        // A later heartbeat rests on the same.
        let mut again = Box::pin(say(&bed.groups, staying("a", 1)));
        tokio::select! {
            biased;
            reply = &mut again => panic!("told {reply:?} before the sync"),
            () = sleep(Duration::from_secs(5)) => {}
        }
        bed.log().fail();
        assert_eq!(refused(joins.await), E::CoordinatorNotAvailable);
        assert_eq!(refused(again.await), E::CoordinatorNotAvailable);
        bed.log().lead(2);
        loaded(&bed).await;
        assert_eq!(bed.groups.look_at_consumer("g").await, Ok(ConsumerLook::Missing));
        assert_eq!(refused(say(&bed.groups, staying("a", 1)).await), E::UnknownMemberId, "it joins again");
    });
}

#[test]
fn a_topic_that_comes_or_goes_is_noticed_by_itself() {
    story(async {
        let bed = Bed::new().await;
        bed.topics.0.lock().clear();
        assert_eq!(say(&bed.groups, joining("a")).await.unwrap().assignment, Some(Partitions::new()));
        bed.topics.0.lock().insert(topic(1));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(beat(&bed.groups, "a", 1).await, (2, Some(of_t(&[0, 1]))));
        bed.topics.0.lock().clear();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(beat(&bed.groups, "a", 2).await, (2, Some(Partitions::new())));
    });
}

#[test]
fn a_silent_member_is_found_out_by_itself() {
    story(async {
        let bed = Bed::new().await;
        say(&bed.groups, joining("a")).await.unwrap();
        sleep(Duration::from_secs(30)).await;
        say(&bed.groups, joining("b")).await.unwrap();
        sleep(Duration::from_secs(16)).await;
        assert_eq!(beat(&bed.groups, "b", 2).await, (3, Some(of_t(&[0, 1]))));
        assert_eq!(refused(say(&bed.groups, staying("a", 1)).await), E::UnknownMemberId);
    });
}

#[test]
fn a_member_commits_and_reads_in_its_epoch_only() {
    story(async {
        let bed = Bed::new().await;
        let groups = &bed.groups;
        say(groups, joining("a")).await.unwrap();
        let commit = |member, epoch| commit_as(groups, "g", caller(member, epoch), 0, 7);
        assert_eq!(commit("a", 1).await, Ok(()));
        assert_eq!(commit("a", 0).await, Err(E::StaleMemberEpoch));
        assert_eq!(commit("a", 2).await, Err(E::StaleMemberEpoch));
        assert_eq!(commit("b", 1).await, Err(E::UnknownMemberId));
        assert_eq!(
            commit_as(groups, "g", simple(), 0, 9).await,
            Err(E::UnknownMemberId),
            "somebody consumes"
        );
        let old_version = crate::coordinator::CommitInput {
            caller: caller("a", 1),
            names_epochs: false,
            offsets: vec![((topic(1), 0), committed(9))],
        };
        assert_eq!(groups.commit("g", old_version).await, Err(E::UnsupportedVersion));
        assert_eq!(offsets(groups, "g").await, Ok(vec![(0, 7)]));

        let read = |reader| groups.offsets_for("g", reader);
        assert_eq!(read(Some(("a", 1))).await.map(|all| all.len()), Ok(1));
        assert_eq!(read(Some(("a", 2))).await.map(|all| all.len()), Err(E::StaleMemberEpoch));
        assert_eq!(read(Some(("b", 1))).await.map(|all| all.len()), Err(E::UnknownMemberId));

        say(groups, staying("a", LEAVE)).await.unwrap();
        assert_eq!(commit("a", 1).await, Err(E::UnknownMemberId));
        assert_eq!(
            commit_as(groups, "g", simple(), 0, 9).await,
            Ok(()),
            "an administrator, once nobody consumes"
        );
    });
}

/// Field case 54, of a consumer group.
#[test]
fn case_54_offsets_of_a_consumer_group_do_not_expire_while_it_lives() {
    const RETENTION: Duration = Duration::from_secs(600);
    story(async {
        let short =
            GroupSettings { retention: RETENTION, sweep_every: Duration::from_secs(60), ..settings() };
        let bed = Bed::with(short).await;
        let groups = &bed.groups;
        say(groups, joining("a")).await.unwrap();
        commit_as(groups, "g", caller("a", 1), 0, 42).await.unwrap();
        for _ in 0..50 {
            sleep(Duration::from_secs(30)).await;
            beat(groups, "a", 1).await;
        }
        assert_eq!(offsets(groups, "g").await, Ok(vec![(0, 42)]));
        say(groups, staying("a", LEAVE)).await.unwrap();
        sleep(RETENTION - Duration::from_secs(120)).await;
        bed.log().lead(2);
        loaded(&bed).await;
        assert_eq!(offsets(groups, "g").await, Ok(vec![(0, 42)]), "the clock started at Empty");
        sleep(Duration::from_secs(300)).await;
        assert_eq!(offsets(groups, "g").await, Ok(vec![]));
        sleep(Duration::from_secs(120)).await;
        assert_eq!(groups.look_at_consumer("g").await, Ok(ConsumerLook::Missing));
    });
}

#[test]
fn a_group_of_one_protocol_refuses_members_of_the_other() {
    story(async {
        let bed = Bed::new().await;
        let groups = &bed.groups;
        say(groups, joining("a")).await.unwrap();
        assert_eq!(groups.join("g", member("")).await.error, Some(E::InconsistentGroupProtocol));
        assert_eq!(groups.heartbeat("g", &caller("a", 1)).await, Err(E::UnknownMemberId));
        let sync = SyncInput { member_id: "a".to_owned(), generation: 1, ..SyncInput::default() };
        assert_eq!(groups.sync("g", sync).await.error, Some(E::UnknownMemberId));
        let leave = groups.leave("g", &[("a".to_owned(), None)]).await;
        assert_eq!(leave, Ok(vec![Err(E::UnknownMemberId)]));
        assert_eq!(groups.describe("g").await, Ok(None), "no classic group");

        say(groups, staying("a", LEAVE)).await.unwrap();
        let classic = settle(groups, "g").await;
        assert!(classic.generation > 2, "generations go on from the epochs");
        assert_eq!(groups.look_at_consumer("g").await, Ok(ConsumerLook::Classic));
        let full = say(groups, joining("a")).await;
        assert_eq!(full, Err(ConsumerError::Classic));
        assert_eq!(refused(full), E::GroupIdNotFound);
        bed.log().lead(2);
        loaded(&bed).await;
        assert_eq!(groups.heartbeat("g", &classic).await, Ok(()));

        groups.leave("g", &[(classic.member_id.clone(), None)]).await.unwrap();
        let empty = say(groups, staying("a", 3)).await;
        assert_eq!(refused(empty), E::UnknownMemberId);
        let a = say(groups, joining("a")).await.unwrap();
        assert!(a.epoch > classic.generation, "and epochs from the generations");
        bed.log().lead(3);
        loaded(&bed).await;
        assert_eq!(beat(groups, "a", a.epoch).await, (a.epoch, None));
        assert_eq!(commit_as(groups, "g", classic, 0, 1).await, Err(E::UnknownMemberId));
    });
}

#[test]
fn administrators_see_and_clear_consumer_groups() {
    story(async {
        let bed = Bed::new().await;
        let groups = &bed.groups;
        let of_instance = HeartbeatInput { instance: Some("i".to_owned()), ..joining("") };
        let a = say(groups, of_instance).await.unwrap();
        assert_eq!(a.member_id.len(), 36, "an id of the coordinator's");
        commit_as(groups, "g", caller(&a.member_id, 1), 0, 42).await.unwrap();
        let (listed, _) = groups.list(|_| false).await;
        let row = listed.iter().find(|l| l.id == "g").unwrap();
        assert_eq!(
            (row.kind, row.state, row.protocol_type.as_str()),
            (GroupKind::Consumer, "Stable", "consumer")
        );
        assert_eq!(groups.delete("g").await, Err(E::NonEmptyGroup));
        let places = [((topic(1), 0), "t".to_owned()), ((topic(2), 0), "u".to_owned())];
        let kept = groups.delete_offsets("g", &places).await.unwrap();
        assert_eq!(kept.subscribed, ["t".to_owned()].into());
        assert_eq!(offsets(groups, "g").await, Ok(vec![(0, 42)]));

        let removed = groups.leave("g", &[(String::new(), Some("i".to_owned()))]).await;
        assert_eq!(removed, Ok(vec![Ok(a.member_id)]), "static members, by instance");
        let none = groups.leave("g", &[(String::new(), Some("i".to_owned()))]).await;
        assert_eq!(none, Ok(vec![Err(E::UnknownMemberId)]));
        assert_eq!(describe(groups).await.state, ConsumerState::Empty);
        groups.delete("g").await.unwrap();
        bed.log().lead(2);
        loaded(&bed).await;
        assert_eq!(groups.look_at_consumer("g").await, Ok(ConsumerLook::Missing));
        assert_eq!(offsets(groups, "g").await, Ok(vec![]));
    });
}

#[test]
fn a_refusal_leaves_no_group_behind() {
    story(async {
        let bed = Bed::new().await;
        let groups = &bed.groups;
        assert_eq!(refused(say(groups, staying("a", 7)).await), E::UnknownMemberId);
        assert_eq!(refused(say(groups, staying("a", LEAVE)).await), E::UnknownMemberId);
        let odd = HeartbeatInput { assignor: Some("odd".to_owned()), ..joining("a") };
        assert_eq!(refused(say(groups, odd).await), E::UnsupportedAssignor);
        assert_eq!(refused(groups.consumer_heartbeat("", joining("a")).await), E::InvalidRequest);
        assert_eq!(groups.list(|_| false).await, (vec![], None));
    });
}

#[test]
fn a_trimmed_log_states_a_consumer_group_as_the_whole_one_did() {
    story(async {
        let bed = Bed::with(GroupSettings { trim_bytes: 2000, ..settings() }).await;
        let groups = &bed.groups;
        say(groups, joining("a")).await.unwrap();
        for n in 0..100 {
            commit_as(groups, "g", caller("a", 1), 0, n).await.unwrap();
        }
        sleep(Duration::from_millis(100)).await;
        assert!(bed.log().start() > 20, "trimmed up to {}", bed.log().start());
        let before = describe(groups).await;
        bed.log().lead(2);
        loaded(&bed).await;
        assert_eq!(describe(groups).await, before);
        assert_eq!(beat(groups, "a", 1).await, (1, None));
    });
}
