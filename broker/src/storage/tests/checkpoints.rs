//! Stories about recovery checkpoints that do not speak of the log that is there.

use super::bed::{small, small_topic, Bed, DIR};
use crate::config::TopicConfig;
use crate::storage::docs::{self, Checkpoint};
use crate::storage::names;
use crate::types::{Epoch, Offset, Pos};
use crate::volume::{Class, MemVolume, Volume};

async fn checkpoint(v: &MemVolume, epoch: Epoch) -> Checkpoint {
    docs::read(v, &format!("{DIR}/{}", names::checkpoint(epoch))).await.unwrap()
}

async fn put_back(v: &MemVolume, c: &Checkpoint) {
    docs::replace(v, DIR, &names::checkpoint(c.epoch), 77, docs::encode(c)).await.unwrap();
    v.sync_dir(DIR, Class::Data).await.unwrap();
}

/// A log of several segments whose checkpoint is changed while no broker runs.
async fn reopened(change: impl FnOnce(&mut Checkpoint)) -> Bed {
    let topic = TopicConfig { segment_bytes: 500, retention_bytes: Some(1200), ..small_topic() };
    let bed = Bed::with(MemVolume::new(), small(), topic);
    for i in 0..60 {
        bed.put(&format!("{i}")).await;
    }
    bed.engine.sweep().await;
    let epoch = Epoch(bed.epoch().await);
    let (start, _) = bed.marks().await;
    assert!(start > 10, "retention gave up the first segments: {start}");
    let volume = bed.volume.clone();
    let bed = bed.kill();
    let mut c = checkpoint(&volume, epoch).await;
    change(&mut c);
    put_back(&volume, &c).await;
    assert_eq!(bed.marks().await, (start, 60));
    assert_eq!(bed.bodies(start).await.len() as i64, 60 - start);
    bed
}

#[tokio::test]
async fn a_checkpoint_ahead_in_a_segment_that_retention_removed_is_not_believed() {
    reopened(|c| {
        c.segment = Offset(0);
        (c.pos, c.offset) = (Pos(c.pos.0 + 1_000_000), Offset(c.offset.0 + 1_000_000));
    })
    .await;
}

#[tokio::test]
async fn a_checkpoint_of_a_segment_that_never_was_is_not_believed() {
    let bed = reopened(|c| (c.segment, c.offset) = (Offset(59), Offset(60))).await;
    assert_eq!(bed.put("goes on").await, 60);
}
