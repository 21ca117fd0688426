//! One broker takes over a thousand partitions of one that was killed.

use super::probe::{Ack, Load, Plan};
use super::{Members, LEASE, SHORT_LEASE};
use crate::stats::{median, percentile, secs};
use crate::table::Row;
use crate::Bench;
use anyhow::{ensure, Result};
use std::time::{Duration, Instant};

/// Clients that ask for all partitions at once.
const CLIENTS: usize = 8;
const LIMIT: Duration = Duration::from_secs(180);

/// When the partitions took writes again, seconds after the kill.
struct Takeover {
    partitions: usize,
    first: f64,
    half: f64,
    all: f64,
}

/// Of two brokers that lead a thousand partitions each the controller is killed; then the same on a volume whose every sync
/// takes 10 ms longer, as on a file server.
pub fn many_partitions(b: &mut Bench) -> Result<()> {
    let rounds = b.rounds();
    takeovers(b, rounds, None)?;
    takeovers(b, 1, Some(Duration::from_millis(10)))
}

fn takeovers(b: &mut Bench, rounds: usize, sync_delay: Option<Duration>) -> Result<()> {
    let (each, lease) = if b.quick { (100, SHORT_LEASE) } else { (1000, LEASE) };
    let padding = sync_delay.map_or(String::new(), |d| format!(", syncs padded by {} ms", d.as_millis()));
    let mut runs = Vec::new();
    for round in 0..rounds {
        runs.push(takeover(b, &format!("takeover{}-{round}", padding.len()), each, lease, sync_delay)?);
    }
    let mid = |figure: fn(&Takeover) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
    let (first, half, all) = (mid(|r| r.first), mid(|r| r.half), mid(|r| r.all));
    let most = runs.iter().map(|r| r.all).fold(0.0, f64::max);
    let partitions = runs.iter().map(|r| r.partitions).min().unwrap_or(0);
    let over = |seconds: f64| seconds - lease.as_secs_f64();
    b.add(Row::judged(
        format!(
            "takeover of {partitions} partitions by one broker (kill -9, lease {} s{padding}): all take writes",
            lease.as_secs()
        ),
        format!("{} (max {}); first {}, half {}", secs(all), secs(most), secs(first), secs(half)),
        "",
        format!("lease {:+.2} s (max {:+.2} s)", over(all), over(most)),
        "≤ lease + 3 s",
        over(most) <= 3.0,
    ));
    Ok(())
}

fn takeover(
    b: &Bench,
    data: &str,
    each: i32,
    lease: Duration,
    sync_delay: Option<Duration>,
) -> Result<Takeover> {
    const VICTIM: i32 = 1;
    let total = 2 * each;
    let mut members = Members::start(b, data, 2, lease, |setup| setup.sync_delay = sync_delay)?;
    let routes = members.routes("many");
    members.create_topic("many", total)?;
    let every: Vec<i32> = (0..total).collect();
    members.settle(&routes, every.len(), each as usize * 98 / 100)?;
    let began = Instant::now();
    let fill = Load::start(&routes, &Plan::once(&every, CLIENTS))?;
    fill.until_acked(&every, began, LIMIT)?;
    drop(fill);
    ensure!(routes.controller() == VICTIM, "broker {} is controller", routes.controller());
    let leaders = routes.leaders();
    let led: Vec<i32> = every.into_iter().filter(|p| leaders.get(p) == Some(&VICTIM)).collect();

    let fault = Instant::now();
    members.take(VICTIM)?.kill()?;
    let load = Load::start(&routes, &Plan::once(&led, CLIENTS))?;
    load.until_acked(&led, fault, LIMIT)?;
    let acks = load.acks();
    drop(load);
    members.stop()?;
    ensure!(acks.len() == led.len(), "{} of {} partitions", acks.len(), led.len());
    Ok(summary(&acks, fault))
}

fn summary(acks: &[Ack], fault: Instant) -> Takeover {
    let mut after: Vec<Duration> = acks.iter().map(|a| a.acked - fault).collect();
    Takeover {
        partitions: after.len(),
        first: percentile(&mut after, 0.0).as_secs_f64(),
        half: percentile(&mut after, 0.5).as_secs_f64(),
        all: percentile(&mut after, 1.0).as_secs_f64(),
    }
}
