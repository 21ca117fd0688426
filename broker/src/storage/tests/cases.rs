//! Cases from the field that one partition can show.

use super::bed::*;
use crate::config::TopicConfig;
use crate::storage::batch::testing;
use crate::storage::names::{FileName, SegmentName};
use crate::storage::*;
use crate::types::{Epoch, Offset};
use crate::volume::{Class, Volume, VolumeFile};
use bytes::Bytes;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

/// The segments in the directory, by base and epoch, with their lengths.
async fn segments(bed: &Bed) -> Vec<(SegmentName, u64)> {
    let mut out = Vec::new();
    for e in bed.volume.read_dir(DIR, Class::Data).await.unwrap() {
        if let Some(FileName::Log(s)) = FileName::parse(&e.name) {
            out.push((s, file(bed, &s.log()).await.len().await.unwrap()));
        }
    }
    out.sort();
    out
}

async fn file(bed: &Bed, name: &str) -> Arc<dyn VolumeFile> {
    bed.volume.open_write(&format!("{DIR}/{name}"), Class::Data).await.unwrap()
}

async fn flip(bed: &Bed, name: &str, at: u64) {
    let f = file(bed, name).await;
    let b = f.read_at(at, 1).await.unwrap();
    f.write_at(at, vec![Bytes::from(vec![b[0] ^ 0x40])]).await.unwrap();
    f.sync().await.unwrap();
}

#[tokio::test]
async fn case_05_a_torn_last_batch_is_cut_at_every_byte() {
    let sample = testing::plain(1, b"torn");
    for cut in 1..sample.len() as u64 {
        let bed = Bed::new();
        for i in 0..3 {
            bed.put(&format!("{i}")).await;
        }
        bed.put("torn").await;
        let (s, len) = segments(&bed).await[0];
        let bed = bed.kill();
        file(&bed, &s.log()).await.truncate(len - cut).await.unwrap();
        assert_eq!(bed.marks().await, (0, 3), "cut by {cut}");
        assert_eq!(bed.put("next").await, 3);
        let bodies: Vec<String> = bed.bodies(0).await.into_iter().map(|b| b.1).collect();
        assert_eq!(bodies, ["0", "1", "2", "next"]);
        let bed = bed.kill();
        assert_eq!(bed.bodies(0).await.len(), 4, "and after another restart");
    }
}

#[tokio::test]
async fn case_06_a_flipped_byte_in_the_middle_is_answered_as_such_and_what_follows_is_served() {
    let size = testing::plain(1, b"0").len() as u64;
    for byte in 0..size {
        let bed = Bed::new();
        for i in 0..6 {
            bed.put(&format!("{i}")).await;
        }
        bed.engine.shutdown().await;
        let bed = bed.kill();
        let (s, _) = segments(&bed).await[0];
        flip(&bed, &s.log(), 2 * size + byte).await;
        let before = batches(&bed.fetch(0, 10_000).await.unwrap().records);
        if (12..16).contains(&byte) {
            // The leader epoch is not covered by the checksum.
            assert_eq!(before.len(), 6);
            continue;
        }
        assert!(before.len() <= 2, "byte {byte}: nothing damaged is served");
        for _ in 0..3 {
            let r = bed.fetch(2, 10_000).await;
            assert!(matches!(r, Err(ReadError::Corrupt(_))), "byte {byte}: {r:?}");
        }
        for at in 3..6 {
            let got = batches(&bed.fetch(at, 10_000).await.unwrap().records);
            assert_eq!(got[0].0.base_offset, at, "byte {byte}");
        }
        assert_eq!(bed.marks().await, (0, 6));
    }
}

#[tokio::test]
async fn damage_further_back_than_a_group_is_kept_and_served_around_at_recovery() {
    let bed = Bed::new();
    for i in 0..40 {
        bed.put(&format!("{i:02}")).await;
    }
    let size = testing::plain(1, b"00").len() as u64;
    let (s, _) = segments(&bed).await[0];
    let bed = bed.kill();
    flip(&bed, &s.log(), 5 * size + 62).await;
    assert_eq!(bed.marks().await, (0, 40), "acknowledged records behind the damage stay");
    assert!(matches!(bed.fetch(5, 1000).await, Err(ReadError::Corrupt(_))));
    assert_eq!(bed.bodies(6).await.len(), 34);
    assert_eq!(bed.put("more").await, 40);
    let bed = bed.kill();
    assert!(matches!(bed.fetch(5, 1000).await, Err(ReadError::Corrupt(_))));
    assert_eq!(bed.bodies(6).await.len(), 35);
}

/// Its length, too: a batch that claims to be larger than all the rest must not take the rest with it.
#[tokio::test]
async fn whatever_byte_is_damaged_further_back_than_a_group_the_rest_is_kept_at_recovery() {
    let size = testing::plain(1, b"00").len() as u64;
    for byte in (0..size).filter(|b| !(12..16).contains(b)) {
        let bed = Bed::new();
        for i in 0..40 {
            bed.put(&format!("{i:02}")).await;
        }
        let (s, _) = segments(&bed).await[0];
        let bed = bed.kill();
        flip(&bed, &s.log(), 5 * size + byte).await;
        assert_eq!(bed.marks().await, (0, 40), "byte {byte}");
        assert!(matches!(bed.fetch(5, 1000).await, Err(ReadError::Corrupt(_))), "byte {byte}");
        assert_eq!(bed.bodies(6).await.len(), 34, "byte {byte}");
    }
}

#[tokio::test]
async fn case_08_index_files_that_are_missing_or_wrong_change_nothing() {
    let bed = Bed::with(
        crate::volume::MemVolume::new(),
        small(),
        TopicConfig { segment_bytes: 1000, ..small_topic() },
    );
    for i in 0..100 {
        bed.put(&format!("{i}")).await;
    }
    bed.engine.shutdown().await;
    let mut bed = bed.kill();
    for damage in 0..5 {
        let names: Vec<String> =
            bed.volume.read_dir(DIR, Class::Data).await.unwrap().into_iter().map(|e| e.name).collect();
        for name in names.iter().filter(|n| n.ends_with(".index")) {
            let f = file(&bed, name).await;
            let len = f.len().await.unwrap();
            match damage {
                0 => bed.volume.unlink(&format!("{DIR}/{name}")).await.unwrap(),
                1 => f.truncate(7).await.unwrap(),
                2 => drop(f.write_at(0, vec![Bytes::from(vec![0; len as usize])]).await.unwrap()),
                3 => f.truncate(0).await.unwrap(),
                _ => drop(f.write_at(len, vec![Bytes::from(vec![0xff; 8])]).await.unwrap()),
            }
        }
        let all = bed.bodies(0).await;
        assert_eq!(all.len(), 100, "damage {damage}");
        for at in [0, 1, 49, 50, 98, 99] {
            let got = batches(&bed.fetch(at, 1).await.unwrap().records);
            assert_eq!((got.len(), got[0].0.base_offset), (1, at));
        }
        bed.engine.shutdown().await;
        bed = bed.kill();
    }
}

#[tokio::test]
async fn case_10_stray_files_and_an_empty_twin_of_an_older_epoch_are_ignored() {
    let bed = Bed::new();
    for i in 0..3 {
        bed.put(&format!("{i}")).await;
    }
    let e = Epoch(bed.epoch().await);
    let bed = bed.kill();
    // Epoch 1 had just rolled to offset 3 when it died; epoch 2 begins there as well.
    for name in [&*SegmentName { base: Offset(3), epoch: e }.log(), ".nfs000001", "x.tmp", "lost+found"] {
        bed.volume.create_new(&format!("{DIR}/{name}"), Class::Data).await.unwrap();
    }
    assert_eq!(bed.put("3").await, 3);
    let bed = bed.kill();
    assert_eq!(bed.bodies(0).await.iter().map(|b| b.1.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let twins = segments(&bed).await.into_iter().filter(|(s, _)| s.base == Offset(3)).count();
    assert_eq!(twins, 1, "the empty twin is gone, another epoch's segment has the offset");
}

#[tokio::test]
async fn a_segment_that_a_deposed_leader_still_writes_to_does_not_exist_past_its_seal() {
    let bed = Bed::new();
    for i in 0..30 {
        bed.put(&format!("{i}")).await;
    }
    let (s, len) = segments(&bed).await[0];
    let bed = bed.kill();
    assert_eq!(bed.put("new leader").await, 30);
    // Late write-back: batches of the old epoch, behind its end and over the part past its seal.
    let ghost = batch::stamp(&testing::plain(1, b"ghost"), Offset(30), s.epoch, None).concat();
    let f = file(&bed, &s.log()).await;
    f.write_at(len, vec![Bytes::from(ghost.clone())]).await.unwrap();
    f.write_at(len - 100, vec![Bytes::from(ghost)]).await.unwrap();
    let want: Vec<String> = (0..30).map(|i| i.to_string()).chain(["new leader".to_string()]).collect();
    let bodies = |all: Vec<(i64, String)>| all.into_iter().map(|b| b.1).collect::<Vec<_>>();
    assert_eq!(bodies(bed.bodies(0).await), want);
    let bed = bed.kill();
    assert_eq!(bodies(bed.bodies(0).await), want);
}

#[tokio::test]
async fn case_31_and_33_fetch_returns_the_batch_that_holds_the_offset_and_the_first_one_whole() {
    let bed = Bed::new();
    for body in ["two records: a, b", "two records: c, d"] {
        bed.append(testing::plain(2, body.as_bytes())).await.unwrap();
    }
    for (at, base) in [(0, 0), (1, 0), (2, 2), (3, 2)] {
        let got = batches(&bed.fetch(at, 10_000).await.unwrap().records);
        assert_eq!(got[0].0.base_offset, base);
    }
    bed.append(testing::plain(1, &[7; 10_000])).await.unwrap();
    let got = batches(&bed.fetch(4, 1).await.unwrap().records);
    assert_eq!((got.len(), got[0].0.size), (1, 10_061));
    let bound = Bound::HighWatermark;
    let strict = ReadRequest { from: Offset(4), max_bytes: 1, at_least_one: false, bound };
    assert!(bed.partition.read(strict).await.unwrap().records.is_empty());
}

#[tokio::test]
async fn case_34_fetch_at_the_boundaries() {
    let bed = Bed::new();
    for i in 0..4 {
        bed.put(&format!("{i}")).await;
    }
    assert!(bed.fetch(4, 100).await.unwrap().records.is_empty());
    assert!(matches!(bed.fetch(5, 100).await, Err(ReadError::OutOfRange(_))));
    bed.partition.delete_records(Some(Offset(2))).await.unwrap();
    assert!(matches!(bed.fetch(1, 100).await, Err(ReadError::OutOfRange(_))));
    assert_eq!(bed.bodies(2).await.len(), 2);
}

#[tokio::test]
async fn case_37_a_fetch_of_the_last_batch_reads_little() {
    let topic =
        TopicConfig { segment_bytes: 100 << 20, index_interval_bytes: 4096, ..TopicConfig::default() };
    let config = crate::config::StorageConfig { group_bytes: 1 << 20, checkpoint_bytes: 64 << 20, ..small() };
    let bed = Bed::with(crate::volume::MemVolume::new(), config, topic);
    let body = vec![1u8; 10_000];
    let mut last = 0;
    for _ in 0..2000 {
        last = bed.append(testing::plain(1, &body)).await.unwrap().base_offset.0;
    }
    bed.volume.reset_counts();
    assert_eq!(batches(&bed.fetch(last, 1 << 20).await.unwrap().records).len(), 1);
    assert!(bed.volume.counts_of(".log").bytes_read < 32 << 10);
}

#[tokio::test]
async fn case_40_delete_records_edges() {
    let bed = Bed::new();
    for i in 0..10 {
        bed.put(&format!("{i}")).await;
    }
    let p = &bed.partition;
    assert_eq!(p.delete_records(Some(Offset(4))).await.unwrap(), Offset(4));
    assert_eq!(p.delete_records(Some(Offset(2))).await.unwrap(), Offset(4), "below the start: the start");
    assert!(matches!(p.delete_records(Some(Offset(11))).await, Err(DeleteRecordsError::OutOfRange(_))));
    for round in 0..2 {
        assert_eq!(p.delete_records(None).await.unwrap(), Offset(10), "full purge {round}");
        assert_eq!(bed.marks().await, (10, 10));
        assert_eq!(segments(&bed).await, [], "the disk is free again");
    }
    assert_eq!(bed.put("still writable").await, 10);
    let bed = bed.power_cut(1);
    assert_eq!(bed.marks().await, (10, 11));
}

#[tokio::test]
async fn case_20_a_crash_in_the_middle_of_a_purge_leaves_no_phantom_range() {
    for seed in 0..30 {
        let bed = Bed::with(
            crate::volume::MemVolume::new(),
            small(),
            TopicConfig { segment_bytes: 400, ..small_topic() },
        );
        for i in 0..30 {
            bed.put(&format!("{i}")).await;
        }
        let purge = bed.partition.delete_records(None);
        tokio::pin!(purge);
        // Some steps of the purge happen, then the power goes.
        for _ in 0..seed {
            if futures::poll!(&mut purge).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let shown = bed.marks().await.0;
        bed.lease.0.store(0, SeqCst);
        bed.volume.power_cut(&crate::rt::SeededEntropy::new(seed));
        let b = Bed::with(bed.volume.another_process(), bed.config.clone(), bed.topic.clone());
        let (start, end) = b.marks().await;
        assert!(start >= shown, "the log start went back");
        assert_eq!(b.bodies(start).await.len() as i64, end - start, "every offset in the range is there");
        assert_eq!(end, 30);
    }
}

#[tokio::test]
async fn case_42_a_quiet_topic_s_only_segment_rolls_and_goes() {
    let bed = Bed::new();
    for _ in 0..3 {
        bed.put("old").await;
    }
    bed.engine.sweep().await;
    assert_eq!(bed.marks().await, (0, 3));
    bed.clock.wall.fetch_add(8 * 24 * 3600 * 1000, SeqCst);
    bed.engine.sweep().await;
    assert_eq!(bed.marks().await, (3, 3));
    assert_eq!(segments(&bed).await, []);
    let bed = bed.kill();
    assert_eq!(bed.marks().await, (3, 3));
    bed.put("new").await;
}

#[tokio::test]
async fn retention_by_size_and_time_deletes_whole_old_segments_only() {
    let topic = TopicConfig { segment_bytes: 500, retention_bytes: Some(1200), ..small_topic() };
    let bed = Bed::with(crate::volume::MemVolume::new(), small(), topic);
    for i in 0..60 {
        bed.put(&format!("{i}")).await;
    }
    bed.engine.sweep().await;
    let left: u64 = segments(&bed).await.iter().map(|s| s.1).sum();
    assert!((1200..1700).contains(&left), "{left}");
    let (start, end) = bed.marks().await;
    assert_eq!((bed.bodies(start).await.len() as i64, end), (end - start, 60));
    let bed = bed.kill();
    assert_eq!(bed.marks().await, (start, 60));
}

#[tokio::test]
async fn timestamps_are_found_across_segments_and_restarts() {
    let bed = Bed::with(
        crate::volume::MemVolume::new(),
        small(),
        TopicConfig { segment_bytes: 300, ..small_topic() },
    );
    for i in 0..20 {
        bed.append(testing::raw(1, b"", 1000 + i * 10, (-1, -1, -1))).await.unwrap();
    }
    let mut bed = bed;
    for _ in 0..2 {
        for (ask, want) in [(0, Some(0)), (1000, Some(0)), (1001, Some(1)), (1190, Some(19)), (1191, None)] {
            let hit = bed.partition.find_timestamp(ask).await.unwrap();
            assert_eq!(hit.map(|h| h.offset.0), want, "{ask}");
        }
        assert_eq!(bed.partition.max_timestamp().await.unwrap().map(|h| h.offset.0), Some(19));
        bed = bed.kill();
    }
}

#[tokio::test]
async fn epochs_end_where_their_successors_began() {
    let mut bed = Bed::new();
    for _ in 0..3 {
        bed.put("x").await;
        bed.put("y").await;
        bed = bed.kill();
    }
    bed.put("z").await;
    let p = &bed.partition;
    for (e, end) in [(1, 2), (2, 4), (3, 6), (4, 7)] {
        assert_eq!(p.epoch_end(Epoch(e)).await.unwrap(), Some((Epoch(e), Offset(end))));
    }
    assert_eq!(p.epoch_end(Epoch(9)).await.unwrap(), None);
}

#[tokio::test]
async fn a_segment_that_is_missing_is_never_passed_over() {
    let bed = Bed::with(
        crate::volume::MemVolume::new(),
        small(),
        TopicConfig { segment_bytes: 300, ..small_topic() },
    );
    for i in 0..30 {
        bed.put(&format!("{i}")).await;
    }
    let all = segments(&bed).await;
    let bed = bed.kill();
    for lost in [0, 1, all.len() / 2] {
        let name = format!("{DIR}/{}", all[lost].0.log());
        bed.volume.rename(&name, "elsewhere.log", Class::Data).await.unwrap();
        bed.lease.0.store(1, SeqCst);
        let opened = tokio::time::timeout(std::time::Duration::from_millis(300), bed.partition.marks()).await;
        assert!(!matches!(opened, Ok(Ok(_))), "segment {lost}: {opened:?}");
        bed.volume.rename("elsewhere.log", &name, Class::Data).await.unwrap();
        bed.engine.drop_all();
    }
    assert_eq!(bed.marks().await, (0, 30), "it opens once everything is there again");
}

#[tokio::test]
async fn a_batch_that_does_not_fit_ends_the_answer_and_is_not_skipped() {
    let bed = Bed::with(
        crate::volume::MemVolume::new(),
        small(),
        TopicConfig { segment_bytes: 800, ..small_topic() },
    );
    bed.append(testing::plain(1, &[1; 600])).await.unwrap();
    for i in 0..10 {
        bed.put(&format!("{i}")).await;
    }
    let bound = Bound::HighWatermark;
    let request = ReadRequest { from: Offset(0), max_bytes: 300, at_least_one: false, bound };
    assert!(bed.partition.read(request).await.unwrap().records.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_directory_whose_name_was_not_synced_at_first_is_synced_before_it_is_used() {
    use crate::volume::Op;
    for fails in 1..6 {
        let bed = Bed::new();
        bed.volume.fail(Op::SyncDir, "", rustix::io::Errno::IO, fails);
        let mut acked = false;
        for _ in 0..100 {
            acked |= bed.append(testing::plain(1, b"kept")).await.is_ok();
            if acked {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        assert!(acked);
        let bed = bed.power_cut(fails);
        assert!(bed.bodies(0).await.iter().any(|b| b.1 == "kept"), "{fails}");
    }
}
