//! When the next group is to be written: at once, or when more of those who were just answered are back.
//!
//! Producers that wait for every answer come back together, a moment after a sync ended. Written at once, the
//! first of them would sync alone while all others wait for the sync after it, and so on for ever: each sync would
//! serve half of them. On a volume whose sync takes long it pays to wait that moment.
//!
//! Decides only; the committer waits and measures. Promises: one producer alone never waits; nobody waits on a volume that
//! syncs faster than [`WORTH`]; a wait lasts at most an eighth of a sync; and where waiting does not help,
//! since those answered do not come back in time, it is tried ever more seldom.

use std::time::Duration;

/// Syncs that take less are not worth a wait (nor could a timer measure it).
const WORTH: Duration = Duration::from_millis(2);
/// The most groups that go unwaited-for after waits in vain: 2 to this power.
const MOST_DOUBLINGS: u32 = 8;

/// How long to wait, and for how many batches in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub batches: usize,
    pub at_most: Duration,
}

/// What one partition's committer knows of its volume and its producers.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// A moving average of the time that a write and its sync take.
    sync: Duration,
    /// Batches that the last group answered, and those that waited then: the producers, if each waits for
    /// its answer before it sends again.
    population: usize,
    /// Waits in vain since the last that was not.
    vain: u32,
    /// Groups left that are not waited for.
    pass: u32,
}

impl Pace {
    /// A group of `answered` batches was synced in `took`, and `queued` batches waited when it ended.
    pub fn synced(&mut self, took: Duration, answered: usize, queued: usize) {
        self.sync = if self.sync.is_zero() { took } else { (self.sync * 7 + took) / 8 };
        self.population = answered.saturating_add(queued);
    }

    /// Whether to wait before the next group is taken.
    pub fn wait(&mut self) -> Option<Wait> {
        if self.pass > 0 {
            self.pass -= 1;
            return None;
        }
        // Not all of them: who is late is served by the next sync and costs the others nothing.
        let batches = self.population - self.population / 8;
        (self.sync >= WORTH && batches > 1).then(|| Wait { batches, at_most: self.sync / 8 })
    }

    /// How a wait ended: with enough batches in the queue, or in vain.
    pub fn waited(&mut self, enough: bool) {
        if enough {
            self.vain = 0;
        } else {
            self.vain = (self.vain + 1).min(MOST_DOUBLINGS);
            self.pass = 1 << self.vain;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(10);

    /// Plays `rounds` syncs of `sync` with `n` producers who come back `back` after their answer, each
    /// when its turn comes; returns how many shared a sync on average.
    fn shared(n: usize, sync: Duration, back: impl Fn(usize) -> Duration, rounds: usize) -> f64 {
        let mut pace = Pace::default();
        let mut now = Duration::ZERO;
        // When each producer's batch is in the queue.
        let mut ready: Vec<Duration> = (0..n).map(|i| SLOW * i as u32 / 100).collect();
        let mut answered = 0;
        for _ in 0..rounds {
            // The committer wakes with the first batch.
            now = now.max(*ready.iter().min().unwrap());
            if let Some(w) = pace.wait() {
                let mut at: Vec<Duration> = ready.clone();
                at.sort();
                let full = at.get(w.batches - 1).copied().unwrap_or(Duration::MAX);
                pace.waited(full <= now + w.at_most);
                now = now.max(full.min(now + w.at_most));
            }
            let group: Vec<usize> = (0..n).filter(|i| ready[*i] <= now).collect();
            now += sync;
            let queued = ready.iter().enumerate().filter(|(i, r)| !group.contains(i) && **r <= now).count();
            pace.synced(sync, group.len(), queued);
            answered += group.len();
            for i in group {
                ready[i] = now + back(i);
            }
        }
        answered as f64 / rounds as f64
    }

    #[test]
    fn thirty_two_producers_share_the_syncs_of_a_slow_volume() {
        let back = |i: usize| Duration::from_micros(30 * i as u64);
        assert!(shared(32, SLOW, back, 200) > 27.0);
    }

    #[test]
    fn a_producer_alone_never_waits() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.synced(SLOW, 1, 0);
            assert_eq!(pace.wait(), None);
        }
    }

    #[test]
    fn nobody_waits_on_a_fast_volume() {
        let mut pace = Pace::default();
        pace.synced(Duration::from_micros(700), 20, 12);
        assert_eq!(pace.wait(), None);
    }

    #[test]
    fn waits_in_vain_are_given_up() {
        let mut pace = Pace::default();
        let mut waits = 0;
        for _ in 0..1000 {
            pace.synced(SLOW, 5, 0);
            if let Some(w) = pace.wait() {
                assert!(w.at_most <= SLOW / 8);
                waits += 1;
                pace.waited(false);
            }
        }
        assert!(waits <= 12, "{waits} waits in vain");
        // Producers that do come back are waited for again.
        while pace.wait().is_none() {}
        pace.waited(true);
        pace.synced(SLOW, 5, 0);
        assert_eq!(pace.wait(), Some(Wait { batches: 5, at_most: SLOW / 8 }));
    }
}
