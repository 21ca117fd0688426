//! What `cluster status` sees of brokers that run, die and stop.

use super::super::status::{self, Ask, Heard, Standing, State, Status};
use super::*;
use crate::storage::docs::{self, Claim, Manifest};
use crate::storage::names;
use crate::types::{Epoch, Offset};

impl World {
    async fn status(&self, watch: Option<u64>) -> Status {
        let slots = (0..super::super::SLOTS).map(|n| format!("__cluster/groups/{n}")).collect();
        let ask = Ask { slots, watch: watch.map(Duration::from_secs) };
        status::status(&self.volume.another_process(), &*self.clock, &ask).await
    }

    /// Makes what a leader of the partition makes, in its stead.
    async fn open(&self, dir: &str, identity: (TopicId, i32), holder: &str) {
        let v = self.volume.another_process();
        let mut at = String::new();
        for part in dir.split('/') {
            at = if at.is_empty() { part.into() } else { format!("{at}/{part}") };
            let _ = v.mkdir(&at, Class::Data).await;
        }
        let epoch = Epoch(1);
        let claim = Claim { format: docs::FORMAT, epoch, holder: holder.into(), relinquished: false };
        let manifest = Manifest {
            format: docs::FORMAT,
            topic_id: identity.0,
            partition: identity.1,
            epoch,
            log_start: Offset(0),
            start: Offset(0),
            segments: vec![],
            leader_epochs: vec![],
            group_bytes: 0,
            relaxed: false,
            has_producers: false,
        };
        for (name, content) in
            [(names::claim(epoch), claim.encode()), (names::manifest(epoch), docs::encode(&manifest))]
        {
            let f = v.create_new(&format!("{dir}/{name}"), Class::Data).await.expect("new");
            f.write_sync(0, vec![content]).await.expect("room");
        }
    }
}

fn standings(s: &Status) -> Vec<Standing> {
    s.brokers.iter().map(|b| b.standing).collect()
}

#[test]
fn who_beats_is_alive_who_was_killed_is_silent_and_dead_once_watched_for_a_lease() {
    story(async {
        let w = World::new(71);
        let (a, b) = (w.machine("a"), w.machine("b"));
        let first = w.start(&a, 1).await.expect("starts");
        let id = first.create("orders").await.expect("created");
        for n in 0..2 {
            w.open(&format!("orders/{id}/{n}"), (id, n), "1-00000001").await;
        }
        for n in 0..super::super::SLOTS {
            w.open(&format!("__cluster/groups/{n}"), (TopicId::default(), n as i32), "1-00000001").await;
        }
        let everything = w.everything().await;
        let begun = w.now();
        let s = w.status(None).await;
        assert!(s.well, "{s:#?}");
        assert!(w.now() - begun <= Duration::from_millis(1500), "no longer than a beat and a little");
        assert!(matches!(s.brokers[0].heartbeat, Heard::WrittenWithinMs(ms) if ms <= 300), "{s:#?}");
        assert_eq!((s.brokers[0].led.partitions, s.brokers[0].led.slots), (2, 8));
        let now = w.everything().await;
        let same = |p: &String| p.ends_with(".heartbeat") || everything.get(p) == now.get(p);
        assert!(now.len() == everything.len() && now.keys().all(same), "it wrote something");

        let second = w.start(&b, 2).await.expect("starts");
        eventually("the load is even", || async { second.told.assigned.lock().len() == 5 }).await;
        let s = w.status(None).await;
        assert_eq!(standings(&s), [Standing::Alive, Standing::Alive]);
        assert_eq!((s.states.get(&State::Led), s.states.get(&State::Moving)), (Some(&5), Some(&5)));
        assert!(!s.well && s.controller.in_office);

        second.kill();
        let s = w.status(None).await;
        assert_eq!(standings(&s), [Standing::Alive, Standing::Silent]);
        assert_eq!((s.states.get(&State::Led), s.states.get(&State::Stalled)), (Some(&5), Some(&5)));
        eventually("the other leads all", || async { first.told.assigned.lock().len() == 10 }).await;
        let s = w.status(None).await;
        assert_eq!(standings(&s), [Standing::Alive, Standing::RecordedDead]);
        assert!(s.well, "{s:#?}");

        first.kill();
        assert_eq!(standings(&w.status(None).await)[0], Standing::Silent);
        let begun = w.now();
        let s = w.status(Some(11)).await;
        assert_eq!(standings(&s), [Standing::Dead, Standing::RecordedDead]);
        assert!(w.now() - begun >= LEASE, "nothing else proves it");
        assert_eq!(s.states.get(&State::Stalled), Some(&10));
    });
}

#[test]
fn who_stopped_has_said_so() {
    story(async {
        let w = World::new(72);
        let a = w.machine("a");
        let first = w.start(&a, 1).await.expect("starts");
        first.core().shutdown(first.told.as_ref()).await;
        drop(first);
        let s = w.status(None).await;
        assert_eq!(standings(&s), [Standing::Relinquished]);
        assert!(!s.well && s.unreadable.is_empty());
        assert_eq!(s.controller.why.as_deref(), Some("its lease is relinquished"));
    });
}
