//! A producer: batches at a rate, several requests under way, plain or idempotent.
//!
//! A plain one sends each batch once. An idempotent one (KIP-98) behaves as Kafka's own: it numbers the
//! batches of a partition, and when one of them fails or stays unanswered it waits for the others that are under
//! way, then sends what is unresolved again, in order and one at a time, byte for byte the same. If the broker
//! says that the numbers are wrong it takes a new producer id and gives the unresolved ones up: they may be
//! there or not. It may begin anew by itself, too, when nothing is unresolved.

use super::spec::{Producer, Range};
use super::User;
use crate::client::records::{self, Identity};
use crate::client::{topic_name, version, InFlight, Target};
use crate::history::{Answer, BatchInfo, Code, Event, Index, Lost, Place, Produced};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const BACKOFF: Duration = Duration::from_millis(100);
/// How long the broker may wait for durability before it says REQUEST_TIMED_OUT: it never does here, so that a
/// stuck request is seen.
const BROKER_TIMEOUT_MS: i32 = i32::MAX;

/// Codes that end a producer id (Kafka's `Sender.canRetry` and `TransactionManager.handleFailedBatch`).
mod code {
    pub const DUPLICATE_SEQUENCE: i16 = 46;
    pub const ENDS_PRODUCER_ID: [i16; 3] = [45, 47, 59];
    /// Trying again may help: CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE,
    /// NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, …
    pub const RETRIABLE: [i16; 8] = [2, 3, 5, 6, 7, 13, 19, 56];
}

type Line = (Arc<str>, i32);

/// A batch without an acknowledgement yet.
struct Flight {
    number: u64,
    bytes: Bytes,
    info: BatchInfo,
    first: Option<Index>,
    is_under_way: bool,
}

/// The batches of one partition, in their order.
#[derive(Default)]
struct Queue {
    flights: VecDeque<Flight>,
    next_sequence: i32,
    /// One of them failed: no new ones until all are resolved.
    is_recovering: bool,
    retry_at: Option<Instant>,
}

pub(super) struct Landed {
    pub line: Line,
    pub flight: u64,
    pub sent: Index,
    pub from: Option<IpAddr>,
    pub arrived: Option<Duration>,
    pub answer: Answer<Produced>,
}

struct Run {
    user: User,
    spec: Producer,
    identity: Option<(i64, i16)>,
    /// When it begins anew, and what says when after that.
    anew: Option<Anew>,
    queues: BTreeMap<Line, Queue>,
    under_way: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// Batches so far.
    batches: u64,
}

/// When an idempotent producer takes another id by itself.
struct Anew {
    every: Range,
    rng: SmallRng,
    at: Instant,
}

impl Anew {
    fn of(user: &User, spec: &Producer) -> Option<Anew> {
        let every = spec.anew_ms.filter(|_| spec.idempotent)?;
        let mut rng = user.ctx.rng_for(user.who, "anew");
        let at = Instant::now() + every.millis(&mut rng);
        Some(Anew { every, rng, at })
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.at <= Instant::now();
        if is_due {
            self.at = Instant::now() + self.every.millis(&mut self.rng);
        }
        is_due
    }
}

pub(super) async fn run(mut user: User, spec: Producer) {
    let rate = spec.rate.draw(&mut user.rng).max(0.01);
    let interval = Duration::from_secs_f64(1.0 / rate);
    let in_flight = spec.in_flight.whole(&mut user.rng).clamp(1, 5) as usize;
    let begin = interval.mul_f64(user.rng.gen_range(0.0..1.0));
    let anew = Anew::of(&user, &spec);
    let mut run = Run {
        user,
        spec,
        identity: None,
        anew,
        queues: BTreeMap::new(),
        under_way: FuturesUnordered::new(),
        batches: 0,
    };
    let mut next = Instant::now() + begin;
    let mut phase = run.user.ctx.phase.clone();
    while !run.user.is_over() {
        tokio::select! {
            biased;
            Some(landed) = run.under_way.next(), if !run.under_way.is_empty() => run.settle(landed),
            () = tokio::time::sleep_until(next), if run.under_way.len() < in_flight => {
                run.tick().await;
                next = (next + interval).max(Instant::now());
            }
            _ = phase.changed() => {}
        }
    }
    while let Some(landed) = run.under_way.next().await {
        run.settle(landed);
    }
}

impl Run {
    async fn tick(&mut self) {
        let is_idle = self.queues.values().all(|q| q.flights.is_empty());
        if is_idle && self.anew.as_mut().is_some_and(Anew::is_due) {
            self.queues.clear();
            self.identity = None;
        }
        if self.spec.idempotent && self.identity.is_none() {
            self.identity = self.user.producer_id().await;
            if self.identity.is_none() {
                self.user.pause(BACKOFF).await;
                return;
            }
        }
        if self.retry().await {
            return;
        }
        let lines = self.user.partitions(&self.spec.topics);
        let Some(line) = self.user.pick(&lines) else { return };
        if self.queues.get(&line).is_some_and(|q| q.is_recovering) {
            return;
        }
        self.send_new(line).await;
    }

    /// Sends the first unresolved batch of a partition that recovers. Returns whether there was one to send.
    async fn retry(&mut self) -> bool {
        let now = Instant::now();
        let due = self.queues.iter().find(|(_, q)| {
            q.is_recovering
                && q.retry_at.is_none_or(|at| at <= now)
                && q.flights.iter().all(|f| !f.is_under_way)
        });
        let Some(line) = due.map(|(line, _)| line.clone()) else { return false };
        let queue = self.queues.get_mut(&line).expect("it was just found");
        let Some(flight) = queue.flights.front() else {
            queue.is_recovering = false;
            return false;
        };
        let number = flight.number;
        self.send(line, number).await;
        true
    }

    async fn send_new(&mut self, line: Line) {
        let queue = self.queues.entry(line.clone()).or_default();
        let count = self.spec.records.whole(&mut self.user.rng).clamp(1, 10_000) as i32;
        let identity = match self.identity {
            Some((id, epoch)) => Identity { id, epoch, sequence: queue.next_sequence },
            None => Identity::NONE,
        };
        queue.next_sequence = queue.next_sequence.wrapping_add(count) & i32::MAX;
        self.batches += 1;
        let number = self.batches;
        let bytes = make_batch(&mut self.user, &self.spec, identity, number, count);
        let info = BatchInfo::parse(&bytes).expect("our own batch");
        let flight = Flight { number, bytes, info, first: None, is_under_way: false };
        queue.flights.push_back(flight);
        self.send(line, number).await;
    }

    async fn send(&mut self, line: Line, number: u64) {
        let target = Target::Leader(line.0.clone(), line.1);
        // Before it counts as sent: whoever asks for the leader may wait, behind answers that hang.
        let located = self.user.client.locate(&target).await;
        let queue = self.queues.get_mut(&line).expect("the partition has batches");
        let flight = queue.flights.iter_mut().find(|f| f.number == number).expect("it is not resolved");
        flight.is_under_way = true;
        let at = self.user.ctx.directory.place(&line.0, line.1);
        let (who, acks) = (self.user.who, self.spec.acks);
        let sent = self.user.ctx.history.record(Event::ProduceSent {
            who,
            at: at.clone(),
            acks,
            batch: flight.info,
            retry_of: flight.first,
        });
        flight.first.get_or_insert(sent);
        let request = produce_request(&line.0, line.1, acks, flight.bytes.clone());
        let answer = if let Err(lost) = located {
            Err(lost)
        } else if acks == 0 {
            let told = self.user.client.tell(&target, version::PRODUCE, &request).await;
            Err(told.err().unwrap_or(Lost::Unanswered))
        } else {
            match self.user.client.start(&target, version::PRODUCE, &request).await {
                Ok(in_flight) => {
                    let landing = land(line, number, sent, in_flight);
                    self.under_way.push(Box::pin(landing));
                    return;
                }
                Err(lost) => Err(lost),
            }
        };
        self.settle(Landed { line, flight: number, sent, from: None, arrived: None, answer });
    }

    /// Records what became of a batch, and decides what follows from it.
    fn settle(&mut self, landed: Landed) {
        let Landed { line, flight, sent, from, arrived, answer } = landed;
        let who = self.user.who;
        let wrong_leader = matches!(answer, Ok(Produced { code: 3 | 5 | 6 | 56, .. }));
        self.user.record(Event::ProduceDone { who, sent, from, arrived, answer: answer.clone() });
        if wrong_leader || answer.is_err() {
            self.user.client.forget_roles();
        }
        let Some(queue) = self.queues.get_mut(&line) else { return };
        let Some(at) = queue.flights.iter().position(|f| f.number == flight) else { return };
        queue.flights[at].is_under_way = false;
        match verdict(&answer, self.spec.idempotent && self.spec.acks != 0) {
            Verdict::Resolved => {
                queue.flights.remove(at);
                queue.is_recovering &= !queue.flights.is_empty();
                queue.retry_at = None;
            }
            Verdict::Again => {
                queue.is_recovering = true;
                queue.retry_at = Some(Instant::now() + BACKOFF);
            }
            // With others before it unresolved, wrong numbers are to be expected: those come first.
            Verdict::NewIdentity if at > 0 || !queue.is_recovering => {
                queue.is_recovering = true;
                queue.retry_at = Some(Instant::now() + BACKOFF);
            }
            Verdict::NewIdentity => {
                self.queues.clear();
                self.identity = None;
            }
        }
    }
}

enum Verdict {
    /// It needs no more attention.
    Resolved,
    Again,
    NewIdentity,
}

fn verdict(answer: &Answer<Produced>, is_idempotent: bool) -> Verdict {
    match answer {
        _ if !is_idempotent => Verdict::Resolved,
        Ok(p) if p.code == 0 || p.code == code::DUPLICATE_SEQUENCE => Verdict::Resolved,
        Ok(p) if code::ENDS_PRODUCER_ID.contains(&p.code) => Verdict::NewIdentity,
        Ok(p) if code::RETRIABLE.contains(&p.code) => Verdict::Again,
        // Whatever it is, the numbers have a hole now.
        Ok(_) => Verdict::NewIdentity,
        Err(_) => Verdict::Again,
    }
}

pub(super) async fn land(
    line: Line,
    flight: u64,
    sent: Index,
    in_flight: InFlight<ProduceRequest>,
) -> Landed {
    let from = Some(in_flight.addr().ip());
    let (at, answer) = in_flight.answer_and_when().await;
    let answer = answer.and_then(|response| {
        let row = response.responses.first().and_then(|t| t.partition_responses.first());
        let row = row.ok_or_else(|| Lost::Garbled("a produce response without a row".into()))?;
        Ok(Produced { code: row.error_code, base: row.base_offset, log_start: row.log_start_offset })
    });
    Landed { line, flight, sent, from, arrived: Some(at), answer }
}

pub(super) fn produce_request(topic: &str, partition: i32, acks: i16, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(records));
    let topic = TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(BROKER_TIMEOUT_MS).with_topic_data(vec![topic])
}

/// No two batches of a life have the same records: each value begins with who made it and its number.
fn make_batch(user: &mut User, spec: &Producer, identity: Identity, number: u64, count: i32) -> Bytes {
    let values: Vec<Bytes> = (0..count).map(|i| value(user, spec, number, i)).collect();
    if spec.opaque > 0.0 && user.rng.gen_bool(spec.opaque.min(1.0)) {
        let codec = user.rng.gen_range(1..=4);
        return records::opaque(identity, codec, user.wall_ms(), count, &values.concat());
    }
    records::batch(identity, user.wall_ms(), &values)
}

fn value(user: &mut User, spec: &Producer, number: u64, index: i32) -> Bytes {
    let size = spec.value_bytes.whole(&mut user.rng).min(16 << 20) as usize;
    let mut value = BytesMut::with_capacity(size.max(16));
    value.put_u32(user.who.0);
    value.put_u64(number);
    value.put_i32(index);
    let filled = value.len();
    value.resize(size.max(filled), 0);
    user.rng.fill_bytes(&mut value[filled..]);
    value.freeze()
}

impl User {
    /// A producer id, or why there is none.
    pub(super) async fn producer_id(&mut self) -> Option<(i64, i16)> {
        let started = crate::history::now();
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        let response = self.client.call(&Target::Any, version::INIT_PRODUCER_ID, &request).await;
        let answer: Answer<(Code, i64, i16)> =
            response.map(|r| (r.error_code, r.producer_id.0, r.producer_epoch));
        let got = answer.as_ref().ok().filter(|a| a.0 == 0).map(|a| (a.1, a.2));
        let who = self.who;
        self.record(Event::ProducerId { who, started, answer });
        got
    }

    /// One batch, acknowledged with acks=all, or what came instead.
    pub(super) async fn probe(&mut self, line: &Line, number: u64) -> Answer<Produced> {
        let spec = Producer::default();
        let bytes = make_batch(self, &spec, Identity::NONE, number, 1);
        let batch = BatchInfo::parse(&bytes).expect("our own batch");
        let at: Place = self.ctx.directory.place(&line.0, line.1);
        let who = self.who;
        let sent = self.record(Event::ProduceSent { who, at, acks: -1, batch, retry_of: None });
        let request = produce_request(&line.0, line.1, -1, bytes);
        let target = Target::Leader(line.0.clone(), line.1);
        let (from, arrived, answer) = match self.client.start(&target, version::PRODUCE, &request).await {
            Ok(in_flight) => {
                let landed = land(line.clone(), number, sent, in_flight).await;
                (landed.from, landed.arrived, landed.answer)
            }
            Err(lost) => (None, None, Err(lost)),
        };
        self.record(Event::ProduceDone { who, sent, from, arrived, answer: answer.clone() });
        if !matches!(answer, Ok(Produced { code: 0, .. })) {
            self.client.disconnect();
        }
        answer
    }
}
