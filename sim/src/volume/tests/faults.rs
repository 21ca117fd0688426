//! What the faults do.

use super::*;
use parking_lot::Mutex;

fn all(ops: &[Op]) -> (Scope, Ops) {
    (Scope::All, Ops::of(ops))
}

fn elapsed() -> Duration {
    madsim::time::TimeHandle::current().elapsed()
}

#[madsim::test]
async fn a_late_request_takes_effect_that_long_after_it_was_sent() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let (scope, ops) = all(&[Op::Unlink]);
    settled(&a, "f", "x").await;
    m.inject(Fault::Late { scope, ops, by: Span(4_000.0, 4_000.0) });
    let (asking, since) = (a.clone(), elapsed());
    let unlinking = tokio::spawn(async move { asking.unlink("f").await });
    pass(3_900).await;
    assert!(m.shown().files.contains_key("f") && !unlinking.is_finished());
    unlinking.await.unwrap().unwrap();
    assert!(elapsed() - since >= Duration::from_secs(4) && m.shown().files.is_empty());
}

#[madsim::test]
async fn a_slow_reply_comes_after_the_effect() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let (scope, ops) = all(&[Op::Mkdir]);
    m.inject(Fault::Slow { scope, ops, by: Span(1_000.0, 1_000.0) });
    let asking = tokio::spawn(async move { a.mkdir("d", D).await });
    pass(100).await;
    assert!(m.shown().dirs.contains("d") && !asking.is_finished());
    asking.await.unwrap().unwrap();
}

#[madsim::test]
async fn a_lost_reply_makes_the_second_execution_find_the_first() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    settled(&a, "tmp", "x").await;
    let lost =
        |verifier| Fault::LostReply { scope: Scope::All, ops: Ops::default(), by: Span(9.0, 9.0), verifier };
    let fault = m.inject(lost(true));
    assert_eq!(errno(a.rename("tmp", "f", D).await), ENOENT);
    assert_eq!(m.shown().files.keys().collect::<Vec<_>>(), ["f"], "though it was done");
    assert_eq!(errno(a.unlink("f").await), ENOENT);
    assert_eq!(errno(a.mkdir("d", D).await), EEXIST);
    a.create_new("known again", D).await.unwrap();
    m.lift(fault);
    m.inject(lost(false));
    assert_eq!(errno(a.create_new("not known", D).await), EEXIST);
    assert!(m.shown().files.contains_key("not known"));
    assert_eq!(m.open_handles(), [], "who got an error holds nothing open");
}

#[madsim::test]
async fn a_create_that_is_done_again_after_an_unlink_holds_the_second_file_alone() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let (scope, ops) = (Scope::Host(1), Ops::of(&[Op::Create]));
    m.inject(Fault::LostReply { scope, ops, by: Span(500.0, 500.0), verifier: true });
    let asking = tokio::spawn(async move { a.create_new("f", D).await });
    pass(100).await;
    b.unlink("f").await.unwrap();
    let file = asking.await.unwrap().unwrap();
    assert_eq!(m.open_handles().iter().map(|h| h.is_unlinked).collect::<Vec<_>>(), [false]);
    drop(file);
    pass(1_000).await;
    assert_eq!(m.open_handles(), [], "and what its creator closes is closed");
}

#[madsim::test]
async fn what_is_gone_for_a_while_comes_back() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    settled(&a, "d.log", "x").await;
    let ops = Ops { suffix: ".log".into(), ..Ops::of(&[Op::Open]) };
    let fault = m.inject(Fault::Gone { scope: Scope::Host(1), ops, errno: ErrorName::ESTALE });
    assert_eq!(errno(a.open("d.log", D).await), ESTALE);
    assert!(m.process(2).open("d.log", D).await.is_ok(), "another host is not hit");
    m.lift(fault);
    assert!(a.open("d.log", D).await.is_ok());
}

#[madsim::test]
async fn short_writes_are_short_and_the_rest_follows() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let file = a.create_new("f", D).await.unwrap();
    let (scope, ops) = all(&[Op::Write]);
    m.inject(Fault::Short { scope, ops, bytes: [1, 3] });
    let n = file.write_at(0, of("abcdefgh")).await.unwrap();
    assert!((1..=3).contains(&n));
    file.write_sync(0, of("abcdefgh")).await.unwrap();
    assert_eq!(m.media().bytes("f").unwrap(), "abcdefgh");
}

#[madsim::test]
async fn a_full_local_volume_says_so_at_the_write() {
    let m = Model::new(local(), 1);
    let a = m.process(0);
    let file = settled(&a, "f", "").await;
    m.inject(Fault::Capacity { bytes: 5, at: FullAt::Write, errno: ErrorName::ENOSPC });
    assert_eq!(file.write_at(0, of("12345678")).await.unwrap(), 5);
    assert_eq!(errno(file.write_at(5, of("678")).await), ENOSPC);
    assert_eq!(file.write_at(0, of("abcde")).await.unwrap(), 5, "overwriting needs no space");
    m.heal();
    assert_eq!(file.write_at(5, of("678")).await.unwrap(), 3);
}

#[madsim::test]
async fn a_full_server_says_so_at_the_sync() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let file = settled(&a, "f", "1234").await;
    m.inject(Fault::Capacity { bytes: 6, at: FullAt::Sync, errno: ErrorName::EDQUOT });
    assert_eq!(file.write_at(4, of("5678")).await.unwrap(), 4, "the page cache has room");
    assert_eq!(errno(file.sync().await), 122);
    m.heal();
    file.sync().await.unwrap();
    pass(61_000).await;
    assert_eq!(m.media().bytes("f").unwrap(), "123456", "what failed once is not tried again");
    assert_eq!(a.space().await.unwrap().total, 4 << 30);
}

#[madsim::test]
async fn an_error_of_a_write_back_is_told_at_the_next_sync_once() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let file = settled(&a, "f", "old").await;
    let (scope, ops) = all(&[Op::WriteBack]);
    m.inject(Fault::Fail { scope, ops, errno: ErrorName::EIO });
    file.write_at(0, of("new")).await.unwrap();
    pass(61_000).await;
    assert_eq!(errno(file.sync().await), EIO);
    file.sync().await.unwrap();
    assert_eq!(m.media().bytes("f").unwrap(), "old");
}

#[madsim::test]
async fn a_host_can_be_kept_from_writing_back() {
    let m = Model::new(nfs(), 1);
    let file = settled(&m.process(1), "f", "old").await;
    let hold = m.inject(Fault::HoldWriteback { scope: Scope::Host(1) });
    file.write_at(0, of("new")).await.unwrap();
    pass(120_000).await;
    assert_eq!(m.shown().bytes("f").unwrap(), "old");
    m.lift(hold);
    pass(61_000).await;
    assert_eq!(m.media().bytes("f").unwrap(), "new");
}

#[madsim::test]
async fn rot_flips_bits_that_readers_then_see() {
    for kind in [nfs(), local()] {
        let m = Model::new(kind, 1);
        let a = m.process(0);
        let file = settled(&a, "x.log", &"0".repeat(10_000)).await;
        settled(&a, "other", "0000").await;
        m.inject(Fault::Rot { path: ".log".into(), flips: 1, spare: 0 });
        let now = file.read_at(0, 10_000).await.unwrap();
        pass(3_001).await;
        let later = file.read_at(0, 10_000).await.unwrap();
        assert_eq!((now.len(), later.iter().filter(|b| **b != b'0').count()), (10_000, 1));
        assert_eq!(m.media().bytes("other").unwrap(), "0000");
    }
}

#[madsim::test]
async fn a_soft_mount_gives_up_and_the_request_may_still_be_executed() {
    let m = Model::new(Options { soft: Some(2_000.0), ..nfs() }, 1);
    let a = m.process(1);
    let (scope, ops) = all(&[Op::Mkdir]);
    let stall = m.inject(Fault::Stall { scope, ops });
    let since = elapsed();
    assert_eq!(errno(a.mkdir("d", D).await), EIO);
    assert!(elapsed() - since < Duration::from_millis(2_100) && m.shown().dirs.is_empty());
    m.lift(stall);
    pass(50).await;
    assert!(m.shown().dirs.contains("d"));
}

#[madsim::test]
async fn one_stuck_file_holds_no_other_and_the_cache_answers_on() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let (stuck, free) = (settled(&a, "stuck", "1").await, settled(&a, "free", "1").await);
    let stall = m.inject(Fault::Stall { scope: Scope::All, ops: Ops::of(&[Op::Sync]).on("stuck") });
    stuck.write_at(0, of("2")).await.unwrap();
    let syncing = tokio::spawn({
        let stuck = stuck.clone();
        async move { stuck.sync().await }
    });
    free.write_sync(0, of("2")).await.unwrap();
    pass(1_000).await;
    assert_eq!(stuck.read_at(0, 9).await.unwrap(), "2");
    assert!(!syncing.is_finished());
    m.lift(stall);
    syncing.await.unwrap().unwrap();
    assert_eq!(m.media().bytes("stuck").unwrap(), "2");
}

#[madsim::test]
async fn a_lying_server_loses_what_it_acknowledged() {
    let mut lost = [0; 2];
    for seed in 0..16 {
        let m = Model::new(Options { lying: true, ..nfs() }, seed);
        let a = m.process(1);
        settled(&a, "f", "acked").await;
        assert!(m.media().files.is_empty());
        m.restart_server();
        match m.media().bytes("f") {
            None => lost[0] += 1,
            Some(bytes) if bytes != "acked" => lost[1] += 1,
            Some(_) => {}
        }
        settled(&m.process(2), "g", "later").await;
        pass(61_000).await;
        assert_eq!(m.media().bytes("g").unwrap(), "later", "it writes back some time");
    }
    assert!(lost.iter().all(|n| *n > 0), "names and bytes: {lost:?}");
}

/// Which of 40 opens the first fault hits.
async fn hits(more: &[Fault]) -> Vec<bool> {
    let m = Model::new(nfs(), 9);
    let a = m.process(1);
    settled(&a, "f", "x").await;
    for fault in more {
        m.inject(fault.clone());
    }
    let ops = Ops { p: 0.5, ..Ops::of(&[Op::Open]) };
    m.inject(Fault::Gone { scope: Scope::All, ops, errno: ErrorName::EBUSY });
    let mut hits = Vec::new();
    for _ in 0..40 {
        hits.push(a.open("f", D).await.is_err());
    }
    hits
}

#[madsim::test]
async fn leaving_out_a_fault_leaves_the_draws_of_others_alone() {
    let slow = Fault::Slow { scope: Scope::All, ops: Ops { p: 0.3, ..Ops::default() }, by: Span(1.0, 9.0) };
    let alone = hits(&[]).await;
    assert_eq!(alone, hits(&[slow]).await);
    assert!(alone.contains(&true) && alone.contains(&false));
}

#[test]
fn faults_are_written_in_scenario_files() {
    #[derive(serde::Deserialize)]
    struct File {
        fault: Vec<Fault>,
    }
    let text = r#"
        [[fault]]
        stall = { scope = { host = 1 }, ops = { ops = ["sync", "read-dir"], path = ".log" } }
        [[fault]]
        late = { by = [10, 2000.5], ops = { p = 0.25 } }
        [[fault]]
        lost-reply = { ops = { ops = ["rename"] } }
        [[fault]]
        fail = { ops = { ops = ["sync"] }, errno = "EIO" }
        [[fault]]
        capacity = { bytes = 1000000, at = "sync" }
        [[fault]]
        short = { bytes = [1, 100] }
        [[fault]]
        hold-writeback = { scope = { host = 2 } }
        [[fault]]
        rot = { path = ".log", flips = 3 }
    "#;
    let file: File = toml::from_str(text).unwrap();
    let ops = Ops { ops: vec![Op::Sync, Op::ReadDir], path: ".log".into(), ..Ops::default() };
    assert_eq!(file.fault[0], Fault::Stall { scope: Scope::Host(1), ops });
    assert_eq!(file.fault.len(), 8);
    for fault in &file.fault {
        let again: Fault = toml::from_str(&toml::to_string(fault).unwrap()).unwrap();
        assert_eq!(again, *fault);
    }
    assert!(toml::from_str::<Fault>("stall = { opps = 1 }").is_err());
}

#[madsim::test]
async fn every_operation_is_told_at_its_end() {
    let m = Model::new(nfs(), 1);
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    m.watch(move |e| to.lock().push((e.process, e.op, e.path.clone(), e.outcome.clone(), e.len)));
    let a = m.process(1);
    settled(&a, "f", "text").await;
    assert!(a.unlink("no").await.is_err());
    let want = [(Op::Create, "f", 0), (Op::Write, "f", 4), (Op::Sync, "f", 0), (Op::SyncDir, "", 0)];
    let told = told.lock();
    for ((op, path, len), got) in want.iter().zip(told.iter()) {
        assert_eq!(*got, (a.id(), *op, path.to_string(), Outcome::Done, *len));
    }
    assert_eq!(told.last().unwrap().3, Outcome::Failed(ENOENT));
    assert_eq!(m.bytes_read(|_, path| path.ends_with("f")), 0);
}
