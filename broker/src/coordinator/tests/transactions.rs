//! What becomes of transactions when the log, the leaders or the coordinator fail between any two steps.

use super::bed::*;
use super::transaction_bed::*;
use crate::coordinator::transactions::{
    ListFilter, Participant, Producer, TransactionSettings, TransactionState as S,
};
use crate::coordinator::{slot_of, GroupSettings};
use futures::FutureExt;
use kafka_protocol::ResponseError as E;
use std::time::Duration;
use tokio::time::sleep;

#[test]
fn everybody_is_told_and_then_the_next_transaction_begins() {
    story(async {
        let t = TxnBed::new().await;
        let first = t.init().await;
        assert_eq!(first.epoch, 0);
        t.add(first, &[0]).await.unwrap();
        t.add(first, &[1]).await.unwrap();
        assert_eq!(t.txns.verify(TXN, first, part(1), false).await, Ok(1));
        let second = t.end(first, true).await.unwrap();
        assert_eq!(second, Producer { epoch: 1, ..first });
        t.until(S::CompleteCommit).await;
        assert_eq!(t.told(), [(0, 1, true, 1), (1, 1, true, 1)]);
        assert_eq!(t.txns.verify(TXN, second, part(0), true).await, Ok(2));
        t.end(second, false).await.unwrap();
        t.until(S::CompleteAbort).await;
        assert_eq!(t.told()[2..], [(0, 2, false, 1)]);
        let markers = t.world.markers.lock();
        assert!(markers.iter().all(|(_, m)| m.producer_id == first.id), "{markers:?}");
        assert_eq!(markers.last().map(|(_, m)| m.producer_epoch), Some(2), "markers fence what they end");
    });
}

/// An idle coordinator does not sleep over a decision.
#[test]
fn an_outcome_is_told_at_once() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        for n in 1..10i16 {
            let producer = Producer { epoch: n - 1, ..producer };
            t.add(producer, &[0]).await.unwrap();
            t.end(producer, true).await.unwrap();
            sleep(Duration::from_millis(5)).await;
            assert_eq!(t.state().await, S::CompleteCommit);
            sleep(Duration::from_millis(3333)).await;
        }
    });
}

/// A producer that goes on at once is not sent away.
#[test]
fn the_next_transaction_waits_for_the_outcome_to_be_told() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        t.leaders(Leaders::Refuse(E::NotLeaderOrFollower));
        let next = t.end(producer, true).await.unwrap();
        let (added, ()) = futures::join!(t.add(next, &[0]), async {
            sleep(Duration::from_millis(30)).await;
            t.leaders(Leaders::There);
        });
        assert_eq!((added, t.state().await), (Ok(()), S::Ongoing));
    });
}

#[test]
fn nobody_is_told_before_the_decision_is_durable() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        t.log().hold();
        let (answer, ()) = futures::join!(t.end(producer, true), async {
            sleep(Duration::from_secs(5)).await;
            assert_eq!(t.told(), []);
            // The broker crashes: what it had decided is nowhere.
            t.log().lead(2);
        });
        assert_eq!(answer, Err(E::NotCoordinator));
        assert_eq!(t.state().await, S::Ongoing);
        // The producer may even think better of it.
        t.end(producer, false).await.unwrap();
        t.until(S::CompleteAbort).await;
        assert_eq!(t.told(), [(0, 1, false, 2)]);
    });
}

#[test]
fn a_decision_is_told_by_the_next_coordinator() {
    for commit in [true, false] {
        story(async {
            let t = TxnBed::new().await;
            let producer = t.init().await;
            t.add(producer, &[0, 1]).await.unwrap();
            t.leaders(Leaders::Refuse(E::NotLeaderOrFollower));
            let next = t.end(producer, commit).await.unwrap();
            sleep(Duration::from_secs(5)).await;
            assert_eq!(t.add(next, &[0]).await, Err(E::ConcurrentTransactions));
            t.log().depose();
            sleep(Duration::from_secs(5)).await;
            t.leaders(Leaders::There);
            sleep(Duration::from_secs(60)).await;
            assert_eq!(t.told(), [], "who coordinates nothing tells nothing");
            t.log().lead(2);
            t.until(if commit { S::CompleteCommit } else { S::CompleteAbort }).await;
            assert_eq!(t.told(), [(0, 1, commit, 2), (1, 1, commit, 2)]);
            assert_eq!(t.end(producer, commit).await, Ok(next), "the answer to a repeated request");
            t.add(next, &[0]).await.unwrap();
        });
    }
}

/// Hole 28: complete is what everybody knows durably.
#[test]
fn hole_28_a_marker_without_an_answer_is_not_taken_for_written() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0, 1]).await.unwrap();
        t.leaders(Leaders::Mute);
        t.end(producer, true).await.unwrap();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(t.state().await, S::PrepareCommit);
        assert!(t.told().len() > 100, "told {} times in ten minutes", t.told().len());
        t.world.markers.lock().clear();
        t.leaders(Leaders::There);
        t.until(S::CompleteCommit).await;
        assert_eq!(t.told(), [(0, 1, true, 1), (1, 1, true, 1)]);
    });
}

#[test]
fn a_completion_that_was_lost_is_made_up_for() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        t.leaders(Leaders::Refuse(E::LeaderNotAvailable));
        t.end(producer, true).await.unwrap();
        t.log().hold();
        t.leaders(Leaders::There);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(t.told(), [(0, 1, true, 1)]);
        assert!(t.txns.describe(TXN).now_or_never().is_none(), "its completion is not durable");
        t.log().lead(2);
        t.until(S::CompleteCommit).await;
        assert_eq!(t.told(), [(0, 1, true, 1), (0, 1, true, 2)]);
    });
}

#[test]
fn an_open_transaction_goes_on_under_the_next_coordinator() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        t.add(producer, &[1]).await.unwrap();
        for epoch in 2..5 {
            t.log().lead(epoch);
            assert_eq!(t.state().await, S::Ongoing);
            assert_eq!(t.txns.verify(TXN, producer, part(1), false).await, Ok(1));
        }
        t.end(producer, true).await.unwrap();
        t.until(S::CompleteCommit).await;
        assert_eq!(t.told(), [(0, 1, true, 4), (1, 1, true, 4)]);
    });
}

/// Holes 26 and 29: nothing of the crashed session is published, and its transaction ends before the next begins.
#[test]
fn hole_26_who_comes_anew_aborts_what_it_had_left() {
    story(async {
        let t = TxnBed::new().await;
        let crashed = t.init().await;
        t.add(crashed, &[0]).await.unwrap();
        t.leaders(Leaders::Refuse(E::NotLeaderOrFollower));
        let init = || t.txns.init_producer_id(TXN, TIMEOUT_MS, None);
        for _ in 0..3 {
            assert_eq!(init().await, Err(E::ConcurrentTransactions), "until it has ended everywhere");
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(t.end(crashed, true).await, Err(E::ProducerFenced));
        assert_eq!(t.add(crashed, &[1]).await, Err(E::ProducerFenced));
        t.leaders(Leaders::There);
        t.until(S::CompleteAbort).await;
        let anew = init().await.unwrap();
        assert_eq!(anew, Producer { epoch: 2, ..crashed });
        assert_eq!(t.told(), [(0, 1, false, 1)]);
        assert_eq!(t.world.markers.lock()[0].1.producer_epoch, 1, "the zombie is fenced where it writes");
    });
}

/// Case 50, and hole 27.
#[test]
fn case_50_an_abandoned_transaction_is_aborted_by_its_coordinator() {
    story(async {
        let t = TxnBed::new().await;
        for timeout in [900_001, 0, -1] {
            let refused = t.txns.init_producer_id(TXN, timeout, None).await;
            assert_eq!(refused, Err(E::InvalidTransactionTimeout));
        }
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        sleep(Duration::from_secs(58)).await;
        assert_eq!((t.state().await, t.told()), (S::Ongoing, vec![]));
        t.until(S::CompleteAbort).await;
        assert_eq!(t.told(), [(0, 1, false, 1)]);
        assert_eq!(t.world.markers.lock()[0].1.producer_epoch, 1);
        assert_eq!(t.txns.end(TXN, producer, true, false).await, Err(E::ProducerFenced));
        assert_eq!(t.add(producer, &[0]).await, Err(E::ProducerFenced));
    });
}

#[test]
fn hole_27_who_does_not_coordinate_reaps_nothing() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        t.log().depose();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(t.told(), []);
        t.log().lead(2);
        assert_eq!(t.state().await, S::Ongoing, "the next one counts its time anew");
        t.until(S::CompleteAbort).await;
        assert_eq!(t.told(), [(0, 1, false, 2)]);
    });
}

#[test]
fn a_deleted_topic_holds_nobody_up() {
    story(async {
        let t = TxnBed::new().await;
        let producer = t.init().await;
        t.add(producer, &[0]).await.unwrap();
        t.leaders(Leaders::Refuse(E::UnknownTopicId));
        t.end(producer, true).await.unwrap();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(t.state().await, S::PrepareCommit, "it is known here: its leader has not heard of it");
        t.bed.topics.0.lock().clear();
        t.until(S::CompleteCommit).await;
    });
}

#[test]
fn who_is_not_there_is_told_again_and_keeps_nobody_waiting() {
    story(async {
        let t = TxnBed::new().await;
        let one = t.init().await;
        t.add(one, &[0]).await.unwrap();
        t.leaders(Leaders::Mute);
        t.end(one, true).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        t.leaders(Leaders::There);
        // Another one of the same slot.
        let other = (0..).map(|n| format!("other-{n}")).find(|id| slot_of(id) == slot_of(TXN)).unwrap();
        let producer = t.txns.init_producer_id(&other, TIMEOUT_MS, None).await.unwrap();
        t.txns.add_partitions(&other, producer, vec![part(1)]).await.unwrap();
        t.txns.end(&other, producer, true, true).await.unwrap();
        sleep(Duration::from_millis(5)).await;
        assert_eq!(t.txns.describe(&other).await.unwrap().state, S::CompleteCommit);
        assert_eq!(t.state().await, S::PrepareCommit);
    });
}

#[test]
fn ids_that_nobody_uses_are_forgotten_and_open_ones_are_not() {
    story(async {
        let short = TransactionSettings {
            id_expiration: Duration::from_secs(3600),
            max_timeout: Duration::from_secs(36_000),
        };
        let t = TxnBed::with(settings(), short).await;
        t.init().await;
        let open = t.txns.init_producer_id("open", 36_000_000, None).await.unwrap();
        t.txns.add_partitions("open", open, vec![part(0)]).await.unwrap();
        sleep(Duration::from_secs(3500)).await;
        assert_eq!(t.state().await, S::Empty);
        sleep(Duration::from_secs(1300)).await;
        assert_eq!(t.txns.describe(TXN).await, Err(E::TransactionalIdNotFound));
        t.log().lead(2);
        ready(&t.bed.groups, TXN).await;
        assert_eq!(t.txns.describe(TXN).await, Err(E::TransactionalIdNotFound));
        assert_eq!(t.txns.describe("open").await.unwrap().state, S::Ongoing);
    });
}

#[test]
fn the_log_is_trimmed_and_transactions_stay() {
    story(async {
        let small = GroupSettings { trim_bytes: 2000, ..settings() };
        let t = TxnBed::with(small, TransactionSettings::default()).await;
        let mut producer = t.init().await;
        for n in 0..50 {
            t.add(producer, &[0]).await.unwrap();
            t.add(producer, &[1]).await.unwrap();
            producer = t.end(producer, n % 2 == 0).await.unwrap();
            sleep(Duration::from_millis(10)).await;
        }
        t.add(producer, &[0]).await.unwrap();
        assert!(t.log().start() > 50, "trimmed up to {}", t.log().start());
        let before = t.txns.describe(TXN).await.unwrap();
        t.log().lead(2);
        assert_eq!(patiently(|| t.txns.describe(TXN)).await, before);
        assert_eq!(t.txns.verify(TXN, producer, part(0), false).await, Ok(51));
    });
}

#[test]
fn transactions_are_listed_as_asked() {
    story(async {
        let t = TxnBed::new().await;
        let idle = t.init().await;
        let open = t.txns.init_producer_id("open", TIMEOUT_MS, None).await.unwrap();
        t.txns.add_partitions("open", open, vec![part(0), Participant::Group("g".into())]).await.unwrap();
        sleep(Duration::from_secs(10)).await;
        let list = |filter: ListFilter| {
            let t = &t;
            async move {
                let (all, error) = t.txns.list(&filter, |_| false).await;
                assert_eq!(error, None);
                let mut ids: Vec<String> = all.into_iter().map(|l| l.id).collect();
                ids.sort();
                ids.join(" ")
            }
        };
        let all = ListFilter { min_duration_ms: -1, ..ListFilter::default() };
        assert_eq!(list(all.clone()).await, "open payments");
        assert_eq!(list(ListFilter { states: vec!["Empty".into()], ..all.clone() }).await, "payments");
        assert_eq!(list(ListFilter { states: vec!["Nonsense".into()], ..all.clone() }).await, "");
        assert_eq!(list(ListFilter { producer_ids: vec![idle.id], ..all.clone() }).await, "payments");
        assert_eq!(list(ListFilter { min_duration_ms: 5_000, ..all.clone() }).await, "open");
        assert_eq!(list(ListFilter { min_duration_ms: 15_000, ..all }).await, "");
        let described = t.txns.describe("open").await.unwrap();
        assert_eq!((described.partitions.len(), described.groups.len()), (1, 1));
    });
}

#[test]
fn refusals_leave_nothing_behind() {
    story(async {
        let t = TxnBed::new().await;
        let ghost = Producer { id: 7, epoch: 0 };
        assert_eq!(t.add(ghost, &[0]).await, Err(E::InvalidProducerIdMapping));
        assert_eq!(t.end(ghost, false).await, Err(E::InvalidProducerIdMapping));
        assert_eq!(t.txns.verify(TXN, ghost, part(0), true).await, Err(E::InvalidProducerIdMapping));
        assert_eq!(t.txns.init_producer_id("", TIMEOUT_MS, None).await, Err(E::InvalidRequest));
        assert_eq!(t.txns.describe(TXN).await, Err(E::TransactionalIdNotFound));
    });
}
