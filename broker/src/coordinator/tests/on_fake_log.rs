//! What becomes of answers and state when the log fails, hangs, or changes its leader.

use super::bed::*;
use crate::coordinator::group::{Caller, JoinInput, State};
use crate::coordinator::{slot_of, GroupSettings};
use futures::FutureExt;
use kafka_protocol::ResponseError as E;
use std::time::Duration;
use tokio::time::sleep;

#[test]
fn hole_20_a_failed_commit_is_an_error_and_is_not_seen() {
    story(async {
        let bed = Bed::new().await;
        commit(&bed.groups, "g", 0, 10).await.unwrap();
        bed.log().hold();
        let (answer, ()) = futures::join!(commit(&bed.groups, "g", 0, 11), async {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 10)]), "not durable, not visible");
            bed.log().fail();
        });
        assert_eq!(answer, Err(E::CoordinatorNotAvailable));
        bed.log().lead(2);
        assert_eq!(patiently(|| offsets(&bed.groups, "g")).await, vec![(0, 10)]);
        patiently(|| commit(&bed.groups, "g", 0, 12)).await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 12)]));
    });
}

#[test]
fn a_commit_is_answered_when_it_is_durable_and_not_before() {
    story(async {
        let bed = Bed::new().await;
        bed.log().hold();
        let mut answer = Box::pin(commit(&bed.groups, "g", 0, 11));
        tokio::select! {
            biased;
            a = &mut answer => panic!("answered {a:?} before the sync"),
            () = sleep(Duration::from_secs(5)) => {}
        }
        bed.log().release();
        assert_eq!(answer.await, Ok(()));
    });
}

#[test]
fn a_sync_that_hangs_does_not_hold_a_commit_for_ever() {
    story(async {
        let bed = Bed::new().await;
        bed.log().hold();
        let asked = tokio::time::Instant::now();
        assert_eq!(commit(&bed.groups, "g", 0, 11).await, Err(E::CoordinatorNotAvailable));
        assert!(asked.elapsed() <= Duration::from_secs(32));
    });
}

#[test]
fn a_deposed_coordinator_shows_nothing_and_lets_everybody_go() {
    story(async {
        let bed = Bed::new().await;
        let caller = settle(&bed.groups, "g").await;
        let groups = bed.groups.clone();
        let waiting = tokio::spawn(async move { groups.join("g", member("")).await });
        sleep(Duration::from_millis(100)).await;
        bed.log().depose();
        assert_eq!(waiting.await.unwrap().error, Some(E::NotCoordinator));
        for _ in 0..3 {
            assert_eq!(bed.groups.heartbeat("g", &caller).await, Err(E::NotCoordinator));
            assert_eq!(offsets(&bed.groups, "g").await, Err(E::NotCoordinator));
            assert_eq!(bed.groups.describe("g").await, Err(E::NotCoordinator));
            assert_eq!(commit_as(&bed.groups, "g", caller.clone(), 0, 1).await, Err(E::NotCoordinator));
            sleep(Duration::from_secs(1)).await;
        }
        assert!(bed.groups.list(|_| false).await.1.is_some(), "nobody else lists it");
        assert_eq!(bed.groups.list(|_| true).await, (vec![], None), "clients ask whoever coordinates it");
        bed.log().lead(2);
        patiently(|| bed.groups.heartbeat("g", &caller)).await;
    });
}

/// A commit that was decided on under one epoch and slipped into the log under the next: nobody may see it, for
/// another coordinator may have moved the group on in between.
#[test]
fn a_commit_that_slips_into_the_next_epoch_does_not_count() {
    story(async {
        let bed = Bed::new().await;
        commit(&bed.groups, "g", 0, 10).await.unwrap();
        let before = bed.log().batches();
        let mut answer = Box::pin(commit(&bed.groups, "g", 0, 11));
        assert!(answer.as_mut().now_or_never().is_none(), "submitted, and not yet written");
        bed.log().lead(2);
        assert_eq!(answer.await, Err(E::NotCoordinator));
        assert_eq!(patiently(|| offsets(&bed.groups, "g")).await, vec![(0, 10)]);
        // Whether it came to be written depends on who ran first; it is not seen either way.
        assert!(bed.log().batches() <= before + 1);
        bed.log().lead(3);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(patiently(|| offsets(&bed.groups, "g")).await, vec![(0, 10)]);
    });
}

#[test]
fn no_member_learns_of_a_generation_that_is_not_durable() {
    story(async {
        let bed = Bed::new().await;
        bed.log().hold();
        let mut joining = Box::pin(bed.groups.join("g", member("")));
        tokio::select! {
            biased;
            reply = &mut joining => panic!("answered {reply:?} before the sync"),
            () = sleep(Duration::from_secs(2)) => {}
        }
        bed.log().lead(2);
        let joined = joining.await;
        assert!(matches!(joined.error, Some(E::NotCoordinator)), "{joined:?}");
        ready(&bed.groups, "g").await;
        assert_eq!(settle(&bed.groups, "g").await.generation, 1);
    });
}

/// Hole 24, and P8 across a takeover.
#[test]
fn hole_24_a_takeover_needs_no_rebalance_and_fences_who_was_fenced() {
    story(async {
        let bed = Bed::new().await;
        let old = settle(&bed.groups, "g").await;
        bed.groups.leave("g", &[(old.member_id.clone(), None)]).await.unwrap();
        let new = settle(&bed.groups, "g").await;
        assert!(new.generation > old.generation);
        bed.log().lead(2);
        patiently(|| bed.groups.heartbeat("g", &new)).await;
        let described = bed.groups.describe("g").await.unwrap().unwrap();
        assert_eq!(described.state, State::Stable);
        assert_eq!(described.members[0].assignment, "all");
        commit_as(&bed.groups, "g", new.clone(), 0, 7).await.unwrap();
        assert_eq!(commit_as(&bed.groups, "g", old, 0, 5).await, Err(E::UnknownMemberId));
        let stale = Caller { generation: new.generation - 1, ..new };
        assert_eq!(commit_as(&bed.groups, "g", stale, 0, 5).await, Err(E::IllegalGeneration));
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 7)]));
    });
}

#[test]
fn the_log_is_trimmed_and_the_state_stays() {
    story(async {
        let bed = Bed::with(GroupSettings { trim_bytes: 2000, ..settings() }).await;
        for n in 0..200 {
            commit(&bed.groups, "g", n % 3, i64::from(n)).await.unwrap();
        }
        sleep(Duration::from_millis(100)).await;
        assert!(bed.log().start() > 100, "trimmed up to {}", bed.log().start());
        assert!(bed.log().batches() < 50, "{} batches are left", bed.log().batches());
        let before = offsets(&bed.groups, "g").await.unwrap();
        assert_eq!(before, vec![(0, 198), (1, 199), (2, 197)]);
        bed.log().lead(2);
        assert_eq!(patiently(|| offsets(&bed.groups, "g")).await, before);
    });
}

#[test]
fn commits_that_race_with_a_snapshot_are_not_lost() {
    story(async {
        let bed = Bed::with(GroupSettings { trim_bytes: 500, ..settings() }).await;
        let clients = (0..20).map(|p| {
            let groups = bed.groups.clone();
            async move {
                for n in 0..20 {
                    commit(&groups, "g", p, n).await.unwrap();
                }
            }
        });
        futures::future::join_all(clients).await;
        bed.log().lead(2);
        let all = patiently(|| offsets(&bed.groups, "g")).await;
        assert_eq!(all, (0..20).map(|p| (p, 19)).collect::<Vec<_>>());
        assert!(bed.log().start() > 0);
    });
}

/// Field case 54 (KIP-211). A retention of an hour stands for the seven days.
#[test]
fn case_54_offsets_do_not_expire_while_the_group_lives() {
    const RETENTION: Duration = Duration::from_secs(3600);
    const SWEEP: Duration = Duration::from_secs(60);
    story(async {
        let short = GroupSettings { retention: RETENTION, sweep_every: SWEEP, ..settings() };
        let bed = Bed::with(short).await;
        let caller = settle(&bed.groups, "g").await;
        commit_as(&bed.groups, "g", caller.clone(), 0, 42).await.unwrap();
        commit(&bed.groups, "simple", 0, 1).await.unwrap();
        // Heartbeats, and not one commit.
        let alive_until = tokio::time::Instant::now() + 2 * RETENTION;
        while tokio::time::Instant::now() < alive_until {
            sleep(Duration::from_secs(9)).await;
            bed.groups.heartbeat("g", &caller).await.unwrap();
        }
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]));
        assert_eq!(offsets(&bed.groups, "simple").await, Ok(vec![]), "nobody was in this one");

        bed.groups.leave("g", &[(caller.member_id, None)]).await.unwrap();
        sleep(RETENTION - 5 * SWEEP).await;
        bed.log().lead(2);
        ready(&bed.groups, "g").await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]), "the clock started at Empty");
        sleep(7 * SWEEP).await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![]));
        sleep(2 * SWEEP).await;
        assert_eq!(bed.groups.describe("g").await, Ok(None), "and with its offsets went the group");
    });
}

/// A group that rebalances without end is not empty either.
#[test]
fn case_54_a_rebalancing_group_keeps_its_offsets() {
    story(async {
        let short = GroupSettings {
            retention: Duration::from_secs(30),
            sweep_every: Duration::from_secs(1),
            ..settings()
        };
        let bed = Bed::with(short).await;
        let caller = settle(&bed.groups, "g").await;
        commit_as(&bed.groups, "g", caller.clone(), 0, 42).await.unwrap();
        let groups = bed.groups.clone();
        let _waiting = tokio::spawn(async move { groups.join("g", member("")).await });
        for _ in 0..10 {
            sleep(Duration::from_secs(5)).await;
            assert_eq!(bed.groups.heartbeat("g", &caller).await, Err(E::RebalanceInProgress));
        }
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]));
    });
}

#[test]
fn a_deleted_topics_offsets_go_after_two_sweeps() {
    story(async {
        let bed = Bed::new().await;
        commit(&bed.groups, "g", 0, 42).await.unwrap();
        sleep(Duration::from_secs(1500)).await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]));
        bed.topics.0.lock().clear();
        sleep(Duration::from_secs(1500)).await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![]));
    });
}

#[test]
fn a_group_with_members_is_not_deleted_and_its_topics_offsets_neither() {
    story(async {
        let bed = Bed::new().await;
        assert_eq!(bed.groups.delete("g").await, Err(E::GroupIdNotFound));
        let caller = settle(&bed.groups, "g").await;
        commit_as(&bed.groups, "g", caller.clone(), 0, 42).await.unwrap();
        assert_eq!(bed.groups.delete("g").await, Err(E::NonEmptyGroup));
        let places = [((topic(1), 0), "t".to_owned())];
        let kept = bed.groups.delete_offsets("g", &places).await.unwrap();
        assert!(kept.subscribed.contains("t"));
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]));

        bed.groups.leave("g", &[(caller.member_id, None)]).await.unwrap();
        assert!(bed.groups.delete_offsets("g", &places).await.unwrap().subscribed.is_empty());
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![]));
        commit(&bed.groups, "g", 0, 1).await.unwrap();
        bed.groups.delete("g").await.unwrap();
        bed.log().lead(2);
        assert_eq!(patiently(|| offsets(&bed.groups, "g")).await, vec![]);
        assert_eq!(bed.groups.describe("g").await, Ok(None));
    });
}

#[test]
fn ids_and_timeouts_are_checked_before_anything_else() {
    story(async {
        let bed = Bed::new().await;
        assert_eq!(bed.groups.join("", member("")).await.error, Some(E::InvalidGroupId));
        for secs in [5, 1801] {
            let input = JoinInput { session: Duration::from_secs(secs), ..member("") };
            assert_eq!(bed.groups.join("g", input).await.error, Some(E::InvalidSessionTimeout));
        }
        assert_eq!(bed.groups.join("g", member("ghost")).await.error, Some(E::UnknownMemberId));
        let ghost = Caller { member_id: "ghost".to_owned(), instance: None, generation: 3 };
        assert_eq!(commit_as(&bed.groups, "g", ghost, 0, 1).await, Err(E::IllegalGeneration));
        assert_eq!(bed.groups.list(|_| false).await, (vec![], None), "refusals leave nothing behind");
    });
}

#[test]
fn a_stop_finishes_commits_and_lets_joins_go() {
    story(async {
        let bed = Bed::new().await;
        settle(&bed.groups, "g").await;
        let groups = bed.groups.clone();
        let waiting = tokio::spawn(async move { groups.join("g", member("")).await });
        sleep(Duration::from_millis(10)).await;
        bed.groups.shutdown().await;
        assert_eq!(waiting.await.unwrap().error, Some(E::NotCoordinator));
        assert_eq!(commit(&bed.groups, "g", 0, 1).await, Err(E::NotCoordinator));
    });
}

#[test]
fn a_read_that_the_volume_does_not_answer_is_given_up_and_tried_again() {
    story(async {
        let bed = Bed::new().await;
        commit(&bed.groups, "g", 0, 10).await.unwrap();
        bed.log().stick(true);
        bed.log().depose();
        bed.log().lead(2);
        // It is loading, and reads.
        sleep(Duration::from_secs(2)).await;
        assert_eq!(offsets(&bed.groups, "g").await, Err(E::CoordinatorLoadInProgress));
        // That read never returns; a later one does.
        bed.log().stick(false);
        assert_eq!(patiently(|| offsets(&bed.groups, "g")).await, vec![(0, 10)]);
    });
}

// A panic ends a simulated run.
#[cfg(not(madsim))]
#[test]
fn a_slot_whose_task_died_serves_nothing_and_is_told_of() {
    story(async {
        let bed = Bed::new().await;
        commit(&bed.groups, "g", 0, 10).await.unwrap();
        assert_eq!(bed.groups.failed().now_or_never(), None);
        bed.log().panic();
        assert_eq!(commit(&bed.groups, "g", 0, 11).await, Err(E::NotCoordinator));
        let why = bed.groups.failed().await;
        assert_eq!(why, format!("group slot {} panicked: told to panic", slot_of("g")));
        assert_eq!(offsets(&bed.groups, "g").await, Err(E::NotCoordinator));
        bed.groups.shutdown().await;
    });
}
