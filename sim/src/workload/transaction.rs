//! One incarnation of a transactional producer (KIP-98, KIP-890): what it asks of the brokers, and when it asks again.
//!
//! It is the careful sort of client. It asks for a commit only when all that it wrote was acknowledged, and asks again
//! until it is told. Under version 1, where every transaction of an incarnation has the same epoch, it has its epoch raised (KIP-360)
//! before the next transaction when any request of this one stayed without an answer: such a request may still arrive, and
//! nothing could tell it from one of the next transaction. Under version 2 each end raises the epoch.
//!
//! Every future here may be dropped at any moment: that is a crash, and what was sent may take effect.

use super::offsets::Membership;
use super::producer::{produce_request, Landed};
use super::spec::{Fortune, Range};
use super::{producer, User};
use crate::client::records::{self, Identity};
use crate::client::version::{Transactional as Versions, TRANSACTIONS_1, TRANSACTIONS_2};
use crate::client::{group_id, topic_name, Target};
use crate::history::{now, Answer, BatchInfo, Code, Event, Index, Lost, Produced};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::join_all;
use highwater::reached;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest,
    TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use rand::{Rng, RngCore};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const BACKOFF: Duration = Duration::from_millis(100);

pub(super) type Line = (Arc<str>, i32);

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    Well,
    /// The transaction can only be aborted.
    Badly,
    /// Another incarnation is there, or the coordinator ended the transaction: this one is over.
    Fenced(Code),
    /// The life ends, and nobody was told.
    Nowhere,
}

/// What a client makes of an error code (Kafka's `TransactionManager`).
enum Means {
    Done,
    Again,
    Abort,
    Fenced,
}

const DUPLICATE_SEQUENCE: Code = 46;
/// INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED.
const FENCED: [Code; 3] = [47, 49, 90];
/// Trying again may help: what is loading or moves, what is under way (CONCURRENT_TRANSACTIONS, 51), a stuck volume.
const RETRIABLE: [Code; 12] = [2, 3, 5, 6, 7, 13, 14, 15, 16, 19, 51, 56];

fn meaning(code: Code) -> Means {
    match code {
        0 => Means::Done,
        code if RETRIABLE.contains(&code) => Means::Again,
        code if FENCED.contains(&code) => Means::Fenced,
        _ => Means::Abort,
    }
}

/// A batch on its way; `first`: when it was sent for the first time.
#[derive(Clone)]
pub(super) struct Outgoing {
    pub line: Line,
    bytes: Bytes,
    info: BatchInfo,
    pub first: Option<Index>,
}

#[derive(Clone)]
pub(super) struct Incarnation {
    pub id: Arc<str>,
    pub number: u32,
    pub version2: bool,
    /// The coordinator's patience.
    timeout: Duration,
    pub producer: (i64, i16),
    sequences: BTreeMap<Line, i32>,
    added: BTreeSet<Line>,
    added_groups: BTreeSet<Arc<str>>,
    /// Something may still arrive that was sent under this epoch.
    is_in_doubt: bool,
    batches: u64,
}

impl Incarnation {
    /// Asks for an id until it has one; `None` if the life ends before.
    pub async fn start(user: &mut User, id: &Arc<str>, fortune: &Fortune) -> Option<Incarnation> {
        let timeout = fortune.transaction_ms.millis(&mut user.rng);
        let version2 = user.rng.gen_bool(fortune.version_2.clamp(0.0, 1.0));
        let mut incarnation = Incarnation {
            id: id.clone(),
            number: user.ctx.directory.next_incarnation(id, timeout),
            version2,
            timeout,
            producer: (-1, -1),
            sequences: BTreeMap::new(),
            added: BTreeSet::new(),
            added_groups: BTreeSet::new(),
            is_in_doubt: false,
            batches: 0,
        };
        while !user.is_over() {
            if let Ok((0, ..)) = incarnation.init(user, None).await {
                return Some(incarnation);
            }
            user.pause(BACKOFF).await;
        }
        None
    }

    pub fn versions(&self) -> Versions {
        if self.version2 {
            TRANSACTIONS_2
        } else {
            TRANSACTIONS_1
        }
    }

    async fn init(&mut self, user: &mut User, current: Option<(i64, i16)>) -> Answer<(Code, i64, i16)> {
        let started = now();
        let (id, epoch) = current.unwrap_or((-1, -1));
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(transactional_id(&self.id)))
            .with_transaction_timeout_ms(self.timeout.as_millis() as i32)
            .with_producer_id(id.into())
            .with_producer_epoch(epoch);
        let response =
            user.client.call(&self.coordinator(), self.versions().init_producer_id, &request).await;
        let answer = response.map(|r| (r.error_code, r.producer_id.0, r.producer_epoch));
        let (who, id, incarnation) = (user.who, self.id.clone(), self.number);
        user.record(Event::TxnInit { who, started, id, incarnation, current, answer: answer.clone() });
        match answer {
            Ok((0, id, epoch)) => {
                self.producer = (id, epoch);
                self.sequences.clear();
                self.is_in_doubt = false;
            }
            _ => user.client.forget_roles(),
        }
        answer
    }

    fn coordinator(&self) -> Target {
        Target::TransactionCoordinator(self.id.clone())
    }

    /// Begins a transaction; the index names it.
    pub fn begin(&mut self, user: &User) -> Index {
        self.added.clear();
        self.added_groups.clear();
        user.record(Event::TxnBegun {
            who: user.who,
            id: self.id.clone(),
            incarnation: self.number,
            producer: self.producer,
            version2: self.version2,
            timeout: self.timeout,
        })
    }

    /// Asks until the answer is one, and for so long at most.
    async fn insist(&mut self, user: &mut User, txn: Index, ask: Ask<'_>, patience: Duration) -> Went {
        let until = now().saturating_add(patience);
        loop {
            let answer = match ask {
                Ask::Add(lines) => self.add_once(user, txn, lines).await,
                Ask::AddGroup(group) => self.add_group_once(user, txn, group).await,
                Ask::Offsets(group, by, offsets) => {
                    user.commit_in(txn, self, group, by, offsets).await.map(|codes| worst(&codes))
                }
                Ask::End(commit) => self.end_once(user, txn, commit).await,
                Ask::Raise => self.init(user, Some(self.producer)).await.map(|a| a.0),
            };
            self.is_in_doubt |= matches!(&answer, Err(lost) if !matches!(lost, Lost::NotSent(_)));
            match answer.as_ref().map_or(Means::Again, |code| meaning(*code)) {
                Means::Done => return Went::Well,
                Means::Abort => return Went::Badly,
                Means::Fenced => return Went::Fenced(answer.unwrap_or_default()),
                Means::Again if user.is_over() => return Went::Nowhere,
                Means::Again if now() >= until => return Went::Badly,
                Means::Again => {
                    user.client.forget_roles();
                    user.pause(BACKOFF).await;
                }
            }
        }
    }

    /// Under version 1 partitions are added before they are written to.
    pub async fn add(&mut self, user: &mut User, txn: Index, lines: &[Line]) -> Went {
        let new: Vec<Line> = lines.iter().filter(|l| !self.added.contains(*l)).cloned().collect();
        if self.version2 || new.is_empty() {
            return Went::Well;
        }
        let went = self.insist(user, txn, Ask::Add(&new), self.timeout).await;
        if went == Went::Well {
            self.added.extend(new);
        }
        went
    }

    async fn add_once(&self, user: &mut User, txn: Index, lines: &[Line]) -> Answer<Code> {
        let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
        for (topic, partition) in lines {
            match topics.last_mut().filter(|t| t.name.as_str() == &**topic) {
                Some(t) => t.partitions.push(*partition),
                None => topics.push(
                    AddPartitionsToTxnTopic::default()
                        .with_name(topic_name(topic))
                        .with_partitions(vec![*partition]),
                ),
            }
        }
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(transactional_id(&self.id))
            .with_v3_and_below_producer_id(self.producer.0.into())
            .with_v3_and_below_producer_epoch(self.producer.1)
            .with_v3_and_below_topics(topics);
        let started = now();
        let response = user.client.call(&self.coordinator(), self.versions().add_partitions, &request).await;
        let answer = response.and_then(|r| {
            let rows = r.results_by_topic_v3_and_below.iter().flat_map(|t| &t.results_by_partition);
            let codes: Vec<Code> = rows.map(|p| p.partition_error_code).collect();
            if codes.len() != lines.len() {
                return Err(Lost::Garbled(format!("{} rows for {} partitions", codes.len(), lines.len())));
            }
            Ok(worst(&codes))
        });
        let what: Vec<String> = lines.iter().map(|(t, p)| format!("{t}-{p}")).collect();
        let (who, what) = (user.who, what.join(" "));
        user.record(Event::TxnAdded { who, started, txn, what, answer: answer.clone() });
        answer
    }

    /// A batch for a partition, numbered.
    pub fn make(&mut self, user: &mut User, line: &Line, records: Range, value_bytes: Range) -> Outgoing {
        let count = records.whole(&mut user.rng).clamp(1, 1000) as i32;
        let next = self.sequences.entry(line.clone()).or_default();
        let identity = Identity { id: self.producer.0, epoch: self.producer.1, sequence: *next };
        *next = next.wrapping_add(count) & i32::MAX;
        self.batches += 1;
        let number = u64::from(self.number) << 32 | self.batches;
        let values: Vec<Bytes> = (0..count).map(|i| value(user, &self.id, number, i, value_bytes)).collect();
        let bytes = records::transactional(identity, user.wall_ms(), &values);
        let info = BatchInfo::parse(&bytes).expect("our own batch");
        Outgoing { line: line.clone(), bytes, info, first: None }
    }

    /// Writes to several partitions, side by side, until each acknowledged.
    pub async fn write(&mut self, user: &mut User, txn: Index, batches: &mut [Outgoing]) -> Went {
        let lines: Vec<Line> = batches.iter().map(|b| b.line.clone()).collect();
        let added = self.add(user, txn, &lines).await;
        if added != Went::Well {
            // Their numbers are taken.
            self.is_in_doubt = true;
            return added;
        }
        let until = now() + self.timeout;
        let mut left: Vec<&mut Outgoing> = batches.iter_mut().collect();
        let mut failed = None;
        loop {
            let landed = self.write_once(user, txn, &mut left).await;
            let mut again = Vec::new();
            for (batch, landed) in left.into_iter().zip(landed) {
                let code = landed.as_ref().map(|p| p.code);
                self.is_in_doubt |= matches!(&code, Err(lost) if !matches!(lost, Lost::NotSent(_)));
                match code.as_ref().map_or(Means::Again, |code| meaning(*code)) {
                    Means::Done => {}
                    _ if code == Ok(DUPLICATE_SEQUENCE) => {}
                    Means::Again => again.push(batch),
                    // The coordinator knows whether it is fenced, or the partition lost track.
                    Means::Abort | Means::Fenced => failed = Some(Went::Badly),
                }
            }
            left = again;
            match failed {
                Some(went) => {
                    self.is_in_doubt = true;
                    return went;
                }
                None if left.is_empty() => return Went::Well,
                None if user.is_over() => return Went::Nowhere,
                None if now() >= until => {
                    self.is_in_doubt = true;
                    return Went::Badly;
                }
                None => user.pause(BACKOFF).await,
            }
        }
    }

    async fn write_once(
        &self,
        user: &mut User,
        txn: Index,
        batches: &mut [&mut Outgoing],
    ) -> Vec<Answer<Produced>> {
        let mut flying = Vec::with_capacity(batches.len());
        for batch in batches.iter_mut() {
            let target = Target::Leader(batch.line.0.clone(), batch.line.1);
            let located = user.client.locate(&target).await;
            let sent = self.record_sent(user, txn, batch);
            let request = self.produce(batch);
            let started = match located {
                Ok(()) => user.client.start(&target, self.versions().produce, &request).await,
                Err(lost) => Err(lost),
            };
            let line = batch.line.clone();
            flying.push(async move {
                match started {
                    Ok(in_flight) => producer::land(line, 0, sent, in_flight).await,
                    Err(lost) => {
                        Landed { line, flight: 0, sent, from: None, arrived: None, answer: Err(lost) }
                    }
                }
            });
        }
        let mut answers = Vec::with_capacity(flying.len());
        for landed in join_all(flying).await {
            let Landed { line, sent, from, arrived, answer, .. } = landed;
            let who = user.who;
            user.record(Event::ProduceDone { who, sent, from, arrived, answer: answer.clone() });
            if !matches!(answer, Ok(Produced { code: 0 | DUPLICATE_SEQUENCE, .. })) {
                user.client.forget_leader(&line.0, line.1);
            }
            answers.push(answer);
        }
        answers
    }

    fn record_sent(&self, user: &User, txn: Index, batch: &mut Outgoing) -> Index {
        let (who, retry_of) = (user.who, batch.first);
        let at = user.ctx.directory.place(&batch.line.0, batch.line.1);
        let sent = user.record(Event::ProduceSent { who, at, acks: -1, batch: batch.info, retry_of });
        user.record(Event::TxnPart { txn, sent });
        batch.first.get_or_insert(sent);
        sent
    }

    fn produce(&self, batch: &Outgoing) -> ProduceRequest {
        let id = Some(transactional_id(&self.id));
        produce_request(&batch.line.0, batch.line.1, -1, batch.bytes.clone()).with_transactional_id(id)
    }

    /// Commits offsets of a group as part of the transaction.
    pub async fn commit_offsets(
        &mut self,
        user: &mut User,
        txn: Index,
        group: &Arc<str>,
        by: Membership<'_>,
        offsets: &[(Line, i64)],
    ) -> Went {
        if !self.version2 && !self.added_groups.contains(group) {
            let went = self.insist(user, txn, Ask::AddGroup(group), self.timeout).await;
            if went != Went::Well {
                return went;
            }
            self.added_groups.insert(group.clone());
        }
        self.insist(user, txn, Ask::Offsets(group, by, offsets), self.timeout).await
    }

    async fn add_group_once(&self, user: &mut User, txn: Index, group: &Arc<str>) -> Answer<Code> {
        let started = now();
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(transactional_id(&self.id))
            .with_producer_id(self.producer.0.into())
            .with_producer_epoch(self.producer.1)
            .with_group_id(group_id(group));
        let response = user.client.call(&self.coordinator(), self.versions().add_offsets, &request).await;
        let answer = response.map(|r| r.error_code);
        let (who, what) = (user.who, format!("group {group}"));
        user.record(Event::TxnAdded { who, started, txn, what, answer: answer.clone() });
        answer
    }

    /// Ends the transaction, and makes ready for the next one.
    pub async fn end(&mut self, user: &mut User, txn: Index, commit: bool) -> Went {
        let went = self.insist(user, txn, Ask::End(commit), Duration::MAX).await;
        if went != Went::Well || self.version2 || !self.is_in_doubt {
            return went;
        }
        self.insist(user, txn, Ask::Raise, Duration::MAX).await
    }

    /// Says once how the transaction ends.
    pub async fn end_once(&mut self, user: &mut User, txn: Index, commit: bool) -> Answer<Code> {
        let request = EndTxnRequest::default()
            .with_transactional_id(transactional_id(&self.id))
            .with_producer_id(self.producer.0.into())
            .with_producer_epoch(self.producer.1)
            .with_committed(commit);
        let who = user.who;
        let sent = user.record(Event::TxnEndSent { who, txn, commit });
        let response = user.client.call(&self.coordinator(), self.versions().end, &request).await;
        let answer = response.map(|r| (r.error_code, r.producer_id.0, r.producer_epoch));
        user.record(Event::TxnEndDone { who, sent, answer: answer.clone() });
        match &answer {
            Ok((0, ..)) if commit => reached!("transaction-committed"),
            Ok((0, ..)) => reached!("transaction-aborted"),
            _ => {}
        }
        match answer {
            Ok((0, id, epoch)) if self.version2 => {
                self.producer = (id, epoch);
                self.sequences.clear();
                self.is_in_doubt = false;
            }
            _ => {}
        }
        answer.map(|a| a.0)
    }

    /// From now on something may arrive that another client carries.
    pub fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// Writes a batch once: one that was written before, or is written only now.
    pub async fn write_late(&self, user: &mut User, txn: Index, batch: &mut Outgoing) {
        self.write_once(user, txn, &mut [batch]).await;
    }

    pub fn record_fenced(&self, user: &User, code: Code) {
        reached!("producer-fenced");
        let (who, id, incarnation) = (user.who, self.id.clone(), self.number);
        user.record(Event::TxnFenced { who, id, incarnation, code });
    }
}

/// What is asked again until it is answered.
#[derive(Clone, Copy)]
enum Ask<'a> {
    Add(&'a [Line]),
    AddGroup(&'a Arc<str>),
    Offsets(&'a Arc<str>, Membership<'a>, &'a [(Line, i64)]),
    End(bool),
    /// The epoch (KIP-360).
    Raise,
}

/// The code that decides: one that ends the matter before one that asks for patience.
fn worst(codes: &[Code]) -> Code {
    let bad = codes.iter().copied().find(|c| !matches!(meaning(*c), Means::Done | Means::Again));
    bad.or_else(|| codes.iter().copied().find(|c| *c != 0)).unwrap_or(0)
}

pub(super) fn transactional_id(id: &str) -> TransactionalId {
    TransactionalId(StrBytes::from_string(id.to_owned()))
}

/// No two records of a life are the same.
fn value(user: &mut User, id: &str, number: u64, index: i32, bytes: Range) -> Bytes {
    let size = bytes.whole(&mut user.rng).min(1 << 20) as usize;
    let mut value = BytesMut::with_capacity(size.max(32));
    value.put_u32(user.who.0);
    value.put_slice(id.as_bytes());
    value.put_u64(number);
    value.put_i32(index);
    let filled = value.len();
    value.resize(size.max(filled), 0);
    user.rng.fill_bytes(&mut value[filled..]);
    value.freeze()
}
