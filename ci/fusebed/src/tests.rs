//! The whole bed, mounted, where a mount is allowed; elsewhere the tests say so and end.

use super::*;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

struct Two {
    a: Mounted,
    b: Mounted,
    _dir: tempfile::TempDir,
}

/// Two mounts of one directory, as two hosts have.
fn two() -> Option<Two> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (backing, a, b) = (path("backing"), path("a"), path("b"));
    let mount = |at: &Path| {
        let mounted = Mounted::new(&backing, at).unwrap();
        if mounted.is_none() {
            eprintln!("NOT TESTED: no FUSE mount is possible here");
        }
        mounted
    };
    Some(Two { a: mount(&a)?, b: mount(&b)?, _dir: dir })
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().expect("it must fail").kind()
}

#[test]
fn mounts_of_one_directory_see_each_others_changes_at_once() {
    let Some(two) = two() else { return };
    let (a, b) = (&two.a.at, &two.b.at);
    fs::create_dir(a.join("d")).unwrap();
    let mine = OpenOptions::new().read(true).write(true).create_new(true).open(a.join("d/f")).unwrap();
    let again = OpenOptions::new().write(true).create_new(true).open(b.join("d/f"));
    assert_eq!(kind(again), ErrorKind::AlreadyExists, "an exclusive create has one winner");

    let theirs = File::open(b.join("d/f")).unwrap();
    mine.write_all_at(b"one two three", 0).unwrap();
    let mut seen = [0; 5];
    theirs.read_exact_at(&mut seen, 8).unwrap();
    assert_eq!(&seen, b"three");
    mine.write_all_at(b"THREE", 8).unwrap();
    theirs.read_exact_at(&mut seen, 8).unwrap();
    assert_eq!(&seen, b"THREE", "read again, not from a cache");
    mine.set_len(3).unwrap();
    assert_eq!(fs::read(b.join("d/f")).unwrap(), b"one");
    assert_eq!(theirs.metadata().unwrap().len(), 3);
    mine.sync_all().unwrap();
    mine.sync_data().unwrap();
    File::open(a.join("d")).unwrap().sync_all().unwrap();
}

#[test]
fn a_directory_that_is_missing_is_an_error_and_not_the_machines_lack() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no such");
    assert!(Mounted::new(dir.path(), &missing).is_err());
    assert!(Mounted::new(&missing, dir.path()).is_err());
}

#[test]
fn names_change_as_on_any_file_system() {
    let Some(two) = two() else { return };
    let (a, b) = (&two.a.at, &two.b.at);
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("d/f"), "x").unwrap();
    fs::hard_link(a.join("d/f"), a.join("d/g")).unwrap();
    assert_eq!(names(&b.join("d")), ["f", "g"]);
    assert_eq!(fs::metadata(b.join("d/f")).unwrap().ino(), fs::metadata(a.join("d/g")).unwrap().ino());

    let held = File::open(b.join("d/f")).unwrap();
    fs::rename(a.join("d"), a.join("e")).unwrap();
    assert_eq!(kind(fs::metadata(b.join("d"))), ErrorKind::NotFound);
    assert_eq!(names(b), ["e"]);
    fs::write(b.join("e/f"), "replaced by another mount").unwrap();
    assert_eq!(held.metadata().unwrap().len(), 25, "the same file, by another name");
    fs::remove_file(b.join("e/f")).unwrap();
    assert_eq!(kind(File::open(a.join("e/f"))), ErrorKind::NotFound);
    assert_eq!(kind(fs::remove_dir(a.join("e"))), ErrorKind::DirectoryNotEmpty);
    fs::remove_file(a.join("e/g")).unwrap();
    fs::remove_dir(a.join("e")).unwrap();
    assert!(names(b).is_empty());
    let mut first = [0];
    held.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"r", "an unlinked file lives as long as it is held");
}

#[test]
fn a_long_directory_is_listed_whole() {
    let Some(two) = two() else { return };
    for i in 0..3000 {
        File::create(two.a.at.join(format!("a-name-of-some-length-{i:04}"))).unwrap();
    }
    assert_eq!(names(&two.b.at).len(), 3000);
}

#[test]
fn a_failed_sync_fails_on_its_mount_only_and_only_where_the_rule_says() {
    let Some(two) = two() else { return };
    let open = |m: &Mounted, name: &str| File::create(m.at.join(name)).unwrap();
    assert_eq!(obey(&two.a.faults, "fail sync .log 1"), "ok");
    open(&two.b, "0.log").sync_data().unwrap();
    open(&two.a, "manifest").sync_data().unwrap();
    let hit = open(&two.a, "0.log");
    assert_eq!(hit.sync_data().unwrap_err().raw_os_error(), Some(5));
    hit.sync_data().unwrap();
    assert_eq!(obey(&two.a.faults, "clear"), "ok 1 0");
    assert!(obey(&two.a.faults, "fail sink .log").starts_with("no: "));
}

#[test]
fn a_stalled_sync_holds_up_no_other_file_and_ends_when_it_is_let_go() {
    let Some(two) = two() else { return };
    let (stuck, other) = (two.a.at.join("0.log"), two.a.at.join("1.log"));
    obey(&two.a.faults, "stall sync 0.log");
    let started = Instant::now();
    let waiting = std::thread::spawn(move || File::create(stuck).unwrap().sync_data());
    File::create(other).unwrap().sync_data().unwrap();
    while started.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!waiting.is_finished());
    assert_eq!(obey(&two.a.faults, "clear"), "ok 1 1");
    waiting.join().unwrap().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));
}
