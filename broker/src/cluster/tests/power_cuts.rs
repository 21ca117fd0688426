//! The power goes at any moment of any change: what stands is old or new, never torn, and what was
//! acknowledged stands.

use super::*;
use std::sync::atomic::AtomicU64;

/// What the story did so far: what must be there, and what may be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Expected {
    topics: BTreeMap<String, (i32, BTreeMap<String, String>)>,
}

enum Step {
    Create(&'static str),
    Delete(&'static str),
    Set(&'static str, &'static str),
    Grow(&'static str, i32),
}

const STEPS: &[Step] = &[
    Step::Create("a"),
    Step::Create("b"),
    Step::Set("a", "1000"),
    Step::Delete("b"),
    Step::Create("b"),
    Step::Grow("a", 5),
    Step::Set("b", "7"),
    Step::Delete("a"),
    Step::Create("c"),
    Step::Set("c", "9"),
    Step::Delete("b"),
];

impl Expected {
    fn after(&self, step: &Step) -> Expected {
        let mut e = self.clone();
        match step {
            Step::Create(n) => {
                e.topics.insert((*n).into(), (2, BTreeMap::new()));
            }
            Step::Delete(n) => {
                e.topics.remove(*n);
            }
            Step::Set(n, v) => {
                if let Some(t) = e.topics.get_mut(*n) {
                    t.1.insert("retention.ms".into(), (*v).into());
                }
            }
            Step::Grow(n, total) => {
                if let Some(t) = e.topics.get_mut(*n) {
                    t.0 = *total;
                }
            }
        }
        e
    }

    fn shown(p: &Process) -> Expected {
        let image = p.core().controller.image();
        let topic = |t: &Arc<super::super::TopicImage>| (t.name.clone(), (t.partitions, t.overrides.clone()));
        Expected { topics: image.topics.values().map(topic).collect() }
    }
}

async fn take(p: &Process, step: &Step) -> bool {
    let done = match step {
        Step::Create(n) => match p.create(n).await {
            Ok(id) => {
                p.fill_if_alive(n, id).await;
                Ok(())
            }
            Err(e) => Err(e),
        },
        Step::Delete(n) => p.core().delete_topic(n).await,
        Step::Set(n, v) => p.set(n, "retention.ms", v).await,
        Step::Grow(n, total) => p.core().create_partitions(n, *total, false).await,
    };
    done.is_ok()
}

impl Process {
    /// As [`Process::fill`], for a process that may die on the way.
    async fn fill_if_alive(&self, name: &str, id: TopicId) {
        let v = &self.volume;
        for dir in [name.to_owned(), format!("{name}/{id}"), format!("{name}/{id}/0")] {
            let _ = v.mkdir(&dir, Class::Data).await;
        }
        if let Ok(file) = v.create_new(&format!("{name}/{id}/0/00000001-0.log"), Class::Data).await {
            let _ = file.write_sync(0, vec!["records".into()]).await;
        }
    }
}

/// Takes the steps until the power goes after `fuse` more operations of the volume; then starts again and
/// compares. Returns whether the power went before the steps were through.
async fn cut_after(seed: u64, fuse: Duration) -> bool {
    let w = World::new(seed);
    let host = w.machine("a");
    // Every operation takes a millisecond or so, in which the power may go.
    use crate::volume::Op::*;
    for op in [Open, Create, Read, Write, Sync, Len, Rename, Unlink, ReadDir, Mkdir, Rmdir, SyncDir] {
        w.volume.delay(op, "", Duration::from_millis(1));
    }
    let acked = Arc::new(Mutex::new(Expected::default()));
    let tried = Arc::new(Mutex::new(Expected::default()));
    let steps_done = AtomicU64::new(0);
    let run = async {
        let p = w.start(&host, 1).await.expect("starts");
        for step in STEPS {
            let next = acked.lock().after(step);
            *tried.lock() = next.clone();
            assert!(take(&p, step).await, "a step failed though nothing did");
            *acked.lock() = next;
            steps_done.fetch_add(1, SeqCst);
        }
        p
    };
    let finished = tokio::time::timeout(fuse, run).await;
    let was_cut = finished.is_err();
    w.volume.power_cut(w.entropy.as_ref());
    if let Ok(p) = finished {
        p.kill();
    }
    w.volume.heal();

    // The same boot id would claim that the page cache survived; another one means waiting for the lease.
    let p = w.start(&w.machine("a, next boot"), 1).await.expect("starts after the power came back");
    let shown = Expected::shown(&p);
    let (acked, tried) = (acked.lock().clone(), tried.lock().clone());
    assert!(
        shown == acked || shown == tried,
        "seed {seed}, cut after {fuse:?}, {} steps\nacknowledged {acked:?}\ntried {tried:?}\nshown {shown:?}",
        steps_done.load(SeqCst)
    );
    eventually("deletions end", || async { p.core().controller.metadata().deleting.is_empty() }).await;
    let live: BTreeSet<_> = p.core().controller.image().names.keys().map(ToString::to_string).collect();
    for path in w.everything().await.keys().filter(|p| !p.starts_with("__cluster")) {
        let id = path.split('/').nth(1);
        assert!(id.is_none_or(|id| live.contains(id)), "seed {seed}, {fuse:?}: {path} is left behind");
    }
    p.kill();
    was_cut
}

#[test]
fn whenever_the_power_goes_metadata_is_old_or_new() {
    let mut cut = 0;
    for ms in 0..125 {
        for seed in 0..5 {
            let fuse = Duration::from_millis(ms);
            cut += u64::from(story(cut_after(seed * 1000 + ms, fuse)));
        }
    }
    assert!(cut > 500, "the power went {cut} times before the steps were through");
}
