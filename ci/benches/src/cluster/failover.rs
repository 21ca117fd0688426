//! How long partitions take no writes when their leader goes, by cause.

use super::probe::{pause, Ack, Load, Plan};
use super::routes::Routes;
use super::{Members, LEASE, SHORT_LEASE};
use crate::stats::{median, secs};
use crate::table::Row;
use crate::Bench;
use anyhow::{ensure, Context, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BROKERS: i32 = 3;
/// More than a third of the places that there are with the 8 group slots: every broker leads some.
const PARTITIONS: i32 = 20;
/// Between two records of a partition.
const PERIOD: Duration = Duration::from_millis(50);
/// What may pass beyond the lease before partitions take writes again; only the bench gives up then.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq)]
enum Cause {
    Kill,
    Pause,
    Goodbye,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Kill => "kill -9",
            Cause::Pause => "SIGSTOP",
            Cause::Goodbye => "SIGTERM",
        }
    }

    /// The longest that a partition may take no writes. For a stopped process it is what `ci/cluster` allows.
    fn bound(self, lease: Duration) -> (Duration, String) {
        match self {
            Cause::Kill => (lease + Duration::from_secs(3), "lease + 3 s".to_string()),
            Cause::Pause => (lease + Duration::from_secs(5), "lease + 5 s".to_string()),
            Cause::Goodbye => (Duration::from_secs(2), "2 s".to_string()),
        }
    }
}

pub fn by_cause(b: &mut Bench) -> Result<()> {
    if b.quick {
        return with_lease(b, SHORT_LEASE, 1);
    }
    with_lease(b, LEASE, 3)?;
    with_lease(b, Duration::from_secs(4), 3)
}

fn with_lease(b: &mut Bench, lease: Duration, faults: usize) -> Result<()> {
    let mut cluster = Cluster::start(b, &format!("failover-{}", lease.as_secs()), lease)?;
    for cause in [Cause::Kill, Cause::Pause, Cause::Goodbye] {
        let mut pauses = Vec::new();
        for i in 0..faults {
            let of_controller = i % 2 == 0;
            pauses.extend(cluster.fault(cause, of_controller).with_context(|| cause.name())?);
        }
        b.add(row(cause, lease, faults, &pauses));
    }
    cluster.stop()
}

fn row(cause: Cause, lease: Duration, faults: usize, pauses: &[Duration]) -> Row {
    let seconds: Vec<f64> = pauses.iter().map(Duration::as_secs_f64).collect();
    let (p50, most) = (median(&seconds), seconds.iter().copied().fold(0.0, f64::max));
    let (bound, words) = cause.bound(lease);
    let over = match cause {
        Cause::Goodbye => String::new(),
        _ => format!("max = lease {:+.2} s", most - lease.as_secs_f64()),
    };
    Row::judged(
        format!(
            "{}: a partition takes no writes ({BROKERS} brokers, lease {} s, {faults} × {} partitions led)",
            cause.name(),
            lease.as_secs(),
            pauses.len() / faults
        ),
        format!("p50 {}, max {}", secs(p50), secs(most)),
        "",
        over,
        format!("≤ {words}"),
        most <= bound.as_secs_f64(),
    )
}

/// Three brokers with a load on all partitions of one topic.
pub(super) struct Cluster {
    pub members: Members,
    pub routes: Arc<Routes>,
    pub load: Load,
    lease: Duration,
}

impl Cluster {
    pub fn start(b: &Bench, data: &str, lease: Duration) -> Result<Self> {
        let members = Members::start(b, data, BROKERS, lease, |_| ())?;
        members.create_topic("probe", PARTITIONS)?;
        let routes = members.routes("probe");
        let load = Load::start(&routes, &Plan::each(PARTITIONS, PERIOD))?;
        let cluster = Cluster { members, routes, load, lease };
        cluster.settle()?;
        Ok(cluster)
    }

    /// Waits until every broker leads its share, and every partition takes writes.
    pub fn settle(&self) -> Result<()> {
        self.members.settle(&self.routes, PARTITIONS as usize, 1)?;
        let all: Vec<i32> = (0..PARTITIONS).collect();
        self.load.until_acked(&all, Instant::now(), PATIENCE)
    }

    /// Takes a broker away; how long each partition that it led took no writes. Then it is back, and all is at rest.
    fn fault(&mut self, cause: Cause, of_controller: bool) -> Result<Vec<Duration>> {
        let controller = self.routes.controller();
        let mut ids = self.members.ids().into_iter();
        let victim = ids.find(|id| (*id == controller) == of_controller).context("no such broker")?;
        let led: Vec<i32> = self
            .routes
            .leaders()
            .into_iter()
            .filter(|(_, leader)| *leader == victim)
            .map(|(p, _)| p)
            .collect();
        ensure!(!led.is_empty(), "broker {victim} leads nothing");

        let fault = Instant::now();
        match cause {
            Cause::Kill => self.members.take(victim)?.kill()?,
            Cause::Pause => self.members.broker(victim)?.pause()?,
            Cause::Goodbye => drop(self.members.take(victim)?.stop()?),
        }
        // What a broker that says goodbye still led at its end counts as well.
        self.load.until_acked(&led, Instant::now(), self.lease + PATIENCE)?;
        let end = Instant::now();
        match cause {
            Cause::Pause => self.members.broker(victim)?.resume()?,
            Cause::Kill | Cause::Goodbye => self.members.restart(victim)?,
        }
        let pauses = pauses(&self.load.acks(), &led, fault, end)?;
        self.settle()?;
        Ok(pauses)
    }

    pub fn stop(self) -> Result<()> {
        drop(self.load);
        self.members.stop()
    }
}

fn pauses(acks: &[Ack], partitions: &[i32], fault: Instant, end: Instant) -> Result<Vec<Duration>> {
    let of =
        |p: &i32| pause(acks, *p, fault, end).with_context(|| format!("partition {p}: nothing acknowledged"));
    partitions.iter().map(of).collect()
}
