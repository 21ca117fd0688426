//! Topics that go away.

use super::*;
use crate::volume::Op;
use rustix::io::Errno;

#[test]
fn a_deleted_topic_leaves_nothing_behind() {
    story(async {
        let w = World::new(1);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        let id = p.create("orders").await.expect("created");
        p.fill("orders", id).await;
        p.core().delete_topic("orders").await.expect("deleted");
        assert!(p.topics().is_empty());
        eventually("freed", || async { p.core().controller.metadata().deleting.is_empty() }).await;
        assert!(!w.has("orders").await);
        assert!(p.told.attached.lock().is_empty());
    });
}

#[test]
fn a_topic_created_anew_at_once_shares_nothing_with_the_old_one() {
    story(async {
        let w = World::new(2);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        let old = p.create("orders").await.expect("created");
        p.fill("orders", old).await;
        w.volume.fail(Op::Unlink, "orders", Errno::BUSY, 3);
        p.core().delete_topic("orders").await.expect("deleted");
        let new = p.create("orders").await.expect("created at once");
        assert_ne!(old, new);
        p.fill("orders", new).await;
        eventually("freed", || async { p.core().controller.metadata().deleting.is_empty() }).await;
        assert!(!w.has(&old.to_string()).await);
        assert!(w.has(&format!("orders/{new}/0/00000001-0.log")).await);
        assert_eq!(p.told.attached.lock().len(), 2);
    });
}

/// Field case 18: what some client holds open is busy, and the rest is freed meanwhile.
#[test]
fn case_18_a_busy_file_delays_its_own_deletion_only() {
    story(async {
        let w = World::new(3);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        for name in ["busy", "free"] {
            let id = p.create(name).await.expect("created");
            p.fill(name, id).await;
        }
        w.volume.fail(Op::Unlink, "busy/", Errno::BUSY, 4);
        p.core().delete_topic("busy").await.expect("deleted");
        p.core().delete_topic("free").await.expect("deleted");
        eventually("the free one is gone", || async { !w.has("free").await }).await;
        assert!(w.has("busy").await);
        eventually("the busy one follows", || async { !w.has("busy").await }).await;
        eventually("and is forgotten", || async { p.core().controller.metadata().deleting.is_empty() }).await;
    });
}

#[test]
fn a_deletion_goes_on_after_a_restart() {
    story(async {
        let w = World::new(4);
        let host = w.machine("a");
        let p = w.start(&host, 1).await.expect("starts");
        let id = p.create("orders").await.expect("created");
        p.fill("orders", id).await;
        w.volume.fail(Op::Unlink, "orders", Errno::BUSY, u64::MAX);
        p.core().delete_topic("orders").await.expect("deleted");
        tokio::time::sleep(Duration::from_secs(1)).await;
        p.kill();
        assert!(w.has("00000001-0.log").await);
        w.volume.heal();
        let p = w.start(&host, 1).await.expect("starts");
        assert!(p.topics().is_empty());
        eventually("freed", || async { !w.has("orders").await }).await;
    });
}

/// Known hole 19: nothing but what is listed as deleted is ever removed.
#[test]
fn directories_that_nobody_listed_are_left_alone() {
    story(async {
        let w = World::new(5);
        let host = w.machine("a");
        let p = w.start(&host, 1).await.expect("starts");
        let stranger = TopicId(w.entropy.uuid());
        p.fill("orders", stranger).await;
        let id = p.create("orders").await.expect("created");
        p.fill("orders", id).await;
        p.core().delete_topic("orders").await.expect("deleted");
        eventually("freed", || async { p.core().controller.metadata().deleting.is_empty() }).await;
        assert!(!w.has(&id.to_string()).await);
        assert!(w.has(&format!("orders/{stranger}/0/00000001-0.log")).await);
    });
}
