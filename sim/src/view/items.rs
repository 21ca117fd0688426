//! The history's events as items on lanes: what was asked and what came of it become one.

use super::data::{Item, Kind, Lane, LaneKind};
use super::story::{item, micros, Parts};
use crate::history::{Answer, Code, Event, FaultKind, Fetched, Index, Life, Lost, Place, Stamped, Who};
use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What came of telling.
pub struct Told {
    pub lanes: Vec<Lane>,
    pub items: Vec<Item>,
    /// The item that an event became, or a part of.
    pub item_of: BTreeMap<Index, usize>,
}

pub struct Teller<'a> {
    events: &'a [Stamped],
    parts: &'a mut Parts,
    end: u64,
    told: Told,
    /// The present state of each broker: its item.
    states: BTreeMap<u32, usize>,
    /// What a broker was before it was paused, and the item of the pause.
    pauses: BTreeMap<u32, (String, usize)>,
    faults: BTreeMap<u64, usize>,
    /// When something was done to a broker: the broker's lane tells it.
    blows: BTreeSet<Duration>,
}

/// How a request ended.
struct End {
    outcome: &'static str,
    text: String,
}

/// The number of the lane of that name; a new one if there is none.
pub fn lane(lanes: &mut Vec<Lane>, kind: LaneKind, name: &str) -> usize {
    if let Some(n) = lanes.iter().position(|l| l.kind == kind && l.name == name) {
        return n;
    }
    lanes.push(Lane { kind, name: name.into(), note: String::new() });
    lanes.len() - 1
}

fn error(code: Code) -> String {
    match ResponseError::try_from_code(code) {
        Some(e) => format!("{e:?} ({code})"),
        None => format!("error {code}"),
    }
}

fn lost(lost: &Lost) -> End {
    let (outcome, text) = match lost {
        Lost::NotSent(why) => ("refused", format!("not sent: {why}")),
        Lost::TimedOut => ("unanswered", "timed out".into()),
        Lost::CutOff(why) => ("unanswered", format!("cut off: {why}")),
        Lost::Garbled(why) => ("refused", format!("the answer can't be read: {why}")),
        Lost::Unanswered => ("ok", "acks=0".into()),
    };
    End { outcome, text }
}

fn ended<T>(answer: &Answer<T>, code: impl Fn(&T) -> Code) -> End {
    match answer {
        Err(why) => lost(why),
        Ok(answer) => match code(answer) {
            0 => End { outcome: "ok", text: String::new() },
            code => End { outcome: "refused", text: error(code) },
        },
    }
}

/// Two texts as one.
fn join(a: &str, b: &str) -> String {
    match (a.is_empty(), b.is_empty()) {
        (false, false) => format!("{a}: {b}"),
        _ => format!("{a}{b}"),
    }
}

impl<'a> Teller<'a> {
    pub fn new(events: &'a [Stamped], parts: &'a mut Parts, end: u64) -> Teller<'a> {
        let told = Told { lanes: lanes(events), items: Vec::new(), item_of: BTreeMap::new() };
        let (states, pauses, faults) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let is_blow = |e: &&Stamped| matches!(&e.event, Event::Broker { life, .. } if blow(*life).is_some());
        let blows = events.iter().filter(is_blow).map(|e| e.at).collect();
        Teller { events, parts, end, told, states, pauses, faults, blows }
    }

    pub fn tell(&mut self) {
        for (i, e) in self.events.iter().enumerate() {
            if let Some(n) = self.one(i, micros(e.at), &e.event) {
                self.told.item_of.insert(i, n);
            }
        }
    }

    pub fn done(self) -> Told {
        self.told
    }

    fn add(&mut self, item: Item) -> usize {
        self.told.items.push(item);
        self.told.items.len() - 1
    }

    fn client(&mut self, who: Who) -> usize {
        lane(&mut self.told.lanes, LaneKind::Client, &who_name(who))
    }

    fn one(&mut self, i: Index, at: u64, event: &Event) -> Option<usize> {
        match event {
            Event::Phase(_) | Event::TopicSeen { .. } | Event::LeaderShown { .. } => None,
            Event::Note(text) => {
                let l = lane(&mut self.told.lanes, LaneKind::Volume, "world");
                Some(self.add(Item { x: text.clone(), ..item(l, Kind::Note, at) }))
            }
            Event::ClientStarted { .. } => None,
            Event::Broker { broker, life, .. } => self.broker(*broker, *life, at),
            Event::FaultIn { kind: FaultKind::Other, .. } if self.blows.contains(&self.events[i].at) => None,
            Event::FaultIn { id, kind, what } => Some(self.fault(*id, *kind, what, at)),
            Event::FaultOut { id } => self.fault_out(*id, at),
            Event::ProduceSent { .. } | Event::ProduceDone { .. } => self.produce(at, event),
            Event::FetchDone { who, started, at: place, offset, answer, .. } => {
                Some(self.fetch(*who, micros(*started), at, place, *offset, answer))
            }
            _ => self.request(i, at, event),
        }
    }

    fn broker(&mut self, broker: u32, life: Life, at: u64) -> Option<usize> {
        let l = lane(&mut self.told.lanes, LaneKind::Broker, &format!("broker {broker}"));
        let fault = blow(life).map(|x| self.blow(l, x, at));
        let before = self.states.get(&broker).map_or(String::new(), |i| self.told.items[*i].o.clone());
        let (state, text) = match life {
            Life::Starting => ("starting".to_owned(), ""),
            Life::Serving => ("serving".to_owned(), ""),
            Life::Failed => ("dead".to_owned(), "failed"),
            Life::Killed => ("dead".to_owned(), "killed"),
            Life::PowerCut => ("dead".to_owned(), "power cut"),
            Life::Stopped => ("dead".to_owned(), "stopped cleanly"),
            Life::Term => (before.clone(), "stopping"),
            Life::Paused => {
                self.pauses.insert(broker, (before, fault.unwrap_or_default()));
                ("paused".to_owned(), "")
            }
            Life::Resumed => {
                let (was, pause) = self.pauses.remove(&broker)?;
                self.told.items[pause].t = Some(at as i64);
                (was, "")
            }
        };
        let state = self.state(l, broker, &state, text, at);
        Some(fault.unwrap_or(state))
    }

    /// A power cut kills, too: what is done at once is one blow, called by the last of its names.
    fn blow(&mut self, l: usize, x: &str, at: u64) -> usize {
        let same = |it: &Item| it.k == Kind::Fault && it.l == l && it.f == at;
        if let Some(n) = self.told.items.iter().rposition(same) {
            self.told.items[n].x = x.into();
            return n;
        }
        self.add(Item { x: x.into(), ..item(l, Kind::Fault, at) })
    }

    fn state(&mut self, l: usize, broker: u32, state: &str, text: &str, at: u64) -> usize {
        if let Some(last) = self.states.get(&broker) {
            self.told.items[*last].t = Some(at as i64);
        }
        let n = self.add(Item {
            t: Some(self.end as i64),
            o: state.into(),
            x: text.into(),
            ..item(l, Kind::State, at)
        });
        self.states.insert(broker, n);
        n
    }

    fn fault(&mut self, id: u64, kind: FaultKind, what: &str, at: u64) -> usize {
        let name = match kind {
            FaultKind::Network => "network",
            FaultKind::Clock | FaultKind::Other => "world",
            _ => "volume",
        };
        let l = lane(&mut self.told.lanes, LaneKind::Volume, name);
        let n = self.add(Item { x: what.into(), ..item(l, Kind::Fault, at) });
        self.faults.insert(id, n);
        n
    }

    /// A fault that is never taken out stays a moment: it had its effect when it came.
    fn fault_out(&mut self, id: u64, at: u64) -> Option<usize> {
        let n = *self.faults.get(&id)?;
        let it = &mut self.told.items[n];
        if at > it.f {
            it.t = Some(at as i64);
        }
        Some(n)
    }

    fn produce(&mut self, at: u64, event: &Event) -> Option<usize> {
        match event {
            Event::ProduceSent { who, at: place, acks, batch, retry_of } => {
                let l = self.client(*who);
                let mut x = if *acks == -1 { String::new() } else { format!("acks={acks}") };
                if retry_of.is_some() {
                    x = join(&x, "again");
                }
                let (p, n) = (self.parts.number(place), batch.count.max(0) as u64);
                Some(self.add(Item {
                    t: Some(-1),
                    o: "unanswered".into(),
                    p: Some(p),
                    n,
                    x,
                    ..item(l, Kind::Produce, at)
                }))
            }
            Event::ProduceDone { sent, answer, .. } => {
                let n = *self.told.item_of.get(sent)?;
                let end = ended(answer, |a| a.code);
                let it = &mut self.told.items[n];
                (it.t, it.o, it.x) = (Some(at as i64), end.outcome.into(), join(&it.x, &end.text));
                it.b = answer.as_ref().ok().filter(|a| a.code == 0).map(|a| a.base);
                Some(n)
            }
            _ => None,
        }
    }

    fn fetch(
        &mut self,
        who: Who,
        from: u64,
        at: u64,
        place: &Place,
        offset: i64,
        answer: &Answer<Fetched>,
    ) -> usize {
        let (l, p, end) = (self.client(who), self.parts.number(place), ended(answer, |a| a.code));
        let (mut b, mut n) = (None, 0);
        if let Ok(a) = answer {
            if a.code == 0 {
                self.parts.marks(p, at, a.hwm, a.log_start);
            }
            if let (Some(first), Some(last)) = (a.batches.first(), a.batches.last()) {
                let from = first.base.max(offset);
                (b, n) = (Some(from), last.end().saturating_sub(from).max(0) as u64);
            }
        }
        let x = if end.outcome == "ok" { String::new() } else { join(&format!("from {offset}"), &end.text) };
        self.add(Item {
            t: Some(at as i64),
            o: end.outcome.into(),
            p: Some(p),
            b,
            n,
            x,
            ..item(l, Kind::Read, from)
        })
    }

    /// Everything else that a client asked, in one form.
    fn request(&mut self, i: Index, at: u64, event: &Event) -> Option<usize> {
        let asked = self.asked(event);
        if let Some((who, x, p)) = asked {
            let l = self.client(who);
            return Some(self.add(Item {
                t: Some(-1),
                o: "unanswered".into(),
                p,
                x,
                ..item(l, Kind::Request, at)
            }));
        }
        if let Some((sent, end)) = answered(event) {
            let n = *self.told.item_of.get(&sent)?;
            let it = &mut self.told.items[n];
            (it.t, it.o, it.x) = (Some(at as i64), end.outcome.into(), join(&it.x, &end.text));
            return Some(n);
        }
        if let Some((who, started, x, end, p)) = self.whole(event) {
            let l = self.client(who);
            let x = join(&x, &end.text);
            return Some(self.add(Item {
                t: Some(at as i64),
                o: end.outcome.into(),
                p,
                x,
                ..item(l, Kind::Request, started)
            }));
        }
        self.proof(i, at, event)
    }

    /// A request whose answer is an event of its own.
    fn asked(&mut self, event: &Event) -> Option<(Who, String, Option<usize>)> {
        Some(match event {
            Event::CommitSent { who, group, offsets, .. } => {
                let list: Vec<String> =
                    offsets.iter().map(|(p, o)| format!("{}-{}={o}", p.topic, p.partition)).collect();
                (*who, format!("commit {group} {}", list.join(" ")), None)
            }
            Event::TxnEndSent { who, txn, commit } => {
                let what = if *commit { "commit" } else { "abort" };
                (*who, format!("{what} transaction {txn}"), None)
            }
            Event::CreateTopicSent { who, topic, partitions, .. } => {
                (*who, format!("create topic {topic} with {partitions} partitions"), None)
            }
            Event::DeleteTopicSent { who, topic, .. } => (*who, format!("delete topic {topic}"), None),
            Event::DeleteRecordsSent { who, at, to } => {
                (*who, format!("delete records before {to}"), Some(self.parts.number(at)))
            }
            Event::AlterConfigSent { who, topic, key, value, .. } => {
                (*who, format!("set {key} = {value:?} on {topic}"), None)
            }
            _ => return None,
        })
    }

    /// A request that is one event.
    fn whole(&mut self, event: &Event) -> Option<(Who, u64, String, End, Option<usize>)> {
        Some(match event {
            Event::ProducerId { who, started, answer } => {
                let id =
                    answer.as_ref().map_or(String::new(), |(_, id, epoch)| format!(" {id}, epoch {epoch}"));
                (*who, micros(*started), format!("producer id{id}"), ended(answer, |a| a.0), None)
            }
            Event::TxnInit { who, started, id, incarnation, answer, .. } => {
                let got =
                    answer.as_ref().map_or(String::new(), |(_, id, epoch)| format!(": {id}, epoch {epoch}"));
                let x = format!("transactional id {id}, incarnation {incarnation}{got}");
                (*who, micros(*started), x, ended(answer, |a| a.0), None)
            }
            Event::TxnAdded { who, started, what, answer, .. } => (
                *who,
                micros(*started),
                format!("add {what} to the transaction"),
                ended(answer, |a| *a),
                None,
            ),
            Event::ListOffsetsDone { who, started, at, timestamp, answer, .. } => {
                let p = self.parts.number(at);
                let offset = answer.as_ref().map_or(String::new(), |a| format!(" is {}", a.offset));
                (
                    *who,
                    micros(*started),
                    format!("offset at {timestamp}{offset}"),
                    ended(answer, |a| a.code),
                    Some(p),
                )
            }
            Event::MemberDone { who, started, group, call, generation, answer, .. } => {
                let x = format!("{} {group}, generation {generation}", format!("{call:?}").to_lowercase());
                (*who, micros(*started), x, ended(answer, |a| *a), None)
            }
            Event::OffsetsFetched { who, started, group, answer, .. } => {
                (*who, micros(*started), format!("committed offsets of {group}"), ended(answer, |_| 0), None)
            }
            Event::CreatePartitionsDone { who, started, topic, count, answer } => (
                *who,
                micros(*started),
                format!("{topic} to {count} partitions"),
                ended(answer, |a| *a),
                None,
            ),
            _ => return None,
        })
    }

    fn proof(&mut self, _: Index, at: u64, event: &Event) -> Option<usize> {
        let l = self.client(Who::PROVER);
        let (o, x, p, from) = match event {
            Event::FinalRead { at: place, log_start, hwm } => {
                let p = self.parts.number(place);
                self.parts.marks(p, at, *hwm, *log_start);
                ("ok", format!("read all of it, {log_start} to {hwm}"), Some(p), at)
            }
            Event::FinalCommitted { at: place, lso, hwm } => {
                let p = self.parts.number(place);
                ("ok", format!("read all that is committed, up to {lso} of {hwm}"), Some(p), at)
            }
            Event::NotProven { what } => ("refused", format!("not proven: {what}"), None, at),
            Event::Proven { what, took } => {
                ("ok", format!("proven: {what}"), None, at.saturating_sub(micros(*took)))
            }
            _ => return None,
        };
        Some(self.add(Item { t: Some(at as i64), o: o.into(), x, p, ..item(l, Kind::Request, from) }))
    }
}

/// The answer to an earlier event.
fn answered(event: &Event) -> Option<(Index, End)> {
    Some(match event {
        Event::CommitDone { sent, answer, .. } => {
            (*sent, ended(answer, |a| a.iter().copied().find(|c| *c != 0).unwrap_or(0)))
        }
        Event::TxnEndDone { sent, answer, .. } => (*sent, ended(answer, |a| a.0)),
        Event::CreateTopicDone { sent, answer, .. } => (*sent, ended(answer, |a| a.0)),
        Event::DeleteTopicDone { sent, answer, .. } => (*sent, ended(answer, |a| *a)),
        Event::DeleteRecordsDone { sent, answer, .. } => (*sent, ended(answer, |a| a.0)),
        Event::AlterConfigDone { sent, answer, .. } => (*sent, ended(answer, |a| *a)),
        _ => return None,
    })
}

/// What was done to a broker, if it was not the broker's own doing.
fn blow(life: Life) -> Option<&'static str> {
    match life {
        Life::Killed => Some("kill"),
        Life::PowerCut => Some("power cut"),
        Life::Paused => Some("pause"),
        Life::Term => Some("SIGTERM"),
        _ => None,
    }
}

fn who_name(who: Who) -> String {
    match who {
        Who::PROVER => "prover".into(),
        Who::FOUNDER => "founder".into(),
        Who(n) => format!("client {n}"),
    }
}

/// Clients, founder and prover last, then brokers, then the volume; what else appears comes after.
fn lanes(events: &[Stamped]) -> Vec<Lane> {
    let mut clients = Vec::new();
    let mut brokers = BTreeSet::new();
    let started: BTreeSet<Who> = events
        .iter()
        .filter_map(|e| if let Event::ClientStarted { who, .. } = &e.event { Some(*who) } else { None })
        .collect();
    for who in started.into_iter().chain([Who::FOUNDER, Who::PROVER]) {
        lane(&mut clients, LaneKind::Client, &who_name(who));
    }
    for e in events {
        match &e.event {
            Event::ClientStarted { who, what } => {
                let n = lane(&mut clients, LaneKind::Client, &who_name(*who));
                clients[n].note = (*what).into();
            }
            Event::Broker { broker, .. } => drop(brokers.insert(*broker)),
            _ => {}
        }
    }
    for b in brokers {
        lane(&mut clients, LaneKind::Broker, &format!("broker {b}"));
    }
    lane(&mut clients, LaneKind::Volume, "volume");
    clients
}
