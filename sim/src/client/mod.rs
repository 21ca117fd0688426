//! A small Kafka client: the wire, and nothing of the broker's code.
//!
//! Promises: a call ends within its deadline (and the few seconds that connecting may take), with the
//! response, or with why there is none ([`Lost`]): and then it says whether the request was sent. It never
//! sends a request twice by itself: trying again is a decision, and the caller's.
//!
//! It finds brokers as clients do: by the bootstrap addresses in turn, then by what Metadata and
//! FindCoordinator say. When anything goes wrong with a connection it forgets what it knew.

pub mod committed;
mod conn;
pub mod records;

use crate::history::{now, Lost};
use bytes::{BufMut, Bytes, BytesMut};
use conn::{Conn, Pending};
use kafka_protocol::messages::find_coordinator_request::FindCoordinatorRequest;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiKey, GroupId, MetadataRequest, MetadataResponse, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The versions that this client speaks: for each API the newest but one or two that names topics by name.
pub mod version {
    pub const PRODUCE: i16 = 9;
    pub const FETCH: i16 = 12;
    pub const LIST_OFFSETS: i16 = 7;
    pub const METADATA: i16 = 12;
    pub const FIND_COORDINATOR: i16 = 3;
    pub const JOIN_GROUP: i16 = 9;
    pub const SYNC_GROUP: i16 = 5;
    pub const HEARTBEAT: i16 = 4;
    pub const LEAVE_GROUP: i16 = 5;
    pub const OFFSET_COMMIT: i16 = 8;
    pub const OFFSET_FETCH: i16 = 7;
    pub const CREATE_TOPICS: i16 = 7;
    pub const DELETE_TOPICS: i16 = 6;
    pub const CREATE_PARTITIONS: i16 = 3;
    pub const DELETE_RECORDS: i16 = 2;
    pub const INCREMENTAL_ALTER_CONFIGS: i16 = 1;
    pub const INIT_PRODUCER_ID: i16 = 4;

    /// What transactional clients of one generation speak: transaction.version 1, or 2 (KIP-890).
    #[derive(Clone, Copy, Debug)]
    pub struct Transactional {
        pub init_producer_id: i16,
        pub add_partitions: i16,
        pub add_offsets: i16,
        pub produce: i16,
        pub offset_commit: i16,
        pub end: i16,
    }

    /// Each partition and group is added by itself.
    pub const TRANSACTIONS_1: Transactional = Transactional {
        init_producer_id: 4,
        add_partitions: 3,
        add_offsets: 3,
        produce: 11,
        offset_commit: 3,
        end: 4,
    };
    /// What is written is added, and each end raises the epoch.
    pub const TRANSACTIONS_2: Transactional = Transactional {
        init_producer_id: 5,
        add_partitions: 3,
        add_offsets: 4,
        produce: 12,
        offset_commit: 5,
        end: 5,
    };
}

/// Who is to answer.
#[derive(Clone, Debug)]
pub enum Target {
    Any,
    Leader(Arc<str>, i32),
    Coordinator(Arc<str>),
    /// Of the transactions of a transactional id.
    TransactionCoordinator(Arc<str>),
}

/// What FindCoordinator tells groups and transactional ids apart by.
type CoordinatorKey = (i8, Arc<str>);
const OF_GROUP: i8 = 0;
const OF_TRANSACTIONS: i8 = 1;

/// What a broker's metadata says of one partition.
pub struct Said<'a> {
    pub by: IpAddr,
    /// When it was asked.
    pub asked: Duration,
    pub topic: &'a Arc<str>,
    pub id: Uuid,
    pub partition: i32,
    /// −1: nobody.
    pub leader: i32,
    pub epoch: i32,
}

/// Told of each partition in each answer with metadata.
pub type OnMetadata = Box<dyn Fn(Said) + Send + Sync>;

/// Who leads which partition, as one client knows it, or several that share what they know.
pub type Leaders = Arc<Mutex<Known>>;

#[derive(Default)]
pub struct Known {
    leaders: BTreeMap<(Arc<str>, i32), SocketAddr>,
    /// Several clients share this: when one of them asked last, by topic.
    asked: Option<BTreeMap<Arc<str>, Duration>>,
}

impl Known {
    /// An answer is about the whole topic, and thousands of clients that share it need not each ask for all thousands of
    /// partitions: whoever comes soon after somebody else goes by what that one was told.
    fn is_to_be_asked(&mut self, topic: &Arc<str>) -> bool {
        let Some(asked) = &mut self.asked else { return true };
        if asked.get(topic).is_some_and(|at| now().saturating_sub(*at) < ASKED_LATELY) {
            return false;
        }
        asked.insert(topic.clone(), now());
        true
    }
}

const ASKED_LATELY: Duration = Duration::from_millis(200);

pub struct Client {
    id: StrBytes,
    bootstrap: Arc<[SocketAddr]>,
    /// The bootstrap address to be tried next.
    next: usize,
    conns: BTreeMap<SocketAddr, Conn>,
    leaders: Leaders,
    coordinators: BTreeMap<CoordinatorKey, SocketAddr>,
    deadline: Duration,
    on_metadata: Option<OnMetadata>,
}

/// A request that was sent.
pub struct InFlight<R> {
    addr: SocketAddr,
    pending: Pending,
    version: i16,
    deadline: Duration,
    kind: PhantomData<fn() -> R>,
}

impl<R: Request> InFlight<R> {
    /// Whom it was sent to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub async fn answer(self) -> Result<R::Response, Lost> {
        self.answer_and_when().await.1
    }

    /// The answer, and when it came.
    pub async fn answer_and_when(self) -> (Duration, Result<R::Response, Lost>) {
        let (at, frame) = self.pending.wait(self.deadline).await;
        (at, frame.and_then(|frame| decode::<R>(self.version, frame)))
    }
}

fn decode<R: Request>(version: i16, mut frame: Bytes) -> Result<R::Response, Lost> {
    let garbled =
        |what: &str, e: String| Lost::Garbled(format!("{:?} {what}: {e}", ApiKey::try_from(R::KEY)));
    // The frame begins behind the correlation id; what is left of a flexible header is its tagged fields.
    if R::Response::header_version(version) >= 1 {
        let mut whole = BytesMut::with_capacity(frame.len() + 4);
        whole.put_i32(0);
        whole.put_slice(&frame);
        frame = whole.freeze();
        ResponseHeader::decode(&mut frame, 1).map_err(|e| garbled("header", e.to_string()))?;
    }
    let response = R::Response::decode(&mut frame, version).map_err(|e| garbled("body", e.to_string()))?;
    match frame.len() {
        0 => Ok(response),
        n => Err(garbled("body", format!("{n} bytes are left over"))),
    }
}

impl Client {
    pub fn new(name: &str, bootstrap: Arc<[SocketAddr]>, deadline: Duration) -> Client {
        assert!(!bootstrap.is_empty(), "a client needs somewhere to begin");
        Client {
            id: StrBytes::from_string(name.to_owned()),
            bootstrap,
            next: 0,
            conns: BTreeMap::new(),
            leaders: Leaders::default(),
            coordinators: BTreeMap::new(),
            deadline,
            on_metadata: None,
        }
    }

    /// Knows and forgets from now on what all know that share it.
    pub fn share(&mut self, leaders: Leaders) {
        leaders.lock().asked.get_or_insert_default();
        self.leaders = leaders;
    }

    /// Has `tell` told of what brokers say of partitions.
    pub fn on_metadata(&mut self, tell: OnMetadata) {
        self.on_metadata = Some(tell);
    }

    /// Sends a request and waits for its response.
    pub async fn call<R: Request>(
        &mut self,
        target: &Target,
        version: i16,
        request: &R,
    ) -> Result<R::Response, Lost> {
        self.ask(target, version, request).await.1
    }

    /// As [`Client::call`], and whom it was sent to, if it was.
    pub async fn ask<R: Request>(
        &mut self,
        target: &Target,
        version: i16,
        request: &R,
    ) -> (Option<IpAddr>, Result<R::Response, Lost>) {
        let (addr, in_flight) = match self.send(target, version, request, true).await {
            Ok(sent) => sent,
            Err(lost) => return (None, Err(lost)),
        };
        let answer = in_flight.answer().await;
        if answer.is_err() {
            self.forget(addr);
        }
        (Some(addr.ip()), answer)
    }

    /// Finds out who is to answer, and connects: what is sent to it next goes out at once.
    pub async fn locate(&mut self, target: &Target) -> Result<(), Lost> {
        let addr = self.find(target).await?;
        self.conn(addr).await.map(drop)
    }

    /// Sends a request; its answer can be waited for while others are sent.
    pub async fn start<R: Request>(
        &mut self,
        target: &Target,
        version: i16,
        request: &R,
    ) -> Result<InFlight<R>, Lost> {
        Ok(self.send(target, version, request, true).await?.1)
    }

    /// Sends a request that is never answered (acks=0).
    pub async fn tell<R: Request>(&mut self, target: &Target, version: i16, request: &R) -> Result<(), Lost> {
        self.send(target, version, request, false).await.map(drop)
    }

    async fn send<R: Request>(
        &mut self,
        target: &Target,
        version: i16,
        request: &R,
        answered: bool,
    ) -> Result<(SocketAddr, InFlight<R>), Lost> {
        let addr = self.find(target).await?;
        let (id, deadline) = (self.id.clone(), self.deadline);
        let conn = self.conn(addr).await?;
        let pending = conn.send(answered, |correlation| frame(version, correlation, id, request)).await?;
        Ok((addr, InFlight { addr, pending, version, deadline, kind: PhantomData }))
    }

    /// Drops the connection and all that was known: the broker may be gone, or lead no more.
    pub fn forget(&mut self, addr: SocketAddr) {
        self.conns.remove(&addr);
        self.forget_roles_of(addr);
        // A host that lets us in may hold a broker that does not answer.
        if self.bootstrap.get(self.next % self.bootstrap.len()) == Some(&addr) {
            self.next += 1;
        }
    }

    /// Somebody else leads now, or coordinates.
    ///
    /// What clients share is forgotten partition by partition ([`Client::forget_leader`]).
    pub fn forget_roles(&mut self) {
        let mut known = self.leaders.lock();
        if known.asked.is_none() {
            known.leaders.clear();
        }
        self.coordinators.clear();
    }

    /// Somebody else leads this partition now.
    pub fn forget_leader(&mut self, topic: &Arc<str>, partition: i32) {
        self.leaders.lock().leaders.remove(&(topic.clone(), partition));
    }

    fn forget_roles_of(&mut self, addr: SocketAddr) {
        let mut known = self.leaders.lock();
        // What others found out is theirs.
        match known.asked {
            Some(_) => known.leaders.retain(|_, leader| *leader != addr),
            None => known.leaders.clear(),
        }
        self.coordinators.clear();
    }

    /// Closes all connections.
    pub fn disconnect(&mut self) {
        self.conns.clear();
        self.forget_roles();
    }

    async fn conn(&mut self, addr: SocketAddr) -> Result<&mut Conn, Lost> {
        if self.conns.get(&addr).is_some_and(|c| !c.is_open()) {
            self.forget(addr);
        }
        let is_new = !self.conns.contains_key(&addr);
        if is_new {
            let conn = match Conn::connect(addr).await {
                Ok(conn) => conn,
                Err(lost) => {
                    self.forget_roles_of(addr);
                    return Err(lost);
                }
            };
            self.conns.insert(addr, conn);
        }
        Ok(self.conns.get_mut(&addr).expect("it was just put there"))
    }

    async fn find(&mut self, target: &Target) -> Result<SocketAddr, Lost> {
        match target {
            Target::Any => self.any().await,
            Target::Leader(topic, partition) => {
                let key = (topic.clone(), *partition);
                let is_unknown = {
                    let mut known = self.leaders.lock();
                    !known.leaders.contains_key(&key) && known.is_to_be_asked(topic)
                };
                if is_unknown {
                    self.metadata(Some(topic)).await.map_err(not_sent)?;
                }
                let leader = self.leaders.lock().leaders.get(&key).copied();
                leader.ok_or_else(|| Lost::NotSent(format!("{topic}-{partition} has no leader")))
            }
            Target::Coordinator(group) => self.coordinator((OF_GROUP, group.clone())).await,
            Target::TransactionCoordinator(id) => self.coordinator((OF_TRANSACTIONS, id.clone())).await,
        }
    }

    async fn coordinator(&mut self, key: CoordinatorKey) -> Result<SocketAddr, Lost> {
        if !self.coordinators.contains_key(&key) {
            self.find_coordinator(&key).await.map_err(not_sent)?;
        }
        let found = self.coordinators.get(&key).copied();
        found.ok_or_else(|| Lost::NotSent(format!("{} has no coordinator", key.1)))
    }

    /// An open connection, or else one to the first bootstrap address that lets us in.
    async fn any(&mut self) -> Result<SocketAddr, Lost> {
        if let Some(conn) = self.conns.values().find(|c| c.is_open()) {
            return Ok(conn.addr());
        }
        let mut last = Lost::NotSent("no address".into());
        for _ in 0..self.bootstrap.len() {
            let addr = self.bootstrap[self.next % self.bootstrap.len()];
            match self.conn(addr).await {
                Ok(_) => return Ok(addr),
                Err(lost) => last = lost,
            }
            self.next += 1;
        }
        Err(last)
    }

    /// Asks for topics: one, or all of them; remembers who leads.
    pub async fn metadata(&mut self, topic: Option<&Arc<str>>) -> Result<MetadataResponse, Lost> {
        let topics = topic.map(|t| vec![MetadataRequestTopic::default().with_name(Some(topic_name(t)))]);
        let request = MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(false);
        let asked = now();
        let (by, response) = Box::pin(self.ask(&Target::Any, version::METADATA, &request)).await;
        let response = response?;
        let brokers: BTreeMap<i32, SocketAddr> = response
            .brokers
            .iter()
            .filter_map(|b| Some((b.node_id.0, format!("{}:{}", b.host.as_str(), b.port).parse().ok()?)))
            .collect();
        let mut known = self.leaders.lock();
        for topic in response.topics.iter().filter(|t| t.error_code == 0) {
            let Some(name) = &topic.name else { continue };
            let name: Arc<str> = name.as_str().into();
            for p in &topic.partitions {
                if let (Some(tell), Some(by)) = (&self.on_metadata, by) {
                    let (partition, leader, epoch) = (p.partition_index, p.leader_id.0, p.leader_epoch);
                    tell(Said { by, asked, topic: &name, id: topic.topic_id, partition, leader, epoch });
                }
                match brokers.get(&p.leader_id.0) {
                    Some(leader) => drop(known.leaders.insert((name.clone(), p.partition_index), *leader)),
                    None => drop(known.leaders.remove(&(name.clone(), p.partition_index))),
                }
            }
        }
        drop(known);
        Ok(response)
    }

    async fn find_coordinator(&mut self, key: &CoordinatorKey) -> Result<(), Lost> {
        let request = FindCoordinatorRequest::default()
            .with_key(StrBytes::from_string(key.1.to_string()))
            .with_key_type(key.0);
        let r = Box::pin(self.call(&Target::Any, version::FIND_COORDINATOR, &request)).await?;
        if r.error_code == 0 {
            if let Ok(addr) = format!("{}:{}", r.host.as_str(), r.port).parse() {
                self.coordinators.insert(key.clone(), addr);
            }
        }
        Ok(())
    }
}

/// Whatever was lost on the way to find the broker: the request itself was not sent.
fn not_sent(lost: Lost) -> Lost {
    match lost {
        Lost::NotSent(why) | Lost::CutOff(why) => Lost::NotSent(why),
        Lost::TimedOut | Lost::Unanswered => Lost::NotSent("no broker says who is in charge".into()),
        garbled @ Lost::Garbled(_) => garbled,
    }
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

pub fn group_id(name: &str) -> GroupId {
    GroupId(StrBytes::from_string(name.to_owned()))
}

/// Length, header, body.
fn frame<R: Request>(version: i16, correlation_id: i32, client: StrBytes, request: &R) -> BytesMut {
    let key = ApiKey::try_from(R::KEY).expect("a known API");
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(client));
    let mut b = BytesMut::new();
    b.put_i32(0);
    header.encode(&mut b, key.request_header_version(version)).expect("a header encodes");
    request.encode(&mut b, version).expect("what this client asks can be encoded");
    let size = b.len() as i32 - 4;
    b[..4].copy_from_slice(&size.to_be_bytes());
    b
}
