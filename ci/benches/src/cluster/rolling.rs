//! What producers see of a rolling restart.

use super::failover::Cluster;
use super::{LEASE, SHORT_LEASE};
use crate::stats::{median, ms, percentile};
use crate::table::Row;
use crate::Bench;
use anyhow::{ensure, Result};
use std::time::{Duration, Instant};

/// Latencies of one window, seconds.
#[derive(Clone, Copy)]
struct Latency {
    p50: f64,
    p99: f64,
    max: f64,
    records: usize,
    time: f64,
}

/// The same open load, at rest and while all brokers are restarted one after the other.
pub fn restart(b: &mut Bench) -> Result<()> {
    let lease = if b.quick { SHORT_LEASE } else { LEASE };
    let mut cluster = Cluster::start(b, "rolling", lease)?;
    let (mut calm, mut rolling) = (Vec::new(), Vec::new());
    for _ in 0..b.rounds() {
        let start = Instant::now();
        std::thread::sleep(b.time() * 4);
        calm.push(latency(&cluster, start)?);
        let start = Instant::now();
        for id in cluster.members.ids() {
            cluster.members.take(id)?.stop()?;
            cluster.members.restart(id)?;
            cluster.settle()?;
        }
        rolling.push(latency(&cluster, start)?);
    }
    cluster.stop()?;
    let mid =
        |of: &[Latency], figure: fn(&Latency) -> f64| median(&of.iter().map(figure).collect::<Vec<_>>());
    let (p50, p99) = (mid(&rolling, |l| l.p50), mid(&rolling, |l| l.p99));
    let (calm_p50, calm_p99) = (mid(&calm, |l| l.p50), mid(&calm, |l| l.p99));
    let max = rolling.iter().map(|l| l.max).fold(0.0, f64::max);
    let records: usize = rolling.iter().map(|l| l.records).sum();
    b.add(Row::shown_against(
        "rolling restart of 3 brokers under load (20 partitions, 20 records/s each): produce p99",
        format!(
            "{} ({records} records in {:.0} s a restart, max {})",
            ms(p99),
            mid(&rolling, |l| l.time),
            ms(max)
        ),
        format!("at rest {}", ms(calm_p99)),
        format!("{:.1} ×", p99 / calm_p99),
    ));
    b.add(Row::shown_against(
        "the same: p50",
        ms(p50),
        format!("at rest {}", ms(calm_p50)),
        format!("{:.1} ×", p50 / calm_p50),
    ));
    Ok(())
}

/// Of the records that were due since `start` and are acknowledged: their number and how long they took.
fn latency(cluster: &Cluster, start: Instant) -> Result<Latency> {
    let time = start.elapsed().as_secs_f64();
    let acks = cluster.load.acks();
    let mut all: Vec<Duration> = acks.iter().filter(|a| a.due >= start).map(|a| a.latency()).collect();
    ensure!(!all.is_empty(), "nothing was acknowledged");
    Ok(Latency {
        p50: percentile(&mut all, 0.5).as_secs_f64(),
        p99: percentile(&mut all, 0.99).as_secs_f64(),
        max: percentile(&mut all, 1.0).as_secs_f64(),
        records: all.len(),
        time,
    })
}
