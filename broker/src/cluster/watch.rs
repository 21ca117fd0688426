//! What was seen of heartbeats while somebody waited for their leases to end.
//!
//! Promises: nobody is called still for longer than he was, by the observer's own clock; and what was seen is not forgotten
//! by an attempt that fails: whoever tries again keeps the [`Watch`], so that waiting is done once. That weakens nothing:
//! stillness is of one lease's file, from a read that returned its content to a read that still returned it, and no
//! heartbeat repeats an earlier one (its sequence rises). Between the two the writer wrote nothing, whether or not anybody
//! looked.
//!
//! Does not promise that a writer who moved is noticed at once, nor who he is.

use super::layout::LeaseKey;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Stillness of one heartbeat, as a plain state machine; times are of the observer's boot clock.
///
/// It runs from the *end* of the read that first returned a content to the *start* of the latest read
/// that still returned it. So whatever the reads took, and whatever was cached on the way, the writer
/// wrote nothing for at least that long.
#[derive(Clone, Debug, Default)]
struct Stillness {
    seen: Option<(Bytes, Duration)>,
    still: Duration,
}

/// What one read showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Still for so long; zero at the first look.
    Still(Duration),
    /// The read before returned another content: somebody wrote.
    Moved,
}

impl Stillness {
    /// A successful read from `started` to `ended` returned `content`. Failed reads are not told.
    fn read(&mut self, started: Duration, ended: Duration, content: &Bytes) -> Look {
        match &self.seen {
            Some((same, since)) if same == content => {
                self.still = started.saturating_sub(*since);
                Look::Still(self.still)
            }
            seen => {
                let look = if seen.is_some() { Look::Moved } else { Look::Still(Duration::ZERO) };
                *self = Stillness { seen: Some((content.clone(), ended)), still: Duration::ZERO };
                look
            }
        }
    }
}

/// The stillness of each lease that was looked at, and the leases that are dead by it.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    still: BTreeMap<LeaseKey, Stillness>,
    dead: BTreeSet<LeaseKey>,
    /// Of those, the ones of which nobody has made a record yet.
    unrecorded: Vec<LeaseKey>,
}

impl Watch {
    /// A successful read of the lease's heartbeat, by a fresh open, from `started` to `ended`.
    pub fn read(&self, key: LeaseKey, started: Duration, ended: Duration, content: &Bytes) -> Look {
        self.0.lock().still.entry(key).or_default().read(started, ended, content)
    }

    /// The file is not there: another one of that name has nothing to do with what was seen.
    pub fn gone(&self, key: LeaseKey) {
        self.0.lock().still.remove(&key);
    }

    /// The lease was still for as long as it lasts. It is dead for ever.
    pub fn died(&self, key: LeaseKey) {
        let mut seen = self.0.lock();
        if seen.dead.insert(key) {
            seen.unrecorded.push(key);
        }
    }

    pub fn is_dead(&self, key: LeaseKey) -> bool {
        self.0.lock().dead.contains(&key)
    }

    /// The leases that died under this watch and were not taken from it yet.
    pub fn take_unrecorded(&self) -> Vec<LeaseKey> {
        std::mem::take(&mut self.0.lock().unrecorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::BrokerId;
    use proptest::prelude::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn stillness_runs_from_the_end_of_the_first_read_to_the_start_of_the_last() {
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        let mut s = Stillness::default();
        assert_eq!(s.read(at(0), at(40), &a), Look::Still(at(0)));
        assert_eq!(
            s.read(at(30), at(90), &a),
            Look::Still(at(0)),
            "the second read began before the first had ended"
        );
        assert_eq!(s.read(at(100), at(190), &a), Look::Still(at(60)));
        assert_eq!(s.read(at(200), at(210), &b), Look::Moved);
        assert_eq!(s.read(at(220), at(230), &b), Look::Still(at(10)));
    }

    #[test]
    fn a_watch_keeps_leases_apart_and_forgets_a_file_that_went_away() {
        let [one, two] = [1, 2].map(|number| LeaseKey { broker: BrokerId(1), number });
        let (watch, a) = (Watch::default(), Bytes::from_static(b"a"));
        watch.read(one, at(0), at(1), &a);
        assert_eq!(watch.read(two, at(50), at(51), &a), Look::Still(at(0)));
        assert_eq!(watch.read(one, at(100), at(101), &a), Look::Still(at(99)));
        watch.gone(one);
        assert_eq!(watch.read(one, at(200), at(201), &a), Look::Still(at(0)));
        assert_eq!(watch.read(two, at(200), at(201), &a), Look::Still(at(149)));
    }

    #[test]
    fn a_death_is_told_once_and_never_forgotten() {
        let key = LeaseKey { broker: BrokerId(1), number: 1 };
        let watch = Watch::default();
        watch.died(key);
        assert_eq!(watch.take_unrecorded(), [key]);
        watch.died(key);
        assert!(watch.take_unrecorded().is_empty());
        watch.gone(key);
        assert!(watch.is_dead(key));
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
                prop_assert!(s.still <= at(seen - last.min(seen)));
            }
        }
    }
}
