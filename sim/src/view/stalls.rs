//! When a broker was stalled: while the volume held something that it had asked for.
//!
//! The volume's model says which operations a stall held, and from when to when. A process whose operation is held is
//! shown as stalled from then on, until the operation goes on or the process ends; what else it may do meanwhile
//! (other files, other partitions) shows on the other lanes. Holds that no eye would see are left out.

use super::data::{Item, Kind, LaneKind, Life};
use super::story::micros;
use crate::history::{self, Event, Stamped};
use crate::volume::{Op, OpEvent};
use std::net::IpAddr;
use std::time::Duration;

/// Microseconds; what is held for less is as good as slow.
const SHORTEST: u64 = 50_000;

/// One process of a broker: from its start to its end.
struct Process {
    broker: u32,
    host: IpAddr,
    from: Duration,
    to: Duration,
}

/// A stretch of time in which a broker's operation was held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hold {
    broker: u32,
    from: u64,
    to: u64,
    what: String,
}

/// Shows brokers as stalled where they were.
pub(super) fn add(life: &mut Life, events: &[Stamped], operations: &[OpEvent], ended: Duration) {
    for hold in holds(&processes(events, ended), operations, micros(ended)) {
        let name = format!("broker {}", hold.broker);
        let Some(lane) = life.lanes.iter().position(|l| l.kind == LaneKind::Broker && l.name == name) else {
            continue;
        };
        let states: Vec<usize> = (0..life.items.len())
            .filter(|n| life.items[*n].l == lane && life.items[*n].k == Kind::State)
            .filter(|n| matches!(&*life.items[*n].o, "starting" | "serving"))
            .collect();
        for state in states {
            split(&mut life.items, state, &hold);
        }
    }
}

/// Of one state, the part in which the broker was stalled becomes a state of its own, and so does what is left behind
/// it. The first part keeps its number: events are known by it.
fn split(items: &mut Vec<Item>, state: usize, hold: &Hold) {
    let whole = items[state].clone();
    let end = whole.t.and_then(|t| u64::try_from(t).ok()).unwrap_or(whole.f);
    let (from, to) = (hold.from.max(whole.f), hold.to.min(end));
    if from >= to {
        return;
    }
    items[state].t = Some(from as i64);
    items.push(Item {
        f: from,
        t: Some(to as i64),
        o: "stalled".into(),
        x: hold.what.clone(),
        ..whole.clone()
    });
    if to < end {
        items.push(Item { f: to, ..whole });
    }
}

fn processes(events: &[Stamped], ended: Duration) -> Vec<Process> {
    use history::Life;
    let mut all: Vec<Process> = Vec::new();
    for e in events {
        let Event::Broker { broker, host, life } = &e.event else { continue };
        // A broker that is started elsewhere leaves a process behind that is no longer told of.
        let is_over = match life {
            Life::Starting => true,
            Life::Failed | Life::Killed | Life::PowerCut | Life::Stopped => true,
            Life::Serving | Life::Term | Life::Paused | Life::Resumed => false,
        };
        if is_over {
            for p in all.iter_mut().filter(|p| p.broker == *broker && p.to == ended) {
                p.to = e.at;
            }
        }
        if *life == Life::Starting {
            all.push(Process { broker: *broker, host: *host, from: e.at, to: ended });
        }
    }
    all
}

/// What was held of whom, without overlaps: of two that are held at once, the one that was held first is named.
fn holds(processes: &[Process], operations: &[OpEvent], ended: u64) -> Vec<Hold> {
    let mut all: Vec<Hold> = operations.iter().filter_map(|op| hold(processes, op, ended)).collect();
    all.sort();
    let mut apart: Vec<Hold> = Vec::new();
    for mut hold in all {
        let before = apart.last().filter(|b| b.broker == hold.broker).map_or(0, |b| b.to);
        hold.from = hold.from.max(before);
        if hold.from < hold.to {
            apart.push(hold);
        }
    }
    apart
}

fn hold(processes: &[Process], op: &OpEvent, ended: u64) -> Option<Hold> {
    let (from, to) = op.held?;
    // A host writes back by itself: nobody waits for it.
    if op.op == Op::WriteBack || micros(to - from) < SHORTEST {
        return None;
    }
    let on_host = |p: &&Process| matches!(p.host, IpAddr::V4(ip) if u32::from(ip.octets()[3]) == op.host + 1);
    let process = processes.iter().filter(on_host).find(|p| p.from <= op.started && op.started < p.to)?;
    let (from, to) = (micros(from), micros(to.min(process.to)).min(ended));
    let name = op.path.rsplit('/').next().unwrap_or_default();
    let what = format!("the volume holds {} of {name}", format!("{:?}", op.op).to_lowercase());
    (from < to).then_some(Hold { broker: process.broker, from, to, what })
}

#[cfg(test)]
mod tests {
    use super::super::items::Teller;
    use super::super::story::Parts;
    use super::*;
    use crate::history::{Life as Broker, FIRST_HOST};
    use crate::volume::{Fault, Model, Ops, Options, Process as User, Scope};
    use highwater::volume::{Class, Volume};
    use parking_lot::Mutex;
    use std::sync::Arc;

    fn at(ms: u64, life: Broker) -> Stamped {
        let event = Event::Broker { broker: 1, host: FIRST_HOST, life };
        Stamped { at: Duration::from_millis(ms), event }
    }

    /// The states of the broker, in order: what, from and to in milliseconds.
    fn states(events: &[Stamped], operations: &[OpEvent], ended: u64) -> Vec<(String, u64, u64)> {
        let ended = Duration::from_millis(ended);
        let mut parts = Parts::default();
        let mut teller = Teller::new(events, &mut parts, micros(ended));
        teller.tell();
        let told = teller.done();
        let mut life = Life { lanes: told.lanes, items: told.items, ..Life::default() };
        add(&mut life, events, operations, ended);
        let mut states: Vec<&Item> = life.items.iter().filter(|i| i.k == Kind::State).collect();
        states.sort_by_key(|i| i.f);
        let ms = |us: i64| us as u64 / 1000;
        states.iter().map(|i| (i.o.clone(), i.f / 1000, ms(i.t.expect("a stretch")))).collect()
    }

    /// What a process on the first host sees when one file's sync is stuck from 100 ms to 600 ms.
    async fn stuck() -> Vec<OpEvent> {
        let model = Model::new(Options::default(), 1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watcher = seen.clone();
        model.watch(move |op| watcher.lock().push(op.clone()));
        let user: User = model.process(0);
        let file = user.create_new("a.log", Class::Data).await.unwrap();
        let other = user.create_new("b.log", Class::Data).await.unwrap();
        let now = || madsim::time::TimeHandle::current().elapsed();
        let until = |ms: u64| madsim::time::sleep(Duration::from_millis(ms).saturating_sub(now()));
        until(100).await;
        let ops = Ops { ops: vec![Op::Sync], path: "a.log".into(), ..Ops::default() };
        let id = model.inject(Fault::Stall { scope: Scope::default(), ops });
        let sync = madsim::task::spawn(async move {
            file.write_at(0, vec![vec![1; 100].into()]).await.unwrap();
            file.sync().await
        });
        other.write_sync(0, vec![vec![2; 100].into()]).await.unwrap();
        until(600).await;
        model.lift(id);
        sync.await.unwrap().unwrap();
        let seen = seen.lock().clone();
        seen
    }

    #[madsim::test]
    async fn a_broker_whose_sync_is_stuck_is_stalled_until_it_goes_on() {
        let operations = stuck().await;
        assert_eq!(operations.iter().filter(|o| o.held.is_some()).count(), 1, "the other file is free");
        let events = [at(0, Broker::Starting), at(50, Broker::Serving)];
        let states = states(&events, &operations, 1000);
        let names: Vec<&str> = states.iter().map(|(what, ..)| &**what).collect();
        assert_eq!(names, ["starting", "serving", "stalled", "serving"]);
        let (_, from, to) = states[2];
        assert!((100..130).contains(&from) && to == 600, "{states:?}");
        assert!(states.windows(2).all(|w| w[0].2 == w[1].1), "no gap: {states:?}");
    }

    #[madsim::test]
    async fn the_process_that_comes_after_is_not_stalled_by_what_the_dead_one_asked() {
        let operations = stuck().await;
        let events = [
            at(0, Broker::Starting),
            at(50, Broker::Serving),
            at(300, Broker::Killed),
            at(400, Broker::Starting),
            at(450, Broker::Serving),
        ];
        let names: Vec<String> = states(&events, &operations, 1000).into_iter().map(|s| s.0).collect();
        assert_eq!(names, ["starting", "serving", "stalled", "dead", "starting", "serving"]);
    }
}
