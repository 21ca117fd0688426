//! Who lives: taking a lease of a broker id, and proving that earlier holders are dead.
//!
//! Promises: a lease is taken only when every earlier lease of the same id is proven dead, and its file
//! and name are durable when it begins. Nothing is written before the proofs are complete, but for an empty file
//! that defeats a stale name cache and is taken away again.
//!
//! A lease is dead when its heartbeat says that it was relinquished; when the process that held it is
//! ourselves (we take a new one only after the old one ended); when we hold the very host-local lock
//! whose domain it names; when somebody recorded its death; or when its heartbeat was still for the
//! lease by our own clock. A read that failed proves nothing, and two clocks are never compared.
//!
//! A starting broker also looks at the other ids: for now it refuses to share the volume with a live one.

use super::error::StartError;
use super::files::{self, Patience};
use super::heartbeat::Heartbeat;
use super::layout::{self, LeaseKey};
use super::lease::LeaseTerms;
use crate::rt::{Env, HostLock};
use crate::types::BrokerId;
use crate::volume::{Class, VolumeError, VolumeFile};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

/// How often a start begins anew because the set of leases changed under it.
const ROUNDS: u32 = 16;

/// How long a start waits for its probe to be made: what it hastens may not delay it.
const PROBE: Duration = Duration::from_secs(2);

/// Stillness of one heartbeat, as a plain state machine; times are of the observer's boot clock.
///
/// It runs from the *end* of the read that first returned a content to the *start* of the latest read
/// that still returned it. So whatever the reads took, and whatever was cached on the way, the writer
/// wrote nothing for at least that long.
#[derive(Clone, Debug, Default)]
pub(super) struct Stillness {
    seen: Option<(Bytes, Duration)>,
    still: Duration,
    moved: bool,
}

impl Stillness {
    /// A successful read from `started` to `ended` returned `content`. Failed reads are not told.
    pub fn read(&mut self, started: Duration, ended: Duration, content: &Bytes) {
        match &self.seen {
            Some((same, since)) if same == content => self.still = started.saturating_sub(*since),
            seen => {
                self.moved |= seen.is_some();
                self.still = Duration::ZERO;
                self.seen = Some((content.clone(), ended));
            }
        }
    }

    pub fn still_for(&self) -> Duration {
        self.still
    }

    /// Whether two reads returned different contents: somebody wrote.
    pub fn moved(&self) -> bool {
        self.moved
    }
}

/// This process, as its heartbeats show it.
pub(super) struct Identity {
    pub broker: BrokerId,
    pub incarnation: uuid::Uuid,
    pub address: String,
    /// Held for as long as the process lives.
    pub lock: HostLock,
    pub terms: LeaseTerms,
}

impl Identity {
    pub fn heartbeat(&self, lease: u32, sequence: u64, relinquished: bool) -> Heartbeat {
        Heartbeat {
            broker: self.broker,
            incarnation: self.incarnation,
            lease_number: lease,
            sequence,
            lease: self.terms.lease,
            address: self.address.clone(),
            domain: self.lock.domain.clone(),
            load: 0,
            relinquished,
        }
    }
}

/// A lease whose first heartbeat is durable.
pub(super) struct Held {
    pub number: u32,
    pub file: Arc<dyn VolumeFile>,
    /// When the write of the heartbeat was begun.
    pub started: Duration,
}

/// What the heartbeat directory shows.
#[derive(Debug, Default)]
struct Roll {
    /// The highest lease of each broker id.
    last: BTreeMap<BrokerId, u32>,
    recorded_dead: BTreeSet<LeaseKey>,
}

async fn roll(env: &Env) -> Result<Roll, VolumeError> {
    let names = files::patiently(Patience::START, "list", layout::BROKERS, || {
        // The directory may be missing if an earlier start died before it was durable.
        files::names_if_any(&*env.volume, layout::BROKERS)
    });
    Ok(Roll::of(names.await?))
}

/// The roll as it is, and not as this host remembers it.
async fn fresh_roll(env: &Env) -> Result<Roll, VolumeError> {
    let probe = defeat_name_cache(env).await;
    let roll = roll(env).await;
    if let Some(probe) = probe {
        let volume = env.volume.clone();
        tokio::spawn(async move { files::tidy_away(&*volume, &probe).await });
    }
    roll
}

/// Makes a name of nobody else's in the heartbeat directory, so that the listing which follows comes from the server.
///
/// A host may believe a listing for a minute (nfs(5), acdirmax). A start that saw only old leases would wait for one of
/// those to be proven dead, and then for the present one. Where this fails the listing is as good as it was: what safety
/// needs is seen to by the exclusive create of the lease itself.
async fn defeat_name_cache(env: &Env) -> Option<String> {
    let path = layout::probe(env.entropy.u64());
    let made = env.volume.create_new(&path, Class::Control);
    let made = files::within(PROBE, "create", &path, made).await;
    made.is_ok().then_some(path)
}

impl Roll {
    fn of(names: Vec<String>) -> Roll {
        let mut roll = Roll::default();
        for name in names {
            if let Some(key) = LeaseKey::parse_heartbeat(&name) {
                let last = roll.last.entry(key.broker).or_insert(key.number);
                *last = key.number.max(*last);
            } else if let Some(key) = LeaseKey::parse_death_record(&name) {
                roll.recorded_dead.insert(key);
            }
        }
        roll
    }
}

/// Refuses to start beside a live broker, before anything was written.
///
/// Returns the leases that only waiting proved dead.
pub(super) async fn refuse_the_living(env: &Env, me: &Identity) -> Result<Vec<LeaseKey>, StartError> {
    for _ in 0..ROUNDS {
        let roll = fresh_roll(env).await.map_err(StartError::Volume)?;
        if let Some(waited_for) = prove_all_dead(env, me, &roll, true).await? {
            return Ok(waited_for);
        }
    }
    Err(StartError::NoAnswer(format!("{} keeps changing", layout::BROKERS)))
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Relinquished,
    /// Proven dead otherwise; `after_waiting` if only stillness proved it.
    Dead {
        after_waiting: bool,
    },
    Alive(String),
    /// The file went away: somebody superseded the lease. Look again.
    Gone,
}

/// Judges one lease. Writes nothing; takes as long as the lease if it must.
async fn judge(env: &Env, me: &Identity, key: LeaseKey, roll: &Roll) -> Result<Verdict, StartError> {
    if roll.recorded_dead.contains(&key) {
        return Ok(Verdict::Dead { after_waiting: false });
    }
    let path = key.heartbeat();
    let mut still = Stillness::default();
    let begun = env.clock.boot();
    let mut told = false;
    loop {
        let started = env.clock.boot();
        let read = files::within(me.terms.lease, "read", &path, files::read(&*env.volume, &path)).await;
        let ended = env.clock.boot();
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) if e.is_not_found() => return Ok(Verdict::Gone),
            // Proves nothing. Patience has an end, or a start on a broken volume never says why.
            Err(e) if ended.saturating_sub(begun) > me.terms.lease * 3 => return Err(StartError::Volume(e)),
            Err(e) => {
                tracing::warn!("{e}; trying again");
                tokio::time::sleep(me.terms.beat()).await;
                continue;
            }
        };
        still.read(started, ended, &bytes);
        let beat = Heartbeat::decode(&bytes);
        if let Some(beat) = &beat {
            if beat.relinquished {
                return Ok(Verdict::Relinquished);
            }
            if beat.incarnation == me.incarnation || lock_proves_dead(env, me, key.broker, beat).await {
                return Ok(Verdict::Dead { after_waiting: false });
            }
        }
        if still.moved() {
            let at = beat.map_or_else(String::new, |b| format!(" at {}", b.address));
            return Ok(Verdict::Alive(format!("the process{at} writes {path}")));
        }
        // The writer's own configuration says how long its lease lasts. A record that cannot be read
        // may be of a lease as long as ours.
        let lease = beat.map_or(me.terms.lease, |b| b.lease.max(me.terms.lease));
        if still.still_for() >= lease {
            return Ok(Verdict::Dead { after_waiting: true });
        }
        if !told {
            tracing::info!("waiting up to {:.1} s for {key} to be proven dead", lease.as_secs_f64());
            told = true;
        }
        tokio::time::sleep(me.terms.beat()).await;
    }
}

/// Whether this host's locks prove the writer of `beat` dead.
async fn lock_proves_dead(env: &Env, me: &Identity, id: BrokerId, beat: &Heartbeat) -> bool {
    if beat.domain.is_empty() {
        return false;
    }
    if id == me.broker {
        return beat.domain == me.lock.domain;
    }
    // Another id's lock: ours for a moment, if it is free.
    matches!(env.host.lock(&layout::host_lock(id)).await, Ok(lock) if lock.domain == beat.domain)
}

/// Takes the next lease of our id. Our own earlier ones must have ended.
///
/// The exclusive create has one winner, also when a stale listing hides a later lease from us; the
/// listing after it shows what the one before may have hidden. `alone`: no other id may be alive.
/// `dead`: leases that waiting proved dead already.
///
/// Whoever gives up waiting for this sets `given_up`: then it creates no further file, which might
/// otherwise supersede a lease that a later attempt took.
pub(super) async fn take_lease(
    env: &Env,
    me: &Identity,
    alone: bool,
    mut dead: Vec<LeaseKey>,
    given_up: &AtomicBool,
) -> Result<Held, StartError> {
    for _ in 0..ROUNDS {
        let mut before = roll(env).await.map_err(StartError::Volume)?;
        before.recorded_dead.extend(dead.iter().copied());
        match prove_all_dead(env, me, &before, alone).await? {
            Some(waited_for) => dead.extend(waited_for),
            None => continue,
        }
        let number = before.last.get(&me.broker).map_or(1, |n| n.saturating_add(1));
        let key = LeaseKey { broker: me.broker, number };
        if given_up.load(SeqCst) {
            return Err(StartError::NoAnswer("the attempt was given up".into()));
        }
        let file = match env.volume.create_new(&key.heartbeat(), Class::Control).await {
            Ok(file) => file,
            Err(e) if e.is_already_exists() => {
                await_its_first_heartbeat(me).await;
                continue;
            }
            Err(e) => return Err(StartError::write(e)),
        };
        env.volume.sync_dir(layout::BROKERS, Class::Control).await.map_err(StartError::write)?;
        let started = env.clock.boot();
        let first = me.heartbeat(number, 1, false).encode();
        file.write_sync(0, vec![first]).await.map_err(StartError::write)?;
        let held = Held { number, file, started };

        let after = roll(env).await.map_err(StartError::Volume)?;
        if let Some(newcomer) = newcomer(&after, &before, key, alone) {
            relinquish(me, held, 2).await;
            tracing::warn!("{newcomer} began while this broker was starting; looking again");
            continue;
        }
        let env = env.clone();
        tokio::spawn(async move {
            record_deaths(&env, &dead).await;
            tidy(&env, key).await;
        });
        return Ok(held);
    }
    let why = "other processes keep starting under it".into();
    Err(StartError::BrokerAlive { id: me.broker, why })
}

/// A file that another process of this id just created holds nothing yet; its first heartbeat follows.
async fn await_its_first_heartbeat(me: &Identity) {
    tokio::time::sleep(me.terms.beat()).await;
}

/// A lease that appeared after the proofs were complete: a higher one of our id (the first listing was
/// stale), or, while brokers must be alone, one of another id.
fn newcomer(after: &Roll, before: &Roll, mine: LeaseKey, alone: bool) -> Option<LeaseKey> {
    after
        .last
        .iter()
        .map(|(&broker, &number)| LeaseKey { broker, number })
        .filter(|k| *k != mine && before.last.get(&k.broker) != Some(&k.number))
        .find(|k| alone || k.broker == mine.broker)
}

/// The leases that only waiting proved dead; `None` if the roll changed meanwhile.
async fn prove_all_dead(
    env: &Env,
    me: &Identity,
    roll: &Roll,
    alone: bool,
) -> Result<Option<Vec<LeaseKey>>, StartError> {
    let keys = roll.last.iter().map(|(&broker, &number)| LeaseKey { broker, number });
    let keys: Vec<_> = keys.filter(|k| alone || k.broker == me.broker).collect();
    // Side by side: dead ones are waited for once, not one after another.
    let verdicts = futures::future::join_all(keys.iter().map(|k| judge(env, me, *k, roll))).await;
    let mut waited_for = Vec::new();
    let mut changed = false;
    for (key, verdict) in keys.into_iter().zip(verdicts) {
        match verdict? {
            Verdict::Relinquished | Verdict::Dead { after_waiting: false } => {}
            Verdict::Dead { after_waiting: true } => waited_for.push(key),
            Verdict::Gone => changed = true,
            Verdict::Alive(why) if key.broker == me.broker => {
                return Err(StartError::BrokerAlive { id: me.broker, why })
            }
            Verdict::Alive(why) => return Err(StartError::OtherBrokers { other: key.broker, why }),
        }
    }
    Ok((!changed).then_some(waited_for))
}

/// Writes down what waiting proved, so that nobody has to wait for it again. Death is for ever, so it
/// does not matter who writes this, how often, or how late.
async fn record_deaths(env: &Env, dead: &[LeaseKey]) {
    for key in dead {
        match env.volume.create_new(&key.death_record(), Class::Control).await {
            Err(e) if !e.is_already_exists() => tracing::warn!("{e}; the next start waits again"),
            _ => {}
        }
    }
}

/// The last heartbeat under a lease that has ended: nothing is served under it any more.
pub(super) async fn relinquish(me: &Identity, held: Held, sequence: u64) {
    let last = me.heartbeat(held.number, sequence, true).encode();
    let write = held.file.write_sync(0, vec![last]);
    let path = LeaseKey { broker: me.broker, number: held.number }.heartbeat();
    match files::within(me.terms.lease, "write", &path, write).await {
        Ok(()) => {}
        Err(e) => tracing::warn!("{e}; the next start may have to wait for the lease"),
    }
}

/// How many of an id's ended leases stay for people to look at.
const KEEP: u32 = 8;

/// Unlinks the files of our own id's long-ended leases. That a higher one exists proves them dead.
async fn tidy(env: &Env, mine: LeaseKey) {
    let Ok(names) = files::names(&*env.volume, layout::BROKERS).await else { return };
    for name in names {
        let key = LeaseKey::parse_heartbeat(&name).or_else(|| LeaseKey::parse_death_record(&name));
        if layout::is_probe(&name) {
            // Of a start that did not come to take it away. Its purpose was fulfilled when it was made.
            files::tidy_away(&*env.volume, &format!("{}/{name}", layout::BROKERS)).await;
        }
        if key.is_some_and(|k| k.broker == mine.broker && k.number.saturating_add(KEEP) < mine.number) {
            files::tidy_away(&*env.volume, &format!("{}/{name}", layout::BROKERS)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn stillness_runs_from_the_end_of_the_first_read_to_the_start_of_the_last() {
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        let mut s = Stillness::default();
        s.read(at(0), at(40), &a);
        assert_eq!(s.still_for(), at(0));
        s.read(at(30), at(90), &a);
        assert_eq!(s.still_for(), at(0), "the second read began before the first had ended");
        s.read(at(100), at(190), &a);
        assert_eq!(s.still_for(), at(60));
        assert!(!s.moved());
        s.read(at(200), at(210), &b);
        assert!(s.moved());
        assert_eq!(s.still_for(), at(0));
    }

    proptest! {
        /// A writer writes at some times; reads return what stood at some moment within the read.
        /// Whatever the schedule, stillness is never longer than the writer was truly still.
        #[test]
        fn nobody_is_called_still_for_longer_than_he_was(
            gaps in proptest::collection::vec(1u64..200, 1..20),
            reads in proptest::collection::vec((1u64..80, 0u64..60, 0u64..60), 1..40),
        ) {
            let writes: Vec<u64> = gaps.iter().scan(0, |t, g| { *t += g; Some(*t) }).collect();
            let content = |t: u64| writes.iter().filter(|w| **w <= t).count();
            let (mut s, mut now) = (Stillness::default(), 0);
            for (gap, until_seen, until_reply) in reads {
                let started = now + gap;
                let seen = started + until_seen;
                now = seen + until_reply;
                s.read(at(started), at(now), &Bytes::from(content(seen).to_string()));
                // No write came since the moment that the latest read saw; none before it, back to …
                let last = writes.iter().rev().find(|w| **w <= seen).copied().unwrap_or(0);
                prop_assert!(s.still_for() <= at(seen - last.min(seen)));
            }
        }
    }
}
