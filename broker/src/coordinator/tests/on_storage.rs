//! Groups on the storage engine: what crashes, power cuts and clean stops leave.

use super::bed::*;
use crate::config::StorageConfig;
use crate::coordinator::group::Caller;
use crate::coordinator::Groups;
use crate::metrics::StorageMetrics;
use crate::rt::SeededEntropy;
use crate::storage::{Engine, Unfenced};
use crate::volume::{Class, MemVolume, Volume};
use kafka_protocol::ResponseError as E;
use std::sync::Arc;
use std::time::Duration;

struct Bed {
    volume: MemVolume,
    engine: Arc<Engine>,
    groups: Arc<Groups>,
    metrics: Arc<StorageMetrics>,
}

impl Bed {
    async fn on(volume: MemVolume) -> Bed {
        let env = env(volume.clone());
        let metrics = Arc::new(StorageMetrics::default());
        let engine = Engine::new(env.clone(), Arc::new(Unfenced), StorageConfig::default(), metrics.clone());
        let groups = Groups::attach(env, &engine, topics(), settings());
        ready(&groups, "g").await;
        Bed { volume, engine, groups, metrics }
    }

    async fn kill(self) -> Bed {
        self.volume.crash_process();
        Bed::on(self.volume.another_process()).await
    }

    async fn power_cut(self, seed: u64) -> Bed {
        self.volume.power_cut(&SeededEntropy::new(seed));
        Bed::on(self.volume.another_process()).await
    }

    async fn stop_and_start(self) -> Bed {
        self.groups.shutdown().await;
        self.engine.shutdown().await;
        Bed::on(self.volume.another_process()).await
    }
}

/// Field case 21: committed offsets lost on a sweep, a restart, a takeover.
#[test]
fn case_21_a_committed_offset_survives_sweeps_restarts_and_power_cuts() {
    story(async {
        let mut bed = Bed::on(MemVolume::new()).await;
        commit(&bed.groups, "g", 0, 42).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1300)).await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]), "after two sweeps");
        bed = bed.kill().await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]), "after kill -9");
        for seed in 0..5 {
            bed = bed.power_cut(seed).await;
            assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]), "after power cut {seed}");
        }
        bed = bed.stop_and_start().await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 42)]), "after a clean stop");
    });
}

#[test]
fn hole_24_generation_members_and_assignment_survive_a_crash() {
    story(async {
        let mut bed = Bed::on(MemVolume::new()).await;
        let caller = settle(&bed.groups, "g").await;
        commit_as(&bed.groups, "g", caller.clone(), 0, 1).await.unwrap();
        let before = bed.groups.describe("g").await.unwrap();
        for seed in 0..5 {
            bed = bed.power_cut(seed).await;
            assert_eq!(bed.groups.heartbeat("g", &caller).await, Ok(()), "no rebalance");
            assert_eq!(bed.groups.describe("g").await.unwrap(), before);
            let stale = Caller { generation: caller.generation - 1, ..caller.clone() };
            assert_eq!(commit_as(&bed.groups, "g", stale, 0, 9).await, Err(E::IllegalGeneration));
            commit_as(&bed.groups, "g", caller.clone(), 0, i64::from(seed as i32)).await.unwrap();
        }
    });
}

/// Hole 20: concurrent commits neither mix nor get lost, and they share their syncs.
#[test]
fn hole_20_commits_that_arrive_together_share_a_sync_and_are_all_kept() {
    story(async {
        let bed = Bed::on(MemVolume::new()).await;
        commit(&bed.groups, "g", 0, 0).await.unwrap();
        let syncs = bed.metrics.log_syncs.get();
        let all = (0..100).map(|p| commit(&bed.groups, "g", p, i64::from(p)));
        for result in futures::future::join_all(all).await {
            result.unwrap();
        }
        let took = bed.metrics.log_syncs.get() - syncs;
        assert!(took <= 10, "100 commits took {took} syncs");
        let bed = bed.power_cut(1).await;
        let expected: Vec<_> = (0..100).map(|p| (p, i64::from(p))).collect();
        assert_eq!(offsets(&bed.groups, "g").await, Ok(expected));
    });
}

/// Hole 21: OffsetDelete leaves a log that loads.
#[test]
fn hole_21_what_offset_delete_leaves_is_there_after_a_restart() {
    story(async {
        let bed = Bed::on(MemVolume::new()).await;
        commit(&bed.groups, "g", 0, 10).await.unwrap();
        commit(&bed.groups, "g", 1, 11).await.unwrap();
        bed.groups.delete_offsets("g", &[((topic(1), 0), "t".to_owned())]).await.unwrap();
        let bed = bed.kill().await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(1, 11)]));
    });
}

/// Hole 22: the first commit after a cold start.
#[test]
fn hole_22_the_first_commit_after_a_restart_keeps_the_other_partitions() {
    story(async {
        let bed = Bed::on(MemVolume::new()).await;
        commit(&bed.groups, "g", 0, 10).await.unwrap();
        commit(&bed.groups, "g", 1, 11).await.unwrap();
        let bed = bed.kill().await;
        commit(&bed.groups, "g", 0, 20).await.unwrap();
        let bed = bed.kill().await;
        assert_eq!(offsets(&bed.groups, "g").await, Ok(vec![(0, 20), (1, 11)]));
    });
}

/// Hole 23: a group's id is no path.
#[test]
fn hole_23_a_group_id_never_becomes_a_file_name() {
    story(async {
        let bed = Bed::on(MemVolume::new()).await;
        for group in ["../../x", "/etc/passwd", "..", "a/b", "nul\0", "\u{202e}", &"long".repeat(8000)] {
            patiently(|| commit(&bed.groups, group, 0, 7)).await;
        }
        let bed = bed.kill().await;
        assert_eq!(patiently(|| offsets(&bed.groups, "../../x")).await, vec![(0, 7)]);
        let names = |dir: &'static str| {
            let volume = bed.volume.clone();
            async move {
                let entries = volume.read_dir(dir, Class::Data).await.unwrap();
                entries.into_iter().map(|e| e.name).collect::<Vec<_>>()
            }
        };
        assert_eq!(names("").await, vec!["__cluster"]);
        assert_eq!(names("__cluster").await, vec!["groups"]);
        assert_eq!(names("__cluster/groups").await.len(), 8);
    });
}
