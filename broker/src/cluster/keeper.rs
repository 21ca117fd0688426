//! Keeps the lease: the task that writes heartbeats, ends the lease when they fail or come late, and
//! takes the next one.
//!
//! Promises: a heartbeat that hangs delays nobody but the next heartbeat; when the lease ends, its end
//! is told (`on_end`) at once, and the next lease is taken as soon as the volume lets it be. A heartbeat
//! file is never written again after a write to it failed or the lease ended.

use super::layout::LeaseKey;
use super::lease::Lease;
use super::membership::{self, Held, Identity};
use super::watch::Watch;
use crate::rt::Env;
use crate::storage::Fence;
use crate::volume::VolumeError;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{watch, Notify};
use tokio::task::JoinHandle;

/// Between attempts to take a new lease.
const RETRY_MIN: Duration = Duration::from_millis(100);

pub(super) struct Keeper {
    pub env: Env,
    pub me: Arc<Identity>,
    pub lease: Arc<Lease>,
    /// Drops everything that was done under the lease; called once for each lease that ended.
    pub on_end: Box<dyn Fn() + Send + Sync>,
    /// The next heartbeat is not to wait for its time: it has news.
    pub hurry: Arc<Notify>,
    /// Turns true when the broker stops: relinquish, and return.
    pub stop: watch::Receiver<bool>,
}

enum After {
    Stopped,
    Ended,
}

impl Keeper {
    /// Runs until stopped. `held` is the lease that began last.
    pub async fn run(mut self, mut held: Held) {
        loop {
            match self.keep(&mut held).await {
                After::Stopped => return,
                After::Ended => {}
            }
            match self.next().await {
                Some(next) => held = next,
                None => return,
            }
        }
    }

    /// Beats until the lease ends or the broker stops.
    async fn keep(&mut self, held: &mut Held) -> After {
        let number = u64::from(held.number);
        let key = LeaseKey { broker: self.me.broker, number: held.number };
        let mut sequence = 1;
        loop {
            let next = held.started + self.me.terms.beat();
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => {
                    // The right ends first, then the volume is told: never the other way round.
                    self.lease.end(number);
                    (self.on_end)();
                    let last = Held { number: held.number, file: held.file.clone(), started: held.started };
                    membership::relinquish(&self.me, last, sequence + 1).await;
                    return After::Stopped;
                }
                () = self.hurry.notified() => {}
                () = sleep_until(&self.env, next) => {}
            }
            sequence += 1;
            let started = self.env.clock.boot();
            let mut write = self.beat(held, sequence);
            let answered = tokio::select! {
                biased;
                r = &mut write => Some(r.unwrap_or_else(|e| Err(died(key, e)))),
                () = self.until_expiry() => None,
            };
            let ok = matches!(answered, Some(Ok(())));
            match &answered {
                Some(Ok(())) => {}
                Some(Err(e)) => tracing::warn!("{key} ends: its heartbeat failed: {e}"),
                None => tracing::warn!("{key} ends: its heartbeat hangs"),
            }
            if !self.lease.write_answered(number, started, ok) {
                self.lease.end(number);
                tracing::warn!("{key} ended; all partitions close and open again under a new lease");
                (self.on_end)();
                return After::Ended;
            }
            held.started = started;
        }
    }

    /// Starts a heartbeat write, in a task of its own so that one that hangs can be left behind.
    fn beat(&self, held: &Held, sequence: u64) -> JoinHandle<Result<(), VolumeError>> {
        let file = held.file.clone();
        let record = self.me.heartbeat(held.number, sequence, false).encode();
        tokio::spawn(async move { file.write_sync(0, vec![record]).await })
    }

    /// Returns once the right has ended.
    async fn until_expiry(&self) {
        while let Some(until) = self.lease.until() {
            sleep_until(&self.env, until).await;
            // Asking is what ends it.
            self.lease.right();
        }
    }

    /// Takes the next lease; `None` when the broker stops first.
    ///
    /// An attempt that hangs is left behind after a lease's time, and the next one uses another file;
    /// the pause doubles, so that a dead volume does not collect hanging calls. What an attempt saw of
    /// leases that have to end first stands for the next one: else a lease that appears late would never
    /// be waited out within an attempt.
    async fn next(&mut self) -> Option<Held> {
        let mut pause = RETRY_MIN;
        let watch = Arc::new(Watch::default());
        loop {
            let (env, me, watch) = (self.env.clone(), self.me.clone(), watch.clone());
            let given_up = Arc::new(AtomicBool::new(false));
            let flag = given_up.clone();
            let attempt = tokio::spawn(async move { membership::take_lease(&env, &me, &watch, &flag).await });
            let taken = tokio::select! {
                biased;
                () = stopped(&mut self.stop) => {
                    given_up.store(true, SeqCst);
                    return None;
                }
                r = tokio::time::timeout(self.me.terms.lease * 2, attempt) => r,
            };
            given_up.store(true, SeqCst);
            match taken {
                Ok(Ok(Ok(held))) if self.lease.begin(u64::from(held.number), held.started) => {
                    tracing::info!("{} began", LeaseKey { broker: self.me.broker, number: held.number });
                    return Some(held);
                }
                Ok(Ok(Ok(held))) => {
                    tracing::warn!("lease {} took too long to take; taking another", held.number)
                }
                Ok(Ok(Err(e))) => tracing::warn!("no new lease yet: {e}"),
                Ok(Err(e)) => tracing::error!("taking a lease: {e}"),
                Err(_) => tracing::warn!("no new lease yet: the volume does not answer"),
            }
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return None,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(self.me.terms.lease);
        }
    }
}

/// Returns when `stop` turned true; a dropped sender is a stop as well.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|s| *s).await;
}

/// Sleeps until a time of the boot clock, or a little past it.
async fn sleep_until(env: &Env, when: Duration) {
    tokio::time::sleep(when.saturating_sub(env.clock.boot())).await;
}

fn died(key: LeaseKey, e: impl std::error::Error + Send + Sync + 'static) -> VolumeError {
    VolumeError::new("write", key.heartbeat(), std::io::Error::other(e))
}
