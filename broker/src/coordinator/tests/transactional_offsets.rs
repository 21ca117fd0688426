//! Offsets that transactions commit to groups.

use super::bed::*;
use super::transaction_bed::*;
use crate::coordinator::group::Caller;
use crate::coordinator::transactions::{Marker, Producer, TransactionSettings, TransactionState as S};
use crate::coordinator::{CommitInput, GroupSettings};
use kafka_protocol::ResponseError as E;
use std::time::Duration;
use tokio::time::sleep;

/// Case 51.
#[test]
fn case_51_offsets_are_unstable_until_their_transaction_has_ended_and_no_longer() {
    for commit_it in [true, false] {
        story(async {
            let t = TxnBed::new().await;
            commit(&t.bed.groups, "g", 0, 1).await.unwrap();
            let producer = t.init().await;
            t.commit_offset(producer, 0, 10).await.unwrap();
            t.commit_offset(producer, 1, 11).await.unwrap();
            assert_eq!(t.offsets().await, (vec![(0, 1)], vec![0, 1]));
            *t.world.groups_away.lock() = true;
            t.end(producer, commit_it).await.unwrap();
            sleep(Duration::from_secs(5)).await;
            assert_eq!(t.offsets().await, (vec![(0, 1)], vec![0, 1]), "decided, and not told");
            *t.world.groups_away.lock() = false;
            t.until(if commit_it { S::CompleteCommit } else { S::CompleteAbort }).await;
            let after = if commit_it { vec![(0, 10), (1, 11)] } else { vec![(0, 1)] };
            assert_eq!(t.offsets().await, (after.clone(), vec![]));
            t.bed.log().lead(2);
            assert_eq!(t.offsets().await, (after, vec![]));
        });
    }
}

/// Hole 30.
#[test]
fn hole_30_pending_offsets_outlive_their_coordinator() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.commit_offset(producer, 0, 10).await.unwrap();
        t.bed.log().lead(2);
        assert_eq!(t.offsets().await, (vec![], vec![0]));
        t.end(producer, true).await.unwrap();
        t.until(S::CompleteCommit).await;
        assert_eq!(t.offsets().await, (vec![(0, 10)], vec![]));
    });
}

#[test]
fn an_offset_that_is_not_durable_is_not_acknowledged_and_a_marker_neither() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.txns.add_offsets(TXN, producer, "g").await.unwrap();
        t.bed.log().hold();
        let (answer, ()) = futures::join!(t.commit_offset(producer, 0, 10), async {
            sleep(Duration::from_secs(1)).await;
            t.bed.log().lead(2);
        });
        assert_eq!(answer, Err(E::NotCoordinator));
        assert_eq!(t.offsets().await, (vec![], vec![]));
        patiently(|| t.commit_offset(producer, 0, 10)).await;
        t.bed.log().hold();
        t.end(producer, true).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(t.state().await, S::PrepareCommit);
        assert_eq!(t.offsets().await, (vec![], vec![0]));
        // The group's coordinator is lost with the marker; the next one is told again.
        t.bed.log().lead(3);
        t.until(S::CompleteCommit).await;
        assert_eq!(t.offsets().await, (vec![(0, 10)], vec![]));
    });
}

fn marker(of: Producer, number: u64, commit: bool, coordinator_epoch: i32) -> Marker {
    let (producer_id, producer_epoch) = (of.id, of.epoch);
    Marker { producer_id, producer_epoch, commit, coordinator_epoch, number: Some(number) }
}

#[test]
fn a_marker_counts_once_and_only_for_its_transaction() {
    story(async {
        let t = TxnBed::new().await;
        let first = t.init().await;
        t.commit_offset(first, 0, 10).await.unwrap();
        let second = t.end(first, true).await.unwrap();
        t.until(S::CompleteCommit).await;
        t.commit_offset(second, 0, 20).await.unwrap();
        let apply = |m| t.txns.apply_group_marker("g", m);
        // Late repetitions of what ended the first, and one of a transaction that is not there yet.
        for number in [1, 0, 3] {
            apply(marker(second, number, true, 1)).await.unwrap();
            assert_eq!(t.offsets().await, (vec![(0, 10)], vec![0]));
        }
        let old = Producer { epoch: 0, ..second };
        assert_eq!(apply(marker(old, 2, true, 1)).await, Err(E::InvalidProducerEpoch));
        apply(marker(second, 1, true, 5)).await.unwrap();
        assert_eq!(apply(marker(second, 2, false, 4)).await, Err(E::TransactionCoordinatorFenced));
        apply(marker(second, 2, true, 5)).await.unwrap();
        apply(marker(second, 2, true, 5)).await.unwrap();
        assert_eq!(t.offsets().await, (vec![(0, 20)], vec![]));
        apply(marker(second, 2, true, 5)).await.unwrap();
        apply(Marker { number: None, ..marker(second, 0, false, 5) }).await.unwrap();
        assert_eq!(t.offsets().await, (vec![(0, 20)], vec![]));
    });
}

/// The hanging transaction of KIP-890, in a group.
#[test]
fn an_offset_that_comes_after_its_transaction_is_refused() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.txns.add_offsets(TXN, producer, "g").await.unwrap();
        // Its coordinator says yes, and while that is on its way the transaction ends.
        *t.world.verify_takes.lock() = Duration::from_secs(1);
        let (late, ()) = futures::join!(t.commit_offset(producer, 0, 10), async {
            sleep(Duration::from_millis(100)).await;
            t.end(producer, true).await.unwrap();
            t.until(S::CompleteCommit).await;
        });
        assert_eq!(late, Err(E::InvalidProducerEpoch));
        assert_eq!(t.offsets().await, (vec![], vec![]));
    });
}

/// As above, while others have yet to be told: the group has its marker, and another one will not come.
#[test]
fn an_offset_that_comes_after_the_groups_marker_is_refused() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.txns.add_offsets(TXN, producer, "g").await.unwrap();
        t.add(producer, &[0]).await.unwrap();
        t.leaders(Leaders::Refuse(E::NotLeaderOrFollower));
        // Version 2 of transactions would fence it by its epoch.
        t.txns.end(TXN, producer, true, false).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let late = t.txns.commit_offsets("g", TXN, producer, input(0, 10), false).await;
        assert_eq!(late, Err(E::ConcurrentTransactions));
        t.leaders(Leaders::There);
        t.until(S::CompleteCommit).await;
        assert_eq!(t.offsets().await, (vec![], vec![]));
    });
}

#[test]
fn a_marker_that_comes_again_is_not_answered_before_the_first_is_durable() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.commit_offset(producer, 0, 10).await.unwrap();
        t.bed.log().hold();
        let m = marker(producer, 1, true, 1);
        let (first, again, ()) =
            futures::join!(t.txns.apply_group_marker("g", m), t.txns.apply_group_marker("g", m), async {
                sleep(Duration::from_secs(1)).await;
                t.bed.log().lead(2);
            });
        assert_eq!((first, again), (Err(E::NotCoordinator), Err(E::NotCoordinator)));
    });
}

#[test]
fn who_takes_no_part_commits_nothing() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        let early = t.txns.commit_offsets("g", TXN, producer, input(0, 1), false).await;
        assert_eq!(early, Err(E::InvalidTxnState), "versions up to 4 have AddOffsetsToTxn for that");
        t.txns.add_offsets(TXN, producer, "g").await.unwrap();
        t.txns.commit_offsets("g", TXN, producer, input(0, 1), false).await.unwrap();
        let zombie = Producer { epoch: producer.epoch - 1, ..producer };
        assert_eq!(t.commit_offset(zombie, 0, 5).await, Err(E::InvalidProducerEpoch));
        let other = Producer { id: producer.id + 1, epoch: 0 };
        assert_eq!(t.commit_offset(other, 0, 5).await, Err(E::InvalidProducerIdMapping));
    });
}

#[test]
fn a_commit_in_between_is_not_undone() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        for p in 0..3 {
            t.commit_offset(producer, p, 10).await.unwrap();
        }
        commit(&t.bed.groups, "g", 1, 50).await.unwrap();
        t.bed.groups.delete_offsets("g", &[((topic(1), 2), "t".to_owned())]).await.unwrap();
        t.end(producer, true).await.unwrap();
        t.until(S::CompleteCommit).await;
        assert_eq!(t.offsets().await, (vec![(0, 10), (1, 50)], vec![]));
        t.bed.log().lead(2);
        assert_eq!(t.offsets().await, (vec![(0, 10), (1, 50)], vec![]));
    });
}

#[test]
fn a_snapshot_keeps_what_is_pending() {
    story(async {
        let small = GroupSettings { trim_bytes: 2000, ..settings() };
        let t = TxnBed::with(small, TransactionSettings::default()).await;
        let producer = t.init().await;
        t.commit_offset(producer, 0, 10).await.unwrap();
        t.commit_offset(producer, 1, 11).await.unwrap();
        for n in 0..100 {
            commit(&t.bed.groups, "g", 1, n).await.unwrap();
        }
        assert!(t.bed.log().start() > 10, "trimmed up to {}", t.bed.log().start());
        t.bed.log().lead(2);
        assert_eq!(t.offsets().await, (vec![(1, 99)], vec![0, 1]));
        t.end(producer, true).await.unwrap();
        t.until(S::CompleteCommit).await;
        assert_eq!(t.offsets().await, (vec![(0, 10), (1, 99)], vec![]));
    });
}

#[test]
fn a_deleted_group_takes_its_pending_offsets_with_it() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.commit_offset(producer, 0, 10).await.unwrap();
        t.bed.groups.delete("g").await.unwrap();
        assert_eq!(t.bed.groups.describe("g").await, Ok(None));
        t.commit_offset(producer, 1, 11).await.unwrap();
        t.end(producer, true).await.unwrap();
        t.until(S::CompleteCommit).await;
        assert_eq!(t.offsets().await, (vec![(1, 11)], vec![]));
    });
}

#[test]
fn what_is_pending_does_not_expire_nor_the_group_under_it() {
    story(async {
        let short = GroupSettings {
            retention: Duration::from_secs(300),
            sweep_every: Duration::from_secs(10),
            ..settings()
        };
        let t = TxnBed::with(short, TransactionSettings::default()).await;
        let member = settle(&t.bed.groups, "g").await;
        t.bed.groups.leave("g", &[(member.member_id.clone(), None)]).await.unwrap();
        commit(&t.bed.groups, "g", 0, 1).await.unwrap();
        commit(&t.bed.groups, "g", 1, 2).await.unwrap();
        let producer = t.txns.init_producer_id(TXN, 900_000, None).await.unwrap();
        t.commit_offset(producer, 0, 10).await.unwrap();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(t.offsets().await, (vec![(0, 1)], vec![0]));
        t.bed.log().lead(2);
        ready(&t.bed.groups, "g").await;
        let next = settle(&t.bed.groups, "g").await;
        assert!(next.generation > member.generation, "{} was forgotten", member.generation);
        t.bed.groups.leave("g", &[(next.member_id, None)]).await.unwrap();
        t.end(producer, false).await.unwrap();
        sleep(Duration::from_secs(400)).await;
        assert_eq!(t.offsets().await, (vec![], vec![]));
        assert_eq!(t.bed.groups.describe("g").await, Ok(None));
    });
}

#[test]
fn a_producer_commits_for_a_member_of_the_generation_or_for_nobody() {
    story(async {
        let t = TxnBed::new().await;
        let caller = settle(&t.bed.groups, "g").await;
        let producer = t.init().await;
        let as_ = |caller: Caller| {
            let input = CommitInput { caller, ..input(0, 10) };
            t.txns.commit_offsets("g", TXN, producer, input, true)
        };
        let stale = Caller { generation: caller.generation - 1, ..caller.clone() };
        assert_eq!(as_(stale).await, Err(E::IllegalGeneration));
        let ghost = Caller { member_id: "ghost".into(), ..caller.clone() };
        assert_eq!(as_(ghost).await, Err(E::UnknownMemberId));
        let fenced = Caller { instance: Some("i".into()), ..caller.clone() };
        assert_eq!(as_(fenced).await, Err(E::UnknownMemberId));
        as_(caller.clone()).await.unwrap();
        as_(simple()).await.unwrap();
        let input = CommitInput { caller, ..input(0, 10) };
        let nowhere = t.txns.commit_offsets("nowhere", TXN, producer, input, true).await;
        assert_eq!(nowhere, Err(E::IllegalGeneration));
    });
}
