//! Processes die, hosts lose power, the server restarts.

use super::*;

#[madsim::test]
async fn a_dead_process_leaves_dirty_pages_that_its_host_writes_back_later() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let file = settled(&a, "f", "old").await;
    file.write_at(0, of("new")).await.unwrap();
    a.kill();
    assert!(file.read_at(0, 1).await.is_err() && file.sync().await.is_err(), "its handles are dead");
    assert_eq!(read(&b, "f").await.unwrap(), "old", "the successor sees what was sent");
    assert_eq!(read(&m.process(1), "f").await.unwrap(), "new", "the host still has it");
    pass(61_000).await;
    assert_eq!(read(&b, "f").await.unwrap(), "new", "and sent it after all");
    assert_eq!(m.media().bytes("f").unwrap(), "new");
}

#[madsim::test]
async fn a_power_cut_takes_the_cache_along() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let m = Model::new(nfs(), seed);
        let file = settled(&m.process(1), "f", "old").await;
        file.write_at(0, of("new")).await.unwrap();
        m.power_cut(1);
        assert!(file.sync().await.is_err());
        seen.insert(read(&m.process(1), "f").await.unwrap());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["new", "old"], "but it may just have been sent");
}

#[madsim::test]
async fn a_restarted_server_forgets_what_was_not_committed_and_the_client_sends_it_again() {
    for seed in 0..16 {
        let m = Model::new(nfs(), seed);
        let a = m.process(1);
        let file = settled(&a, "f", "old").await;
        // Two ranges: WRITE, WRITE, COMMIT; the COMMIT is held up.
        file.write_at(0, of("new")).await.unwrap();
        file.write_at(9000, of("far")).await.unwrap();
        let stall = m.inject(Fault::Stall { scope: Scope::All, ops: Ops::of(&[Op::Sync]) });
        let syncing = tokio::spawn(async move { file.sync().await });
        pass(100).await;
        m.restart_server();
        m.lift(stall);
        syncing.await.unwrap().unwrap();
        let media = m.media().bytes("f").unwrap();
        assert_eq!((&media[..3], &media[9000..]), (&b"new"[..], &b"far"[..]), "seed {seed}");
    }
}

#[madsim::test]
async fn a_request_of_a_dead_process_lands_when_the_stall_ends() {
    let m = Model::new(nfs(), 3);
    let (late, events) = (Arc::new(parking_lot::Mutex::new(0)), m.clone());
    let seen = late.clone();
    events.watch(move |e| *seen.lock() += u32::from(e.op == Op::Rename && e.landed_after_death()));
    let (a, b) = (m.process(1), m.process(2));
    settled(&a, "new", "x").await;
    let stall = m.inject(Fault::Stall { scope: Scope::Host(1), ops: Ops::of(&[Op::Rename]) });
    let handle = madsim::runtime::Handle::current();
    let node = handle.create_node().name("broker").build();
    let asking = a.clone();
    node.spawn(async move { asking.rename("new", "live", D).await });
    pass(50).await;
    a.kill();
    handle.kill(node.id());
    pass(5_000).await;
    assert_eq!(names(&b, "").await, ["new"]);
    m.lift(stall);
    pass(50).await;
    assert_eq!(m.shown().files.keys().collect::<Vec<_>>(), ["live"]);
    assert_eq!(*late.lock(), 1);
}

#[madsim::test]
async fn an_operation_whose_caller_stops_waiting_goes_on() {
    for kind in [nfs(), local(), coherent()] {
        let m = Model::new(Options { latency: Span(20.0, 20.0), ..kind }, 3);
        let a = m.process(1);
        let brief = Duration::from_millis(2);
        assert!(tokio::time::timeout(brief, a.mkdir("d", D)).await.is_err());
        assert!(m.shown().dirs.is_empty());
        pass(60).await;
        assert!(m.shown().dirs.contains("d"));
    }
}

#[madsim::test]
async fn a_local_name_is_durable_once_its_directory_was_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let m = Model::new(local(), seed);
        let a = m.process(0);
        settled(&a, "kept", "1").await;
        a.create_new("lost", D).await.unwrap().write_sync(0, of("2")).await.unwrap();
        m.power_cut(0);
        let left = names(&m.process(0), "").await;
        assert!(left.contains(&"kept".to_owned()));
        seen.insert(left.len());
    }
    assert_eq!(seen.len(), 2);
}

#[madsim::test]
async fn a_failed_sync_leaves_clean_pages_that_no_later_sync_saves() {
    for kind in [nfs(), local(), coherent()] {
        let m = Model::new(kind, 5);
        let a = m.process(0);
        let file = settled(&a, "f", "old").await;
        let ops = Ops::of(&[Op::Sync]);
        let fault = m.inject(Fault::Fail { scope: Scope::All, ops, errno: ErrorName::EIO });
        file.write_at(0, of("new")).await.unwrap();
        assert_eq!(errno(file.sync().await), EIO);
        m.lift(fault);
        file.sync().await.unwrap();
        assert_eq!(file.read_at(0, 9).await.unwrap(), "new");
        pass(61_000).await;
        assert_eq!(m.media().bytes("f").unwrap(), "old");
    }
}
