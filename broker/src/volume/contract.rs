//! What every volume does alike, run against each of them.

use super::*;

const D: Class = Class::Data;

fn bytes(s: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(s.as_bytes())]
}

/// Each story gets an empty volume.
macro_rules! stories {
    ($($name:ident)*) => {
        mod on_mem {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::MemVolume::new()).await;
            })*
        }
        mod on_two {
            $(#[tokio::test]
            async fn $name() {
                let two = [(); 2].map(|()| std::sync::Arc::new(super::MemVolume::new()));
                let [apart, rest] = two;
                super::$name(&super::SplitVolume::new("apart", apart, rest)).await;
            })*
        }
        // The simulator allows no threads.
        #[cfg(not(madsim))]
        mod on_os {
            $(#[tokio::test]
            async fn $name() {
                let dir = tempfile::tempdir().unwrap();
                super::$name(&super::OsVolume::open(dir.path()).unwrap()).await;
            })*
        }
    };
}

stories! {
    what_is_written_is_read
    buffers_land_one_after_another
    a_read_past_the_end_is_short
    an_exclusive_create_has_one_winner
    rename_replaces_and_open_handles_follow
    directories_come_and_go
    missing_things_are_not_found
    paths_that_lead_outside_are_refused
    a_handle_for_reading_does_not_write
    truncation_leaves_no_old_bytes
    an_unlinked_file_stays_readable
    many_buffers_are_written_in_the_end
    space_is_known
}

async fn what_is_written_is_read(v: &dyn Volume) {
    let file = v.create_new("f", Class::Control).await.unwrap();
    assert_eq!(file.write_at(3, bytes("abc")).await.unwrap(), 3);
    file.sync().await.unwrap();
    file.write_sync(6, bytes("def")).await.unwrap();
    v.sync_dir("", Class::Control).await.unwrap();
    let again = v.open("f", D).await.unwrap();
    assert_eq!(again.read_at(0, 100).await.unwrap(), "\0\0\0abcdef");
    assert_eq!(again.read_at(4, 2).await.unwrap(), "bc");
    assert_eq!(again.len().await.unwrap(), 9);
    let for_writing = v.open_write("f", D).await.unwrap();
    for_writing.write_at(0, bytes("xyz")).await.unwrap();
    assert_eq!(again.read_at(0, 4).await.unwrap(), "xyza");
}

async fn buffers_land_one_after_another(v: &dyn Volume) {
    let file = v.create_new("f", D).await.unwrap();
    let parts = ["", "one", "", "two", "three"];
    let bufs = parts.iter().flat_map(|p| bytes(p)).collect();
    assert_eq!(file.write_at(0, bufs).await.unwrap(), 11);
    assert_eq!(file.read_at(0, 11).await.unwrap(), "onetwothree");
    assert_eq!(file.write_at(20, bytes("")).await.unwrap(), 0);
    assert_eq!(file.write_at(20, vec![]).await.unwrap(), 0);
    file.write_sync(20, vec![]).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 11);
}

async fn a_read_past_the_end_is_short(v: &dyn Volume) {
    let file = v.create_new("f", D).await.unwrap();
    file.write_at(0, bytes("12345")).await.unwrap();
    assert_eq!(file.read_at(3, 1 << 40).await.unwrap(), "45");
    assert_eq!(file.read_at(3, 1 << 20).await.unwrap(), "45");
    assert_eq!(file.read_at(5, 1).await.unwrap(), "");
    assert_eq!(file.read_at(1 << 40, 1 << 40).await.unwrap(), "");
    assert_eq!(file.read_at(0, 0).await.unwrap(), "");
}

async fn an_exclusive_create_has_one_winner(v: &dyn Volume) {
    let tries = (0..8).map(|_| v.create_new("claim", D));
    let done = futures::future::join_all(tries).await;
    assert_eq!(done.iter().filter(|r| r.is_ok()).count(), 1);
    let lost = done.iter().filter_map(|r| r.as_ref().err());
    assert!(lost.map(|e| (e.is_already_exists(), e.path.as_str())).all(|e| e == (true, "claim")));
}

async fn rename_replaces_and_open_handles_follow(v: &dyn Volume) {
    let old = v.create_new("name", D).await.unwrap();
    old.write_at(0, bytes("old")).await.unwrap();
    let new = v.create_new("name.tmp", D).await.unwrap();
    new.write_at(0, bytes("new")).await.unwrap();
    v.rename("name.tmp", "name", D).await.unwrap();
    assert_eq!(v.open("name", D).await.unwrap().read_at(0, 9).await.unwrap(), "new");
    assert_eq!(old.read_at(0, 9).await.unwrap(), "old");
    new.write_at(0, bytes("NEW")).await.unwrap();
    assert_eq!(v.open("name", D).await.unwrap().read_at(0, 9).await.unwrap(), "NEW");
    assert!(v.open("name.tmp", D).await.err().unwrap().is_not_found());
}

async fn directories_come_and_go(v: &dyn Volume) {
    v.mkdir("d", D).await.unwrap();
    assert!(v.mkdir("d", D).await.unwrap_err().is_already_exists());
    v.create_new("d/b", D).await.unwrap();
    v.create_new("d/a", D).await.unwrap();
    v.mkdir("d/c", D).await.unwrap();
    v.sync_dir("d", D).await.unwrap();
    let names = |es: Vec<Entry>| es.into_iter().map(|e| (e.name, e.kind)).collect::<Vec<_>>();
    let (file, dir) = (EntryKind::File, EntryKind::Dir);
    let want = [("a", file), ("b", file), ("c", dir)].map(|(n, k)| (n.to_owned(), k));
    assert_eq!(names(v.read_dir("d", D).await.unwrap()), want);
    assert_eq!(v.rmdir("d").await.unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
    v.rename("d", "e", D).await.unwrap();
    v.unlink("e/a").await.unwrap();
    v.unlink("e/b").await.unwrap();
    v.rmdir("e/c").await.unwrap();
    v.rmdir("e").await.unwrap();
    assert_eq!(v.read_dir("", D).await.unwrap(), []);
}

async fn missing_things_are_not_found(v: &dyn Volume) {
    v.create_new("file", D).await.unwrap();
    let e = v.open("no", D).await.err().unwrap();
    assert_eq!((e.op, e.path.as_str(), e.kind()), ("open", "no", io::ErrorKind::NotFound));
    assert!(v.open_write("no/f", D).await.err().unwrap().is_not_found());
    assert!(v.create_new("no/f", D).await.err().unwrap().is_not_found());
    assert!(v.read_dir("no", D).await.unwrap_err().is_not_found());
    assert!(v.sync_dir("no", D).await.unwrap_err().is_not_found());
    assert!(v.unlink("no").await.unwrap_err().is_not_found());
    assert!(v.rmdir("no").await.unwrap_err().is_not_found());
    assert!(v.rename("no", "yes", D).await.unwrap_err().is_not_found());
    assert_eq!(v.read_dir("file", D).await.unwrap_err().kind(), io::ErrorKind::NotADirectory);
}

async fn paths_that_lead_outside_are_refused(v: &dyn Volume) {
    v.create_new("f", D).await.unwrap();
    for path in ["..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", ".", "./f", "a\0b"] {
        let invalid = |e: VolumeError| assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        invalid(v.open(path, D).await.err().unwrap());
        invalid(v.open_write(path, D).await.err().unwrap());
        invalid(v.create_new(path, D).await.err().unwrap());
        invalid(v.rename(path, "x", D).await.unwrap_err());
        invalid(v.rename("f", path, D).await.unwrap_err());
        invalid(v.unlink(path).await.unwrap_err());
        invalid(v.read_dir(path, D).await.unwrap_err());
        invalid(v.mkdir(path, D).await.unwrap_err());
        invalid(v.rmdir(path).await.unwrap_err());
        invalid(v.sync_dir(path, D).await.unwrap_err());
    }
    assert_eq!(v.unlink("").await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

async fn a_handle_for_reading_does_not_write(v: &dyn Volume) {
    v.create_new("f", D).await.unwrap().write_at(0, bytes("text")).await.unwrap();
    let file = v.open("f", D).await.unwrap();
    assert!(file.write_at(0, bytes("x")).await.is_err());
    assert!(file.write_sync(0, bytes("x")).await.is_err());
    assert!(file.truncate(0).await.is_err());
    assert_eq!(file.read_at(0, 9).await.unwrap(), "text");
    v.mkdir("d", D).await.unwrap();
    assert_eq!(v.open("d", D).await.err().unwrap().kind(), io::ErrorKind::IsADirectory);
    assert_eq!(v.open_write("d", D).await.err().unwrap().kind(), io::ErrorKind::IsADirectory);
}

async fn truncation_leaves_no_old_bytes(v: &dyn Volume) {
    let file = v.create_new("f", D).await.unwrap();
    file.write_sync(0, bytes("0123456789")).await.unwrap();
    file.truncate(4).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 4);
    file.truncate(8).await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(file.read_at(0, 99).await.unwrap(), "0123\0\0\0\0");
}

async fn an_unlinked_file_stays_readable(v: &dyn Volume) {
    let file = v.create_new("f", D).await.unwrap();
    file.write_at(0, bytes("still here")).await.unwrap();
    v.unlink("f").await.unwrap();
    v.create_new("f", D).await.unwrap();
    assert_eq!(file.read_at(0, 99).await.unwrap(), "still here");
    file.sync().await.unwrap();
}

async fn many_buffers_are_written_in_the_end(v: &dyn Volume) {
    let file = v.create_new("f", D).await.unwrap();
    let bufs: Vec<Bytes> = (0..3000u32).map(|i| Bytes::copy_from_slice(&i.to_be_bytes())).collect();
    let want = bufs.concat();
    write_all_at(&*file, 0, bufs.clone()).await.unwrap();
    file.write_sync(want.len() as u64, bufs).await.unwrap();
    assert_eq!(file.read_at(0, 1 << 20).await.unwrap(), [&want[..], &want[..]].concat());
}

async fn space_is_known(v: &dyn Volume) {
    let space = v.space().await.unwrap();
    assert!(space.free > 0 && space.free <= space.total, "{space:?}");
}
