//! What a crash leaves, and what faults do.

use super::*;
use crate::rt::SeededEntropy;
use crate::volume::write_all_at;

const D: Class = Class::Data;

fn of(s: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(s.as_bytes())]
}

async fn contents(v: &MemVolume, path: &str) -> Option<Bytes> {
    let file = v.open(path, D).await.ok()?;
    Some(file.read_at(0, 1 << 20).await.unwrap())
}

/// A file with durable bytes and a durable name.
async fn settled(v: &MemVolume, path: &str, text: &str) -> Arc<dyn VolumeFile> {
    let file = v.create_new(path, D).await.unwrap();
    file.write_sync(0, of(text)).await.unwrap();
    v.sync_dir("", D).await.unwrap();
    file
}

#[tokio::test]
async fn a_process_crash_keeps_the_page_cache_and_kills_the_handles() {
    let v = MemVolume::new();
    let file = v.create_new("a", D).await.unwrap();
    write_all_at(&*file, 0, of("unsynced")).await.unwrap();
    v.crash_process();
    assert!(file.write_at(0, of("late")).await.is_err());
    assert!(file.sync().await.is_err());
    assert_eq!(contents(&v, "a").await.unwrap(), "unsynced");
}

#[tokio::test]
async fn only_the_process_that_crashed_loses_its_handles() {
    let one = MemVolume::new();
    let two = one.another_process();
    let file = one.create_new("a", D).await.unwrap();
    two.crash_process();
    file.write_at(0, of("alive")).await.unwrap();
    assert_eq!(contents(&two, "a").await.unwrap(), "alive");
}

#[tokio::test]
async fn synced_bytes_under_a_synced_name_survive_every_power_cut() {
    for seed in 0..64 {
        let v = MemVolume::new();
        settled(&v, "a", "kept").await;
        v.power_cut(&SeededEntropy::new(seed));
        assert_eq!(contents(&v, "a").await.unwrap(), "kept");
    }
}

#[tokio::test]
async fn a_name_that_was_not_synced_may_vanish_with_its_synced_bytes() {
    let mut seen = [false; 2];
    for seed in 0..64 {
        let v = MemVolume::new();
        let file = v.create_new("a", D).await.unwrap();
        file.write_sync(0, of("bytes")).await.unwrap();
        v.power_cut(&SeededEntropy::new(seed));
        let found = contents(&v, "a").await;
        assert!(found.iter().all(|b| b == "bytes"));
        seen[usize::from(found.is_some())] = true;
    }
    assert_eq!(seen, [true; 2]);
}

#[tokio::test]
async fn of_unsynced_pages_any_subset_survives() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..256 {
        let v = MemVolume::new();
        let file = settled(&v, "a", &"o".repeat(3 * disk::PAGE)).await;
        write_all_at(&*file, 0, of(&"n".repeat(3 * disk::PAGE))).await.unwrap();
        v.power_cut(&SeededEntropy::new(seed));
        let now = contents(&v, "a").await.unwrap();
        let pages: Vec<u8> = now.chunks(disk::PAGE).map(|p| p[0]).collect();
        assert!(now.chunks(disk::PAGE).all(|p| p.iter().all(|b| *b == p[0])));
        seen.insert(pages);
    }
    assert_eq!(seen.len(), 8, "every subset of three pages: {seen:?}");
}

#[tokio::test]
async fn an_unsynced_tail_is_cut_anywhere_and_lost_pages_read_as_zeros() {
    let (mut lengths, mut holes) = (std::collections::BTreeSet::new(), 0);
    for seed in 0..256 {
        let v = MemVolume::new();
        let file = settled(&v, "a", "head").await;
        write_all_at(&*file, 4, of(&"t".repeat(3 * disk::PAGE))).await.unwrap();
        v.power_cut(&SeededEntropy::new(seed));
        let now = contents(&v, "a").await.unwrap();
        assert_eq!(&now[..4], b"head");
        assert!(now[4..].iter().all(|b| *b == b't' || *b == 0));
        holes += u64::from(now[4..].contains(&0));
        lengths.insert(now.len());
    }
    assert!(lengths.contains(&4) && lengths.contains(&(4 + 3 * disk::PAGE)) && lengths.len() > 9);
    assert!(holes > 0);
}

#[tokio::test]
async fn a_replaced_file_is_the_old_or_the_new_one() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let v = MemVolume::new();
        settled(&v, "meta", "old").await;
        let temp = v.create_new("meta.tmp", D).await.unwrap();
        temp.write_sync(0, of("new")).await.unwrap();
        v.rename("meta.tmp", "meta", D).await.unwrap();
        v.power_cut(&SeededEntropy::new(seed));
        seen.insert(contents(&v, "meta").await.unwrap());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["new", "old"]);
}

#[tokio::test]
async fn directory_operations_survive_as_a_prefix() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..128 {
        let v = MemVolume::new();
        for name in ["a", "b", "c"] {
            v.mkdir(name, D).await.unwrap();
        }
        v.power_cut(&SeededEntropy::new(seed));
        let names = v.read_dir("", D).await.unwrap();
        seen.insert(names.into_iter().map(|e| e.name).collect::<String>());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["", "a", "ab", "abc"]);
}

#[tokio::test]
async fn a_move_between_directories_is_never_half_done() {
    for seed in 0..128 {
        let v = MemVolume::new();
        v.mkdir("from", D).await.unwrap();
        v.mkdir("to", D).await.unwrap();
        v.mkdir("from/x", D).await.unwrap();
        settled(&v, "from/x/f", "data").await;
        for dir in ["from/x", "from", "to", ""] {
            v.sync_dir(dir, D).await.unwrap();
        }
        v.mkdir("to/other", D).await.unwrap();
        v.rename("from/x", "to/x", D).await.unwrap();
        if seed % 4 == 0 {
            v.sync_dir("from", D).await.unwrap();
        }
        v.power_cut(&SeededEntropy::new(seed));
        let (a, b) = (contents(&v, "from/x/f").await, contents(&v, "to/x/f").await);
        assert!(a.is_some() != b.is_some(), "seed {seed}");
        assert!(seed % 4 != 0 || b.is_some(), "a synced directory forgot a move");
    }
}

#[tokio::test]
async fn a_failed_sync_leaves_clean_pages_that_no_later_sync_saves() {
    let v = MemVolume::new();
    let file = settled(&v, "a", "old").await;
    v.fail(Op::Sync, "a", Errno::IO, 1);
    write_all_at(&*file, 0, of("new")).await.unwrap();
    let e = file.sync().await.unwrap_err();
    assert_eq!((e.op, e.path.as_str(), e.source.raw_os_error()), ("sync", "a", Some(5)));
    file.sync().await.unwrap();
    assert_eq!(contents(&v, "a").await.unwrap(), "new");
    v.power_cut(&SeededEntropy::new(1));
    assert_eq!(contents(&v, "a").await.unwrap(), "old");
}

#[tokio::test]
async fn a_hung_sync_hurts_only_its_file_and_ends_when_released() {
    let v = MemVolume::new();
    let (a, b) = (settled(&v, "a", "1").await, settled(&v, "b", "1").await);
    let hang = v.hang(Op::Sync, "a");
    let stuck = tokio::spawn({
        let a = a.clone();
        async move { a.sync().await }
    });
    hang.caught(1).await;
    b.sync().await.unwrap();
    assert_eq!(a.read_at(0, 9).await.unwrap(), "1");
    assert!(!stuck.is_finished());
    hang.release();
    stuck.await.unwrap().unwrap();
    a.sync().await.unwrap();
}

#[tokio::test]
async fn a_hung_write_takes_effect_though_its_caller_gave_up() {
    let v = MemVolume::new();
    let file = settled(&v, "a", "old").await;
    let hang = v.hang(Op::Write, "a");
    let wait = Duration::from_millis(5);
    assert!(tokio::time::timeout(wait, file.write_at(0, of("new"))).await.is_err());
    assert_eq!(contents(&v, "a").await.unwrap(), "old");
    hang.release();
    while contents(&v, "a").await.unwrap() != "new" {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_crash_ends_what_hangs_without_effect() {
    let v = MemVolume::new();
    let file = settled(&v, "a", "old").await;
    let hang = v.hang(Op::Write, "a");
    let stuck = tokio::spawn(async move { file.write_at(0, of("new")).await });
    hang.caught(1).await;
    v.crash_process();
    assert!(stuck.await.unwrap().is_err());
    hang.release();
    assert_eq!(contents(&v, "a").await.unwrap(), "old");
}

#[tokio::test]
async fn opens_fail_as_often_as_told_and_a_delay_takes_time() {
    let v = MemVolume::new();
    settled(&v, "a", "1").await;
    v.fail(Op::Open, "a", Errno::STALE, 2);
    for _ in 0..2 {
        let e = v.open("a", D).await.err().unwrap();
        assert_eq!(e.source.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    }
    let file = v.open("a", D).await.unwrap();
    v.delay(Op::Sync, "a", Duration::from_millis(20));
    assert!(tokio::time::timeout(Duration::from_millis(1), file.sync()).await.is_err());
    v.heal();
    file.sync().await.unwrap();
}

#[tokio::test]
async fn a_full_volume_writes_what_fits_then_says_so() {
    let v = MemVolume::new();
    let file = settled(&v, "a", "").await;
    v.set_capacity(5);
    assert_eq!(file.write_at(0, of("12345678")).await.unwrap(), 5);
    let e = file.write_at(5, of("678")).await.unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.write_at(0, of("abcde")).await.unwrap(), 5, "overwriting needs no space");
    v.unlink("a").await.unwrap();
    v.sync_dir("", D).await.unwrap();
    drop(file);
    assert_eq!(v.space().await.unwrap(), Space { total: 5, free: 5 });
}

#[tokio::test]
async fn short_writes_are_short_and_the_rest_follows() {
    let v = MemVolume::new();
    let file = settled(&v, "a", "").await;
    v.short_writes("a", 2, 2);
    let bufs = vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")];
    write_all_at(&*file, 0, bufs).await.unwrap();
    assert_eq!(contents(&v, "a").await.unwrap(), "abcdefg");
    assert_eq!(v.counts_of("a").writes, 3);
}

#[tokio::test]
async fn counts_tell_files_apart() {
    let v = MemVolume::new();
    let file = settled(&v, "x.log", "12345").await;
    file.read_at(1, 100).await.unwrap();
    settled(&v, "y.json", "1").await;
    let log = v.counts_of(".log");
    assert_eq!((log.opens, log.reads, log.bytes_read), (1, 1, 4));
    assert_eq!((log.writes, log.bytes_written, log.syncs), (1, 5, 1));
    assert_eq!(v.counts().dir_syncs, 2);
    v.reset_counts();
    assert_eq!(v.counts(), Counts::default());
}
