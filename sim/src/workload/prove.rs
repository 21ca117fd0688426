//! The end of a life: everything must come back, and everything is looked at.
//!
//! [`comes_back`] asks for what P13 promises: from the moment that it is called, every partition takes a batch
//! with acks=all within lease + 5 s. Call it when the last fault is gone. [`read_all`] reads every partition from
//! log start to end, and every group's offsets. What can't be had is an [`Event::NotProven`], which the checkers
//! turn into broken promises.

use super::consumer::{EARLIEST, LATEST};
use super::offsets::Membership;
use super::{Ctx, User};
use crate::client::Leaders;
use crate::history::{now, Event, Listed, Produced, Who};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{error::Elapsed, timeout};

type Line = (Arc<str>, i32);

/// P13: what comes on top of the lease.
const GRACE: Duration = Duration::from_secs(5);
/// For one request of a prover; shorter than all deadlines that it has to keep.
const ATTEMPT: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(250);
/// How long any one step of reading may take, until it has brought the reader further; there are no faults any more. A partition
/// whose reading takes longer as a whole is a long one, on a slow volume.
const READING: Duration = Duration::from_secs(60);
/// Bytes asked for at a time.
const CHUNK: i32 = 1 << 20;
const CORRUPT_MESSAGE: i16 = 2;
const OFFSET_OUT_OF_RANGE: i16 = 1;

/// Both halves, one after the other.
pub async fn prove(ctx: &Ctx) {
    comes_back(ctx).await;
    read_all(ctx).await;
}

/// Probes every partition, side by side, until each took a batch or its time is over.
pub async fn comes_back(ctx: &Ctx) {
    let lines = all_lines(ctx);
    let begun = now();
    let until = begun + ctx.lease + GRACE;
    let leaders = Leaders::default();
    let prover = || prover(ctx, &leaders);
    let groups = ctx.directory.groups().into_iter().map(|g| move_until(ctx, prover(), g, begun, until));
    let probes = (0u64..).zip(lines).map(|(n, line)| probe_until(ctx, prover(), line, n, begun, until));
    let (groups, partitions) = (join_all(groups), join_all(probes));
    futures::join!(partitions, groups);
}

/// A group moves: its coordinator answers for it, and takes commits. One that has members refuses those from
/// outside (UNKNOWN_MEMBER_ID), and that is an answer, too.
async fn move_until(ctx: &Ctx, mut user: User, group: Arc<str>, begun: Duration, until: Duration) {
    let what = format!("group {group} moves");
    loop {
        let known = user.fetch_offsets(&group, false).await;
        let has_answer = matches!(&known, Ok(rows) if rows.iter().all(|r| r.code == 0));
        let line = all_lines(ctx).into_iter().next();
        let commit = match line.filter(|_| has_answer && ctx.directory.is_open(&group)) {
            Some(line) => Some(user.commit(&group, Membership::OUTSIDE, &[(line, 0)]).await),
            None => None,
        };
        let takes = commit.as_ref().is_none_or(|c| matches!(c, Ok(codes) if matches!(codes[..], [0 | 25])));
        if has_answer && takes {
            ctx.history.record(Event::Proven { what, took: now() - begun });
            return;
        }
        if now() >= until {
            let what = format!("{what}: {known:?}, {commit:?}");
            ctx.history.record(Event::NotProven { what });
            return;
        }
        again(&mut user, None).await;
    }
}

fn all_lines(ctx: &Ctx) -> Vec<Line> {
    let topics = ctx.directory.topics();
    topics.into_iter().flat_map(|(t, n)| (0..n).map(move |p| (t.clone(), p))).collect()
}

/// `leaders`: shared, since an answer with metadata is about a whole topic, and there is a prover for each partition.
fn prover(ctx: &Ctx, leaders: &Leaders) -> User {
    let mut user = User::new(ctx, Who::PROVER, ATTEMPT, ctx.rng(Who::PROVER));
    user.client.share(leaders.clone());
    user
}

/// One that reads here and there: what the prover reads is taken for the whole.
fn bystander(ctx: &Ctx, leaders: &Leaders) -> User {
    User { who: Who::FOUNDER, ..prover(ctx, leaders) }
}

async fn probe_until(ctx: &Ctx, mut user: User, line: Line, number: u64, begun: Duration, until: Duration) {
    let what = format!("{}-{} takes acks=all", line.0, line.1);
    let mut attempt = 0u64;
    loop {
        // No two probes have the same records.
        let answer = user.probe(&line, number << 32 | attempt).await;
        attempt += 1;
        if matches!(answer, Ok(Produced { code: 0, .. })) {
            ctx.history.record(Event::Proven { what, took: now() - begun });
            return;
        }
        if !all_lines(ctx).contains(&line) {
            // Deleted meanwhile, or created anew with fewer partitions.
            return;
        }
        if now() >= until {
            ctx.history
                .record(Event::NotProven { what: format!("{what}: {answer:?} after {attempt} attempts") });
            return;
        }
        again(&mut user, Some(&line)).await;
    }
}

/// How long the coordinator may take on top to notice that a transaction's time is over
/// (`transaction.abort.timed.out.transaction.cleanup.interval.ms`).
const REAPER: Duration = Duration::from_secs(10);

/// Call it when all clients have stopped: every transaction has ended within the longest time that any was given, and a
/// little more, and the last stable offset is the high watermark everywhere. No group's offset is unstable either.
pub async fn transactions_end(ctx: &Ctx) {
    let Some(longest) = ctx.directory.longest_transaction() else { return };
    let begun = now();
    let until = begun + longest + REAPER + ctx.lease + GRACE;
    let leaders = Leaders::default();
    let lines =
        all_lines(ctx).into_iter().map(|line| settles(ctx, bystander(ctx, &leaders), line, begun, until));
    let groups = ctx.directory.groups().into_iter();
    let groups = groups.map(|group| is_stable(ctx, bystander(ctx, &leaders), group, begun, until));
    let (lines, groups) = (join_all(lines), join_all(groups));
    futures::join!(lines, groups);
}

async fn settles(ctx: &Ctx, mut user: User, line: Line, begun: Duration, until: Duration) {
    let what = format!("{}-{} has no open transaction", line.0, line.1);
    loop {
        let hwm = user.list_offset(&line, LATEST).await;
        let read = match &hwm {
            Ok(Listed { code: 0, offset, .. }) => Some(user.fetch_committed(&line, *offset, CHUNK, 0).await),
            _ => None,
        };
        if matches!(&read, Some(Ok((f, _))) if f.code == 0 && f.lso == f.hwm) {
            ctx.history.record(Event::Proven { what, took: now() - begun });
            return;
        }
        if !all_lines(ctx).contains(&line) {
            return;
        }
        if now() >= until {
            let read = read.map(|r| r.map(|(f, _)| (f.code, f.lso, f.hwm)));
            let what = format!("{what}: it ends with {hwm:?}, and was read with {read:?} (code, LSO, HWM)");
            ctx.history.record(Event::NotProven { what });
            return;
        }
        again(&mut user, Some(&line)).await;
    }
}

async fn is_stable(ctx: &Ctx, mut user: User, group: Arc<str>, begun: Duration, until: Duration) {
    let what = format!("group {group} has no open transaction");
    loop {
        let known = user.fetch_offsets(&group, true).await;
        if matches!(&known, Ok(rows) if rows.iter().all(|r| r.code == 0)) {
            ctx.history.record(Event::Proven { what, took: now() - begun });
            return;
        }
        if now() >= until {
            ctx.history.record(Event::NotProven { what: format!("{what}: {known:?}") });
            return;
        }
        again(&mut user, None).await;
    }
}

/// Returns once every partition says where it ends; asks for no record.
pub async fn all_open(ctx: &Ctx) {
    let leaders = Leaders::default();
    let opened = async {
        for line in all_lines(ctx) {
            edge(&mut prover(ctx, &leaders), &line, LATEST).await;
        }
    };
    if timeout(READING, opened).await.is_err() {
        let what = "every partition opens after the brokers' last end".to_owned();
        ctx.history.record(Event::NotProven { what });
    }
}

/// Reads everything that is there.
pub async fn read_all(ctx: &Ctx) {
    let leaders = Leaders::default();
    // A topic may have more partitions than anybody was told: of a growth that was done and yet answered by an error.
    for (topic, _) in ctx.directory.topics() {
        let mut user = prover(ctx, &leaders);
        if timeout(READING, user.look(&topic)).await.is_err() {
            ctx.history.record(Event::NotProven { what: format!("{topic} is described") });
        }
    }
    for line in all_lines(ctx) {
        let mut user = prover(ctx, &leaders);
        let what = format!("{}-{} can be read", line.0, line.1);
        if read_line(&mut user, &line).await.is_err() {
            ctx.history.record(Event::NotProven { what });
        }
        if ctx.directory.longest_transaction().is_some() {
            let what = format!("{}-{} can be read by who asks for what is committed", line.0, line.1);
            if read_committed(&mut user, &line).await.is_err() {
                ctx.history.record(Event::NotProven { what });
            }
        }
    }
    for group in ctx.directory.groups() {
        let mut user = prover(ctx, &leaders);
        let what = format!("the offsets of group {group} can be read");
        if timeout(READING, read_offsets(&mut user, &group)).await.is_err() {
            ctx.history.record(Event::NotProven { what });
        }
    }
}

/// Before the next attempt: whoever was asked may not be the right one any more.
async fn again(user: &mut User, line: Option<&Line>) {
    user.client.forget_roles();
    if let Some((topic, partition)) = line {
        user.client.forget_leader(topic, *partition);
    }
    tokio::time::sleep(PAUSE).await;
}

async fn read_offsets(user: &mut User, group: &Arc<str>) {
    loop {
        match user.fetch_offsets(group, true).await {
            Ok(rows) if rows.iter().all(|r| r.code == 0) => return,
            _ => again(user, None).await,
        }
    }
}

async fn edge(user: &mut User, line: &Line, which: i64) -> i64 {
    loop {
        if let Ok(Listed { code: 0, offset, .. }) = user.list_offset(line, which).await {
            return offset;
        }
        again(user, Some(line)).await;
    }
}

async fn read_line(user: &mut User, line: &Line) -> Result<(), Elapsed> {
    let at = user.ctx.directory.place(&line.0, line.1);
    let mut log_start = timeout(READING, edge(user, line, EARLIEST)).await?;
    let hwm = timeout(READING, edge(user, line, LATEST)).await?;
    let mut offset = log_start;
    while offset < hwm {
        (offset, log_start) = timeout(READING, read_on(user, line, offset, log_start)).await?;
    }
    let at = user.ctx.directory.still(&at);
    user.record(Event::FinalRead { at, log_start, hwm });
    Ok(())
}

async fn read_committed(user: &mut User, line: &Line) -> Result<(), Elapsed> {
    let at = user.ctx.directory.place(&line.0, line.1);
    let mut offset = timeout(READING, edge(user, line, EARLIEST)).await?;
    loop {
        let (next, lso, hwm) = timeout(READING, read_committed_on(user, line, offset)).await?;
        offset = next;
        if offset >= lso {
            let at = user.ctx.directory.still(&at);
            user.record(Event::FinalCommitted { at, lso, hwm });
            return Ok(());
        }
    }
}

/// Where to read on, and the last stable offset and the high watermark.
async fn read_committed_on(user: &mut User, line: &Line, offset: i64) -> (i64, i64, i64) {
    loop {
        match user.fetch_committed(line, offset, CHUNK, 0).await {
            Ok((f, _)) if f.code == 0 && (f.lso <= offset || !f.batches.is_empty()) => {
                let next = f.batches.last().map_or(offset, |b| b.end()).max(offset);
                return (next, f.lso, f.hwm);
            }
            Ok((f, _)) if f.code == CORRUPT_MESSAGE => return (offset + 1, f.lso.max(offset + 2), f.hwm),
            Ok((f, _)) if f.code == OFFSET_OUT_OF_RANGE => {
                let log_start = edge(user, line, EARLIEST).await;
                if log_start > offset {
                    return (log_start, log_start + 1, log_start + 1);
                }
            }
            _ => again(user, Some(line)).await,
        }
    }
}

/// Where to read on, and where the log starts by what is known now.
async fn read_on(user: &mut User, line: &Line, offset: i64, log_start: i64) -> (i64, i64) {
    loop {
        let rows = user.fetch(&[(line.clone(), offset)], CHUNK, 0).await;
        match rows.first().map(|(_, answer)| answer) {
            Some(Ok(f)) if f.code == 0 && !f.batches.is_empty() => {
                return (f.batches.last().map_or(offset, |b| b.end()).max(offset + 1), log_start);
            }
            // Damaged: what lies behind it must be there all the same.
            Some(Ok(f)) if f.code == CORRUPT_MESSAGE => return (offset + 1, log_start),
            // Retention goes on.
            Some(Ok(f)) if f.code == OFFSET_OUT_OF_RANGE => {
                let log_start = edge(user, line, EARLIEST).await;
                if log_start > offset {
                    return (log_start, log_start);
                }
            }
            _ => again(user, Some(line)).await,
        }
    }
}
