//! A consumer without a group: reads all partitions of its topics, from the tail, from the start, or with jumps.

use super::spec::{Consumer, From, Isolation};
use super::User;
use crate::client::committed::visible;
use crate::client::{topic_name, version, Target};
use crate::history::{now, Answer, BatchReader, Event, Fetched, Index, Listed, Lost, Place};
use highwater::reached;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ListOffsetsRequest};
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) const LATEST: i64 = -1;
pub(super) const EARLIEST: i64 = -2;
const OFFSET_OUT_OF_RANGE: i16 = 1;
const BACKOFF: Duration = Duration::from_millis(100);
/// How often a consumer of committed records asks how far behind it is.
const LOOKS_AHEAD: f64 = 0.05;

/// How likely a seeking consumer jumps after a response.
const JUMP: f64 = 0.1;

type Line = (Arc<str>, i32);

pub(super) async fn run(mut user: User, spec: Consumer) {
    let mut positions: BTreeMap<Line, i64> = BTreeMap::new();
    while !user.is_over() {
        let lines = user.partitions(&spec.topics);
        positions.retain(|line, _| lines.contains(line));
        for line in lines {
            let is_known = positions.contains_key(&line);
            if !is_known {
                let whence = if spec.from == From::Tail { LATEST } else { EARLIEST };
                if let Ok(Listed { code: 0, offset, .. }) =
                    user.list_offset_as(spec.isolation, &line, whence).await
                {
                    positions.insert(line, offset);
                }
            }
        }
        if positions.is_empty() {
            user.pause(BACKOFF).await;
            continue;
        }
        let went_well = match spec.isolation {
            Isolation::Uncommitted => round(&mut user, &spec, &mut positions).await,
            Isolation::Committed => committed_round(&mut user, &spec, &mut positions).await,
        };
        let pause = spec.pause_ms.millis(&mut user.rng);
        user.pause(if went_well { pause } else { pause.max(BACKOFF) }).await;
    }
}

/// One request for all partitions. Returns whether every partition answered without an error.
async fn round(user: &mut User, spec: &Consumer, positions: &mut BTreeMap<Line, i64>) -> bool {
    let max_bytes = spec.max_bytes.whole(&mut user.rng).min(1 << 30) as i32;
    let max_wait = spec.max_wait_ms.whole(&mut user.rng).min(600_000) as i32;
    let asked: Vec<(Line, i64)> = positions.iter().map(|(l, o)| (l.clone(), *o)).collect();
    let mut all_well = true;
    for (line, fetched) in user.fetch(&asked, max_bytes, max_wait).await {
        let Ok(fetched) = fetched else {
            all_well = false;
            continue;
        };
        match fetched.code {
            0 => advance(user, spec, positions, line, &fetched),
            code => {
                all_well = false;
                if code == OFFSET_OUT_OF_RANGE {
                    positions.remove(&line);
                }
            }
        }
    }
    if !all_well {
        user.client.forget_roles();
    }
    all_well
}

/// One request for each partition, of whoever leads it.
async fn committed_round(user: &mut User, spec: &Consumer, positions: &mut BTreeMap<Line, i64>) -> bool {
    let mut all_well = true;
    for (line, offset) in positions.clone() {
        let max_bytes = spec.max_bytes.whole(&mut user.rng).min(1 << 30) as i32;
        let max_wait = spec.max_wait_ms.whole(&mut user.rng).min(600_000) as i32;
        if user.rng.gen_bool(LOOKS_AHEAD) {
            // Whatever comes of it, there is another time.
            let _end = user.list_offset_as(Isolation::Committed, &line, LATEST).await;
        }
        match user.fetch_committed(&line, offset, max_bytes, max_wait).await {
            Ok((fetched, _)) if fetched.code == 0 => advance(user, spec, positions, line, &fetched),
            Ok((fetched, _)) => {
                all_well = false;
                if fetched.code == OFFSET_OUT_OF_RANGE {
                    positions.remove(&line);
                }
            }
            Err(_) => all_well = false,
        }
    }
    if !all_well {
        user.client.forget_roles();
    }
    all_well
}

fn advance(user: &mut User, spec: &Consumer, positions: &mut BTreeMap<Line, i64>, line: Line, got: &Fetched) {
    let next = got.batches.last().map(|b| b.end());
    if let (From::Seek, true) = (spec.from, user.rng.gen_bool(JUMP)) {
        let to = user.rng.gen_range(got.log_start.min(got.hwm)..=got.hwm.max(got.log_start));
        positions.insert(line, to.max(0));
    } else if let Some(next) = next {
        positions.insert(line, next);
    }
}

/// What came of one partition of a fetch.
struct Row {
    line: Line,
    event: Index,
    answer: Answer<Fetched>,
    /// Producer id and first offset.
    aborted: Vec<(i64, i64)>,
}

impl User {
    /// Asks for several partitions at once, of whoever leads the first; records a row for each.
    pub(super) async fn fetch(
        &mut self,
        asked: &[(Line, i64)],
        max_bytes: i32,
        max_wait_ms: i32,
    ) -> Vec<(Line, Answer<Fetched>)> {
        let rows = self.fetch_as(Isolation::Uncommitted, asked, max_bytes, max_wait_ms).await;
        rows.into_iter().map(|row| (row.line, row.answer)).collect()
    }

    /// Asks for one partition as a read_committed consumer; with the base offsets of the batches that it is shown.
    pub(super) async fn fetch_committed(
        &mut self,
        line: &Line,
        offset: i64,
        max_bytes: i32,
        max_wait_ms: i32,
    ) -> Answer<(Fetched, Vec<i64>)> {
        let asked = [(line.clone(), offset)];
        let mut rows = self.fetch_as(Isolation::Committed, &asked, max_bytes, max_wait_ms).await;
        let row = rows.pop().ok_or_else(|| Lost::NotSent("nothing was asked for".into()))?;
        let fetched = row.answer?;
        let shown = visible(&fetched.batches, &row.aborted);
        if fetched.code == 0 {
            if fetched.lso < fetched.hwm {
                reached!("reader-stopped-at-open-transaction");
            }
            if fetched.batches.iter().filter(|b| !b.is_control()).count() > shown.len() {
                reached!("aborted-batch-hidden");
            }
            let (who, fetch, aborted, visible) = (self.who, row.event, row.aborted, shown.clone());
            self.record(Event::CommittedRead { who, fetch, aborted, visible });
        }
        Ok((fetched, shown))
    }

    async fn fetch_as(
        &mut self,
        isolation: Isolation,
        asked: &[(Line, i64)],
        max_bytes: i32,
        max_wait_ms: i32,
    ) -> Vec<Row> {
        let Some((first, _)) = asked.first() else { return Vec::new() };
        let started = now();
        let places: Vec<Place> = asked.iter().map(|((t, p), _)| self.ctx.directory.place(t, *p)).collect();
        let request = fetch_request(isolation, asked, max_bytes, max_wait_ms);
        let target = Target::Leader(first.0.clone(), first.1);
        let (from, response) = self.client.ask(&target, version::FETCH, &request).await;
        let mut rows = Vec::with_capacity(asked.len());
        for ((line, offset), place) in asked.iter().zip(places) {
            let answer = response.as_ref().map_err(Lost::clone).and_then(|r| row(r, line));
            let (answer, aborted) = match answer {
                Ok((fetched, aborted)) => (Ok(fetched), aborted),
                Err(lost) => (Err(lost), Vec::new()),
            };
            let at = self.ctx.directory.still(&place);
            let (who, offset) = (self.who, *offset);
            let done = Event::FetchDone { who, started, at, offset, max_bytes, from, answer: answer.clone() };
            let event = self.record(done);
            rows.push(Row { line: line.clone(), event, answer, aborted });
        }
        rows
    }

    /// The offset that belongs to a timestamp, or to the log's beginning or end.
    pub(super) async fn list_offset(&mut self, line: &Line, timestamp: i64) -> Answer<Listed> {
        self.list_offset_as(Isolation::Uncommitted, line, timestamp).await
    }

    async fn list_offset_as(&mut self, isolation: Isolation, line: &Line, timestamp: i64) -> Answer<Listed> {
        let started = now();
        let place = self.ctx.directory.place(&line.0, line.1);
        let partition = ListOffsetsPartition::default()
            .with_partition_index(line.1)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let topic =
            ListOffsetsTopic::default().with_name(topic_name(&line.0)).with_partitions(vec![partition]);
        let committed = isolation == Isolation::Committed;
        let request = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            .with_isolation_level(i8::from(committed))
            .with_topics(vec![topic]);
        let target = Target::Leader(line.0.clone(), line.1);
        let (from, response) = self.client.ask(&target, version::LIST_OFFSETS, &request).await;
        let answer = response.and_then(|r| {
            let row = r.topics.first().and_then(|t| t.partitions.first());
            let row = row.ok_or_else(|| Lost::Garbled("a ListOffsets response without a row".into()))?;
            Ok(Listed {
                code: row.error_code,
                offset: row.offset,
                timestamp: row.timestamp,
                epoch: row.leader_epoch,
            })
        });
        let at = self.ctx.directory.still(&place);
        let who = self.who;
        let answered = answer.clone();
        self.record(Event::ListOffsetsDone {
            who,
            started,
            at,
            timestamp,
            committed,
            from,
            answer: answered,
        });
        if answer.as_ref().map_or(true, |l| l.code != 0) {
            self.client.forget_roles();
        }
        answer
    }
}

/// Bytes of a whole response: no bound of its own.
const RESPONSE_BYTES: i32 = 50 << 20;

fn fetch_request(
    isolation: Isolation,
    asked: &[(Line, i64)],
    max_bytes: i32,
    max_wait_ms: i32,
) -> FetchRequest {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for ((topic, partition), offset) in asked {
        let row = FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(max_bytes);
        match topics.last_mut().filter(|t| t.topic.as_str() == &**topic) {
            Some(t) => t.partitions.push(row),
            None => {
                topics.push(FetchTopic::default().with_topic(topic_name(topic)).with_partitions(vec![row]))
            }
        }
    }
    FetchRequest::default()
        .with_max_bytes(RESPONSE_BYTES)
        .with_min_bytes(1)
        .with_isolation_level(i8::from(isolation == Isolation::Committed))
        .with_max_wait_ms(max_wait_ms)
        .with_topics(topics)
}

/// With the transactions that are said to be aborted.
fn row(response: &FetchResponse, line: &Line) -> Answer<(Fetched, Vec<(i64, i64)>)> {
    let topic = response.responses.iter().find(|t| t.topic.as_str() == &*line.0);
    let row = topic.and_then(|t| t.partitions.iter().find(|p| p.partition_index == line.1));
    let Some(row) = row else {
        // Kafka leaves rows out only in fetch sessions, which nobody asked for.
        return Err(Lost::Garbled(format!("a fetch response without {}-{}", line.0, line.1)));
    };
    let mut reader = BatchReader::new(row.records.as_deref().unwrap_or_default());
    let batches = reader.by_ref().map(|(_, b)| b).collect();
    let aborted = row.aborted_transactions.as_deref().unwrap_or_default();
    let aborted = aborted.iter().map(|a| (a.producer_id.0, a.first_offset)).collect();
    let fetched = Fetched {
        code: row.error_code,
        hwm: row.high_watermark,
        lso: row.last_stable_offset,
        log_start: row.log_start_offset,
        batches,
        left_over: u32::try_from(reader.left_over()).unwrap_or(u32::MAX),
    };
    Ok((fetched, aborted))
}
