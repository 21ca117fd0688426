//! Several brokers on one volume: who leads what, and what happens when one goes.

use super::super::roster::READS;
use super::super::{layout, AdminError};
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
fn a_change_is_shown_by_every_broker() {
    story(async {
        let w = World::new(42);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        let id = first.create("orders").await.expect("created");
        eventually("the other shows it", || async { second.topics() == ["orders"] }).await;
        first.core().delete_topic("orders").await.expect("deleted");
        eventually("the other shows that it is gone", || async { second.topics().is_empty() }).await;
        eventually("the other let it go", || async { !second.told.attached.lock().contains_key(&(id, 0)) })
            .await;
    });
}

#[test]
fn every_broker_shows_the_same_leader_epochs_and_they_only_rise() {
    story(async {
        let w = World::new(48);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        let id = first.create("orders").await.expect("created");
        let epochs = |p: &Process| {
            let topic = p.core().controller.image().topic("orders").cloned();
            topic.map_or_else(Vec::new, |t| (0..2).map(|n| t.epoch(n).0).collect())
        };
        shared_out(&w, &[&first, &second], 1).await;
        // It comes to rest.
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(epochs(&first), epochs(&second));
        let before = epochs(&first);
        assert!(before.iter().all(|e| *e > 0), "none is unknown: {before:?}");

        // Whoever leads partition 0 opens it again by itself.
        for p in [&first, &second] {
            p.told.led_in.lock().insert((id, 0), Epoch(before[0] + 2));
        }
        eventually("both show what it rose to", || async {
            [&first, &second].iter().all(|p| epochs(p) == [before[0] + 2, before[1]])
        })
        .await;
        second.kill();
        eventually("the next leader's is far above", || async {
            first.assigned().len() == 10
                && epochs(&first).iter().zip(&before).any(|(now, then)| now / 256 > then / 256)
        })
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

#[test]
fn a_broker_that_stops_gives_away_first_what_it_leads_one_by_one() {
    story(async {
        let w = World::new(50);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        first.create("orders").await.expect("created");
        eventually("the load is even", || async { second.assigned().len() == 5 }).await;
        // The controller stops as well as any other.
        let begun = w.now();
        first.core().shutdown(first.told.as_ref()).await;
        assert_eq!(first.told.left.load(SeqCst), 0, "nothing was left to be closed at the end");
        assert_eq!(second.assigned().len(), 10);
        assert!(w.now() - begun <= Duration::from_secs(3), "{:?}", w.now() - begun);

        // With nobody to give it to it stays, and is closed.
        tokio::time::sleep(Duration::from_secs(2)).await;
        second.core().shutdown(second.told.as_ref()).await;
        assert_eq!(second.told.left.load(SeqCst), 10);
    });
}

#[test]
fn what_a_broker_is_asked_that_is_not_controller_the_controller_does() {
    story(async {
        let w = World::new(45);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        let begun = w.now();
        let id = second.create("orders").await.expect("created");
        assert!(w.now() - begun < Duration::from_secs(2), "{:?}", w.now() - begun);
        assert_eq!(second.topics(), ["orders"], "whoever asked sees it at once");
        assert_eq!(first.core().controller.metadata().topics["orders"].id, id);

        let twice = futures::join!(second.create("orders"), second.create("more"));
        assert_eq!(twice.0, Err(AdminError::TopicExists("orders".into())), "refused, and said so");
        twice.1.expect("what was asked along with it is done");
        second.core().create_partitions("orders", 7, false).await.expect("grown");
        assert_eq!(first.core().controller.metadata().topics["orders"].partitions, 7);
        second.core().delete_topic("more").await.expect("deleted");
        assert_eq!(second.core().delete_topic("more").await, Err(AdminError::UnknownTopic("more".into())));
        eventually("requests go away", || async { !w.has(".request").await }).await;
    });
}

#[test]
fn configs_that_two_change_at_once_keep_both_changes() {
    story(async {
        let w = World::new(46);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        first.create("orders").await.expect("created");
        eventually("the other shows it", || async { second.topics() == ["orders"] }).await;
        let (x, y) = futures::join!(
            second.set("orders", "retention.ms", "5000"),
            first.set("orders", "flush.ms", "7"),
        );
        x.expect("changed");
        y.expect("changed");
        let set = first.core().controller.metadata().topics["orders"].configs.clone();
        assert_eq!(set.len(), 2, "{set:?}");
    });
}

#[test]
fn a_request_outlives_the_controller_that_it_was_made_of() {
    story(async {
        let w = World::new(47);
        let machines = [w.machine("a"), w.machine("b"), w.machine("c")];
        let first = w.start(&machines[0], 1).await.expect("starts");
        let second = w.start(&machines[1], 2).await.expect("starts");
        let third = w.start(&machines[2], 3).await.expect("starts");
        first.create("orders").await.expect("created");
        first.kill();
        let begun = w.now();
        second.create("more").await.expect("created");
        assert!(w.now() - begun < LEASE + GRACE, "{:?}", w.now() - begun);
        eventually("all show it", || async { third.topics() == ["more", "orders"] }).await;
        let offices = [&second, &third].map(|p| p.core().controller.in_office().is_some());
        assert!(offices[0] != offices[1], "one of them is controller");
    });
}

#[test]
fn nothing_that_a_deposed_controller_wrote_is_shown() {
    story(async {
        let w = World::new(48);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let second = w.start(&b, 2).await.expect("starts");
        first.create("orders").await.expect("created");
        eventually("the other shows it", || async { second.topics() == ["orders"] }).await;
        // Somebody claims the next epoch and dies: what the old controller goes on to write is answered to nobody.
        let epoch = first.core().controller.epoch().next();
        let v = w.volume.another_process();
        drop(v.create_new(&layout::claim(epoch), Class::Control).await.expect("claimed"));
        let answer = first.create("late").await;
        assert!(matches!(answer, Err(AdminError::NotController)), "{answer:?}");
        assert_eq!(second.topics(), ["orders"]);
        let all = [&first, &second];
        eventually("one of them takes the office again", || async {
            all.iter().any(|p| p.core().controller.in_office().is_some())
        })
        .await;
        eventually("and serves", || async {
            for p in all {
                let _ = p.create("more").await;
            }
            all.iter().all(|p| p.topics().contains(&"more".to_owned()))
        })
        .await;
    });
}

#[test]
fn many_brokers_do_not_read_each_others_heartbeats_all_the_time() {
    story(async {
        let w = World::new(49);
        let mut all = Vec::new();
        for id in 1..=40 {
            all.push(w.start(&w.machine(&format!("m{id}")), id).await.expect("starts"));
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        w.volume.reset_counts();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let a_second = w.volume.counts_of(".heartbeat").opens / 60;
        // The controller reads all of them each half beat; nobody else does.
        assert!(a_second >= 2 * 39, "{a_second}");
        assert!(a_second < 40 * u64::from(READS + 4), "{a_second}");
    });
}

#[test]
fn what_hangs_for_a_living_leader_goes_to_another() {
    story(async {
        let w = World::new(49);
        let machines = [w.machine("a"), w.machine("b"), w.machine("c")];
        let first = w.start(&machines[0], 1).await.expect("starts");
        let second = w.start(&machines[1], 2).await.expect("starts");
        let third = w.start(&machines[2], 3).await.expect("starts");
        let id = first.create("orders").await.expect("created");
        shared_out(&w, &[&first, &second, &third], 1).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let all = [&first, &second, &third];
        let leader = all.iter().position(|p| p.assigned().contains(&(id, 0))).expect("led");
        let epoch = || {
            let image = first.core().controller.image();
            image.topic("orders").map_or(0, |t| t.epoch(0).0)
        };
        let before = epoch();
        let stuck = BTreeMap::from([((id, 0), Epoch(before).of_next_assignment())]);
        *all[leader].told.stuck.lock() = stuck.clone();
        eventually("another leads it, in a later assignment", || async {
            let led = |p: &Process| p.assigned().contains(&(id, 0));
            !led(all[leader]) && all.iter().any(|p| led(p)) && epoch() > before
        })
        .await;
        assert!(all[leader].told.disowned.lock().is_empty(), "it is no longer asked for");
        // For as long as anything hangs, it gets nothing back.
        let kept = all[leader].assigned().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(all[leader].assigned().len() <= kept);
        all[leader].told.stuck.lock().clear();
        eventually("then the load is even again", || async {
            all.iter().all(|p| (3..=4).contains(&p.assigned().len()))
        })
        .await;

        // Where all hang, nobody does better, once each knows it of the others.
        for p in all {
            let places = p.assigned().into_iter().filter(|(topic, _)| *topic == id);
            *p.told.stuck.lock() = places.map(|place| (place, Epoch(1 << 20))).collect();
        }
        tokio::time::sleep(LEASE).await;
        let before: Vec<Places> = all.iter().map(|p| p.assigned()).collect();
        assert_eq!(before.iter().map(|places| places.len()).sum::<usize>(), 10);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(all.iter().map(|p| p.assigned()).collect::<Vec<_>>(), before);
    });
}
