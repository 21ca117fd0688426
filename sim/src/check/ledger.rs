//! The history, sorted by what the checkers ask for: one pass, no judgement.

use super::{Evidence, Terms};
use crate::history::{
    Answer, BatchInfo, Event, FaultKind, Fetched, Index, Life, Listed, Phase, Place, Produced, Stamped, Who,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const TIMESTAMP_TYPE: &str = "message.timestamp.type";

/// A partition by its identity.
pub type PartKey = (Uuid, i32);

/// A batch that was handed to a broker.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    pub event: Index,
    pub at: Duration,
    pub acks: i16,
    /// The same batch was sent before.
    pub is_retry: bool,
    pub batch: &'a BatchInfo,
    pub place: &'a Place,
}

/// A produce that was acknowledged without an error.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    pub sent: Sent<'a>,
    pub event: Index,
    pub at: Duration,
    pub base: i64,
    /// Who acknowledged.
    pub from: Option<IpAddr>,
}

impl Ack<'_> {
    /// The offset after its last record.
    pub fn end(&self) -> i64 {
        self.base + i64::from(self.sent.batch.last_delta) + 1
    }
}

/// A batch that a consumer got.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    pub event: Index,
    pub at: Duration,
    pub batch: &'a BatchInfo,
    /// When it was asked for, and who gave it.
    pub asked: Duration,
    pub from: Option<IpAddr>,
}

/// A process of a broker: the `nth` that was started on a host, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub host: IpAddr,
    nth: usize,
}

/// A value that an answer showed: it was so at some time between `from` and `at`.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub event: Index,
    pub from: Duration,
    pub at: Duration,
    pub value: i64,
    /// Only a lower bound: it speaks of what comes later, and is not judged itself.
    pub is_bound: bool,
}

/// All of a partition, as the prover read it.
#[derive(Clone, Debug, Default)]
pub struct Final<'a> {
    pub event: Index,
    pub log_start: i64,
    pub hwm: i64,
    pub batches: Vec<&'a BatchInfo>,
    /// Offsets where the broker said that the log is damaged.
    pub damaged: BTreeSet<i64>,
}

#[derive(Default)]
pub struct Part<'a> {
    pub topic: Option<Arc<str>>,
    pub acks: Vec<Ack<'a>>,
    pub reads: Vec<Read<'a>>,
    pub hwm: Vec<Mark>,
    pub log_start: Vec<Mark>,
    /// Who answered for the partition without an error, and the first such answer.
    pub served: BTreeMap<Process, Index>,
    pub end: Option<Final<'a>>,
    reading: Final<'a>,
}

/// A time during which something was wrong.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub from: Duration,
    pub until: Duration,
}

pub struct Ledger<'a> {
    pub evidence: &'a Evidence,
    pub events: &'a [Stamped],
    pub terms: &'a Terms,
    pub parts: BTreeMap<PartKey, Part<'a>>,
    /// The first sending of each batch, by content.
    pub contents: BTreeMap<(u64, i64, i16, i32), Sent<'a>>,
    /// By the event of its sending.
    pub sent: BTreeMap<Index, Sent<'a>>,
    /// Ids of topics of which a deletion was sent, and when.
    pub deleted: BTreeMap<Uuid, Duration>,
    pub faults: Vec<Fault>,
    /// What happened to brokers, and on which host.
    pub lives: Vec<(Duration, u32, IpAddr, Life)>,
    /// Topics that were made, or set, to be stamped by the broker.
    pub stamped: BTreeSet<Arc<str>>,
    /// When processes were started, by host: one lives from its start to the next on the same host.
    pub starts: BTreeMap<IpAddr, Vec<Duration>>,
    pub phases: Vec<(Duration, Phase)>,
}

impl<'a> Ledger<'a> {
    pub fn new(evidence: &'a Evidence) -> Ledger<'a> {
        let mut ledger = Ledger {
            evidence,
            events: &evidence.history,
            terms: &evidence.terms,
            parts: BTreeMap::new(),
            contents: BTreeMap::new(),
            sent: BTreeMap::new(),
            deleted: BTreeMap::new(),
            faults: Vec::new(),
            lives: Vec::new(),
            starts: BTreeMap::new(),
            stamped: BTreeSet::new(),
            phases: Vec::new(),
        };
        let mut open = BTreeMap::new();
        for (index, Stamped { at, event }) in ledger.events.iter().enumerate() {
            match event {
                Event::FaultIn { id, kind, .. } => {
                    open.insert(*id, ledger.faults.len());
                    ledger.faults.push(Fault { kind: *kind, from: *at, until: Duration::MAX });
                }
                Event::FaultOut { id } => {
                    if let Some(fault) = open.remove(id).and_then(|i: usize| ledger.faults.get_mut(i)) {
                        fault.until = *at;
                    }
                }
                Event::Broker { broker, host, life } => {
                    ledger.lives.push((*at, *broker, *host, *life));
                    if *life == Life::Starting {
                        ledger.starts.entry(*host).or_default().push(*at);
                    }
                }
                Event::Phase(phase) => ledger.phases.push((*at, *phase)),
                Event::DeleteTopicSent { id, .. } => {
                    ledger.deleted.entry(*id).or_insert(*at);
                }
                Event::CreateTopicSent { topic, configs, .. }
                    if configs.iter().any(|(k, v)| k == TIMESTAMP_TYPE && v == "LogAppendTime") =>
                {
                    ledger.stamped.insert(topic.clone());
                }
                Event::AlterConfigSent { topic, key, .. } if key == TIMESTAMP_TYPE => {
                    ledger.stamped.insert(topic.clone());
                }
                _ => ledger.note_records(index, *at, event),
            }
        }
        ledger
    }

    fn note_records(&mut self, index: Index, at: Duration, event: &'a Event) {
        match event {
            Event::ProduceSent { at: place, acks, batch, retry_of, .. } => {
                let is_retry = retry_of.is_some();
                let sent = Sent { event: index, at, acks: *acks, is_retry, batch, place };
                self.contents.entry(batch.key()).or_insert(sent);
                self.sent.insert(index, sent);
            }
            Event::ProduceDone { sent, from, answer: Ok(p), .. } if p.code == 0 => {
                self.note_ack(index, at, *sent, *from, p)
            }
            Event::FetchDone { who, started, at: place, offset, from, answer: Ok(fetched), .. } => {
                if fetched.code == 0 {
                    self.note_served(index, (*started, at), *from, place);
                }
                self.note_fetch(index, (*started, at), (*who, *from), (place, *offset), fetched);
            }
            Event::ListOffsetsDone { started, at: place, timestamp, committed, from, answer, .. } => {
                if matches!(answer, Ok(Listed { code: 0, .. })) {
                    self.note_served(index, (*started, at), *from, place);
                }
                // The last stable offset is no mark of the log's: it is judged with the transactions.
                if !(*committed && *timestamp == -1) {
                    self.note_listed(index, (*started, at), place, *timestamp, answer);
                }
            }
            Event::DeleteRecordsDone { sent, answer: Ok((0, low)), .. } => {
                let (Some(Event::DeleteRecordsSent { at: place, .. }), from) = self.event(*sent) else {
                    return;
                };
                let mark = Mark { event: index, from, at, value: *low, is_bound: false };
                if let Some(part) = self.part(place) {
                    part.log_start.push(mark);
                }
            }
            Event::FinalRead { at: place, log_start, hwm } => {
                let Some(part) = self.part(place) else { return };
                let mut read = std::mem::take(&mut part.reading);
                // What was removed while it was read is not part of what is there.
                read.batches.retain(|b| b.end() > *log_start);
                part.end = Some(Final { event: index, log_start: *log_start, hwm: *hwm, ..read });
            }
            _ => {}
        }
    }

    fn event(&self, index: Index) -> (Option<&'a Event>, Duration) {
        self.events.get(index).map_or((None, Duration::ZERO), |s| (Some(&s.event), s.at))
    }

    fn note_served(
        &mut self,
        event: Index,
        (asked, at): (Duration, Duration),
        from: Option<IpAddr>,
        place: &Place,
    ) {
        let Some(process) = from.and_then(|host| self.process(host, asked, at)) else { return };
        if let Some(part) = self.part(place) {
            part.served.entry(process).or_insert(event);
        }
    }

    /// Whose answer it is that came from `host` between `asked` and `at`; `None` if another process was started there
    /// meanwhile.
    pub fn process(&self, host: IpAddr, asked: Duration, at: Duration) -> Option<Process> {
        let starts = self.starts.get(&host)?;
        let nth = starts.partition_point(|s| *s <= asked);
        (nth > 0 && nth == starts.partition_point(|s| *s <= at)).then_some(Process { host, nth })
    }

    pub fn started(&self, process: Process) -> Duration {
        let start = self.starts.get(&process.host).and_then(|s| s.get(process.nth - 1));
        start.copied().unwrap_or_default()
    }

    /// What a process went through, in order.
    pub fn lives_of(&self, process: Process) -> impl Iterator<Item = (Duration, Life)> + '_ {
        let began = self.started(process);
        let ended = self.starts.get(&process.host).and_then(|s| s.get(process.nth)).copied();
        let of_it = move |at: Duration| at >= began && ended.is_none_or(|e| at < e);
        let here = self.lives.iter().filter(move |(at, _, host, _)| *host == process.host && of_it(*at));
        here.map(|(at, .., life)| (*at, *life))
    }

    /// `None` while it was not certain which topic the name stood for.
    fn part(&mut self, place: &Place) -> Option<&mut Part<'a>> {
        let part = self.parts.entry((place.id?, place.partition)).or_default();
        part.topic.get_or_insert_with(|| place.topic.clone());
        Some(part)
    }

    fn note_ack(&mut self, event: Index, at: Duration, sent: Index, from: Option<IpAddr>, p: &Produced) {
        let Some(sent) = self.sent.get(&sent).copied() else { return };
        // A name that was certain when the request was sent may have changed hands before the answer.
        if sent.place.id.is_some_and(|id| self.deleted.contains_key(&id)) {
            return;
        }
        let ack = Ack { sent, event, at, base: p.base, from };
        let mark = |value, is_bound| Mark { event, from: sent.at, at, value, is_bound };
        self.note_served(event, (sent.at, at), from, sent.place);
        let Some(part) = self.part(sent.place) else { return };
        if sent.acks == -1 {
            part.hwm.push(mark(ack.end(), true));
        }
        if p.log_start >= 0 {
            part.log_start.push(mark(p.log_start, false));
        }
        part.acks.push(ack);
    }

    fn note_fetch(
        &mut self,
        event: Index,
        (asked, at): (Duration, Duration),
        (who, from): (Who, Option<IpAddr>),
        (place, offset): (&Place, i64),
        fetched: &'a Fetched,
    ) {
        let Some(part) = self.part(place) else { return };
        if fetched.code == 2 && who == Who::PROVER {
            part.reading.damaged.insert(offset);
        }
        if fetched.code != 0 {
            return;
        }
        let mark = |value| Mark { event, from: asked, at, value, is_bound: false };
        part.hwm.push(mark(fetched.hwm));
        part.log_start.push(mark(fetched.log_start));
        part.reads.extend(fetched.batches.iter().map(|batch| Read { event, at, batch, asked, from }));
        if who == Who::PROVER {
            part.reading.batches.extend(&fetched.batches);
        }
    }

    fn note_listed(
        &mut self,
        event: Index,
        (from, at): (Duration, Duration),
        place: &Place,
        timestamp: i64,
        answer: &Answer<Listed>,
    ) {
        let Ok(Listed { code: 0, offset, .. }) = answer else { return };
        let mark = Mark { event, from, at, value: *offset, is_bound: false };
        let Some(part) = self.part(place) else { return };
        match timestamp {
            -1 => part.hwm.push(mark),
            -2 => part.log_start.push(mark),
            _ => {}
        }
    }

    /// Whether a broker or the volume may have gone through something between two times, such that state that is not
    /// durable yet is lost. A partition or a slot may give up and open again some time after the fault that made it.
    pub fn was_disturbed(&self, from: Duration, until: Duration) -> bool {
        let since = from.saturating_sub(self.terms.lease + self.terms.sync_timeout);
        self.lives.iter().any(|(at, ..)| (from..=until).contains(at))
            || self.faults.iter().any(|f| f.from <= until && f.until >= since)
    }

    /// Whether bits rotted on the media: what the broker then says is damaged may be so.
    pub fn had_damage(&self) -> bool {
        self.faults.iter().any(|f| f.kind == FaultKind::Damage)
    }

    /// Whether batches of this topic are stamped by the broker (`message.timestamp.type=LogAppendTime`).
    pub fn is_stamped(&self, topic: Option<&Arc<str>>) -> bool {
        topic.is_some_and(|t| self.stamped.contains(t))
    }

    pub fn at(&self, event: Index) -> Duration {
        self.events.get(event).map_or(Duration::ZERO, |s| s.at)
    }

    /// When something happened that a dial above 1 does not survive, in order.
    pub fn page_cache_losses(&self) -> impl Iterator<Item = Duration> + '_ {
        const KINDS: [FaultKind; 4] =
            [FaultKind::ServerRestart, FaultKind::Error, FaultKind::Damage, FaultKind::Stall];
        let first = self.lives.first().map(|(_, broker, ..)| *broker);
        let is_alone = self.lives.iter().all(|(_, broker, ..)| Some(*broker) == first);
        // Of several brokers another one takes over, on another host: it has what was flushed, and no page of the first one's.
        let is_loss = |life: &Life| match life {
            Life::PowerCut => true,
            Life::Killed | Life::Paused => !is_alone,
            _ => false,
        };
        let cuts = self.lives.iter().filter(|(.., life)| is_loss(life)).map(|(at, ..)| *at);
        let faults = self.faults.iter().filter(|f| KINDS.contains(&f.kind)).map(|f| f.from);
        let mut all: Vec<Duration> = cuts.chain(faults).collect();
        all.sort();
        all.into_iter()
    }

    /// Whether something ever happened that a dial above 1 does not survive.
    pub fn lost_a_page_cache(&self) -> bool {
        self.page_cache_losses().next().is_some()
    }
}

impl Part<'_> {
    /// `topic-partition`, for people.
    pub fn name(&self, key: &PartKey) -> String {
        match &self.topic {
            Some(topic) => format!("{topic}-{}", key.1),
            None => format!("{}-{}", key.0, key.1),
        }
    }
}
