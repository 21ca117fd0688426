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
//! Whoever waits for one lease to end also watches for later ones. A process that died may have sent the creation of its
//! next heartbeat, which takes effect while its successor waits: then that lease is the one to wait for, and from the moment
//! that its file is there. And an attempt that fails forgets nothing of what it saw ([`Watch`]).
//!
//! Of the other ids a broker asks nothing here: see [`super::roster`].

use super::error::StartError;
use super::files::{self, Patience};
use super::heartbeat::Heartbeat;
use super::layout::{self, LeaseKey};
use super::lease::LeaseTerms;
use super::watch::{Look, Watch};
use crate::reached;
use crate::rt::{Env, HostLock};
use crate::types::{BrokerId, Epoch};
use crate::volume::{Class, VolumeError, VolumeFile};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

/// How often a start begins anew because the set of leases changed under it.
const ROUNDS: u32 = 16;

/// This process, as its heartbeats show it.
pub(super) struct Identity {
    pub broker: BrokerId,
    pub incarnation: uuid::Uuid,
    pub address: String,
    /// Held for as long as the process lives.
    pub lock: HostLock,
    pub terms: LeaseTerms,
    /// What the heartbeats say of the office of controller.
    pub office: Mutex<Option<(Epoch, u64)>>,
    /// The last epoch of controller that this process resigned from.
    pub resigned: AtomicU32,
    /// This broker is about to stop.
    pub leaving: AtomicBool,
    /// A call has hung on the volume for longer than the watchdog allows.
    pub stuck: AtomicBool,
    /// The last change of the metadata that is shown here, with the epoch of the controller that made it.
    pub shown: Mutex<(Epoch, u64)>,
    /// The lease under which requests were made of the controller, and how many.
    pub requests: Mutex<(u32, u32)>,
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
            resigned: Epoch(self.resigned.load(SeqCst)),
            office: *self.office.lock(),
            shown: *self.shown.lock(),
            requests: Some(*self.requests.lock()).filter(|(of, _)| *of == lease).map_or(0, |(_, n)| n),
            relinquished,
            leaving: self.leaving.load(SeqCst),
            stuck: self.stuck.load(SeqCst),
        }
    }

    /// The `n`th request under `lease` is durable: heartbeats tell of it from now on.
    pub fn asked(&self, lease: u32, n: u32) {
        *self.requests.lock() = (lease, n);
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
#[derive(Clone, Debug, Default)]
pub(super) struct Roll {
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
    files::defeat_name_cache(env, layout::BROKERS).await;
    roll(env).await
}

/// One look, uncached.
pub(super) async fn fresh_roll_once(env: &Env) -> Result<Roll, VolumeError> {
    Ok(Roll::of(files::fresh_names(env, layout::BROKERS).await?))
}

impl Roll {
    /// The last lease of each broker id.
    pub fn last(&self) -> impl Iterator<Item = LeaseKey> + '_ {
        self.last.iter().map(|(&broker, &number)| LeaseKey { broker, number })
    }

    pub fn is_recorded_dead(&self, key: LeaseKey) -> bool {
        self.recorded_dead.contains(&key)
    }

    pub fn of(names: Vec<String>) -> Roll {
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

    /// The last lease of our id.
    fn mine(&self, me: &Identity) -> Option<LeaseKey> {
        self.last.get(&me.broker).map(|&number| LeaseKey { broker: me.broker, number })
    }
}

/// Refuses to start beside a live process of the same id, before anything was written.
pub(super) async fn refuse_the_living(env: &Env, me: &Identity, watch: &Watch) -> Result<(), StartError> {
    let roll = fresh_roll(env).await.map_err(StartError::Volume)?;
    prove_dead(env, me, watch, roll).await?;
    Ok(())
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
async fn judge(
    env: &Env,
    me: &Identity,
    watch: &Watch,
    roll: &Roll,
    key: LeaseKey,
) -> Result<Verdict, StartError> {
    if roll.recorded_dead.contains(&key) || watch.is_dead(key) {
        return Ok(Verdict::Dead { after_waiting: false });
    }
    let path = key.heartbeat();
    let begun = env.clock.boot();
    let mut told = false;
    loop {
        let started = env.clock.boot();
        let read = files::within(me.terms.lease, "read", &path, files::read(&*env.volume, &path)).await;
        let ended = env.clock.boot();
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) if e.is_not_found() => {
                watch.gone(key);
                return Ok(Verdict::Gone);
            }
            // Proves nothing. Patience has an end, or a start on a broken volume never says why.
            Err(e) if ended.saturating_sub(begun) > me.terms.lease * 3 => return Err(StartError::Volume(e)),
            Err(e) => {
                tracing::warn!("{e}; trying again");
                tokio::time::sleep(me.terms.beat()).await;
                continue;
            }
        };
        let look = watch.read(key, started, ended, &bytes);
        let beat = Heartbeat::decode(&bytes);
        if let Some(beat) = &beat {
            if beat.relinquished {
                return Ok(Verdict::Relinquished);
            }
            if beat.incarnation == me.incarnation || lock_proves_dead(me, beat) {
                return Ok(Verdict::Dead { after_waiting: false });
            }
        }
        let Look::Still(still) = look else {
            let at = beat.map_or_else(String::new, |b| format!(" at {}", b.address));
            return Ok(Verdict::Alive(format!("the process{at} writes {path}")));
        };
        // The writer's own configuration says how long its lease lasts. A record that cannot be read
        // may be of a lease as long as ours.
        let lease = beat.map_or(me.terms.lease, |b| b.lease.max(me.terms.lease));
        if still >= lease {
            return Ok(Verdict::Dead { after_waiting: true });
        }
        if !told {
            tracing::info!("waiting up to {:.1} s for {key} to be proven dead", lease.as_secs_f64());
            told = true;
        }
        tokio::time::sleep(me.terms.beat()).await;
    }
}

/// Whether the lock that we hold proves the earlier writer of `beat`, of the same id, dead.
fn lock_proves_dead(me: &Identity, beat: &Heartbeat) -> bool {
    !beat.domain.is_empty() && beat.domain == me.lock.domain
}

/// Takes the next lease of our id. Our own earlier ones must have ended.
///
/// The exclusive create has one winner, also when a stale listing hides a later lease from us; the
/// listing after it shows what the one before may have hidden.
/// `watch`: what was seen already of leases that have to end first.
///
/// Whoever gives up waiting for this sets `given_up`: then it creates no further file, which might
/// otherwise supersede a lease that a later attempt took.
pub(super) async fn take_lease(
    env: &Env,
    me: &Identity,
    watch: &Watch,
    given_up: &AtomicBool,
) -> Result<Held, StartError> {
    for round in 0..ROUNDS {
        // A create that was lost tells of that one name: a cached listing would go on hiding the lease that won.
        let before = if round == 0 { roll(env).await } else { fresh_roll(env).await };
        let before = before.map_err(StartError::Volume)?;
        let before = prove_dead(env, me, watch, before).await?;
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
        if let Some(newcomer) = newcomer(&after, &before, key) {
            relinquish(me, held, 2).await;
            tracing::warn!("{newcomer} began while this broker was starting; looking again");
            continue;
        }
        let (env, dead) = (env.clone(), watch.take_unrecorded());
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

/// A higher lease of our id that appeared after the proofs were complete: the first listing was stale.
fn newcomer(after: &Roll, before: &Roll, mine: LeaseKey) -> Option<LeaseKey> {
    let last = after.last.get(&mine.broker).map(|&number| LeaseKey { broker: mine.broker, number });
    last.filter(|k| *k != mine && before.last.get(&k.broker) != Some(&k.number))
}

/// Returns once the last lease of our id is dead, with the roll of which that is true: the one given, or a newer one.
async fn prove_dead(env: &Env, me: &Identity, watch: &Watch, mut roll: Roll) -> Result<Roll, StartError> {
    for _ in 0..ROUNDS {
        let Some(key) = roll.mine(me) else { return Ok(roll) };
        let verdict = tokio::select! {
            biased;
            verdict = judge(env, me, watch, &roll, key) => verdict?,
            newer = newer_roll(env, me, &roll) => {
                roll = newer;
                continue;
            }
        };
        match verdict {
            Verdict::Relinquished | Verdict::Dead { after_waiting: false } => return Ok(roll),
            Verdict::Dead { after_waiting: true } => {
                watch.died(key);
                return Ok(roll);
            }
            Verdict::Gone => roll = fresh_roll(env).await.map_err(StartError::Volume)?,
            Verdict::Alive(why) => return Err(StartError::BrokerAlive { id: me.broker, why }),
        }
    }
    Err(StartError::NoAnswer(format!("{} keeps changing", layout::BROKERS)))
}

/// Waits until there is a later lease than the last ones of `roll`.
async fn newer_roll(env: &Env, me: &Identity, roll: &Roll) -> Roll {
    loop {
        tokio::time::sleep(me.terms.beat()).await;
        match fresh_roll(env).await {
            Ok(now) => {
                if let Some(later) = now.mine(me).filter(|k| Some(*k) > roll.mine(me)) {
                    reached!("successor-appeared-while-waiting");
                    tracing::info!("{later} appeared: that is the one to be proven dead");
                    return now;
                }
            }
            // Hides nothing for good: the exclusive create finds out.
            Err(e) => tracing::warn!("{e}; looking again"),
        }
    }
}

/// Writes down what waiting proved, so that nobody has to wait for it again. Death is for ever, so it
/// does not matter who writes this, how often, or how late.
pub(super) async fn record_deaths(env: &Env, dead: &[LeaseKey]) {
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
        let is_old =
            key.is_some_and(|k| k.broker == mine.broker && k.number.saturating_add(KEEP) < mine.number);
        let is_void = LeaseKey::parse_request(&name)
            .is_some_and(|(k, _)| k.broker == mine.broker && k.number < mine.number);
        if is_old || is_void {
            files::tidy_away(&*env.volume, &format!("{}/{name}", layout::BROKERS)).await;
        }
    }
}
