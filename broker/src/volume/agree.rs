//! The volume in memory against the real one: asked the same, they answer the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // a test support: it fails by panicking

use super::*;
use proptest::prelude::*;

const D: Class = Class::Data;

const PATHS: [&str; 7] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"];

/// Something that is asked of two volumes; handles and paths by number.
#[derive(Clone, Debug)]
enum Ask {
    Create(usize),
    Open(usize),
    OpenWrite(usize),
    Write(usize, u64, usize, u8),
    Read(usize, u64, usize),
    Len(usize),
    Truncate(usize, u64),
    Sync(usize),
    Rename(usize, usize),
    Unlink(usize),
    Mkdir(usize),
    Rmdir(usize),
    ReadDir(usize),
    SyncDir(usize),
}

fn asks() -> impl Strategy<Value = Ask> {
    let path = || 0..PATHS.len();
    let file = || 0..4usize;
    let pos = || 0..10_000u64;
    prop_oneof![
        path().prop_map(Ask::Create),
        path().prop_map(Ask::Open),
        path().prop_map(Ask::OpenWrite),
        (file(), pos(), 0..5000usize, any::<u8>()).prop_map(|(f, p, n, b)| Ask::Write(f, p, n, b)),
        (file(), pos(), 0..9000usize).prop_map(|(f, p, n)| Ask::Read(f, p, n)),
        file().prop_map(Ask::Len),
        (file(), pos()).prop_map(|(f, p)| Ask::Truncate(f, p)),
        file().prop_map(Ask::Sync),
        (path(), path()).prop_map(|(a, b)| Ask::Rename(a, b)),
        path().prop_map(Ask::Unlink),
        path().prop_map(Ask::Mkdir),
        path().prop_map(Ask::Rmdir),
        path().prop_map(Ask::ReadDir),
        path().prop_map(Ask::SyncDir),
    ]
}

/// An answer, so far as it may not differ.
type Answer = std::result::Result<String, Option<i32>>;

fn told<T>(r: Result<T>, show: impl FnOnce(T) -> String) -> Answer {
    r.map(show).map_err(|e| e.source.raw_os_error())
}

/// Puts the question to one volume, with the handles that it gave out before.
async fn put(v: &dyn Volume, files: &mut Vec<Arc<dyn VolumeFile>>, ask: &Ask) -> Answer {
    let opened = match ask {
        Ask::Create(p) => Some(v.create_new(PATHS[*p], D).await),
        Ask::Open(p) => Some(v.open(PATHS[*p], D).await),
        Ask::OpenWrite(p) => Some(v.open_write(PATHS[*p], D).await),
        _ => None,
    };
    if let Some(opened) = opened {
        return told(opened, |file| {
            files.push(file);
            String::new()
        });
    }
    let done = |()| String::new();
    // The newest handles are the most telling ones.
    let file = |n: &usize| files.iter().rev().nth(*n);
    match ask {
        Ask::Write(f, pos, n, b) => match file(f) {
            Some(f) => told(f.write_at(*pos, vec![vec![*b; *n].into()]).await, |n| n.to_string()),
            None => Ok(String::new()),
        },
        Ask::Read(f, pos, n) => match file(f) {
            Some(f) => told(f.read_at(*pos, *n).await, |b| format!("{} {:x}", b.len(), crc32c::crc32c(&b))),
            None => Ok(String::new()),
        },
        Ask::Len(f) => match file(f) {
            Some(f) => told(f.len().await, |n| n.to_string()),
            None => Ok(String::new()),
        },
        Ask::Truncate(f, len) => match file(f) {
            Some(f) => told(f.truncate(*len).await, done),
            None => Ok(String::new()),
        },
        Ask::Sync(f) => match file(f) {
            Some(f) => told(f.sync().await, done),
            None => Ok(String::new()),
        },
        Ask::Rename(a, b) => told(v.rename(PATHS[*a], PATHS[*b], D).await, done),
        Ask::Unlink(p) => told(v.unlink(PATHS[*p]).await, done),
        Ask::Mkdir(p) => told(v.mkdir(PATHS[*p], D).await, done),
        Ask::Rmdir(p) => told(v.rmdir(PATHS[*p]).await, done),
        Ask::ReadDir(p) => told(v.read_dir(PATHS[*p], D).await, |es| format!("{es:?}")),
        Ask::SyncDir(p) => told(v.sync_dir(PATHS[*p], D).await, done),
        Ask::Create(_) | Ask::Open(_) | Ask::OpenWrite(_) => unreachable!("answered above"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_and_the_real_file_system_agree(asks in proptest::collection::vec(asks(), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(async {
            let (mem, os) = (MemVolume::new(), OsVolume::open(dir.path()).unwrap());
            let (mut in_mem, mut in_os) = (Vec::new(), Vec::new());
            for ask in &asks {
                let a = put(&mem, &mut in_mem, ask).await;
                let b = put(&os, &mut in_os, ask).await;
                prop_assert_eq!(a, b, "asked {:?}", ask);
            }
            Ok(())
        })?;
    }
}
