//! What hosts believe, and for how long.

use super::*;

#[madsim::test]
async fn who_opens_after_a_sync_sees_all_of_it() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let file = settled(&a, "f", "one").await;
    assert_eq!(read(&b, "f").await.unwrap(), "one");
    file.write_sync(0, of("two, longer")).await.unwrap();
    assert_eq!(read(&b, "f").await.unwrap(), "two, longer");
}

#[madsim::test]
async fn an_open_handle_believes_its_attributes_and_pages_for_a_while() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let file = settled(&a, "f", "one").await;
    let kept = b.open("f", D).await.unwrap();
    assert_eq!(kept.read_at(0, 99).await.unwrap(), "one");
    file.write_sync(0, of("two, longer")).await.unwrap();
    assert_eq!((kept.len().await.unwrap(), kept.read_at(0, 99).await.unwrap()), (3, "one".into()));
    pass(3_001).await;
    assert_eq!((kept.len().await.unwrap(), kept.read_at(0, 99).await.unwrap()), (11, "two, longer".into()));
}

/// A name that one process made and the other's host does not know of: it believes a listing, and that the name is missing.
async fn unknown_to_another(m: &Model) -> Process {
    let (a, b) = (m.process(1), m.process(2));
    a.mkdir("d", D).await.unwrap();
    assert!(names(&b, "d").await.is_empty());
    assert!(b.open("d/f", D).await.err().unwrap().is_not_found());
    settled(&a, "d/f", "x").await;
    b
}

#[madsim::test]
async fn a_listing_and_a_missing_name_are_believed_until_an_own_create() {
    let m = Model::new(nfs(), 1);
    let b = unknown_to_another(&m).await;
    assert!(names(&b, "d").await.is_empty(), "a stale listing");
    assert!(b.open("d/f", D).await.err().unwrap().is_not_found(), "a stale missing name");
    b.create_new("d/mine", D).await.unwrap();
    assert_eq!(names(&b, "d").await, ["f", "mine"]);
    assert!(b.open("d/f", D).await.is_ok());
}

/// It changed nothing, and the answer is about that one name.
#[madsim::test]
async fn a_create_that_was_lost_shows_one_name_and_leaves_the_listing() {
    let m = Model::new(nfs(), 1);
    let b = unknown_to_another(&m).await;
    assert!(b.create_new("d/f", D).await.err().unwrap().is_already_exists());
    assert!(names(&b, "d").await.is_empty(), "as it was believed before");
    assert!(b.open("d/f", D).await.is_ok());
}

#[madsim::test]
async fn believed_names_expire() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    assert!(names(&b, "").await.is_empty());
    settled(&a, "f", "x").await;
    pass(60_001).await;
    assert_eq!(names(&b, "").await, ["f"]);
}

#[madsim::test]
async fn a_sync_makes_only_its_own_hosts_bytes_durable() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let file = settled(&a, "f", "old").await;
    file.write_at(0, of("new")).await.unwrap();
    b.open_write("f", D).await.unwrap().sync().await.unwrap();
    assert_eq!(m.media().bytes("f").unwrap(), "old");
}

#[madsim::test]
async fn a_file_that_is_open_here_is_renamed_until_it_is_closed() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    a.mkdir("d", D).await.unwrap();
    let file = settled(&a, "d/f", "still here").await;
    a.unlink("d/f").await.unwrap();
    assert_eq!(file.read_at(0, 99).await.unwrap(), "still here");
    let left = names(&b, "d").await;
    assert!(left.len() == 1 && left[0].starts_with(".nfs"), "{left:?}");
    assert!(a.rmdir("d").await.is_err());
    drop(file);
    pass(50).await;
    a.rmdir("d").await.unwrap();
}

#[madsim::test]
async fn a_file_that_another_host_removed_is_stale() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let file = settled(&a, "f", "x").await;
    b.unlink("f").await.unwrap();
    pass(3_001).await;
    assert_eq!(errno(file.read_at(0, 9).await), ESTALE);
    file.write_at(0, of("y")).await.unwrap();
    assert_eq!(errno(file.sync().await), ESTALE);
}

#[madsim::test]
async fn a_coherent_volume_shows_unsynced_bytes_to_all() {
    let m = Model::new(coherent(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let kept = settled(&a, "f", "one").await;
    let other = b.open("f", D).await.unwrap();
    assert_eq!(other.read_at(0, 99).await.unwrap(), "one");
    kept.write_at(3, of(" more")).await.unwrap();
    assert_eq!(other.read_at(0, 99).await.unwrap(), "one more");
    a.create_new("g", D).await.unwrap();
    assert_eq!(names(&b, "").await, ["f", "g"]);
}

#[madsim::test]
async fn a_believed_name_leads_to_the_file_that_has_another_name_by_now() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    settled(&a, "f", "first").await;
    assert_eq!(read(&b, "f").await.unwrap(), "first");
    a.rename("f", "aside", D).await.unwrap();
    settled(&a, "f", "second").await;
    assert_eq!(read(&b, "f").await.unwrap(), "first");
    pass(60_001).await;
    assert_eq!(read(&b, "f").await.unwrap(), "second");
}

#[madsim::test]
async fn a_believed_name_of_a_removed_file_is_looked_up_again() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    settled(&a, "f", "first").await;
    assert!(read(&b, "f").await.is_some());
    settled(&a, "f.tmp", "second").await;
    a.rename("f.tmp", "f", D).await.unwrap();
    assert_eq!(read(&b, "f").await.unwrap(), "second");
    a.unlink("f").await.unwrap();
    assert!(b.open("f", D).await.err().unwrap().is_not_found());
}

#[madsim::test]
async fn a_file_that_is_open_here_survives_being_replaced() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let old = settled(&a, "f", "old").await;
    settled(&a, "f.tmp", "new").await;
    a.rename("f.tmp", "f", D).await.unwrap();
    assert_eq!(read(&a, "f").await.unwrap(), "new");
    pass(3_001).await;
    assert_eq!(old.read_at(0, 9).await.unwrap(), "old");
    assert_eq!(names(&a, "").await.len(), 2);
    // Its host loses power: nobody takes the silly name away any more.
    m.power_cut(1);
    pass(1_000).await;
    assert_eq!(names(&m.process(2), "").await.len(), 2);
}

#[madsim::test]
async fn a_killed_process_closes_so_that_silly_names_go() {
    let m = Model::new(nfs(), 1);
    let a = m.process(1);
    let _file = settled(&a, "f", "x").await;
    a.unlink("f").await.unwrap();
    a.kill();
    pass(50).await;
    assert!(m.shown().files.is_empty());
}

#[madsim::test]
async fn a_close_sends_what_is_dirty_and_a_death_does_not() {
    let m = Model::new(nfs(), 1);
    m.inject(Fault::HoldWriteback { scope: Scope::All });
    let a = m.process(1);
    let closed = settled(&a, "closed", "old").await;
    closed.write_at(0, of("new")).await.unwrap();
    drop(closed);
    pass(50).await;
    assert_eq!(m.media().bytes("closed").unwrap(), "new");
    let dead = settled(&a, "dead", "old").await;
    dead.write_at(0, of("new")).await.unwrap();
    drop(dead);
    a.kill();
    pass(50).await;
    assert_eq!(m.media().bytes("dead").unwrap(), "old");
}

#[madsim::test]
async fn two_hosts_that_write_into_one_page_spoil_nothing_of_each_other() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    let ours = settled(&a, "f", "........").await;
    let theirs = b.open_write("f", D).await.unwrap();
    ours.write_at(0, of("aaaa")).await.unwrap();
    theirs.write_at(4, of("bbbb")).await.unwrap();
    ours.sync().await.unwrap();
    theirs.sync().await.unwrap();
    assert_eq!(m.media().bytes("f").unwrap(), "aaaabbbb");
    assert_eq!(read(&a, "f").await.unwrap(), "aaaabbbb");
    assert_eq!(read(&b, "f").await.unwrap(), "aaaabbbb");
}

#[madsim::test]
async fn a_server_may_keep_a_removed_file_for_those_who_have_it_open_until_it_restarts() {
    let m = Model::new(Options { keeps_open_files: true, ..nfs() }, 1);
    let (a, b) = (m.process(1), m.process(2));
    let file = settled(&a, "f", "x").await;
    b.unlink("f").await.unwrap();
    pass(3_001).await;
    assert_eq!(file.read_at(0, 9).await.unwrap(), "x");
    m.restart_server();
    pass(3_001).await;
    assert_eq!(errno(file.read_at(0, 9).await), ESTALE);
}

#[madsim::test]
async fn a_listing_may_be_fresh_while_names_are_not() {
    let m = Model::new(Options { fresh_lists: true, ..nfs() }, 1);
    let (a, b) = (m.process(1), m.process(2));
    assert!(names(&b, "").await.is_empty());
    assert!(b.open("f", D).await.err().unwrap().is_not_found());
    settled(&a, "f", "x").await;
    assert!(b.open("f", D).await.err().unwrap().is_not_found());
    assert_eq!(names(&b, "").await, ["f"]);
    assert!(b.open("f", D).await.is_ok(), "the listing told of it");
}
