//! What hangs, and who goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // a test support: it fails by panicking

use super::*;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

const D: Class = Class::Data;
const SOON: Duration = Duration::from_secs(20);

fn volume() -> (tempfile::TempDir, OsVolume) {
    let dir = tempfile::tempdir().unwrap();
    let v = OsVolume::open(dir.path()).unwrap();
    (dir, v)
}

async fn soon<T>(what: impl std::future::Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("hangs")
}

/// A gate in which chosen calls hang until it opens.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }

    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

/// Lets the calls that `which` chooses hang.
fn hang(v: &OsVolume, which: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> Arc<Gate> {
    let gate = Arc::new(Gate::default());
    let inside = gate.clone();
    *v.lanes.hook.lock() = Some(Arc::new(move |op, path| {
        if which(op, path) {
            inside.pass();
        }
    }));
    gate
}

fn text(s: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(s.as_bytes())]
}

async fn file(v: &OsVolume, path: &str) -> Arc<dyn VolumeFile> {
    let file = v.create_new(path, D).await.unwrap();
    file.write_sync(0, text("durable")).await.unwrap();
    file
}

#[tokio::test]
async fn a_stuck_sync_blocks_neither_its_readers_nor_other_files() {
    let (_dir, v) = volume();
    let (a, b) = (file(&v, "a").await, file(&v, "b").await);
    let gate = hang(&v, |op, path| op == "sync" && path == "a");
    let stuck = tokio::spawn({
        let a = a.clone();
        async move { a.sync().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    for _ in 0..100 {
        assert_eq!(soon(a.read_at(0, 99)).await.unwrap(), "durable");
        soon(b.write_sync(0, text("DURABLE"))).await.unwrap();
    }
    assert_eq!(soon(v.open("a", D)).await.unwrap().len().await.unwrap(), 7);
    assert!(!stuck.is_finished());
    gate.open();
    soon(stuck).await.unwrap().unwrap();
}

#[tokio::test]
async fn all_that_change_a_stuck_file_wait_without_a_thread_and_in_order() {
    let (_dir, v) = volume();
    let a = file(&v, "a").await;
    let before = v.lanes.data.threads();
    let gate = hang(&v, |op, path| op == "sync" && path == "a");
    let mut waiting = vec![tokio::spawn({
        let a = a.clone();
        async move { a.sync().await.map(|()| 0) }
    })];
    for i in 0..200u8 {
        let a = a.clone();
        waiting.push(tokio::spawn(async move { a.write_at(0, vec![vec![i].into()]).await }));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(v.lanes.data.threads() <= before + 1);
    gate.open();
    for w in waiting {
        soon(w).await.unwrap().unwrap();
    }
    assert_eq!(a.read_at(0, 1).await.unwrap()[0], 199);
}

#[tokio::test]
async fn more_stuck_files_than_the_lane_has_threads_starve_nobody() {
    let (_dir, v) = volume();
    let good = file(&v, "good").await;
    let mut bad = Vec::new();
    for i in 0..DATA_THREADS + 20 {
        bad.push(file(&v, &format!("bad-{i}")).await);
    }
    let gate = hang(&v, |op, path| op == "sync" && path.starts_with("bad"));
    let stuck: Vec<_> = bad.iter().cloned().map(|f| tokio::spawn(async move { f.sync().await })).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let beat = soon(v.create_new("beat", Class::Control)).await.unwrap();
    soon(beat.write_sync(0, text("alive"))).await.unwrap();
    soon(good.write_sync(0, text("goes on"))).await.unwrap();
    assert!(v.lanes.data.threads() > DATA_THREADS);
    assert!(stuck.iter().all(|s| !s.is_finished()));
    gate.open();
    for s in stuck {
        soon(s).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_open_that_hangs_in_the_kernel_costs_one_thread() {
    let (dir, v) = volume();
    file(&v, "a").await;
    // Who opens a FIFO for reading waits for a writer.
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let v = Arc::new(v);
    let stuck: Vec<_> = (0..50)
        .map(|_| {
            let v = v.clone();
            tokio::spawn(async move { v.open("fifo", D).await.map(drop) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..50 {
        let a = soon(v.open("a", D)).await.unwrap();
        assert_eq!(soon(a.read_at(0, 3)).await.unwrap(), "dur");
    }
    // Some more than one, since a thread that has just answered may not be idle yet.
    assert!(v.lanes.reads.threads() < 25);
    // Those who gave up are left out; the rest learns that it is no regular file.
    let (first, rest) = stuck.split_at(1);
    rest.iter().for_each(|s| s.abort());
    let _writer = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    while !first[0].is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for s in stuck {
        if let Ok(opened) = soon(s).await {
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}

#[tokio::test]
async fn dropping_a_handle_never_waits_and_closes_in_the_end() {
    let (_dir, v) = volume();
    let a = file(&v, "a").await;
    let open = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let mine = _dir.path().join("a");
        fds.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok()).filter(|p| *p == mine).count()
    };
    assert_eq!(open(), 1);
    let gate = hang(&v, |op, path| op == "sync" && path == "a");
    let stuck = tokio::time::timeout(Duration::from_millis(20), a.sync()).await;
    assert!(stuck.is_err());
    soon(tokio::task::spawn_blocking(move || drop(a))).await.unwrap();
    assert_eq!(open(), 1, "the stuck call still needs it");
    gate.open();
    soon(async {
        while open() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn threads_that_nobody_needs_end_and_new_ones_start() {
    let (_dir, v) = volume();
    let a = file(&v, "a").await;
    assert!(v.lanes.data.threads() > 0);
    soon(async {
        while v.lanes.data.threads() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    soon(a.write_sync(0, text("DURABLE"))).await.unwrap();
    assert_eq!(soon(a.read_at(0, 99)).await.unwrap(), "DURABLE");
}

#[tokio::test]
async fn a_call_that_panics_fails_and_the_lane_goes_on() {
    let (_dir, v) = volume();
    let a = file(&v, "a").await;
    *v.lanes.hook.lock() = Some(Arc::new(|op, _| assert_ne!(op, "truncate")));
    assert!(a.truncate(0).await.is_err());
    *v.lanes.hook.lock() = None;
    a.sync().await.unwrap();
    assert_eq!(a.read_at(0, 99).await.unwrap(), "durable");
}

#[tokio::test]
async fn handles_outlive_the_volume_that_opened_them() {
    let (_dir, v) = volume();
    let a = file(&v, "a").await;
    drop(v);
    assert_eq!(a.read_at(0, 99).await.unwrap(), "durable");
}

#[test]
fn a_volume_needs_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let missing = OsVolume::open(dir.path().join("no")).err().unwrap();
    assert!(missing.is_not_found());
    std::fs::write(dir.path().join("file"), "").unwrap();
    let file = OsVolume::open(dir.path().join("file")).err().unwrap();
    assert_eq!(file.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn the_limit_of_open_files_is_raised_to_the_hard_one() {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    assert_eq!(raise_fd_limit(), hard.unwrap_or(u64::MAX));
}
