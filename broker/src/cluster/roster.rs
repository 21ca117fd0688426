//! Who is in the cluster, as this broker sees it.
//!
//! A whole look lists the heartbeat files, uncached, and reads the last one of every broker id. The controller looks so
//! each half beat. Others look at the controller's heartbeat each half beat, and at all when something depends on it
//! ([`Roster::look_soon`]), when there is no controller, and else so seldom that a broker reads no more than
//! [`READS`] heartbeats a second for it: what all brokers together ask of the volume grows with the square of their
//! number else. Promises: a lease is called
//! over only when that is proven: its holder said so, a later lease of the same id exists, a record of its death
//! does, or its heartbeat was still for the lease by this broker's own clock ([`Watch`]). Once called over it stays so.
//! A read that failed or hangs proves nothing, and holds up nothing but itself.
//!
//! Does not promise that who is not called over lives.

use super::files;
use super::heartbeat::Heartbeat;
use super::layout::{self, LeaseKey};
use super::lease::Lease;
use super::membership::{self, Identity, Roll};
use super::watch::{Look, Watch};
use crate::rt::Env;
use crate::types::{BrokerId, Epoch};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How many heartbeats a second a broker reads at most that only wants to know who is there.
pub const READS: u32 = 16;

/// How a lease stands, as far as this broker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its holder was seen to write not long ago.
    Alive,
    /// Nothing is proven either way.
    Silent,
    Over,
}

/// The last lease of one broker id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub(super) key: LeaseKey,
    pub(super) standing: Standing,
    /// What it wrote last, if that could be read.
    pub(super) beat: Option<Heartbeat>,
}

impl Member {
    fn is_leaving(&self) -> bool {
        self.beat.as_ref().is_some_and(|b| b.leaving)
    }
}

/// All members by broker id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    members: BTreeMap<BrokerId, Member>,
    over: BTreeSet<LeaseKey>,
}

impl View {
    /// Whether the lease is proven to be over.
    pub(super) fn is_over(&self, key: LeaseKey) -> bool {
        self.over.contains(&key) || self.members.get(&key.broker).is_some_and(|m| m.key.number > key.number)
    }

    /// Leases that partitions can be given to.
    pub(super) fn living(&self) -> impl Iterator<Item = LeaseKey> + '_ {
        let alive = self.members.values().filter(|m| m.standing == Standing::Alive);
        alive.filter(|m| !m.is_leaving()).map(|m| m.key)
    }

    /// Those of them that the volume answers; all if it answers nobody.
    pub(super) fn fit(&self) -> BTreeSet<LeaseKey> {
        let stuck = |key: &LeaseKey| {
            self.members.get(&key.broker).is_some_and(|m| m.beat.as_ref().is_some_and(|b| b.stuck))
        };
        let fit: BTreeSet<LeaseKey> = self.living().filter(|key| !stuck(key)).collect();
        if fit.is_empty() {
            self.living().collect()
        } else {
            fit
        }
    }

    /// Whether who holds the lease is about to stop.
    pub(super) fn is_leaving(&self, key: LeaseKey) -> bool {
        self.members.get(&key.broker).is_some_and(|m| m.key == key && m.is_leaving())
    }

    /// Brokers that may be there, with where clients reach them.
    pub fn reachable(&self) -> impl Iterator<Item = (BrokerId, &str)> + '_ {
        let there = self.members.values().filter(|m| m.standing != Standing::Over);
        there.filter_map(|m| Some((m.key.broker, m.beat.as_ref()?.address.as_str())))
    }

    /// The latest change of the metadata that a broker says it made durable, and under which controller epoch.
    pub(super) fn announced(&self) -> Option<(Epoch, u64)> {
        self.members.values().filter_map(|m| m.beat.as_ref()?.office).max()
    }

    /// Whether every broker but `me` that may be there shows the metadata at least as of `change`.
    pub(super) fn all_show(&self, me: BrokerId, change: (Epoch, u64)) -> bool {
        let others = self.members.values().filter(|m| m.key.broker != me);
        let mut there = others.filter(|m| m.standing != Standing::Over);
        there.all(|m| m.beat.as_ref().is_some_and(|b| b.shown >= change))
    }

    /// How many requests each lease made of the controller whose holder was seen to live: the answer to one whose holder died
    /// may be forgotten already.
    pub(super) fn requested(&self) -> impl Iterator<Item = (LeaseKey, u32)> + '_ {
        let there = self.members.values().filter(|m| m.standing == Standing::Alive);
        there.filter_map(|m| Some((m.key, m.beat.as_ref()?.requests)))
    }

    /// The last epoch of controller that the holder of this lease says to have resigned from.
    pub(super) fn resigned(&self, key: LeaseKey) -> Epoch {
        let beats = self.members.values().filter(|m| m.key == key).filter_map(|m| m.beat.as_ref());
        beats.map(|b| b.resigned).max().unwrap_or_default()
    }

    /// Whether everybody but `me` who may be there says that this epoch of controller is not his and will not be.
    pub(super) fn is_nobodys(&self, epoch: Epoch, me: BrokerId) -> bool {
        let others = self.members.values().filter(|m| m.key.broker != me && m.standing != Standing::Over);
        let mut said = others.map(|m| m.beat.as_ref().is_some_and(|b| b.resigned >= epoch));
        said.all(|said| said)
    }

    /// Who says that he is controller in the highest epoch, unless he is proven dead.
    pub(super) fn controller(&self) -> Option<LeaseKey> {
        let there = self.members.values().filter(|m| m.standing != Standing::Over);
        let offices = there.filter_map(|m| Some((m.beat.as_ref()?.office?, m.key)));
        offices.max().map(|(_, key)| key)
    }
}

/// What is remembered of a heartbeat from round to round.
#[derive(Default)]
struct Seen {
    still: Duration,
    /// Whether it was ever seen to change.
    moved: bool,
    beat: Option<Heartbeat>,
}

pub(super) struct Roster {
    env: Env,
    me: Arc<Identity>,
    lease: Arc<Lease>,
    watch: Watch,
    seen: Mutex<BTreeMap<LeaseKey, Seen>>,
    /// The last listing.
    roll: Mutex<Roll>,
    /// Something depends on who is there.
    soon: AtomicBool,
    view: watch::Sender<Arc<View>>,
}

impl Roster {
    pub fn new(env: Env, me: Arc<Identity>, lease: Arc<Lease>) -> Arc<Roster> {
        Arc::new(Roster {
            env,
            me,
            lease,
            watch: Watch::default(),
            seen: Mutex::default(),
            roll: Mutex::default(),
            soon: AtomicBool::new(false),
            view: watch::Sender::default(),
        })
    }

    pub fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    pub fn changes(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    /// Makes the next look a whole one.
    pub fn look_soon(&self) {
        self.soon.store(true, SeqCst);
    }

    /// Returns once every other broker that may be there shows the metadata at least as of `change`.
    pub async fn until_all_show(&self, change: (Epoch, u64)) {
        let mut looks = self.changes();
        while !looks.borrow_and_update().all_show(self.me.broker, change) {
            self.look_soon();
            // An error means that nobody looks any more, and the broker stops.
            let _ = tokio::time::timeout(self.me.terms.beat(), looks.changed()).await;
        }
    }

    /// Looks, again and again; never returns.
    pub async fn run(self: Arc<Self>) {
        let mut last = self.env.clock.boot();
        loop {
            tokio::time::sleep(self.me.terms.beat() / 2).await;
            let now = self.env.clock.boot();
            if self.is_due(now.saturating_sub(last)) {
                last = now;
                self.round().await;
            } else {
                self.glance().await;
            }
        }
    }

    /// Whether a whole look is due, that long after the last one.
    fn is_due(&self, since: Duration) -> bool {
        let view = self.view();
        let others = u32::try_from(view.members.len()).unwrap_or(u32::MAX);
        let pause = (Duration::from_secs(1) * others / READS).min(self.me.terms.lease / 2);
        let soon = self.soon.swap(false, SeqCst);
        soon || since >= pause || self.me.office.lock().is_some() || view.controller().is_none()
    }

    /// Looks at the controller's heartbeat only.
    async fn glance(&self) {
        let Some(key) = self.view().controller() else { return };
        self.look(key).await;
        let roll = self.roll.lock().clone();
        self.conclude(&roll);
    }

    /// Looks once at all.
    pub async fn round(&self) {
        let limit = self.me.terms.lease;
        let roll =
            files::within(limit, "list", layout::BROKERS, membership::fresh_roll_once(&self.env)).await;
        let roll = match roll {
            Ok(roll) => roll,
            Err(e) => {
                tracing::warn!("cannot see who is there: {e}");
                return;
            }
        };
        let keys: Vec<LeaseKey> = roll.last().collect();
        self.seen.lock().retain(|key, _| keys.contains(key));
        let mine = LeaseKey { broker: self.me.broker, number: self.lease.number() as u32 };
        let others = keys.iter().filter(|key| **key != mine && !self.view.borrow().is_over(**key));
        futures::future::join_all(others.map(|key| self.look(*key))).await;
        self.conclude(&roll);
        if self.me.office.lock().is_some() {
            self.record_deaths(&roll);
        }
        *self.roll.lock() = roll;
    }

    /// Whoever comes later, or waits for it now, need not find out by himself.
    fn record_deaths(&self, roll: &Roll) {
        let view = self.view();
        let over = view.members.values().filter(|m| m.standing == Standing::Over).map(|m| m.key);
        let unrecorded: Vec<LeaseKey> = over.filter(|k| !roll.is_recorded_dead(*k)).collect();
        if !unrecorded.is_empty() {
            let env = self.env.clone();
            tokio::spawn(async move { membership::record_deaths(&env, &unrecorded).await });
        }
    }

    /// Judges what was seen.
    fn conclude(&self, roll: &Roll) {
        let keys: Vec<LeaseKey> = roll.last().collect();
        let next = Arc::new(self.judged(&keys, roll));
        self.view.send_if_modified(|view| {
            let is_news = **view != *next;
            *view = next;
            is_news
        });
    }

    async fn look(&self, key: LeaseKey) {
        let path = key.heartbeat();
        let started = self.env.clock.boot();
        let read =
            files::within(self.me.terms.beat(), "read", &path, files::read(&*self.env.volume, &path)).await;
        let ended = self.env.clock.boot();
        let Ok(bytes) = read else { return };
        let mut seen = self.seen.lock();
        let seen = seen.entry(key).or_default();
        match self.watch.read(key, started, ended, &bytes) {
            Look::Still(still) => seen.still = still,
            Look::Moved => (seen.still, seen.moved) = (Duration::ZERO, true),
        }
        // One that was read in the middle of a write says nothing new.
        seen.beat = Heartbeat::decode(&bytes).or(seen.beat.take());
    }

    fn judged(&self, keys: &[LeaseKey], roll: &membership::Roll) -> View {
        let before = self.view.borrow().clone();
        let seen = self.seen.lock();
        let mine = LeaseKey { broker: self.me.broker, number: self.lease.number() as u32 };
        let mut view = View { members: BTreeMap::new(), over: before.over.clone() };
        for &key in keys {
            let (beat, still) = match seen.get(&key) {
                Some(s) => (s.beat.clone(), Some(s)),
                None => (
                    before.members.get(&key.broker).filter(|m| m.key == key).and_then(|m| m.beat.clone()),
                    None,
                ),
            };
            let lease = beat.as_ref().map_or(self.me.terms.lease, |b| b.lease.max(self.me.terms.lease));
            let is_over = before.is_over(key)
                || roll.is_recorded_dead(key)
                || beat.as_ref().is_some_and(|b| b.relinquished)
                || still.is_some_and(|s| s.still >= lease);
            let standing = match still {
                _ if key == mine => Standing::Alive,
                _ if is_over => Standing::Over,
                Some(s) if s.moved && s.still < lease / 2 => Standing::Alive,
                _ => Standing::Silent,
            };
            if standing == Standing::Over {
                view.over.insert(key);
            }
            let beat = if key == mine { Some(self.me.heartbeat(key.number, 0, false)) } else { beat };
            view.members.insert(key.broker, Member { key, standing, beat });
        }
        // Of an id's earlier leases it goes without saying.
        let View { members, over } = &mut view;
        over.retain(|key| members.get(&key.broker).is_none_or(|m| m.key.number <= key.number));
        view
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A view as it might be.
    pub fn view(alive: &[LeaseKey], silent: &[LeaseKey], over: &[LeaseKey]) -> View {
        let of = |keys: &[LeaseKey], standing| -> Vec<(BrokerId, Member)> {
            keys.iter().map(|&key| (key.broker, Member { key, standing, beat: None })).collect()
        };
        // The last one of an id counts.
        let members = [of(over, Standing::Over), of(silent, Standing::Silent), of(alive, Standing::Alive)];
        View { members: members.into_iter().flatten().collect(), over: over.iter().copied().collect() }
    }

    /// One broker that lives, and whose heartbeat says that it resigned from that epoch of controller.
    pub fn resigned(key: LeaseKey, epoch: Epoch) -> View {
        let mut view = view(&[key], &[], &[]);
        let beat = Heartbeat {
            broker: key.broker,
            lease_number: key.number,
            resigned: epoch,
            ..Heartbeat::default()
        };
        view.members.values_mut().for_each(|m| m.beat = Some(beat.clone()));
        view
    }
}
