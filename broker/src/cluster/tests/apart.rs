//! The control plane's files on a volume of their own (`cluster.dir`).

use super::*;
use crate::cluster::inspect;
use crate::volume::Op;
use rustix::io::Errno;

/// A cluster whose control plane's files lie on one volume, and its data on another.
struct Apart {
    control: MemVolume,
    data: MemVolume,
    w: World,
    host: Machine,
}

impl Apart {
    fn new(seed: u64) -> Apart {
        let w = World::new(seed);
        let host = w.machine("a");
        Apart { control: MemVolume::new(), data: MemVolume::new(), w, host }
    }

    async fn start(&self) -> Result<(Core, Arc<Told>), StartError> {
        self.start_on(&self.control, &self.data).await
    }

    async fn start_on(&self, control: &MemVolume, data: &MemVolume) -> Result<(Core, Arc<Told>), StartError> {
        let split = inspect::split(Arc::new(control.clone()), Arc::new(data.clone()));
        self.start_with(Arc::new(split), true).await
    }

    async fn start_with(
        &self,
        volume: Arc<dyn Volume>,
        apart: bool,
    ) -> Result<(Core, Arc<Told>), StartError> {
        let env = Env {
            volume,
            clock: self.w.clock.clone(),
            entropy: self.w.entropy.clone(),
            host: Arc::new(self.host.clone()),
        };
        let cluster_dir = apart.then(|| "control".into());
        let config =
            BrokerConfig { broker_id: BrokerId(1), lease: LEASE, cluster_dir, ..BrokerConfig::default() };
        Core::start(env, &config, |_| Arc::new(Told::default())).await
    }

    /// A start and a clean stop.
    async fn once(&self) -> String {
        let (core, told) = self.start().await.expect("starts");
        core.shutdown(told.as_ref()).await;
        core.cluster_id.clone()
    }
}

async fn names(v: &MemVolume) -> Vec<String> {
    v.read_dir("", Class::Data).await.expect("listed").into_iter().map(|e| e.name).collect()
}

fn refusal<T>(started: Result<T, StartError>) -> String {
    started.err().expect("refused").to_string()
}

#[test]
fn the_data_volume_is_marked_and_holds_nothing_else_of_the_control_plane() {
    story(async {
        let a = Apart::new(1);
        let id = a.once().await;
        assert_eq!(a.once().await, id, "it is the same cluster again");
        assert_eq!(names(&a.control).await, ["__cluster"]);
        assert_eq!(names(&a.data).await, ["__cluster.json"]);
    });
}

#[test]
fn a_data_directory_that_is_not_mounted_is_refused_and_left_alone() {
    story(async {
        let a = Apart::new(2);
        a.once().await;
        let empty = MemVolume::new();
        let why = refusal(a.start_on(&a.control, &empty).await);
        assert!(why.contains("is not mounted"), "{why}");
        assert!(names(&empty).await.is_empty());
        a.once().await;
    });
}

#[test]
fn data_and_control_plane_of_two_clusters_do_not_go_together() {
    story(async {
        let (a, b) = (Apart::new(3), Apart::new(4));
        a.once().await;
        b.once().await;
        let why = refusal(a.start_on(&a.control, &b.data).await);
        assert!(why.contains("is of the cluster"), "{why}");
        // A control plane that is fresh is another cluster's, too.
        let fresh = MemVolume::new();
        let why = refusal(a.start_on(&fresh, &a.data).await);
        assert!(why.contains("cluster.dir"), "{why}");
        assert!(names(&fresh).await.is_empty());
    });
}

#[test]
fn who_forgets_cluster_dir_or_needs_none_is_told() {
    story(async {
        let a = Apart::new(5);
        a.once().await;
        // Either directory, given as all there is.
        for alone in [&a.control, &a.data] {
            let why = refusal(a.start_with(Arc::new(alone.clone()), false).await);
            assert!(why.contains("set cluster.dir"), "{why}");
        }
        let together = MemVolume::new();
        let (core, told) = a.start_with(Arc::new(together.clone()), false).await.expect("starts");
        core.shutdown(told.as_ref()).await;
        let why = refusal(a.start_on(&together, &MemVolume::new()).await);
        assert!(why.contains("give it as the data directory alone"), "{why}");
    });
}

#[test]
fn a_first_start_that_died_before_the_mark_was_whole_is_gone_on_with() {
    story(async {
        for (op, path) in
            [(Op::Create, "__cluster.json"), (Op::Write, "__cluster.json"), (Op::Sync, "__cluster.json")]
        {
            let a = Apart::new(6);
            a.data.fail(op, path, Errno::IO, 1);
            a.start().await.err().expect("the volume failed");
            let id = a.once().await;
            assert_eq!(a.once().await, id, "after {op:?}");
            assert_eq!(names(&a.data).await, ["__cluster.json"], "after {op:?}");
        }
    });
}

#[test]
fn a_passing_error_does_not_make_the_data_another_clusters() {
    story(async {
        let a = Apart::new(7);
        a.once().await;
        for errno in [Errno::NOENT, Errno::IO, Errno::STALE] {
            a.data.fail(Op::Open, "__cluster.json", errno, 2);
            a.once().await;
        }
    });
}
