//! Who may start, how soon, and what is touched.

use super::*;
use crate::volume::Op;
use rustix::io::Errno;

#[test]
fn a_fresh_volume_becomes_a_cluster_and_stays_the_same_one() {
    story(async {
        let w = World::new(1);
        let host = w.machine("a");
        let first = w.start(&host, 1).await.expect("starts");
        assert!(first.core().ready());
        let cluster_id = first.core().cluster_id.clone();
        assert_eq!(cluster_id.len(), 22);
        let epoch = first.core().controller.epoch();
        let topic = first.create("orders").await.expect("created");
        first.core().shutdown(first.told.as_ref()).await;
        assert_eq!(first.told.shutdowns.load(SeqCst), 1);
        drop(first);

        let again = w.start(&host, 1).await.expect("starts again");
        assert_eq!(again.core().cluster_id, cluster_id);
        assert!(again.core().controller.epoch() > epoch, "each term has an epoch of its own");
        assert_eq!(again.topics(), ["orders"]);
        assert_eq!(again.told.attached.lock().len(), 2);
        let spec = again.told.attached.lock().get(&(topic, 1)).cloned().expect("attached");
        assert_eq!(spec.dir, format!("orders/{topic}/1"));
    });
}

#[test]
fn after_a_kill_the_same_machine_starts_at_once() {
    story(async {
        let w = World::new(2);
        let host = w.machine("a");
        w.start(&host, 1).await.expect("starts").kill();
        let before = w.now();
        w.start(&host, 1).await.expect("starts again");
        assert_eq!(w.now(), before);
    });
}

#[test]
fn after_a_clean_stop_any_machine_starts_at_once() {
    story(async {
        let w = World::new(3);
        let first = w.start(&w.machine("a"), 1).await.expect("starts");
        first.core().shutdown(first.told.as_ref()).await;
        let before = w.now();
        w.start(&w.machine("b"), 1).await.expect("starts elsewhere");
        assert_eq!(w.now(), before);
    });
}

#[test]
fn after_a_kill_another_machine_waits_for_the_lease() {
    story(async {
        let w = World::new(4);
        w.start(&w.machine("a"), 1).await.expect("starts").kill();
        let before = w.now();
        let second = w.start(&w.machine("b"), 1).await.expect("starts elsewhere");
        let waited = w.now() - before;
        assert!(waited >= LEASE && waited < LEASE + Duration::from_secs(3), "{waited:?}");
        // What waiting proved is written down: who comes next need not wait for it again.
        second.core().shutdown(second.told.as_ref()).await;
        assert!(w.has(".dead").await);
    });
}

#[test]
fn a_lease_that_appears_while_a_start_waits_is_waited_for_from_then_on() {
    story(async {
        let w = World::new(12);
        w.start(&w.machine("a"), 1).await.expect("starts").kill();
        // Another process was about to succeed, and died; the creation of its heartbeat was on its way.
        let late = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            w.volume.create_new("__cluster/brokers/1-00000002.heartbeat", Class::Control).await.expect("new");
            w.now()
        };
        let host = w.machine("b");
        let (successor, appeared) = tokio::join!(w.start(&host, 1), late);
        let successor = successor.expect("starts");
        let waited = w.now() - appeared;
        assert!(waited >= LEASE && waited < LEASE + Duration::from_secs(3), "{waited:?}");
        assert_eq!(successor.core().lease.number(), 3);
    });
}

#[test]
fn nobody_succeeds_a_process_that_appears_alive_while_he_waits() {
    story(async {
        let w = World::new(13);
        w.start(&w.machine("old"), 1).await.expect("starts").kill();
        // This machine read the roll before the other one began, so it waits for a lease that has a successor by now.
        let (a, b) = (w.machine("a"), w.machine("b"));
        let (first, second) = tokio::join!(w.start(&a, 1), async {
            tokio::time::sleep(Duration::from_secs(6)).await;
            w.start(&b, 1).await
        });
        let first = first.expect("waited longest");
        let e = second.err().expect("refused");
        assert!(matches!(e, StartError::BrokerAlive { id: BrokerId(1), .. }), "{e}");
        assert!(first.core().ready() && first.core().lease.number() == 2);
        assert!(!w.has(".probe").await, "whoever gives up tidies");
    });
}

#[test]
fn a_second_process_of_a_live_id_is_refused_and_touches_nothing() {
    story(async {
        let w = World::new(5);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        first.create("orders").await.expect("created");

        let before = without_heartbeats(w.everything().await);
        let e = w.start(&a, 1).await.err().expect("refused");
        assert!(matches!(e, StartError::BrokerAlive { id: BrokerId(1), .. }), "{e}");
        let e = w.start(&b, 1).await.err().expect("refused elsewhere, too");
        assert!(matches!(e, StartError::BrokerAlive { id: BrokerId(1), .. }), "{e}");
        assert_eq!(without_heartbeats(w.everything().await), before);
        assert!(first.core().ready(), "and the first is not disturbed");
        assert_eq!(first.told.drops.load(SeqCst), 0);
    });
}

#[test]
fn two_starts_at_once_on_two_machines_have_one_winner_at_most() {
    for seed in 0..20 {
        story(async {
            let w = World::new(seed);
            w.start(&w.machine("old"), 1).await.expect("starts").kill();
            let (a, b) = (w.machine("a"), w.machine("b"));
            let delay = Duration::from_millis(seed * 70);
            let late = async {
                tokio::time::sleep(delay).await;
                w.start(&b, 1).await
            };
            let (x, y) = tokio::join!(w.start(&a, 1), late);
            let alive: Vec<_> = [x, y].into_iter().flatten().collect();
            assert_eq!(alive.len(), 1, "seed {seed}");
            assert!(alive[0].core().ready());
        });
    }
}

#[test]
fn a_directory_of_other_things_is_refused_and_not_touched() {
    story(async {
        let w = World::new(7);
        w.volume.mkdir("lost+found", Class::Data).await.expect("made");
        w.volume.create_new("thesis.tex", Class::Data).await.expect("made");
        let before = w.everything().await;
        let e = w.start(&w.machine("a"), 1).await.err().expect("refused");
        assert!(matches!(&e, StartError::Foreign(name) if name == "thesis.tex"), "{e}");
        assert_eq!(w.everything().await, before);
        w.volume.unlink("thesis.tex").await.expect("gone");
        w.start(&w.machine("a"), 1).await.expect("lost+found is no thing of anybody's");
    });
}

#[test]
fn newer_and_damaged_files_are_named_and_left_alone() {
    story(async {
        let w = World::new(8);
        let host = w.machine("a");
        let first = w.start(&host, 1).await.expect("starts");
        let path = super::super::layout::metadata(first.core().controller.epoch());
        first.kill();
        overwrite(&w, "__cluster/format.json", br#"{"format": 9, "more": true}"#).await;
        let before = w.everything().await;
        let e = w.start(&host, 1).await.err().expect("refused");
        assert!(matches!(e, StartError::FormatNewer { found: 9, known: 1, .. }), "{e}");
        assert_eq!(w.everything().await, before);

        overwrite(&w, "__cluster/format.json", b"").await;
        let e = w.start(&host, 1).await.err().expect("refused");
        assert!(matches!(&e, StartError::Unreadable { path, .. } if path.ends_with("format.json")), "{e}");

        overwrite(&w, "__cluster/format.json", br#"{"format": 1, "cluster_id": "x"}"#).await;
        overwrite(&w, &path, br#"{"format": 1, "topics": "#).await;
        let before = w.everything().await;
        let e = w.start(&host, 1).await.err().expect("refused");
        assert!(matches!(&e, StartError::Unreadable { path: p, .. } if *p == path), "{e}");
        assert_eq!(w.everything().await, before);
    });
}

#[test]
fn a_creator_that_died_before_the_format_file_was_whole_is_succeeded() {
    story(async {
        let w = World::new(9);
        w.volume.mkdir("__cluster", Class::Data).await.expect("made");
        w.volume.create_new("__cluster/format.json", Class::Data).await.expect("made");
        let p = w.start(&w.machine("a"), 1).await.expect("starts");
        assert_eq!(p.core().cluster_id.len(), 22);
    });
}

#[test]
fn passing_errors_delay_a_start_and_do_not_fail_it() {
    story(async {
        let w = World::new(10);
        let host = w.machine("a");
        let first = w.start(&host, 1).await.expect("starts");
        first.create("orders").await.expect("created");
        first.kill();
        for (op, path) in [
            (Op::Open, "format.json"),
            (Op::ReadDir, "__cluster/brokers"),
            (Op::Read, "heartbeat"),
            (Op::ReadDir, "__cluster/metadata"),
            (Op::Open, "metadata.json"),
            (Op::Read, "metadata.json"),
        ] {
            for errno in [Errno::IO, Errno::STALE, Errno::NOENT] {
                w.volume.fail(op, path, errno, 2);
                let p = w.start(&host, 1).await;
                let p = p.unwrap_or_else(|e| panic!("{op:?} {path} {errno}: {e}"));
                assert_eq!(p.topics(), ["orders"], "{op:?} {path} {errno}");
                p.kill();
                w.volume.heal();
            }
        }
    });
}

#[test]
fn a_volume_that_cannot_be_written_says_so() {
    story(async {
        let w = World::new(11);
        w.volume.fail(Op::Mkdir, "", Errno::ROFS, 1);
        let e = w.start(&w.machine("a"), 1).await.err().expect("refused");
        assert!(matches!(e, StartError::NotWritable(_)), "{e}");
    });
}

async fn overwrite(w: &World, path: &str, content: &'static [u8]) {
    let file = w.volume.open_write(path, Class::Data).await.expect("there");
    file.truncate(0).await.expect("cut");
    file.write_sync(0, vec![content.into()]).await.expect("written");
}

fn without_heartbeats(
    mut all: BTreeMap<String, Option<bytes::Bytes>>,
) -> BTreeMap<String, Option<bytes::Bytes>> {
    for (path, content) in &mut all {
        if path.ends_with(".heartbeat") {
            *content = None;
        }
    }
    all
}
