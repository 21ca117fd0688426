//! Watching heartbeats for a while: who writes, and who is still for how long.
//!
//! Stillness is the same as everywhere ([`Watch`]): from the end of the read that first returned a content to the start of
//! the last that still did, by our own clock; a read that failed proves nothing.

use super::super::files;
use super::super::heartbeat::Heartbeat;
use super::super::inspect::LIMIT;
use super::super::layout::LeaseKey;
use super::super::lease::LeaseTerms;
use super::super::watch::{Look, Watch};
use crate::rt::Clock;
use crate::volume::Volume;
use std::collections::BTreeMap;
use std::time::Duration;

/// For a heartbeat that does not say how long its lease is: the default of `broker.lease.ms`.
const LEASE: Duration = Duration::from_secs(10);
/// Looks per beat.
const OFTEN: u32 = 4;

/// What was seen of one heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The last one that was whole.
    pub beat: Option<Heartbeat>,
    /// It changed while we watched.
    pub moved: bool,
    /// How long it has been still, at least.
    pub still: Duration,
    /// If it moved: how long ago that was, at most.
    pub age: Duration,
    /// Why the last look showed no heartbeat.
    pub wrong: Option<String>,
}

impl Seen {
    pub fn lease(&self) -> Duration {
        self.beat.as_ref().map_or(LEASE, |b| b.lease)
    }

    fn beat_every(&self) -> Duration {
        LeaseTerms::new(self.lease()).beat()
    }
}

/// What is remembered of a heartbeat from look to look; times are of our clock.
#[derive(Default)]
struct Memory {
    seen: Seen,
    first: Option<Duration>,
    /// When the last read began.
    last: Duration,
    /// When the last read began that returned another content than now stands.
    changed_after: Duration,
}

#[derive(Default)]
pub(super) struct Heartbeats {
    watch: Watch,
    memory: BTreeMap<LeaseKey, Memory>,
}

impl Heartbeats {
    /// Watches until each of `keys` was seen to write, gave up, was still for its lease, or was watched for long enough.
    pub async fn watch(
        &mut self,
        v: &dyn Volume,
        clock: &dyn Clock,
        keys: &[LeaseKey],
        patience: Option<Duration>,
    ) -> BTreeMap<LeaseKey, Seen> {
        loop {
            self.look(v, clock, keys).await;
            let now = clock.boot();
            let open = keys.iter().filter_map(|k| self.memory.get(k)).filter(|m| !m.is_told(now, patience));
            let Some(beat) = open.map(|m| m.seen.beat_every()).min() else { break };
            tokio::time::sleep((beat / OFTEN).max(Duration::from_millis(20))).await;
        }
        let now = clock.boot();
        let seen = keys.iter().filter_map(|k| Some((*k, self.memory.get(k)?)));
        seen.map(|(k, m)| (k, Seen { age: now.saturating_sub(m.changed_after), ..m.seen.clone() })).collect()
    }

    async fn look(&mut self, v: &dyn Volume, clock: &dyn Clock, keys: &[LeaseKey]) {
        let reads = keys.iter().map(|key| async move {
            let path = key.heartbeat();
            let started = clock.boot();
            let read = files::within(LIMIT, "read", &path, files::read(v, &path)).await;
            (*key, started, clock.boot(), read)
        });
        for (key, started, ended, read) in futures::future::join_all(reads).await {
            let m = self.memory.entry(key).or_default();
            m.first.get_or_insert(ended);
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(e) => {
                    m.seen.wrong = Some(format!("cannot be read: {}", e.source));
                    continue;
                }
            };
            match self.watch.read(key, started, ended, &bytes) {
                Look::Still(still) => m.seen.still = still,
                Look::Moved => {
                    (m.seen.still, m.seen.moved) = (Duration::ZERO, true);
                    m.changed_after = m.last;
                }
            }
            m.last = started;
            let beat = Heartbeat::decode(&bytes);
            m.seen.wrong = match (&beat, bytes.is_empty()) {
                (Some(_), _) => None,
                (None, true) => Some("is empty: its writer has yet to fill it, or died before".into()),
                (None, false) => Some("is no whole heartbeat".into()),
            };
            m.seen.beat = beat.or(m.seen.beat.take());
        }
    }
}

impl Memory {
    fn is_told(&self, now: Duration, patience: Option<Duration>) -> bool {
        let s = &self.seen;
        let enough = patience.unwrap_or(s.beat_every() * 5 / 2);
        let watched = now.saturating_sub(self.first.unwrap_or(now));
        (s.moved && s.wrong.is_none())
            || s.beat.as_ref().is_some_and(|b| b.relinquished)
            || s.still >= s.lease()
            || watched >= enough
    }
}
