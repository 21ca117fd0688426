//! Several brokers on one volume: who leads what, and what happens when one goes.

use super::*;

const GRACE: Duration = Duration::from_secs(3);

type Places = BTreeSet<(TopicId, i32)>;

impl Process {
    fn assigned(&self) -> Places {
        self.told.assigned.lock().clone()
    }
}

/// Waits until each place of `topics` topics and the slots is assigned to exactly one of `brokers`. Returns how long it took.
async fn shared_out(w: &World, brokers: &[&Process], topics: usize) -> Duration {
    let begun = w.now();
    let whole = topics * 2 + super::super::SLOTS as usize;
    eventually("every place has one leader", || async {
        let all: Vec<Places> = brokers.iter().map(|b| b.assigned()).collect();
        let union: Places = all.iter().flatten().copied().collect();
        let sum: usize = all.iter().map(Places::len).sum();
        assert!(sum == union.len(), "a place was given to two: {all:?}");
        union.len() == whole
    })
    .await;
    w.now() - begun
}

#[test]
fn who_comes_later_gets_a_share_and_who_leads_keeps_most() {
    story(async {
        let w = World::new(41);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        first.create("orders").await.expect("created");
        let all = first.assigned();
        assert_eq!(all.len(), 10, "one broker alone leads all");
        let second = w.start(&b, 2).await.expect("starts beside the first");
        eventually("the load is even", || async { second.assigned().len() == 5 }).await;
        assert!(first.assigned().is_subset(&all) && first.assigned().len() == 5);
        shared_out(&w, &[&first, &second], 1).await;
        assert!(second.core().ready() && second.core().controller.in_office().is_none());
        assert_eq!(second.topics(), ["orders"], "it follows the controller");

        let (before_a, before_b) = (first.assigned(), second.assigned());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((first.assigned(), second.assigned()), (before_a, before_b), "and it comes to rest");
        assert_eq!(first.told.drops.load(SeqCst) + second.told.drops.load(SeqCst), 0);
    });
}

#[test]
fn a_change_is_shown_by_every_broker_and_made_by_the_controller_alone() {
    story(async {
        let w = World::new(42);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        let refused = second.create("orders").await;
        assert_eq!(refused.err(), Some(super::super::AdminError::NotController));
        let id = first.create("orders").await.expect("created");
        eventually("the other shows it", || async { second.topics() == ["orders"] }).await;
        first.core().delete_topic("orders").await.expect("deleted");
        eventually("the other shows that it is gone", || async { second.topics().is_empty() }).await;
        eventually("the other let it go", || async { !second.told.attached.lock().contains_key(&(id, 0)) })
            .await;
    });
}

#[test]
fn what_a_killed_broker_led_is_led_by_another_within_the_lease_and_a_little() {
    story(async {
        let w = World::new(43);
        let machines = [w.machine("a"), w.machine("b"), w.machine("c")];
        let first = w.start(&machines[0], 1).await.expect("starts");
        let second = w.start(&machines[1], 2).await.expect("starts");
        let third = w.start(&machines[2], 3).await.expect("starts");
        first.create("orders").await.expect("created");
        eventually("the load is even", || async {
            second.assigned().len() >= 3 && third.assigned().len() >= 3
        })
        .await;

        // Not the controller, then the controller.
        third.kill();
        let took = shared_out(&w, &[&first, &second], 1).await;
        assert!(took >= LEASE && took < LEASE + GRACE, "{took:?}");
        first.kill();
        let took = shared_out(&w, &[&second], 1).await;
        assert!(took >= LEASE && took < LEASE + GRACE, "{took:?}");
        assert!(second.core().controller.in_office().is_some());
        second.create("more").await.expect("the new controller serves");

        let back = w.start(&machines[2], 3).await.expect("starts again");
        eventually("it gets a share again", || async { !back.assigned().is_empty() }).await;
        shared_out(&w, &[&second, &back], 2).await;
    });
}

#[test]
fn what_a_stopped_broker_led_is_led_by_another_soon() {
    story(async {
        let w = World::new(44);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        first.create("orders").await.expect("created");
        eventually("the load is even", || async { second.assigned().len() == 5 }).await;
        first.core().shutdown(first.told.as_ref()).await;
        drop(first);
        let took = shared_out(&w, &[&second], 1).await;
        assert!(took <= Duration::from_secs(2), "{took:?}");
    });
}
