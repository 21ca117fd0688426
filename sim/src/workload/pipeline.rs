//! Consume, transform, produce, exactly once (KIP-447): a member of a group reads as a read_committed consumer, writes a batch for
//! what it got of a partition, and commits the group's offset in the same transaction.
//!
//! It begins where the group's stable offset is. What becomes of a transaction is never guessed: after anything but a commit that
//! was acknowledged it joins the group again, and asks.

use super::member::{Stay, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID};
use super::offsets::Membership;
use super::spec::{Member, Pipeline, Range};
use super::transaction::{Incarnation, Line, Outgoing, Went};
use super::transactional::{another, finish, Fate};
use super::User;
use crate::history::{Event, Index, Place};
use highwater::reached;
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{timeout, Instant};

const BACKOFF: Duration = Duration::from_millis(200);
const OFFSET_OUT_OF_RANGE: i16 = 1;
const MAX_WAIT_MS: i32 = 50;
/// Writing, the offsets, the end.
const STEPS: usize = 2;

/// How a stay in the group, or a part of one, ended.
#[derive(PartialEq)]
enum Ended {
    Rejoin,
    Forgotten,
    /// The process is gone, or believes so.
    Gone,
    Left,
}

/// What was taken of one input partition: all from one offset up to another.
#[derive(Clone)]
struct Taken {
    line: Line,
    place: Place,
    from: i64,
    to: i64,
    /// Whether there was anything that a consumer is shown.
    has_records: bool,
}

/// What a transaction is to do.
#[derive(Clone)]
struct Work {
    group: Arc<str>,
    member: Arc<str>,
    generation: i32,
    taken: Vec<Taken>,
    to: Vec<String>,
    value_bytes: Range,
    step: Range,
    commit: bool,
}

pub(super) async fn run(mut user: User, spec: Pipeline) {
    let group: Arc<str> = spec.group.as_str().into();
    user.ctx.directory.note_pipeline(&group);
    let id: Arc<str> = format!("pipeline-{}", user.who.0).into();
    let member = as_member(&spec);
    let mut helpers: Vec<JoinHandle<()>> = Vec::new();
    while !user.is_over() {
        let Some(mut me) = Incarnation::start(&mut user, &id, &spec.fortune).await else { break };
        let lasts = spec.churn.then(|| spec.stay_ms.millis(&mut user.rng));
        let mut stay = Stay::new(group.clone(), true, lasts);
        let ended = loop {
            if user.is_over() || stay.is_over() {
                break Ended::Left;
            }
            if !user.join(&member, &mut stay).await {
                user.pause(BACKOFF).await;
                continue;
            }
            match work(&mut user, &spec, &mut me, &mut stay, &mut helpers).await {
                Ended::Rejoin => {}
                Ended::Forgotten => stay.forget(),
                ended => break ended,
            }
        };
        if ended == Ended::Left && !stay.member.is_empty() {
            user.leave(&stay).await;
        }
        user.client.disconnect();
        let back = spec.fortune.back_ms.millis(&mut user.rng);
        user.pause(back).await;
    }
    for helper in helpers {
        helper.await.expect("a helper of a client ends");
    }
}

fn as_member(spec: &Pipeline) -> Member {
    Member {
        group: spec.group.clone(),
        topics: spec.from.clone(),
        session_ms: spec.session_ms,
        rebalance_ms: spec.rebalance_ms,
        ..Member::default()
    }
}

async fn work(
    user: &mut User,
    spec: &Pipeline,
    me: &mut Incarnation,
    stay: &mut Stay,
    helpers: &mut Vec<JoinHandle<()>>,
) -> Ended {
    let mut beat_at = Instant::now();
    while !user.is_over() && !stay.is_over() {
        if Instant::now() >= beat_at {
            beat_at = Instant::now() + spec.heartbeat_ms.millis(&mut user.rng);
            match user.heartbeat(stay).await {
                Ok(0) => {}
                Ok(UNKNOWN_MEMBER_ID) => return Ended::Forgotten,
                Ok(ILLEGAL_GENERATION | REBALANCE_IN_PROGRESS) => return Ended::Rejoin,
                _ => user.pause(BACKOFF).await,
            }
        }
        let Some(taken) = take(user, spec, stay).await else { return Ended::Rejoin };
        if taken.is_empty() {
            user.pause(BACKOFF).await;
            continue;
        }
        let work = Work {
            group: stay.group.clone(),
            member: stay.member.clone(),
            generation: stay.generation,
            taken,
            to: spec.to.clone(),
            value_bytes: spec.value_bytes,
            step: spec.fortune.step_ms,
            commit: user.rng.gen_bool(spec.fortune.commit.clamp(0.0, 1.0)),
        };
        match transact(user, spec, me, &work, helpers).await {
            Some(Went::Well) if work.commit => {
                reached!("pipeline-committed");
                for taken in work.taken {
                    stay.positions.insert(taken.line, taken.to);
                }
            }
            // Aborted as it was meant to be: once more, from where it was.
            Some(Went::Well) => {}
            Some(Went::Badly) => return Ended::Rejoin,
            Some(Went::Fenced(code)) => {
                me.record_fenced(user, code);
                return Ended::Gone;
            }
            Some(Went::Nowhere) | None => return Ended::Gone,
        }
    }
    Ended::Left
}

/// Reads on in each of its partitions. `None`: it does not know where it is.
async fn take(user: &mut User, spec: &Pipeline, stay: &Stay) -> Option<Vec<Taken>> {
    let mut all = Vec::new();
    for (line, from) in &stay.positions {
        let place = user.ctx.directory.place(&line.0, line.1);
        let max_bytes = spec.max_bytes.whole(&mut user.rng).min(1 << 20) as i32;
        match user.fetch_committed(line, *from, max_bytes, MAX_WAIT_MS).await {
            Ok((fetched, visible)) if fetched.code == 0 => {
                let Some(last) = fetched.batches.last() else { continue };
                let (line, from, to) = (line.clone(), *from, last.end());
                let has_records = !visible.is_empty();
                all.push(Taken { line, place: user.ctx.directory.still(&place), from, to, has_records });
            }
            Ok((fetched, _)) if fetched.code == OFFSET_OUT_OF_RANGE => return None,
            _ => user.client.forget_roles(),
        }
    }
    Some(all)
}

/// How the transaction went; `None`: the client is gone. One that went badly was aborted, or will be.
async fn transact(
    user: &mut User,
    spec: &Pipeline,
    me: &mut Incarnation,
    work: &Work,
    helpers: &mut Vec<JoinHandle<()>>,
) -> Option<Went> {
    let txn = me.begin(user);
    match Fate::draw(user, &spec.fortune, STEPS) {
        Fate::Crash(after) => {
            let _ = timeout(after, go(user, me, work, txn, 0..STEPS + 1)).await;
            None
        }
        Fate::Sleep(at) => {
            let went = go(user, me, work, txn, 0..at).await;
            if went != Went::Well {
                return Some(went);
            }
            let sleep = spec.fortune.sleep_ms.millis(&mut user.rng);
            let (mut sleeper, work) = (another(user, &format!("sleeper {txn}")), work.clone());
            let mut me = me.clone();
            helpers.push(tokio::spawn(async move {
                sleeper.pause(sleep).await;
                if !sleeper.is_over() {
                    if let Went::Fenced(code) = go(&mut sleeper, &mut me, &work, txn, at..STEPS + 1).await {
                        me.record_fenced(&sleeper, code);
                    }
                }
            }));
            None
        }
        Fate::Nothing | Fate::Late(_) => Some(go(user, me, work, txn, 0..STEPS + 1).await),
    }
}

/// Some of the steps.
async fn go(
    user: &mut User,
    me: &mut Incarnation,
    work: &Work,
    txn: Index,
    steps: std::ops::Range<usize>,
) -> Went {
    for step in steps {
        let went = match step {
            0 => write(user, me, work, txn).await,
            1 => {
                let by = Membership { generation: work.generation, member: &work.member };
                let offsets: Vec<(Line, i64)> = work.taken.iter().map(|t| (t.line.clone(), t.to)).collect();
                me.commit_offsets(user, txn, &work.group, by, &offsets).await
            }
            _ => return finish(user, me, txn, Went::Well, work.commit).await,
        };
        if went != Went::Well {
            // Aborted, it is still no commit: whoever asked for this one has to look where the group is.
            return match finish(user, me, txn, went, false).await {
                Went::Well => Went::Badly,
                went => went,
            };
        }
        let pause = work.step.millis(&mut user.rng);
        user.pause(pause).await;
    }
    Went::Well
}

/// A batch for each input partition that had something.
async fn write(user: &mut User, me: &mut Incarnation, work: &Work, txn: Index) -> Went {
    let outputs = user.partitions(&work.to);
    let mut batches: Vec<Outgoing> = Vec::new();
    let mut made_of: Vec<Taken> = Vec::new();
    for taken in work.taken.iter().filter(|t| t.has_records) {
        let Some(line) = user.pick(&outputs) else { return Went::Badly };
        batches.push(me.make(user, &line, Range::One(1.0), work.value_bytes));
        made_of.push(taken.clone());
    }
    // In the order of their numbers: one partition may get several, one after the other.
    for (batch, taken) in batches.into_iter().zip(made_of) {
        let mut batch = [batch];
        let went = me.write(user, txn, &mut batch).await;
        if let [Outgoing { first: Some(sent), .. }] = batch {
            let (who, group) = (user.who, work.group.clone());
            let (input, from, to) = (taken.place, taken.from, taken.to);
            user.record(Event::PipeStep { who, txn, group, input, from, to, sent });
        }
        if went != Went::Well {
            return went;
        }
    }
    Went::Well
}
