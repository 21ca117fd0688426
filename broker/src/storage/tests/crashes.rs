//! Crashes: what was acknowledged is there afterwards, at its offset, byte for byte.

use super::bed::*;
use crate::storage::batch::testing;

#[tokio::test]
async fn what_is_acknowledged_is_read_back_after_a_kill_and_after_a_power_cut() {
    let mut bed = Bed::new();
    let mut want = Vec::new();
    for life in 0..6 {
        for i in 0..20 {
            let body = format!("life {life} record {i}");
            let at = bed.put(&body).await;
            assert_eq!(at, want.len() as i64, "dense offsets");
            want.push((at, body));
        }
        bed = if life % 2 == 0 { bed.kill() } else { bed.power_cut(life) };
        assert_eq!(bed.bodies(0).await, want);
        assert_eq!(bed.marks().await, (0, want.len() as i64));
        assert_eq!(bed.epoch().await, life as u32 + 2);
    }
}

#[tokio::test]
async fn a_clean_stop_is_followed_by_an_open_that_reads_nothing_of_the_log() {
    let bed = Bed::new();
    for i in 0..500 {
        bed.put(&format!("record {i}")).await;
    }
    bed.engine.shutdown().await;
    let bed = bed.kill();
    bed.volume.reset_counts();
    assert_eq!(bed.marks().await, (0, 500));
    assert_eq!(bed.volume.counts_of(".log").bytes_read, 0);
    assert_eq!(bed.put("next").await, 500);
    assert_eq!(bed.bodies(0).await.len(), 501);
}

#[tokio::test]
async fn many_appends_share_a_sync() {
    let bed = Bed::new();
    bed.put("open").await;
    bed.volume.reset_counts();
    let mut tickets = Vec::new();
    for _ in 0..8 {
        let req = crate::storage::AppendRequest {
            records: testing::plain(1, b"x"),
            acks: crate::storage::Acks::All,
        };
        tickets.push(bed.partition.start_append(req).await.unwrap());
    }
    for t in tickets {
        t.wait().await.unwrap();
    }
    let c = bed.volume.counts_of(".log");
    assert!(c.syncs <= 2 && c.writes <= 2, "{c:?}");
}
