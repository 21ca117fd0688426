//! A transactional producer: transactions over several partitions, committed or aborted; and what befalls such
//! clients. It crashes at any moment, and another incarnation takes its transactional id; it falls asleep in the middle of
//! a transaction and goes on later, while another is there; its requests are under way for long.

use super::offsets::Membership;
use super::spec::{Fortune, Range, Transactional};
use super::transaction::{Incarnation, Line, Outgoing, Went};
use super::User;
use crate::history::{Index, Who};
use highwater::reached;
use rand::Rng;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What befalls a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Nothing,
    /// The client is gone after so long.
    Crash(Duration),
    /// It falls asleep before so many steps are done.
    Sleep(usize),
    Late(Late),
}

/// What is under way for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// Its end, said twice: once in time.
    EndAgain,
    /// Its end, and the client crashed.
    End,
    /// A batch that was written in time as well.
    WriteAgain,
    /// A batch that nobody waited for: the client aborts.
    Write,
}

impl Fate {
    pub fn draw(user: &mut User, fortune: &Fortune, steps: usize) -> Fate {
        let dice = user.rng.gen_range(0.0..1.0);
        let at = user.rng.gen_range(0..=steps);
        // Most steps take some milliseconds, and a stuck volume or a dead leader makes seconds of them.
        let after = Duration::from_secs_f64(0.0005 * 6000f64.powf(user.rng.gen_range(0.0..1.0)));
        let late = [Late::EndAgain, Late::EndAgain, Late::End, Late::End, Late::WriteAgain, Late::Write];
        let late = late[user.rng.gen_range(0..late.len())];
        match dice {
            d if d < fortune.crash => Fate::Crash(after),
            d if d < fortune.crash + fortune.zombie => Fate::Sleep(at),
            d if d < fortune.crash + fortune.zombie + fortune.late => Fate::Late(late),
            _ => Fate::Nothing,
        }
    }
}

/// What a transaction is to be. Its steps are the rounds, the offsets if there are any, and the end.
#[derive(Clone)]
struct Plan {
    rounds: Vec<Vec<Line>>,
    records: Range,
    value_bytes: Range,
    /// Whose offsets it commits.
    group: Option<Arc<str>>,
    offsets: Vec<(Line, i64)>,
    step: Range,
    commit: bool,
    fate: Fate,
}

pub(super) async fn run(mut user: User, spec: Transactional) {
    let id: Arc<str> = match spec.id.as_str() {
        "" => format!("transactional-{}", user.who.0).into(),
        name => name.into(),
    };
    let mut helpers: Vec<JoinHandle<()>> = Vec::new();
    while !user.is_over() {
        let Some(incarnation) = Incarnation::start(&mut user, &id, &spec.fortune).await else { break };
        live(&mut user, &spec, incarnation, &mut helpers).await;
        user.client.disconnect();
        let back = spec.fortune.back_ms.millis(&mut user.rng);
        user.pause(back).await;
    }
    for helper in helpers {
        helper.await.expect("a helper of a client ends");
    }
}

/// Until the incarnation is gone.
async fn live(user: &mut User, spec: &Transactional, mut me: Incarnation, helpers: &mut Vec<JoinHandle<()>>) {
    while !user.is_over() {
        let gap = spec.gap_ms.millis(&mut user.rng);
        user.pause(gap).await;
        let plan = plan(user, spec);
        if user.is_over() || plan.rounds.iter().all(Vec::is_empty) {
            continue;
        }
        let txn = me.begin(user);
        let went = match plan.fate {
            Fate::Nothing => whole(user, &mut me, &plan, txn).await,
            Fate::Crash(after) => {
                let _ = timeout(after, whole(user, &mut me, &plan, txn)).await;
                return;
            }
            Fate::Sleep(at) => {
                let went = steps(user, &mut me, &plan, txn, 0..at.min(plan.rounds.len())).await;
                if went == Went::Well {
                    let sleep = spec.fortune.sleep_ms.millis(&mut user.rng);
                    helpers.push(fall_asleep(user, me, plan, txn, sleep));
                    return;
                }
                finish(user, &mut me, txn, went, plan.commit).await
            }
            Fate::Late(late) => {
                let delay = spec.fortune.late_ms.millis(&mut user.rng);
                match with_late(user, &mut me, &plan, txn, (late, delay), helpers).await {
                    Some(went) => went,
                    None => return,
                }
            }
        };
        if !is_alive(user, &me, went) {
            return;
        }
    }
}

fn is_alive(user: &User, me: &Incarnation, went: Went) -> bool {
    match went {
        Went::Well => true,
        Went::Badly | Went::Nowhere => false,
        Went::Fenced(code) => {
            me.record_fenced(user, code);
            false
        }
    }
}

fn plan(user: &mut User, spec: &Transactional) -> Plan {
    let lines = user.partitions(&spec.topics);
    let count = spec.rounds.whole(&mut user.rng).clamp(1, 20);
    let mut rounds = Vec::new();
    for _ in 0..count {
        let width = spec.width.whole(&mut user.rng).clamp(1, 20);
        let mut round: Vec<Line> = Vec::new();
        for _ in 0..width {
            round.extend(user.pick(&lines));
        }
        round.sort();
        round.dedup();
        rounds.push(round);
    }
    let mut offsets = Vec::new();
    let group: Option<Arc<str>> = (!spec.group.is_empty()).then(|| spec.group.as_str().into());
    if group.is_some() {
        for _ in 0..2 {
            let offset = user.rng.gen_range(0..1_000_000);
            offsets.extend(user.pick(&lines).map(|line| (line, offset)));
        }
        offsets.sort();
        offsets.dedup_by(|a, b| a.0 == b.0);
    }
    let fate = Fate::draw(user, &spec.fortune, rounds.len());
    let commit = user.rng.gen_bool(spec.fortune.commit.clamp(0.0, 1.0));
    let (records, value_bytes, step) = (spec.records, spec.value_bytes, spec.fortune.step_ms);
    Plan { rounds, records, value_bytes, group, offsets, step, commit, fate }
}

async fn whole(user: &mut User, me: &mut Incarnation, plan: &Plan, txn: Index) -> Went {
    let went = steps(user, me, plan, txn, 0..plan.rounds.len()).await;
    rest(user, me, plan, txn, went).await
}

/// The offsets and the end, when all rounds are done.
async fn rest(user: &mut User, me: &mut Incarnation, plan: &Plan, txn: Index, went: Went) -> Went {
    let went = match went {
        Went::Well => offsets(user, me, plan, txn).await,
        bad => bad,
    };
    finish(user, me, txn, went, plan.commit).await
}

async fn steps(
    user: &mut User,
    me: &mut Incarnation,
    plan: &Plan,
    txn: Index,
    which: std::ops::Range<usize>,
) -> Went {
    for round in plan.rounds.get(which).unwrap_or_default() {
        let mut batches: Vec<Outgoing> = Vec::with_capacity(round.len());
        for line in round {
            batches.push(me.make(user, line, plan.records, plan.value_bytes));
        }
        let went = me.write(user, txn, &mut batches).await;
        if went != Went::Well {
            return went;
        }
        let step = plan.step.millis(&mut user.rng);
        user.pause(step).await;
    }
    Went::Well
}

async fn offsets(user: &mut User, me: &mut Incarnation, plan: &Plan, txn: Index) -> Went {
    match &plan.group {
        Some(group) if !plan.offsets.is_empty() => {
            me.commit_offsets(user, txn, group, Membership::OUTSIDE, &plan.offsets).await
        }
        _ => Went::Well,
    }
}

/// Ends a transaction as it is meant to, or as it must.
pub(super) async fn finish(
    user: &mut User,
    me: &mut Incarnation,
    txn: Index,
    went: Went,
    commit: bool,
) -> Went {
    match went {
        Went::Well => match me.end(user, txn, commit).await {
            // A commit was refused, and this is none.
            Went::Badly if commit => match me.end(user, txn, false).await {
                Went::Well => Went::Badly,
                went => went,
            },
            went => went,
        },
        Went::Badly => me.end(user, txn, false).await,
        went => went,
    }
}

/// Another self of a client, on the same host.
pub(super) fn another(user: &User, purpose: &str) -> User {
    let who: Who = user.who;
    User::new(&user.ctx, who, user.ctx.patience(), user.ctx.rng_for(who, purpose))
}

/// Goes on with the transaction after a while, as if nothing had been; and then with further ones, until it finds out.
fn fall_asleep(user: &User, mut me: Incarnation, plan: Plan, txn: Index, sleep: Duration) -> JoinHandle<()> {
    let mut sleeper = another(user, &format!("sleeper {txn}"));
    let done = match plan.fate {
        Fate::Sleep(at) => at.min(plan.rounds.len()),
        _ => 0,
    };
    tokio::spawn(async move {
        let user = &mut sleeper;
        user.pause(sleep).await;
        let mut txn = txn;
        let mut from = done;
        while !user.is_over() {
            let went = steps(user, &mut me, &plan, txn, from..plan.rounds.len()).await;
            let went = rest(user, &mut me, &plan, txn, went).await;
            if !is_alive(user, &me, went) {
                return;
            }
            (txn, from) = (me.begin(user), 0);
        }
    })
}

/// A transaction of which one request is under way for long. `None`: the client is gone.
async fn with_late(
    user: &mut User,
    me: &mut Incarnation,
    plan: &Plan,
    txn: Index,
    (late, delay): (Late, Duration),
    helpers: &mut Vec<JoinHandle<()>>,
) -> Option<Went> {
    let mut went = steps(user, me, plan, txn, 0..plan.rounds.len()).await;
    if went == Went::Well {
        went = offsets(user, me, plan, txn).await;
    }
    let line = plan.rounds.iter().flatten().next().cloned();
    let (Went::Well, Some(line)) = (went, line) else {
        return Some(finish(user, me, txn, went, plan.commit).await);
    };
    match late {
        Late::EndAgain => {
            me.doubt();
            helpers.push(late_end(user, me, txn, plan.commit, delay));
        }
        Late::End => {
            helpers.push(late_end(user, me, txn, plan.commit, delay));
            return None;
        }
        Late::WriteAgain => {
            let mut batch = [me.make(user, &line, plan.records, plan.value_bytes)];
            went = me.write(user, txn, &mut batch).await;
            let [batch] = batch;
            helpers.push(late_write(user, me, txn, batch, delay));
        }
        Late::Write => {
            let batch = me.make(user, &line, plan.records, plan.value_bytes);
            went = me.add(user, txn, std::slice::from_ref(&line)).await;
            helpers.push(late_write(user, me, txn, batch, delay));
            me.doubt();
            if went == Went::Well {
                went = Went::Badly;
            }
        }
    }
    Some(finish(user, me, txn, went, plan.commit).await)
}

fn late_end(user: &User, me: &Incarnation, txn: Index, commit: bool, delay: Duration) -> JoinHandle<()> {
    let mut helper = another(user, &format!("late end {txn}"));
    let mut me = me.clone();
    tokio::spawn(async move {
        helper.pause(delay).await;
        if !helper.is_over() {
            match me.end_once(&mut helper, txn, commit).await {
                Ok(0) => reached!("late-end-taken"),
                Ok(_) => reached!("late-end-refused"),
                Err(_) => {}
            }
        }
    })
}

fn late_write(
    user: &User,
    me: &Incarnation,
    txn: Index,
    mut batch: Outgoing,
    delay: Duration,
) -> JoinHandle<()> {
    let mut helper = another(user, &format!("late write {txn}"));
    let me = me.clone();
    tokio::spawn(async move {
        helper.pause(delay).await;
        if !helper.is_over() {
            me.write_late(&mut helper, txn, &mut batch).await;
        }
    })
}
