//! The lease ends while the broker runs.

use super::super::AdminError;
use super::*;
use crate::storage::Fence;
use crate::volume::Op;
use rustix::io::Errno;

#[test]
fn a_hanging_heartbeat_ends_the_lease_and_the_broker_comes_back_under_a_higher_epoch() {
    story(async {
        let w = World::new(1);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        p.create("orders").await.expect("created");
        let (lease, epoch) = (p.core().lease.number(), p.core().controller.epoch());
        let mut ended = p.core().lease.ended();

        let hang = w.volume.hang(Op::Sync, "-00000001.heartbeat");
        hang.caught(1).await;
        let since = w.now();
        ended.wait_for(|n| *n == lease).await.expect("ends");
        assert!(w.now() - since <= LEASE, "a heartbeat that hangs extends nothing");
        eventually("a new lease", || async { p.core().ready() }).await;
        assert!(w.now() - since < LEASE + Duration::from_secs(5));
        assert_eq!(p.told.drops.load(SeqCst), 1);
        assert!(p.core().lease.number() > lease);
        assert!(p.core().controller.epoch() > epoch);
        assert_eq!(p.topics(), ["orders"]);
        p.create("more").await.expect("the hanging write is in nobody's way");

        // The old write comes back at last, and changes nothing.
        hang.release();
        tokio::time::sleep(LEASE).await;
        assert_eq!(p.told.drops.load(SeqCst), 1);
        assert!(p.core().ready());
    });
}

#[test]
fn a_failed_heartbeat_ends_the_lease_and_its_file_is_never_written_again() {
    story(async {
        let w = World::new(2);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        w.volume.fail(Op::Sync, ".heartbeat", Errno::IO, 1);
        let mut began = p.core().lease.began();
        let mut ended = p.core().lease.ended();
        ended.wait_for(|n| *n == 1).await.expect("ends");
        let writes = w.volume.counts_of("-00000001.heartbeat").writes;
        began.wait_for(|n| *n == 2).await.expect("begins");
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(w.volume.counts_of("-00000001.heartbeat").writes, writes);
        assert_eq!(p.told.drops.load(SeqCst), 1);
    });
}

#[test]
fn what_an_attempt_saw_of_leases_that_must_end_stands_for_the_next_attempt() {
    story(async {
        let w = World::new(8);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        let mut began = p.core().lease.began();
        let mut ended = p.core().lease.ended();
        // Heartbeat files of processes that died appear one after another: the last one so late that an attempt to take
        // a lease is given up before it was still for long enough.
        for number in [2, 3, 4] {
            let path = format!("__cluster/brokers/1-{number:08x}.heartbeat");
            w.volume.create_new(&path, Class::Control).await.expect("new");
            if number == 2 {
                w.volume.fail(Op::Sync, ".heartbeat", Errno::IO, 1);
                ended.wait_for(|n| *n == 1).await.expect("ends");
            }
            if number < 4 {
                tokio::time::sleep(Duration::from_secs(7)).await;
            }
        }
        let since = w.now();
        began.wait_for(|n| *n == 5).await.expect("begins");
        let waited = w.now() - since;
        assert!(waited >= LEASE && waited < LEASE + Duration::from_secs(3), "{waited:?}");
    });
}

#[test]
fn while_all_hangs_nothing_is_answered_and_all_comes_back() {
    story(async {
        let w = World::new(3);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        let hangs =
            [w.volume.hang(Op::Sync, ""), w.volume.hang(Op::Rename, ""), w.volume.hang(Op::Create, "")];
        let since = w.now();
        assert_eq!(p.create("orders").await, Err(AdminError::NotController));
        assert!(w.now() - since <= LEASE, "a change waits no longer than the lease");
        assert_eq!(p.core().lease.right(), None);
        assert_eq!(p.create("orders").await, Err(AdminError::NotController), "and then fails at once");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!p.core().ready());
        hangs.iter().for_each(|h| h.release());
        let since = w.now();
        eventually("ready again", || async { p.core().ready() }).await;
        assert!(w.now() - since < LEASE + Duration::from_secs(5), "P13");
        p.create("later").await.expect("created");
        assert!(p.told.drops.load(SeqCst) >= 1);
    });
}

#[test]
fn a_metadata_write_in_doubt_costs_the_epoch_and_not_the_lease() {
    story(async {
        for op in [Op::Rename, Op::SyncDir] {
            let w = World::new(4);
            let p = w.start(&w.machine("a"), 1).await.expect("starts");
            let epoch = p.core().controller.epoch();
            w.volume.fail(op, "__cluster/metadata", Errno::IO, 1);
            assert!(matches!(p.create("orders").await, Err(AdminError::Storage(_))));
            eventually("in office again", || async { p.core().ready() }).await;
            assert!(p.core().controller.epoch() > epoch);
            assert_eq!(p.told.drops.load(SeqCst), 0);
            // Whichever of the two stands, files and picture agree.
            let shown = p.topics();
            let host = w.machine("b");
            p.core().shutdown(p.told.as_ref()).await;
            let next = w.start(&host, 1).await.expect("starts");
            assert_eq!(next.topics(), shown);
        }
    });
}

#[test]
fn a_full_volume_fails_changes_and_leaves_everything_as_it_was() {
    story(async {
        let w = World::new(5);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        p.create("orders").await.expect("created");
        let epoch = p.core().controller.epoch();
        for op in [Op::Create, Op::Write, Op::Sync] {
            let before = metadata_files(&w).await;
            w.volume.fail(op, ".tmp", Errno::NOSPC, 1);
            let r = p.set("orders", "retention.ms", "1000").await;
            assert!(matches!(r, Err(AdminError::Storage(_))), "{op:?}: {r:?}");
            assert_eq!(metadata_files(&w).await, before, "{op:?}: nothing half-written is renamed in");
            assert!(p.core().controller.image().topic("orders").expect("there").overrides.is_empty());
        }
        p.set("orders", "retention.ms", "1000").await.expect("there is room again");
        assert_eq!(p.core().controller.epoch(), epoch);
        assert_eq!(p.told.reconfigured.lock().len(), 1);
    });
}

#[test]
fn a_stop_says_so_last_and_beats_no_more() {
    story(async {
        let w = World::new(6);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        tokio::time::sleep(LEASE * 3).await;
        assert!(p.core().ready(), "heartbeats keep the lease");
        assert_eq!(p.core().lease.number(), 1);
        p.core().shutdown(p.told.as_ref()).await;
        assert_eq!(p.core().lease.right(), None);
        let writes = w.volume.counts_of(".heartbeat").writes;
        tokio::time::sleep(LEASE * 2).await;
        assert_eq!(w.volume.counts_of(".heartbeat").writes, writes);
    });
}

#[test]
fn changes_that_wait_together_share_one_write() {
    story(async {
        let w = World::new(7);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        w.volume.delay(Op::Sync, "__cluster/metadata", Duration::from_millis(50));
        let before = w.volume.counts_of("__cluster/metadata").syncs;
        let names: Vec<_> = (0..100).map(|n| format!("t{n}")).collect();
        let all = futures::future::join_all(names.iter().map(|n| p.create(n))).await;
        assert!(all.iter().all(Result::is_ok));
        let syncs = w.volume.counts_of("__cluster/metadata").syncs - before;
        assert!(syncs <= 3, "{syncs} syncs for 100 changes");
        assert_eq!(p.topics().len(), 100);
    });
}

async fn metadata_files(w: &World) -> BTreeMap<String, Option<bytes::Bytes>> {
    let mut all = w.everything().await;
    all.retain(|path, _| path.contains("__cluster/metadata/"));
    all
}

// A panic ends a simulated run.
#[cfg(not(madsim))]
#[test]
fn a_keeper_that_dies_is_told_of_and_the_broker_can_be_shut_down() {
    story(async {
        let w = World::new(9);
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        p.told.breaks.store(true, SeqCst);
        w.volume.fail(Op::Sync, ".heartbeat", Errno::IO, 1);
        assert_eq!(p.core().failed().await, "the keeper of the lease panicked: told to break");
        p.core().shutdown(&*p.told).await;
        assert_eq!(p.told.shutdowns.load(SeqCst), 1);
    });
}
