//! A member of a classic consumer group (Kafka protocol guide, *Group Membership API*): joins, gets its
//! partitions, consumes, commits, and leaves or vanishes; then it comes back as another member.
//!
//! The leader spreads the partitions itself, in turn over the members. Rebalancing is eager: a member gives
//! everything up before it joins again, and commits first.

use super::consumer::EARLIEST;
use super::ghost::Ghost;
use super::offsets::Membership;
use super::spec::Member;
use super::User;
use crate::client::{group_id, topic_name, version, Target};
use crate::history::{now, Answer, Code, Event, Listed, Membership as Call};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const BACKOFF: Duration = Duration::from_millis(200);
/// Longer than any life.
const FOR_GOOD: Duration = Duration::from_secs(1_000_000);
const MEMBER_ID_REQUIRED: Code = 79;
pub(super) const UNKNOWN_MEMBER_ID: Code = 25;
pub(super) const ILLEGAL_GENERATION: Code = 22;
pub(super) const REBALANCE_IN_PROGRESS: Code = 27;
const OFFSET_OUT_OF_RANGE: Code = 1;
const MAX_BYTES: i32 = 64 << 10;
const MAX_WAIT_MS: i32 = 100;
const PROTOCOL: &str = "in-turn";

pub(super) type Line = (Arc<str>, i32);

/// One stay in the group.
pub(super) struct Stay {
    pub group: Arc<str>,
    /// Empty until the coordinator gave one out.
    pub member: Arc<str>,
    pub generation: i32,
    pub positions: BTreeMap<Line, i64>,
    /// Whether it begins where no open transaction may move it.
    pub stable: bool,
    until: Instant,
}

impl Stay {
    pub fn new(group: Arc<str>, stable: bool, lasts: Option<Duration>) -> Stay {
        let until = Instant::now() + lasts.unwrap_or(FOR_GOOD);
        Stay { group, member: "".into(), generation: -1, positions: BTreeMap::new(), stable, until }
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The coordinator does not know us any more.
    pub fn forget(&mut self) {
        (self.member, self.generation) = ("".into(), -1);
    }
}

/// How a generation ended for this member.
enum Ended {
    /// The others join again; so must we.
    Rebalance,
    /// The coordinator does not know us any more.
    Forgotten,
    /// Our time is over.
    Left,
}

pub(super) async fn run(mut user: User, spec: Member) {
    let group: Arc<str> = spec.group.as_str().into();
    user.ctx.directory.note_group(&group);
    let mut ghost = Ghost::of(&user, &spec);
    while !user.is_over() {
        let lasts = spec.churn.then(|| spec.stay_ms.millis(&mut user.rng));
        let mut stay = Stay::new(group.clone(), false, lasts);
        while !user.is_over() && !stay.is_over() {
            if !user.join(&spec, &mut stay).await {
                user.pause(BACKOFF).await;
                continue;
            }
            ghost.speak(&mut user).await;
            let ended = user.consume(&spec, &mut stay).await;
            ghost.remember(&stay);
            match ended {
                Ended::Rebalance => {}
                Ended::Forgotten => stay.forget(),
                Ended::Left => break,
            }
        }
        if !user.rng.gen_bool(spec.vanish.clamp(0.0, 1.0)) && !stay.member.is_empty() {
            user.leave(&stay).await;
        }
        user.client.disconnect();
        let away = spec.away_ms.millis(&mut user.rng);
        user.pause(away).await;
        ghost.speak(&mut user).await;
    }
}

impl User {
    fn member_done(&mut self, stay: &Stay, started: Duration, call: Call, answer: Answer<Code>) {
        let (who, group, member) = (self.who, stay.group.clone(), stay.member.clone());
        let generation = stay.generation;
        if answer != Ok(0) {
            self.client.forget_roles();
        }
        self.record(Event::MemberDone { who, started, group, call, member, generation, answer });
    }

    /// Joins and syncs. Returns whether it has its partitions.
    pub(super) async fn join(&mut self, spec: &Member, stay: &mut Stay) -> bool {
        stay.positions.clear();
        let started = now();
        let session = spec.session_ms.whole(&mut self.rng) as i32;
        let rebalance = spec.rebalance_ms.whole(&mut self.rng) as i32;
        let request = join_request(self, spec, stay, session, rebalance);
        let target = Target::Coordinator(stay.group.clone());
        let response = self.client.call(&target, version::JOIN_GROUP, &request).await;
        let answer = response.as_ref().map(|r| r.error_code).map_err(Clone::clone);
        if let Ok(r) = &response {
            match r.error_code {
                0 => (stay.member, stay.generation) = (r.member_id.as_str().into(), r.generation_id),
                MEMBER_ID_REQUIRED => stay.member = r.member_id.as_str().into(),
                UNKNOWN_MEMBER_ID => stay.forget(),
                _ => {}
            }
        }
        self.member_done(stay, started, Call::Join, answer.clone());
        match (answer, response) {
            (Ok(0), Ok(response)) => self.sync(stay, &response).await,
            // With the id that it was given it may join at once.
            (Ok(MEMBER_ID_REQUIRED), _) => Box::pin(self.join(spec, stay)).await,
            _ => false,
        }
    }

    async fn sync(&mut self, stay: &mut Stay, joined: &JoinGroupResponse) -> bool {
        let started = now();
        let assignments = match joined.leader == joined.member_id {
            true => self.spread(joined),
            false => Vec::new(),
        };
        let request = SyncGroupRequest::default()
            .with_group_id(group_id(&stay.group))
            .with_generation_id(stay.generation)
            .with_member_id(StrBytes::from_string(stay.member.to_string()))
            .with_protocol_type(joined.protocol_type.clone())
            .with_protocol_name(joined.protocol_name.clone())
            .with_assignments(assignments);
        let target = Target::Coordinator(stay.group.clone());
        let response = self.client.call(&target, version::SYNC_GROUP, &request).await;
        let answer = response.as_ref().map(|r| r.error_code).map_err(Clone::clone);
        self.member_done(stay, started, Call::Sync, answer.clone());
        let (Ok(0), Ok(response)) = (answer, response) else { return false };
        let lines = assigned(response.assignment);
        self.find_positions(stay, lines).await
    }

    /// Where to begin: where the group is, or else at the beginning.
    async fn find_positions(&mut self, stay: &mut Stay, lines: Vec<Line>) -> bool {
        let group = stay.group.clone();
        let Ok(committed) = self.fetch_offsets(&group, stay.stable).await else { return false };
        for line in lines {
            let known = committed.iter().find(|c| c.at.topic == line.0 && c.at.partition == line.1);
            let offset = match known {
                Some(c) if c.code != 0 => return false,
                Some(c) if c.offset >= 0 => c.offset,
                _ => match self.list_offset(&line, EARLIEST).await {
                    Ok(Listed { code: 0, offset, .. }) => offset,
                    _ => continue,
                },
            };
            stay.positions.insert(line, offset);
        }
        true
    }

    /// Consumes until the generation ends.
    async fn consume(&mut self, spec: &Member, stay: &mut Stay) -> Ended {
        let mut beat_at = Instant::now();
        let mut commit_at = Instant::now() + spec.commit_ms.millis(&mut self.rng);
        loop {
            if self.is_over() || stay.is_over() {
                self.commit_positions(stay).await;
                return Ended::Left;
            }
            if Instant::now() >= beat_at {
                beat_at = Instant::now() + spec.heartbeat_ms.millis(&mut self.rng);
                match self.heartbeat(stay).await {
                    Ok(0) => {}
                    Ok(REBALANCE_IN_PROGRESS) => {
                        self.commit_positions(stay).await;
                        return Ended::Rebalance;
                    }
                    Ok(UNKNOWN_MEMBER_ID) => return Ended::Forgotten,
                    Ok(ILLEGAL_GENERATION) => return Ended::Rebalance,
                    _ => self.pause(BACKOFF).await,
                }
            }
            if Instant::now() >= commit_at {
                commit_at = Instant::now() + spec.commit_ms.millis(&mut self.rng);
                match self.commit_positions(stay).await {
                    Some(UNKNOWN_MEMBER_ID) => return Ended::Forgotten,
                    Some(ILLEGAL_GENERATION | REBALANCE_IN_PROGRESS) => return Ended::Rebalance,
                    _ => {}
                }
            }
            self.poll(stay).await;
        }
    }

    async fn poll(&mut self, stay: &mut Stay) {
        let asked: Vec<(Line, i64)> = stay.positions.iter().map(|(l, o)| (l.clone(), *o)).collect();
        if asked.is_empty() {
            return self.pause(BACKOFF).await;
        }
        let mut went_well = true;
        for (line, answer) in self.fetch(&asked, MAX_BYTES, MAX_WAIT_MS).await {
            match answer {
                Ok(f) if f.code == 0 => {
                    if let Some(last) = f.batches.last() {
                        stay.positions.insert(line, last.end());
                    }
                }
                Ok(f) if f.code == OFFSET_OUT_OF_RANGE => {
                    if let Ok(Listed { code: 0, offset, .. }) = self.list_offset(&line, EARLIEST).await {
                        stay.positions.insert(line, offset);
                    }
                }
                _ => went_well = false,
            }
        }
        if !went_well {
            self.client.forget_roles();
            self.pause(BACKOFF).await;
        }
    }

    /// The first code that is not 0, if any.
    async fn commit_positions(&mut self, stay: &Stay) -> Option<Code> {
        let offsets: Vec<(Line, i64)> = stay.positions.iter().map(|(l, o)| (l.clone(), *o)).collect();
        if offsets.is_empty() {
            return None;
        }
        let by = Membership { generation: stay.generation, member: &stay.member };
        let codes = self.commit(&stay.group, by, &offsets).await.ok()?;
        codes.into_iter().find(|c| *c != 0)
    }

    pub(super) async fn heartbeat(&mut self, stay: &Stay) -> Answer<Code> {
        let started = now();
        let request = HeartbeatRequest::default()
            .with_group_id(group_id(&stay.group))
            .with_generation_id(stay.generation)
            .with_member_id(StrBytes::from_string(stay.member.to_string()));
        let target = Target::Coordinator(stay.group.clone());
        let response = self.client.call(&target, version::HEARTBEAT, &request).await;
        let answer = response.map(|r| r.error_code);
        self.member_done(stay, started, Call::Heartbeat, answer.clone());
        answer
    }

    pub(super) async fn leave(&mut self, stay: &Stay) {
        let started = now();
        let member = MemberIdentity::default().with_member_id(StrBytes::from_string(stay.member.to_string()));
        let request =
            LeaveGroupRequest::default().with_group_id(group_id(&stay.group)).with_members(vec![member]);
        let target = Target::Coordinator(stay.group.clone());
        let response = self.client.call(&target, version::LEAVE_GROUP, &request).await;
        let answer = response.map(|r| match r.error_code {
            0 => r.members.first().map_or(0, |m| m.error_code),
            code => code,
        });
        self.member_done(stay, started, Call::Leave, answer);
    }

    /// All partitions, in turn over the members.
    fn spread(&self, joined: &JoinGroupResponse) -> Vec<SyncGroupRequestAssignment> {
        let topics: Vec<String> = joined
            .members
            .iter()
            .filter_map(|m| {
                let mut metadata = m.metadata.clone();
                take_version(&mut metadata)?;
                ConsumerProtocolSubscription::decode(&mut metadata, 0).ok()
            })
            .flat_map(|s| s.topics.into_iter().map(|t| t.to_string()))
            .collect();
        let lines = if topics.is_empty() { Vec::new() } else { self.partitions(&topics) };
        let mut shares: Vec<(StrBytes, Vec<Line>)> =
            joined.members.iter().map(|m| (m.member_id.clone(), Vec::new())).collect();
        let members = shares.len().max(1);
        for (i, line) in lines.into_iter().enumerate() {
            if let Some((_, share)) = shares.get_mut(i % members) {
                share.push(line);
            }
        }
        let row = |(member, lines): (StrBytes, Vec<Line>)| {
            SyncGroupRequestAssignment::default().with_member_id(member).with_assignment(assignment(&lines))
        };
        shares.into_iter().map(row).collect()
    }
}

fn join_request(user: &User, spec: &Member, stay: &Stay, session: i32, rebalance: i32) -> JoinGroupRequest {
    let topics: Vec<StrBytes> = match spec.topics.is_empty() {
        false => spec.topics.iter().map(|t| StrBytes::from_string(t.clone())).collect(),
        true => {
            let all = user.ctx.directory.topics();
            all.into_iter().map(|(t, _)| StrBytes::from_string(t.to_string())).collect()
        }
    };
    let subscription = ConsumerProtocolSubscription::default().with_topics(topics);
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(StrBytes::from_static_str(PROTOCOL))
        .with_metadata(with_version(&subscription));
    JoinGroupRequest::default()
        .with_group_id(group_id(&stay.group))
        .with_session_timeout_ms(session)
        .with_rebalance_timeout_ms(rebalance)
        .with_member_id(StrBytes::from_string(stay.member.to_string()))
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![protocol])
}

/// The consumer protocol's messages carry their version in front.
fn with_version(message: &impl Encodable) -> Bytes {
    let mut b = BytesMut::new();
    b.put_i16(0);
    message.encode(&mut b, 0).expect("a small message encodes");
    b.freeze()
}

fn take_version(bytes: &mut Bytes) -> Option<()> {
    (bytes.len() >= 2).then(|| drop(bytes.split_to(2)))
}

fn assignment(lines: &[Line]) -> Bytes {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in lines {
        topics.entry(topic).or_default().push(*partition);
    }
    let rows = topics
        .into_iter()
        .map(|(t, p)| TopicPartition::default().with_topic(topic_name(t)).with_partitions(p));
    with_version(&ConsumerProtocolAssignment::default().with_assigned_partitions(rows.collect()))
}

fn assigned(mut bytes: Bytes) -> Vec<Line> {
    if take_version(&mut bytes).is_none() {
        return Vec::new();
    }
    let Ok(assignment) = ConsumerProtocolAssignment::decode(&mut bytes, 0) else { return Vec::new() };
    let rows = assignment.assigned_partitions.into_iter();
    let lines = rows.flat_map(|t| {
        let topic: Arc<str> = t.topic.as_str().into();
        t.partitions.into_iter().map(move |p| (topic.clone(), p))
    });
    lines.collect()
}
