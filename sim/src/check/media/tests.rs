use super::super::bed::{manifest as make_manifest, Story, DIR, ID};
use super::*;
use serde_json::json;

/// Six batches of two records; the first four in a segment of epoch 1 that epoch 2 sealed, two in one of epoch 2.
fn two_epochs() -> (Story, BTreeMap<String, Bytes>) {
    let mut story = Story::new();
    for _ in 0..6 {
        story.produce();
    }
    let old = story.bytes[..4].concat();
    let sealed = json!([{"epoch": 1, "base": 0, "end": 8, "end_pos": old.len()}]);
    let mut files = BTreeMap::new();
    files.insert(format!("{DIR}/00000001-manifest.json"), make_manifest(1, 0, 0, json!([])));
    files.insert(format!("{DIR}/00000002-manifest.json"), make_manifest(2, 8, 0, sealed));
    files.insert(format!("{DIR}/00000001-{:020}.log", 0), old.into());
    files.insert(format!("{DIR}/00000002-{:020}.log", 8), story.bytes[4..].concat().into());
    (story, files)
}

fn bases(log: &Log) -> Vec<i64> {
    log.batches.iter().map(|b| b.base).collect()
}

#[test]
fn sealed_segments_and_the_present_ones_make_the_log() {
    let (_, files) = two_epochs();
    let log = partition(&files, "t", ID, 0).expect("a log");
    assert_eq!(bases(&log), [0, 2, 4, 6, 8, 10]);
    assert_eq!((log.epoch, log.end, log.log_start), (2, 12, 0));
    assert_eq!(log.problems, Vec::<String>::new());
}

#[test]
fn what_a_late_writer_flushes_past_a_seal_does_not_exist() {
    let (mut story, mut files) = two_epochs();
    let stale = story.make(crate::client::records::Identity::NONE);
    let path = format!("{DIR}/00000001-{:020}.log", 0);
    let longer = [files[&path].clone(), stale].concat();
    files.insert(path, longer.into());
    files.insert(format!("{DIR}/00000001-{:020}.log", 8), story.bytes[0].clone());
    files.insert(format!("{DIR}/.nfs0001"), story.bytes[0].clone());
    assert_eq!(bases(&partition(&files, "t", ID, 0).expect("a log")), [0, 2, 4, 6, 8, 10]);
}

#[test]
fn a_torn_tail_and_a_broken_batch_end_the_log() {
    let (story, mut files) = two_epochs();
    let path = format!("{DIR}/00000002-{:020}.log", 8);
    let whole = files[&path].clone();
    files.insert(path.clone(), whole.slice(..whole.len() - 1));
    assert_eq!(bases(&partition(&files, "t", ID, 0).expect("a log")), [0, 2, 4, 6, 8]);
    let mut flipped = whole.to_vec();
    flipped[story.bytes[4].len() - 1] ^= 1;
    files.insert(path, flipped.into());
    assert_eq!(bases(&partition(&files, "t", ID, 0).expect("a log")), [0, 2, 4, 6]);
}

#[test]
fn a_sealed_segment_that_is_short_or_missing_is_told() {
    let (_, mut files) = two_epochs();
    let path = format!("{DIR}/00000001-{:020}.log", 0);
    let whole = files[&path].clone();
    files.insert(path.clone(), whole.slice(..whole.len() - 1));
    let log = partition(&files, "t", ID, 0).expect("a log");
    assert_eq!((bases(&log), !log.problems.is_empty()), (vec![0, 2, 4, 8, 10], true));
    files.remove(&path);
    let log = partition(&files, "t", ID, 0).expect("a log");
    assert_eq!((bases(&log), log.problems.len()), (vec![8, 10], 1));
}

#[test]
fn damage_that_the_seal_knows_of_is_read_around() {
    let (story, mut files) = two_epochs();
    let path = format!("{DIR}/00000001-{:020}.log", 0);
    let mut bytes = files[&path].to_vec();
    let (from, to) = (story.bytes[0].len(), story.bytes[..2].concat().len());
    bytes[from + 20] ^= 1;
    let sealed = json!([{"epoch": 1, "base": 0, "end": 8, "end_pos": bytes.len(), "damage": [[from, to]]}]);
    files.insert(path, bytes.into());
    files.insert(format!("{DIR}/00000002-manifest.json"), make_manifest(2, 8, 0, sealed));
    assert_eq!(bases(&partition(&files, "t", ID, 0).expect("a log")), [0, 4, 6, 8, 10]);
}

#[test]
fn an_epoch_without_a_manifest_does_not_exist_and_a_damaged_manifest_is_an_error() {
    let (story, mut files) = two_epochs();
    files.insert(format!("{DIR}/00000003-claim"), Bytes::new());
    files.insert(format!("{DIR}/00000003-{:020}.log", 10), story.bytes[0].clone());
    assert_eq!(bases(&partition(&files, "t", ID, 0).expect("a log")), [0, 2, 4, 6, 8, 10]);
    let path = format!("{DIR}/00000002-manifest.json");
    let mut torn = files[&path].to_vec();
    torn[40] ^= 1;
    files.insert(path, torn.into());
    assert!(partition(&files, "t", ID, 0).is_err());
    assert!(partition(&files, "t", Uuid::nil(), 0).is_err());
}
