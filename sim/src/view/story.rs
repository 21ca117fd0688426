//! One life as the page tells it: from the history, the volume's operations and what was seen of the files.

use super::collect::{rows, Collector, Home};
use super::data::{Item, Kind, LaneKind, Life, Meta, Partition, Phase, Violation};
use super::items::Teller;
use crate::check;
use crate::history::{self, Place, Stamped};
use crate::volume::{Op, OpEvent, Outcome};
use std::collections::BTreeMap;
use std::time::Duration;

/// The page draws every partition's files, but a file of a hundred megabytes is no use to anybody.
const MOST_PARTITIONS: usize = 24;
/// Of operations that come so close together that no eye tells them apart, the first is shown.
const CLOSE: u64 = 500;

/// What of a life is not in its history.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub scenario: String,
    pub seed: u64,
    /// The history's.
    pub hash: u64,
    /// The source's commit, if it is known.
    pub commit: Option<String>,
    /// When the life ended.
    pub ended: Duration,
    /// `broker.lease.ms`.
    pub lease: Duration,
    /// What else a reader should know, a line each.
    pub notes: Vec<String>,
}

/// Everything that the page shows.
pub fn life(
    about: &About,
    events: &[Stamped],
    operations: &[OpEvent],
    violations: &[check::Violation],
    seen: &Collector,
) -> Life {
    let mut life = Life { meta: meta(about, violations), ..Life::default() };
    let mut parts = Parts::new(events, violations, seen);
    let mut teller = Teller::new(events, &mut parts, micros(about.ended));
    teller.tell();
    let told = teller.done();
    life.phases = phases(events, micros(about.ended));
    (life.lanes, life.items) = (told.lanes, told.items);
    add_operations(&mut life, operations, about);
    super::stalls::add(&mut life, events, operations, about.ended);
    life.violations =
        violations.iter().map(|v| violation(v, &told.item_of, &life.items, events, &mut parts)).collect();
    (life.partitions, life.files) = parts.done(seen);
    life
}

pub(super) fn micros(t: Duration) -> u64 {
    t.as_micros() as u64
}

fn meta(about: &About, violations: &[check::Violation]) -> Meta {
    let verdict = match violations.first() {
        None => "held".to_owned(),
        Some(v) => format!("broken: {} {}", v.promise, title(v.promise)),
    };
    Meta {
        scenario: about.scenario.clone(),
        seed: about.seed,
        hash: format!("{:016x}", about.hash),
        verdict,
        duration: violations.iter().map(|v| micros(v.at)).fold(micros(about.ended).max(1), u64::max),
        commit: about.commit.clone(),
        replay: format!("cargo sim replay {} {}", about.scenario, about.seed),
        notes: about.notes.clone(),
    }
}

/// A promise's name, as the design has it.
pub fn title(promise: &str) -> &'static str {
    let names = [
        ("P1", "acked-durable"),
        ("P2", "no-dirty-read"),
        ("P3", "dense-offsets"),
        ("P4", "exactly-once-append"),
        ("P5", "one-voice"),
        ("P6", "marks-only-rise"),
        ("P7", "atomic-transactions"),
        ("P8", "offsets-kept"),
        ("P9", "bytes-verbatim"),
        ("P10", "bounded-recovery"),
        ("P11", "no-hang"),
        ("P12", "tidy-handles"),
        ("P13", "comes-back"),
    ];
    names.iter().find(|(id, _)| *id == promise).map_or("", |(_, name)| name)
}

fn phases(events: &[Stamped], end: u64) -> Vec<Phase> {
    let mut phases: Vec<Phase> = Vec::new();
    for e in events {
        let history::Event::Phase(phase) = &e.event else { continue };
        let at = micros(e.at);
        if let Some(last) = phases.last_mut() {
            last.to = at;
        }
        if *phase != history::Phase::Done {
            phases.push(Phase { name: format!("{phase:?}").to_lowercase(), from: at, to: end });
        }
    }
    phases
}

fn violation(
    v: &check::Violation,
    item_of: &BTreeMap<history::Index, usize>,
    items: &[Item],
    events: &[Stamped],
    parts: &mut Parts,
) -> Violation {
    let mut led: Vec<usize> = Vec::new();
    for n in v.events.iter().filter_map(|e| item_of.get(e).copied()) {
        // A request and its answer are one item.
        if !led.contains(&n) {
            led.push(n);
        }
    }
    let about = led.iter().map(|i| &items[*i]).find(|it| it.p.is_some());
    let place = v.events.iter().find_map(|i| place(&events.get(*i)?.event));
    Violation {
        promise: v.promise.into(),
        title: title(v.promise).into(),
        at: micros(v.at),
        part: about.and_then(|it| it.p).or_else(|| place.map(|p| parts.number(p))),
        offset: about.and_then(|it| it.b).filter(|b| *b >= 0),
        text: v.what.clone(),
        events: led,
    }
}

/// The partition that an event is about.
pub(super) fn place(event: &history::Event) -> Option<&Place> {
    use history::Event as E;
    match event {
        E::ProduceSent { at, .. }
        | E::FetchDone { at, .. }
        | E::ListOffsetsDone { at, .. }
        | E::DeleteRecordsSent { at, .. }
        | E::FinalRead { at, .. } => Some(at),
        _ => None,
    }
}

/// The partitions of a life, by the numbers that the page knows them by.
#[derive(Default)]
pub(super) struct Parts {
    /// By topic, number and id.
    known: Vec<Home>,
    rows: Vec<Partition>,
}

impl Parts {
    /// Those that a broken promise is about come first, then those that were used.
    fn new(events: &[Stamped], violations: &[check::Violation], seen: &Collector) -> Parts {
        let mut parts = Parts { known: Vec::new(), rows: Vec::new() };
        let ids: Vec<Home> = seen.with(|homes| homes.keys().cloned().collect());
        let broken = violations.iter().flat_map(|v| &v.events).filter_map(|i| place(&events.get(*i)?.event));
        for p in broken.chain(events.iter().filter_map(|e| place(&e.event))) {
            parts.number_with(p, &ids);
        }
        for home in ids {
            if !parts.known.contains(&home) && !home.topic.starts_with("__") {
                parts.add(home);
            }
        }
        parts
    }

    fn number_with(&mut self, p: &Place, ids: &[Home]) -> usize {
        let id = p.id.map(|id| id.simple().to_string());
        let same = |h: &Home| *h.topic == *p.topic && h.partition == p.partition;
        // A name alone stands for the topic of that name, if there was but one, else for the first.
        let fits = |h: &&Home| same(h) && id.as_ref().is_none_or(|id| *id == h.id);
        if let Some(n) = self.known.iter().position(|h| fits(&h)) {
            return n;
        }
        let home = ids.iter().find(fits).cloned();
        self.add(home.unwrap_or_else(|| Home {
            topic: p.topic.to_string(),
            partition: p.partition,
            id: id.unwrap_or_default(),
        }))
    }

    pub fn number(&mut self, p: &Place) -> usize {
        self.number_with(p, &[])
    }

    fn add(&mut self, home: Home) -> usize {
        let twins =
            self.known.iter().filter(|h| (&h.topic, h.partition) == (&home.topic, home.partition)).count();
        let name = match twins {
            0 => format!("{}-{}", home.topic, home.partition),
            n => format!("{}-{} ({})", home.topic, home.partition, n + 1),
        };
        self.rows.push(Partition { name, ..Partition::default() });
        self.known.push(home);
        self.rows.len() - 1
    }

    /// A client saw the marks of a partition.
    pub fn marks(&mut self, part: usize, at: u64, hwm: i64, start: i64) {
        let Some(row) = self.rows.get_mut(part) else { return };
        for (list, value) in [(&mut row.hwm, hwm), (&mut row.start, start)] {
            if value >= 0 && list.last().is_none_or(|(_, last)| *last != value) {
                list.push((at, value));
            }
        }
    }

    fn done(mut self, seen: &Collector) -> (Vec<Partition>, Vec<super::data::File>) {
        let mut files = Vec::new();
        for row in &mut self.rows {
            row.hwm.sort_by_key(|(at, _)| *at);
            row.start.sort_by_key(|(at, _)| *at);
        }
        seen.with(|homes| {
            for (n, home) in self.known.iter().enumerate().take(MOST_PARTITIONS) {
                let Some(seen) = homes.get(home) else { continue };
                let (mut here, checkpoints) = rows(home, seen, n, files.len());
                files.append(&mut here);
                self.rows[n].checkpoint = checkpoints;
            }
        });
        (self.rows, files)
    }
}

/// The volume's operations on its lane, and what the heartbeats among them make: the brokers' leases.
fn add_operations(life: &mut Life, operations: &[OpEvent], about: &About) {
    if operations.is_empty() {
        return;
    }
    let volume = lane(life, LaneKind::Volume, "volume");
    let mut last: BTreeMap<(String, bool), u64> = BTreeMap::new();
    let mut leases: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    // What is tried after the life is not part of it.
    for op in operations.iter().filter(|op| op.started <= about.ended) {
        heartbeat(&mut leases, op, about);
        let Some(word) = word(op.op) else { continue };
        let (from, to) = (micros(op.started), micros(op.ended));
        let fine = op.outcome == Outcome::Done && !op.landed_after_death();
        let before = last.insert((word.to_owned(), fine), to);
        if fine && to - from < CLOSE * 20 && before.is_some_and(|b| from < b + CLOSE) {
            continue;
        }
        let late = if op.landed_after_death() { ", landed after its sender died" } else { "" };
        let how = match &op.outcome {
            Outcome::Done => "",
            Outcome::Failed(_) => ", failed",
            Outcome::Orphaned => ", nobody waited any more",
        };
        let name = op.path.rsplit('/').next().unwrap_or_default();
        life.items.push(Item {
            t: (to > from).then_some(to as i64),
            o: if fine { "ok" } else { "refused" }.into(),
            x: format!("{word} {name}{late}{how}"),
            ..item(volume, Kind::Op, from)
        });
    }
    add_leases(life, leases, about);
}

fn word(op: Op) -> Option<&'static str> {
    match op {
        Op::Write => Some("write"),
        Op::Sync => Some("sync"),
        Op::WriteBack => Some("write back"),
        Op::Rename => Some("rename"),
        Op::Truncate => Some("truncate"),
        Op::SyncDir => Some("sync directory"),
        _ => None,
    }
}

/// By heartbeat file, as an observer must assume: from its first durable write to a lease after the start of the last one.
fn heartbeat(leases: &mut BTreeMap<String, (u64, u64)>, op: &OpEvent, about: &About) {
    if op.outcome != Outcome::Done
        || !op.path.ends_with(".heartbeat")
        || !matches!(op.op, Op::Write | Op::Sync)
    {
        return;
    }
    let until = micros(op.started + about.lease);
    let lease = leases.entry(op.path.clone()).or_insert((micros(op.ended), until));
    lease.1 = lease.1.max(until);
}

fn add_leases(life: &mut Life, leases: BTreeMap<String, (u64, u64)>, about: &About) {
    for (path, (from, to)) in leases {
        let name = path.rsplit('/').next().and_then(|n| n.strip_suffix(".heartbeat")).unwrap_or_default();
        let Some((broker, number)) = name.split_once('-') else { continue };
        let Ok(number) = u32::from_str_radix(number, 16) else { continue };
        let lane = lane(life, LaneKind::Broker, &format!("broker {broker}"));
        let to = to.min(micros(about.ended));
        let text = format!("{number} of broker {broker}");
        life.items.push(Item { t: Some(to as i64), x: text, ..item(lane, Kind::Lease, from) });
    }
}

fn lane(life: &mut Life, kind: LaneKind, name: &str) -> usize {
    super::items::lane(&mut life.lanes, kind, name)
}

/// A moment on a lane, to be filled in.
pub(super) fn item(l: usize, k: Kind, f: u64) -> Item {
    Item { l, k, f, t: None, o: String::new(), p: None, b: None, n: 0, x: String::new() }
}
