//! `verify` finds what is damaged, says where, and is content with what a crash leaves.

use super::bed::*;
use crate::config::TopicConfig;
use crate::storage::names::FileName;
use crate::storage::{batch::testing, verify};
use crate::types::TopicId;
use crate::volume::{Class, MemVolume, Volume};
use bytes::Bytes;

async fn check(bed: &Bed) -> verify::Report {
    verify::partition(&bed.volume, DIR, (TopicId(uuid::Uuid::from_u128(7)), 0)).await.unwrap()
}

async fn grown() -> Bed {
    let topic = TopicConfig { segment_bytes: 700, ..small_topic() };
    let mut bed = Bed::with(MemVolume::new(), small(), topic);
    for life in 0..3 {
        for i in 0..30 {
            bed.append(testing::raw(1, format!("{i}").as_bytes(), 1000, (5, 0, life * 30 + i)))
                .await
                .unwrap();
        }
        bed = bed.kill();
    }
    bed.marks().await;
    bed
}

#[tokio::test]
async fn a_sound_partition_is_sound_at_every_moment_and_after_every_crash() {
    let mut bed = grown().await;
    for round in 0..6 {
        let r = check(&bed).await;
        assert_eq!(r.findings, [], "round {round}");
        assert_eq!(r.log_end.0, 90 + round);
        bed.append(testing::raw(1, b"more", 1000, (5, 0, 90 + round as i32))).await.unwrap();
        if round == 3 {
            bed.engine.shutdown().await;
        }
        bed = if round % 2 == 0 { bed.kill() } else { bed.power_cut(round as u64) };
        assert_eq!(check(&bed).await.findings, [], "before recovery, round {round}");
        bed.marks().await;
    }
}

#[tokio::test]
async fn every_flipped_byte_of_every_file_that_matters_is_found() {
    let bed = grown().await;
    bed.engine.shutdown().await;
    let entries = bed.volume.read_dir(DIR, Class::Data).await.unwrap();
    let mut files = 0;
    for e in entries {
        // A claim's name is what counts.
        let Some(kind) = FileName::parse(&e.name).filter(|k| !matches!(k, FileName::Claim(_))) else {
            continue;
        };
        files += 1;
        let f = bed.volume.open_write(&format!("{DIR}/{}", e.name), Class::Data).await.unwrap();
        let len = f.len().await.unwrap();
        for at in (0..len).step_by(7) {
            let old = f.read_at(at, 1).await.unwrap();
            f.write_at(at, vec![Bytes::from(vec![old[0] ^ 0x20])]).await.unwrap();
            let r = check(&bed).await;
            f.write_at(at, vec![old]).await.unwrap();
            let of_old_epoch = matches!(kind, FileName::Index(_)) && r.findings.is_empty();
            assert!(!r.findings.is_empty() || of_old_epoch, "{} byte {at}", e.name);
            assert!(r.findings.iter().all(|f| f.path.contains(DIR)));
        }
    }
    assert!(files > 5, "{files}");
    assert_eq!(check(&bed).await.findings, []);
}
