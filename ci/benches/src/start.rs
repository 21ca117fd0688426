//! Starting with very many partitions: after a clean stop, after kill -9, and with few file descriptors.

use crate::broker::{Broker, Setup};
use crate::rows::RECOVERY_BYTES;
use crate::stats::mib;
use crate::table::Row;
use crate::{wire, Bench};
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

const TOPICS: usize = 10;
const LIMIT: Duration = Duration::from_secs(300);

fn topic(i: usize) -> String {
    format!("many-{i}")
}

/// What a start came to.
struct Started {
    broker: Broker,
    first_ack: Duration,
    all_open: Duration,
    recovered: f64,
    rss: f64,
    open_files: usize,
}

pub fn many_partitions(b: &mut Bench) -> Result<()> {
    let each = if b.quick { 50 } else { 1000 };
    let total = TOPICS * each;
    let setup = b.setup("many");

    let broker = Broker::start(&setup)?;
    std::thread::sleep(Duration::from_millis(500));
    let empty_rss = broker.rss()?;
    let start = Instant::now();
    for t in 0..TOPICS {
        broker.client()?.create_topic(&topic(t), each as i32)?;
    }
    b.add(Row::shown(
        format!("{total} partitions: create and open"),
        format!("{:.1} s", start.elapsed().as_secs_f64()),
    ));
    fill(&broker, each)?;
    let stopped = broker.stop()?;

    let clean = started(&setup, each)?;
    b.add(Row::judged(
        format!("{total} partitions, after a clean stop (which took {:.1} s)", stopped.as_secs_f64()),
        summary(&clean),
        "",
        "",
        "no byte of log read",
        clean.recovered == 0.0,
    ));
    b.add(Row::shown(
        format!("{total} partitions: memory per idle partition"),
        format!(
            "{:.1} KiB ({} in all, {} with none)",
            (clean.rss - empty_rss) / total as f64 / 1024.0,
            mib(clean.rss),
            mib(empty_rss)
        ),
    ));
    fill(&clean.broker, each)?;
    clean.broker.kill()?;

    let killed = started(&setup, each)?;
    b.add(Row::shown(format!("{total} partitions, after kill -9"), summary(&killed)));
    killed.broker.stop()?;

    let narrow = Setup { open_files: Some(1024), ..setup };
    let few = started(&narrow, each)?;
    fill(&few.broker, each)?;
    let files = few.broker.open_files()?;
    b.add(Row::judged(
        format!("{total} partitions under ulimit -n 1024, each produced to"),
        format!("{}; {files} files open after the load", summary(&few)),
        "",
        "",
        "all open, all acknowledge",
        files <= 1024,
    ));
    few.broker.stop()?;
    Ok(())
}

/// One record into every partition, and 8 MiB into the first of each topic.
fn fill(broker: &Broker, each: usize) -> Result<()> {
    let (small, large) = (wire::batch(1, 170)?, wire::batch(1000, (1 << 20) - 4096)?);
    let mut client = broker.client()?;
    for t in 0..TOPICS {
        let all: Vec<i32> = (0..each as i32).collect();
        for some in all.chunks(250) {
            let frame = wire::produce(&topic(t), some.iter().copied(), &small)?;
            let acked = wire::check_produced(client.exchange(&frame)?)?;
            ensure!(acked == some.len(), "{acked} of {} partitions answered", some.len());
        }
        let frame = wire::produce(&topic(t), [0], &large)?;
        for _ in 0..8 {
            wire::check_produced(client.exchange(&frame)?)?;
        }
    }
    Ok(())
}

fn started(setup: &Setup, each: usize) -> Result<Started> {
    let broker = Broker::start(setup)?;
    let mut client = broker.client()?;
    // Any partition will do, if it is not the first that the broker opens.
    let frame = wire::produce(&topic(TOPICS / 2), [each as i32 * 2 / 3], &wire::batch(1, 170)?)?;
    loop {
        match client.exchange(&frame).and_then(wire::check_produced) {
            Ok(_) => break,
            Err(e) => ensure!(broker.started.elapsed() < LIMIT, "no produce was acknowledged: {e:#}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let first_ack = broker.started.elapsed();
    for t in 0..TOPICS {
        client.await_open(&topic(t), each as i32, LIMIT).context("after the start")?;
    }
    let all_open = broker.started.elapsed();
    std::thread::sleep(Duration::from_secs(1));
    let recovered = broker.metrics()?.get(RECOVERY_BYTES)?;
    let (rss, open_files) = (broker.rss()?, broker.open_files()?);
    Ok(Started { first_ack, all_open, recovered, rss, open_files, broker })
}

fn summary(s: &Started) -> String {
    format!(
        "first ack {:.2} s, all open {:.1} s, {} of log read, {} resident, {} files open",
        s.first_ack.as_secs_f64(),
        s.all_open.as_secs_f64(),
        mib(s.recovered),
        mib(s.rss),
        s.open_files
    )
}
