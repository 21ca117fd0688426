//! Clients that write one small record after another into each partition, and write down when it was acknowledged.
//!
//! Records are due at fixed times, whatever became of those before: what a record waited behind a partition without
//! leader counts as its latency. A refused or unanswered record is sent again until it is acknowledged (twice in the log,
//! perhaps). Who has no answer yet asks who leads now, and turns to a new leader without waiting for the old one.

use super::routes::Routes;
use crate::wire::{self, Client};
use anyhow::{bail, Context, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(10);
/// How often who waits for an answer asks who leads now.
const LOOK: Duration = Duration::from_millis(100);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_millis(250);
/// After this time without an answer the record is sent again.
const ANSWER: Duration = Duration::from_secs(20);

/// One acknowledged record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ack {
    pub partition: i32,
    /// When it was to be sent.
    pub due: Instant,
    /// When the attempt that succeeded was sent.
    pub sent: Instant,
    pub acked: Instant,
}

impl Ack {
    pub fn latency(&self) -> Duration {
        self.acked - self.due
    }
}

/// What to write: one connection for each set of partitions.
pub struct Plan {
    pub sets: Vec<Vec<i32>>,
    /// Between two records of a partition; `None`: one record only.
    pub period: Option<Duration>,
}

impl Plan {
    /// A client for each partition.
    pub fn each(partitions: i32, period: Duration) -> Self {
        Plan { sets: (0..partitions).map(|p| vec![p]).collect(), period: Some(period) }
    }

    /// One record to each of the partitions, by a few clients.
    pub fn once(partitions: &[i32], clients: usize) -> Self {
        let size = partitions.len().div_ceil(clients).max(1);
        Plan { sets: partitions.chunks(size).map(<[i32]>::to_vec).collect(), period: None }
    }
}

#[derive(Default)]
struct Log {
    ended: AtomicBool,
    acks: Mutex<Vec<Ack>>,
    last_error: Mutex<String>,
}

/// Clients at work, until it is dropped.
pub struct Load {
    log: Arc<Log>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(routes: &Arc<Routes>, plan: &Plan) -> Result<Self> {
        let log = Arc::new(Log::default());
        let batch = wire::batch(1, 170)?;
        let client = |set: &Vec<i32>| {
            let probe = Probe {
                partitions: set.clone(),
                period: plan.period,
                routes: routes.clone(),
                log: log.clone(),
                links: BTreeMap::new(),
                batch: batch.clone(),
            };
            std::thread::spawn(move || probe.run())
        };
        let clients = plan.sets.iter().map(client).collect();
        Ok(Load { log, clients })
    }

    /// All that was acknowledged so far, in the order of the acknowledgements.
    pub fn acks(&self) -> Vec<Ack> {
        let mut acks = self.log.acks.lock().clone();
        acks.sort_by_key(|a| a.acked);
        acks
    }

    /// Waits until each of `partitions` acknowledged a record that was sent at `since` or later.
    pub fn until_acked(&self, partitions: &[i32], since: Instant, limit: Duration) -> Result<()> {
        let mut missing: BTreeSet<i32> = partitions.iter().copied().collect();
        let mut seen = 0;
        let start = Instant::now();
        loop {
            {
                let acks = self.log.acks.lock();
                for ack in acks.iter().skip(seen).filter(|a| a.sent >= since) {
                    missing.remove(&ack.partition);
                }
                seen = acks.len();
            }
            if missing.is_empty() {
                return Ok(());
            }
            if start.elapsed() > limit {
                let why = self.log.last_error.lock().clone();
                bail!("{} partitions acknowledged nothing for {limit:?}; last: {why}", missing.len());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.log.ended.store(true, Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

struct Probe {
    partitions: Vec<i32>,
    period: Option<Duration>,
    routes: Arc<Routes>,
    log: Arc<Log>,
    links: BTreeMap<SocketAddr, Client>,
    batch: Bytes,
}

impl Probe {
    fn run(mut self) {
        let mut due = Instant::now();
        while !self.ended() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.write(due);
            match self.period {
                Some(period) => due += period,
                None => return,
            }
        }
    }

    fn ended(&self) -> bool {
        self.log.ended.load(Relaxed)
    }

    /// One record to each partition, again and again until it is acknowledged.
    fn write(&mut self, due: Instant) {
        let mut pending: BTreeSet<i32> = self.partitions.iter().copied().collect();
        while !pending.is_empty() && !self.ended() {
            let began = Instant::now();
            for (leader, some) in self.by_leader(&pending) {
                let sent = Instant::now();
                match self.attempt(leader, &some) {
                    Ok(acked) => {
                        let now = Instant::now();
                        let mut acks = self.log.acks.lock();
                        for partition in acked {
                            pending.remove(&partition);
                            acks.push(Ack { partition, due, sent, acked: now });
                        }
                    }
                    Err(e) => {
                        self.links.remove(&leader);
                        *self.log.last_error.lock() = format!("{leader}: {e:#}");
                    }
                }
            }
            if !pending.is_empty() {
                self.routes.refresh(began);
                std::thread::sleep(RETRY);
            }
        }
    }

    fn by_leader(&self, partitions: &BTreeSet<i32>) -> BTreeMap<SocketAddr, Vec<i32>> {
        let mut found: BTreeMap<SocketAddr, Vec<i32>> = BTreeMap::new();
        for &p in partitions {
            if let Some(leader) = self.routes.leader(p) {
                found.entry(leader).or_default().push(p);
            }
        }
        found
    }

    /// Sends a record to each of the partitions; those that acknowledged it.
    fn attempt(&mut self, leader: SocketAddr, partitions: &[i32]) -> Result<Vec<i32>> {
        let frame = wire::produce(self.routes.topic(), partitions.iter().copied(), &self.batch)?;
        let mut link = match self.links.remove(&leader) {
            Some(link) => link,
            None => Client::connect_within(leader, CONNECT, ANSWER)?,
        };
        link.send(&frame)?;
        let sent = Instant::now();
        while !link.has_answer(LOOK)? {
            let asked = Instant::now().checked_sub(LOOK).context("no time before now")?;
            self.routes.refresh(asked);
            let moved = partitions.iter().any(|p| self.routes.leader(*p).is_some_and(|now| now != leader));
            if moved || self.ended() || sent.elapsed() > ANSWER {
                bail!("no answer within {:?}", sent.elapsed());
            }
        }
        let mut acked = Vec::new();
        let mut refusal = None;
        wire::walk_produced(link.receive()?, |partition, error| {
            match error {
                0 => acked.push(partition),
                error => refusal = Some(format!("partition {partition} refused with error {error}")),
            }
            Ok(())
        })?;
        if let Some(refusal) = refusal {
            *self.log.last_error.lock() = refusal;
        }
        self.links.insert(leader, link);
        Ok(acked)
    }
}

/// The longest time within [fault, end] that a partition acknowledged nothing which was sent after the fault;
/// `None` if it acknowledged nothing. (A record that was sent before may have been acknowledged by the old leader.)
pub fn pause(acks: &[Ack], partition: i32, fault: Instant, end: Instant) -> Option<Duration> {
    let after = |a: &&Ack| a.partition == partition && a.sent >= fault && a.acked <= end;
    let mut moments: Vec<Instant> = acks.iter().filter(after).map(|a| a.acked).collect();
    moments.sort();
    let before = std::iter::once(fault).chain(moments.iter().copied());
    moments.iter().zip(before).map(|(now, before)| *now - before).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(origin: Instant, partition: i32, sent: u64, acked: u64) -> Ack {
        let at = |ms| origin + Duration::from_millis(ms);
        Ack { partition, due: at(sent), sent: at(sent), acked: at(acked) }
    }

    #[test]
    fn a_pause_runs_from_the_fault_to_the_first_record_sent_after_it() {
        let t = Instant::now();
        let at = |ms| t + Duration::from_millis(ms);
        let acks = [ack(t, 0, 90, 120), ack(t, 1, 150, 160), ack(t, 0, 110, 900), ack(t, 0, 905, 910)];
        assert_eq!(pause(&acks, 0, at(100), at(1000)), Some(Duration::from_millis(800)));
        assert_eq!(pause(&acks, 0, at(100), at(890)), None);
    }

    #[test]
    fn a_pause_in_the_midst_of_acknowledgements_counts() {
        let t = Instant::now();
        let at = |ms| t + Duration::from_millis(ms);
        let acks = [ack(t, 0, 10, 11), ack(t, 0, 20, 21), ack(t, 0, 30, 400), ack(t, 0, 410, 411)];
        assert_eq!(pause(&acks, 0, at(0), at(500)), Some(Duration::from_millis(379)));
        assert_eq!(pause(&acks, 1, at(0), at(500)), None);
    }

    #[test]
    fn one_record_each_is_spread_over_the_clients() {
        let all: Vec<i32> = (0..10).collect();
        let plan = Plan::once(&all, 4);
        assert_eq!(plan.sets, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9]]);
        assert!(plan.period.is_none());
    }
}
