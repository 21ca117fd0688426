//! Committed offsets: committing them, asking for them, and who does so without being a member.
//!
//! Every commit says in its metadata which event it is, so that an answer tells whose offset it gives.

use super::spec::Committer;
use super::transaction::{transactional_id, Incarnation};
use super::User;
use crate::client::{group_id, topic_name, version, Target};
use crate::history::{now, Answer, Code, CommittedOffset, Event, Index, Place};
use highwater::reached;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, TopicName,
    TxnOffsetCommitRequest, TxnOffsetCommitResponse,
};
use kafka_protocol::protocol::StrBytes;
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;

type Line = (Arc<str>, i32);

/// The code of a row that the broker left out: UNKNOWN_SERVER_ERROR.
const MISSING: Code = -1;
/// UNSTABLE_OFFSET_COMMIT.
const UNSTABLE: Code = 88;

pub(super) async fn run(mut user: User, spec: Committer) {
    let group: Arc<str> = match spec.group.as_str() {
        "" => format!("committer-{}", user.who.0).into(),
        name => name.into(),
    };
    let interval = Duration::from_secs_f64(1.0 / spec.rate.draw(&mut user.rng).max(0.01));
    let mut stable = user.ctx.rng_for(user.who, "stable");
    while !user.is_over() {
        user.pause(interval).await;
        if user.rng.gen_bool(spec.ask.clamp(0.0, 1.0)) {
            let stable = stable.gen_bool(spec.stable.clamp(0.0, 1.0));
            user.fetch_offsets(&group, stable).await.ok();
            continue;
        }
        let lines = user.partitions(&spec.topics);
        let mut offsets: Vec<(Line, i64)> = Vec::new();
        for line in lines {
            if user.rng.gen_bool(0.5) {
                offsets.push((line, user.rng.gen_range(0..1_000_000)));
            }
        }
        if !offsets.is_empty() {
            user.commit(&group, Membership::OUTSIDE, &offsets).await.ok();
        }
    }
}

/// In whose name an offset is committed.
#[derive(Clone, Copy)]
pub(super) struct Membership<'a> {
    pub generation: i32,
    pub member: &'a str,
}

impl Membership<'_> {
    /// From outside the group.
    pub const OUTSIDE: Membership<'static> = Membership { generation: -1, member: "" };
}

impl User {
    /// A code for each offset.
    pub(super) async fn commit(
        &mut self,
        group: &Arc<str>,
        by: Membership<'_>,
        offsets: &[(Line, i64)],
    ) -> Answer<Vec<Code>> {
        self.ctx.directory.note_group(group);
        let places = offsets.iter().map(|((t, p), offset)| (self.ctx.directory.place(t, *p), *offset));
        let sent = self.record(Event::CommitSent {
            who: self.who,
            group: group.clone(),
            generation: by.generation,
            member: by.member.into(),
            offsets: places.collect(),
        });
        let request = commit_request(group, &by, offsets, sent);
        let target = Target::Coordinator(group.clone());
        let response = self.client.call(&target, version::OFFSET_COMMIT, &request).await;
        let answer = response.map(|r| offsets.iter().map(|(line, _)| commit_code(&r, line)).collect());
        self.record(Event::CommitDone { who: self.who, sent, answer: Answer::clone(&answer) });
        if !matches!(&answer, Ok(codes) if codes.iter().all(|c: &Code| *c == 0)) {
            self.client.forget_roles();
        }
        answer
    }

    /// The same as part of a transaction (TxnOffsetCommit).
    pub(super) async fn commit_in(
        &mut self,
        txn: Index,
        producer: &Incarnation,
        group: &Arc<str>,
        by: Membership<'_>,
        offsets: &[(Line, i64)],
    ) -> Answer<Vec<Code>> {
        self.ctx.directory.note_group(group);
        let places = offsets.iter().map(|((t, p), offset)| (self.ctx.directory.place(t, *p), *offset));
        let (who, generation, member) = (self.who, by.generation, by.member.into());
        let (offsets_sent, named) = (places.collect(), group.clone());
        let sent =
            self.record(Event::CommitSent { who, group: named, generation, member, offsets: offsets_sent });
        self.record(Event::TxnPart { txn, sent });
        let request = txn_commit_request(producer, group, &by, offsets, sent);
        let target = Target::Coordinator(group.clone());
        let response = self.client.call(&target, producer.versions().offset_commit, &request).await;
        let answer = response.map(|r| offsets.iter().map(|(line, _)| txn_commit_code(&r, line)).collect());
        self.record(Event::CommitDone { who, sent, answer: Answer::clone(&answer) });
        answer
    }

    /// All offsets of a group. `stable`: none that an open transaction may still change (KIP-447).
    pub(super) async fn fetch_offsets(
        &mut self,
        group: &Arc<str>,
        stable: bool,
    ) -> Answer<Vec<CommittedOffset>> {
        let started = now();
        let before: Vec<Place> =
            self.partitions(&[]).iter().map(|(t, p)| self.ctx.directory.place(t, *p)).collect();
        let request = OffsetFetchRequest::default()
            .with_group_id(group_id(group))
            .with_topics(None)
            .with_require_stable(stable);
        let target = Target::Coordinator(group.clone());
        let response = self.client.call(&target, version::OFFSET_FETCH, &request).await;
        let code = response.as_ref().map_or(0, |r| r.error_code);
        let places: Vec<Place> = before.iter().map(|p| self.ctx.directory.still(p)).collect();
        let answer = response.map(|r| places.iter().map(|at| committed(&r, at)).collect::<Vec<_>>());
        if answer.as_ref().is_ok_and(|rows: &Vec<CommittedOffset>| rows.iter().any(|r| r.code == UNSTABLE)) {
            reached!("offsets-unstable");
        }
        let (who, group) = (self.who, group.clone());
        self.record(Event::OffsetsFetched { who, started, group, stable, answer: answer.clone() });
        if code != 0 || answer.is_err() {
            self.client.forget_roles();
        }
        answer
    }
}

/// Partitions with their offsets, gathered under their topics as requests have them.
fn by_topic(offsets: &[(Line, i64)]) -> Vec<(TopicName, Vec<(i32, i64)>)> {
    let mut topics: Vec<(TopicName, Vec<(i32, i64)>)> = Vec::new();
    for ((topic, partition), offset) in offsets {
        let row = (*partition, *offset);
        match topics.last_mut().filter(|(name, _)| name.as_str() == &**topic) {
            Some((_, rows)) => rows.push(row),
            None => topics.push((topic_name(topic), vec![row])),
        }
    }
    topics
}

fn commit_request(
    group: &str,
    by: &Membership<'_>,
    offsets: &[(Line, i64)],
    event: Index,
) -> OffsetCommitRequest {
    let row = |(partition, offset): (i32, i64)| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(partition)
            .with_committed_offset(offset)
            .with_committed_metadata(Some(StrBytes::from_string(event.to_string())))
    };
    let topics = by_topic(offsets).into_iter().map(|(name, rows)| {
        let rows = rows.into_iter().map(row).collect();
        OffsetCommitRequestTopic::default().with_name(name).with_partitions(rows)
    });
    OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id_or_member_epoch(by.generation)
        .with_member_id(StrBytes::from_string(by.member.to_owned()))
        .with_topics(topics.collect())
}

fn txn_commit_request(
    producer: &Incarnation,
    group: &str,
    by: &Membership<'_>,
    offsets: &[(Line, i64)],
    event: Index,
) -> TxnOffsetCommitRequest {
    let row = |(partition, offset): (i32, i64)| {
        TxnOffsetCommitRequestPartition::default()
            .with_partition_index(partition)
            .with_committed_offset(offset)
            .with_committed_metadata(Some(StrBytes::from_string(event.to_string())))
    };
    let topics = by_topic(offsets).into_iter().map(|(name, rows)| {
        let rows = rows.into_iter().map(row).collect();
        TxnOffsetCommitRequestTopic::default().with_name(name).with_partitions(rows)
    });
    TxnOffsetCommitRequest::default()
        .with_transactional_id(transactional_id(&producer.id))
        .with_group_id(group_id(group))
        .with_producer_id(producer.producer.0.into())
        .with_producer_epoch(producer.producer.1)
        .with_generation_id(by.generation)
        .with_member_id(StrBytes::from_string(by.member.to_owned()))
        .with_topics(topics.collect())
}

fn txn_commit_code(response: &TxnOffsetCommitResponse, line: &Line) -> Code {
    let topic = response.topics.iter().find(|t| t.name.as_str() == &*line.0);
    let row = topic.and_then(|t| t.partitions.iter().find(|p| p.partition_index == line.1));
    row.map_or(MISSING, |p| p.error_code)
}

fn commit_code(response: &OffsetCommitResponse, line: &Line) -> Code {
    let topic = response.topics.iter().find(|t| t.name.as_str() == &*line.0);
    let row = topic.and_then(|t| t.partitions.iter().find(|p| p.partition_index == line.1));
    row.map_or(MISSING, |p| p.error_code)
}

/// A group's answer about one partition. One that is not listed has no offset.
fn committed(response: &OffsetFetchResponse, at: &Place) -> CommittedOffset {
    let code = response.error_code;
    let none = CommittedOffset { at: at.clone(), code, offset: -1, commit: None };
    let topic = response.topics.iter().find(|t| t.name.as_str() == &*at.topic);
    let row = topic.and_then(|t| t.partitions.iter().find(|p| p.partition_index == at.partition));
    row.map_or(none, |p| CommittedOffset {
        at: at.clone(),
        code: if code != 0 { code } else { p.error_code },
        offset: p.committed_offset,
        commit: p.metadata.as_ref().and_then(|m| m.as_str().parse().ok()),
    })
}
