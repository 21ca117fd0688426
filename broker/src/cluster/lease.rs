//! The lease: a broker's right to act, and how it ends (design: *self-fence*).
//!
//! Promises: the right ends `lease − margin` after the *start* of the last heartbeat write that
//! succeeded; a write extends it only if its reply came while the right still stood; once a lease has
//! ended, and once anybody was told so, it never stands again. The next one has another number.
//!
//! Does not promise that whoever waits for the end hears of it at once: [`Fence::right`] is the truth,
//! by the clock, at each call; the watch channels follow.
//!
//! `margin` covers what two clocks may drift apart during one lease (500 ppm of 10 s is 10 ms) and the
//! time between a check and what it allows.

use crate::reached;
use crate::rt::Clock;
use crate::storage::Fence;
use crate::types::BrokerId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long leases last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// What an observer waits for before it calls a broker dead.
    pub lease: Duration,
    /// How much earlier than that the broker itself stops.
    pub margin: Duration,
}

impl LeaseTerms {
    pub fn new(lease: Duration) -> Self {
        LeaseTerms { lease, margin: lease / 10 }
    }

    /// How long the right lasts from the start of a heartbeat write.
    pub fn right(&self) -> Duration {
        self.lease.saturating_sub(self.margin)
    }

    /// The time from one heartbeat to the next.
    pub fn beat(&self) -> Duration {
        self.lease / 10
    }
}

/// One lease as a plain state machine; times are of the broker's own boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseState {
    terms: LeaseTerms,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No heartbeat was written under it yet.
    Unbegun,
    Standing {
        until: Duration,
    },
    Ended,
}

impl LeaseState {
    pub fn new(terms: LeaseTerms) -> Self {
        LeaseState { terms, phase: Phase::Unbegun }
    }

    /// A heartbeat write that was begun at `started` was answered at `now`.
    ///
    /// A failed one ends the lease: its file may not be written again, so nothing could extend it.
    pub fn write_answered(&mut self, started: Duration, ok: bool, now: Duration) {
        self.pass(now);
        let until = started.saturating_add(self.terms.right());
        self.phase = match self.phase {
            Phase::Ended => Phase::Ended,
            Phase::Unbegun | Phase::Standing { .. } if !ok || now >= until => Phase::Ended,
            Phase::Unbegun => Phase::Standing { until },
            Phase::Standing { until: before } => Phase::Standing { until: until.max(before) },
        };
    }

    /// Time passed: it is `now`.
    pub fn pass(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Standing { until } if now >= until) {
            reached!("lease-lapsed");
            self.phase = Phase::Ended;
        }
    }

    /// The broker gives the lease up.
    pub fn end(&mut self) {
        self.phase = Phase::Ended;
    }

    /// Until when the right stands, if it does.
    pub fn until(&self) -> Option<Duration> {
        match self.phase {
            Phase::Standing { until } => Some(until),
            Phase::Unbegun | Phase::Ended => None,
        }
    }
}

/// The broker's present lease, shared by all that act under it.
///
/// `number` and `until` mirror the state for readers that must be quick. A reader that finds the time
/// past `until` takes the lock and ends the lease there, before it tells anybody: so an extension that
/// was decided earlier but stored later cannot bring back a right that somebody saw ended.
pub struct Lease {
    clock: Arc<dyn Clock>,
    broker: BrokerId,
    terms: LeaseTerms,
    state: Mutex<LeaseState>,
    number: AtomicU64,
    /// Nanoseconds of the boot clock; 0 is "ended".
    until: AtomicU64,
    began: watch::Sender<u64>,
    ended: watch::Sender<u64>,
}

impl Lease {
    /// No lease stands until [`Lease::begin`].
    pub(super) fn new(clock: Arc<dyn Clock>, broker: BrokerId, terms: LeaseTerms) -> Arc<Self> {
        let mut state = LeaseState::new(terms);
        state.end();
        Arc::new(Lease {
            clock,
            broker,
            terms,
            state: Mutex::new(state),
            number: AtomicU64::new(0),
            until: AtomicU64::new(0),
            began: watch::channel(0).0,
            ended: watch::channel(0).0,
        })
    }

    pub fn terms(&self) -> LeaseTerms {
        self.terms
    }

    pub(super) fn broker(&self) -> BrokerId {
        self.broker
    }

    /// The present or last lease's number; 0 before the first.
    pub fn number(&self) -> u64 {
        self.number.load(SeqCst)
    }

    /// Lease `number` begins with its first heartbeat. Returns whether it stands: a heartbeat that took
    /// longer than the lease begins nothing.
    ///
    /// Panics if the previous lease still stands or `number` does not rise: two leases at once, or one
    /// lease twice, would let two epochs act.
    pub(super) fn begin(&self, number: u64, started: Duration) -> bool {
        let now = self.clock.boot();
        let mut state = self.state.lock();
        assert!(state.until().is_none(), "a lease begins while another stands");
        assert!(number > self.number.load(SeqCst), "lease numbers must rise");
        let mut next = LeaseState::new(self.terms);
        next.write_answered(started, true, now);
        *state = next;
        self.number.store(number, SeqCst);
        self.store_until(next.until());
        let stands = next.until().is_some();
        drop(state);
        tell(if stands { &self.began } else { &self.ended }, number);
        stands
    }

    /// A heartbeat write under lease `number` was answered. Returns whether the lease stands.
    pub(super) fn write_answered(&self, number: u64, started: Duration, ok: bool) -> bool {
        let now = self.clock.boot();
        self.change(number, |s| s.write_answered(started, ok, now))
    }

    /// Lease `number` ends now, whatever the time.
    pub(super) fn end(&self, number: u64) {
        self.change(number, LeaseState::end);
    }

    /// Until when the right stands, by the boot clock.
    pub(super) fn until(&self) -> Option<Duration> {
        self.state.lock().until()
    }

    /// Follows the number of the last lease that ended.
    pub fn ended(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Follows the number of the last lease that began.
    pub fn began(&self) -> watch::Receiver<u64> {
        self.began.subscribe()
    }

    /// Waits until the lease of `token` has ended.
    pub async fn until_ended(&self, token: u64) {
        let mut ended = self.ended.subscribe();
        // An error means that the sender is gone, and with it the lease.
        let _ = ended.wait_for(|&n| n >= token).await;
    }

    /// Waits until a lease stands, and returns its token.
    pub async fn until_right(&self) -> u64 {
        let mut began = self.began.subscribe();
        loop {
            if let Some(token) = self.right() {
                return token;
            }
            if began.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn change(&self, number: u64, f: impl FnOnce(&mut LeaseState)) -> bool {
        let mut state = self.state.lock();
        if self.number.load(SeqCst) != number {
            return false;
        }
        let stood = state.until().is_some();
        f(&mut state);
        let until = state.until();
        self.store_until(until);
        drop(state);
        if stood && until.is_none() {
            tell(&self.ended, number);
        }
        until.is_some()
    }

    fn store_until(&self, until: Option<Duration>) {
        self.until.store(until.map_or(0, nanos), SeqCst);
    }
}

impl Fence for Lease {
    fn right(&self) -> Option<u64> {
        let number = self.number.load(SeqCst);
        let until = self.until.load(SeqCst);
        // A new lease stores its number before its end: an unchanged number makes the two a pair.
        if self.number.load(SeqCst) != number {
            return None;
        }
        let now = self.clock.boot();
        if nanos(now) < until {
            return Some(number);
        }
        if until == 0 {
            return None;
        }
        self.change(number, |s| s.pass(now)).then_some(number)
    }

    /// As in the name of the lease's heartbeat file, by which another broker finds out whether the
    /// holder is alive.
    fn holder(&self, token: u64) -> String {
        format!("{}-{token:08x}", self.broker)
    }
}

/// Whoever is slow to tell must not take back what came after.
fn tell(channel: &watch::Sender<u64>, number: u64) {
    channel.send_modify(|n| *n = number.max(*n));
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE: u64 = 100;
    const MARGIN: u64 = 10;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn terms() -> LeaseTerms {
        LeaseTerms { lease: at(LEASE), margin: at(MARGIN) }
    }

    #[derive(Default)]
    struct HandClock(AtomicU64);

    impl Clock for HandClock {
        fn boot(&self) -> Duration {
            at(self.0.load(SeqCst))
        }
        fn wall_ms(&self) -> i64 {
            0
        }
    }

    #[test]
    fn the_right_counts_from_the_start_of_the_write() {
        let mut s = LeaseState::new(terms());
        s.write_answered(at(1000), true, at(1080));
        assert_eq!(s.until(), Some(at(1090)));
        s.pass(at(1089));
        assert_eq!(s.until(), Some(at(1090)));
        s.pass(at(1090));
        assert_eq!(s.until(), None);
    }

    #[test]
    fn a_late_reply_neither_begins_nor_revives() {
        let mut s = LeaseState::new(terms());
        s.write_answered(at(0), true, at(90));
        assert_eq!(s.until(), None);
        let mut s = LeaseState::new(terms());
        s.write_answered(at(0), true, at(5));
        s.write_answered(at(50), true, at(95));
        assert_eq!(s.until(), None, "the reply came after 90, the second write would have reached to 140");
    }

    #[test]
    fn a_failed_heartbeat_ends_the_lease() {
        let mut s = LeaseState::new(terms());
        s.write_answered(at(0), true, at(5));
        s.write_answered(at(10), false, at(15));
        s.write_answered(at(20), true, at(21));
        assert_eq!(s.until(), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Pass(u64),
        Write { took: u64, ok: bool },
        Ask,
        End,
        Begin,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u64..60).prop_map(Step::Pass),
            6 => (0u64..120, prop::bool::weighted(0.9)).prop_map(|(took, ok)| Step::Write { took, ok }),
            4 => Just(Step::Ask),
            1 => Just(Step::End),
            2 => Just(Step::Begin),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: a right that was seen ended stays so, and none is
        /// granted later than lease − margin after the start of a write that succeeded under it.
        #[test]
        fn an_ended_right_never_returns(steps in proptest::collection::vec(step(), 1..80)) {
            let clock = Arc::new(HandClock::default());
            let lease = Lease::new(clock.clone(), BrokerId(1), terms());
            let (mut number, mut last_ok_start, mut seen_ended) = (0, None, true);
            for s in steps {
                match s {
                    Step::Pass(ms) => { clock.0.fetch_add(ms, SeqCst); }
                    Step::Write { took, ok } => {
                        let started = clock.boot();
                        clock.0.fetch_add(took, SeqCst);
                        if number > 0 {
                            let stands = lease.write_answered(number, started, ok);
                            prop_assert!(!(seen_ended && stands));
                            if ok { last_ok_start = Some(started); }
                            seen_ended |= !stands;
                        }
                    }
                    Step::Ask => {}
                    Step::End => { lease.end(number); seen_ended = true; }
                    Step::Begin => if lease.right().is_none() {
                        let started = clock.boot();
                        number += 1;
                        prop_assert!(lease.begin(number, started));
                        (last_ok_start, seen_ended) = (Some(started), false);
                    }
                }
                let right = lease.right();
                prop_assert!(!(seen_ended && right.is_some()));
                if let Some(token) = right {
                    prop_assert_eq!(token, number);
                    let start = last_ok_start.expect("a right without a write");
                    prop_assert!(clock.boot() < start + at(LEASE - MARGIN));
                } else {
                    seen_ended = true;
                }
            }
        }
    }

    #[test]
    fn tokens_of_ended_leases_hold_no_more() {
        let clock = Arc::new(HandClock::default());
        let lease = Lease::new(clock.clone(), BrokerId(1), terms());
        assert_eq!(lease.right(), None);
        assert!(lease.begin(1, at(0)));
        assert!(lease.holds(1));
        clock.0.store(90, SeqCst);
        assert!(!lease.holds(1));
        assert!(lease.begin(2, at(90)));
        assert!(!lease.holds(1) && lease.holds(2));
        assert_eq!(*lease.ended().borrow(), 1);
        assert_eq!(*lease.began().borrow(), 2);
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // real threads are what this is about
    fn many_readers_never_see_a_right_come_back() {
        let clock = Arc::new(HandClock::default());
        let lease = Lease::new(clock.clone(), BrokerId(1), terms());
        assert!(lease.begin(1, at(0)));
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (lease, stop) = (lease.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut ended = 0;
                    let began = lease.began();
                    while !stop.load(SeqCst) {
                        // One that is just beginning has a number, and no right yet.
                        let token = *began.borrow();
                        match lease.right() {
                            Some(t) => assert!(t > ended, "lease {t} came back"),
                            None => ended = ended.max(token),
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        for n in 1..400u64 {
            let started = clock.boot();
            clock.0.fetch_add(n % 95, SeqCst);
            if !lease.write_answered(lease.number(), started, true) {
                lease.begin(lease.number() + 1, clock.boot());
            }
            std::thread::yield_now();
        }
        stop.store(true, SeqCst);
        for r in readers {
            r.join().expect("a reader saw a right come back");
        }
    }
}
