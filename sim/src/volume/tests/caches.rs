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

#[madsim::test]
async fn a_listing_and_a_missing_name_are_believed_until_an_own_create() {
    let m = Model::new(nfs(), 1);
    let (a, b) = (m.process(1), m.process(2));
    a.mkdir("d", D).await.unwrap();
    assert!(names(&b, "d").await.is_empty());
    assert!(b.open("d/f", D).await.err().unwrap().is_not_found());
    settled(&a, "d/f", "x").await;
    assert!(names(&b, "d").await.is_empty(), "a stale listing");
    assert!(b.open("d/f", D).await.err().unwrap().is_not_found(), "a stale missing name");
    b.create_new("d/mine", D).await.unwrap();
    assert_eq!(names(&b, "d").await, ["f", "mine"]);
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
