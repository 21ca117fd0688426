//! The parts of the table that one running broker shows.

use crate::broker::{Broker, Metrics};
use crate::load::{self, Limit, Outcome, Producer};
use crate::raw::{self, SyncCost};
use crate::stats::{mb_s, median, mib, ms, per_s, percentile};
use crate::table::Row;
use crate::{wire, Bench};
use anyhow::{ensure, Result};
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The counters as the broker's Prometheus page names them.
pub const LOG_WRITES: &str = "highwater_log_writes_total";
pub const LOG_SYNCS: &str = "highwater_log_syncs_total";
pub const SYNC_SECONDS: &str = "highwater_log_sync_duration_seconds_sum";
pub const COMMIT_IDLE: &str = "highwater_commit_idle_seconds_total";
pub const RECOVERY_BYTES: &str = "highwater_recovery_read_bytes_total";

fn size_name(size: usize) -> String {
    if size >= MIB {
        format!("{} MiB", size / MIB)
    } else {
        format!("{} KiB", size / KIB)
    }
}

/// The median of one figure over several runs.
fn mid<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(&runs.iter().map(figure).collect::<Vec<_>>())
}

pub fn raw_limits(b: &mut Bench) -> Result<()> {
    for size in [4 * KIB, 64 * KIB, MIB, 4 * MIB] {
        let runs: Vec<SyncCost> =
            (0..b.rounds()).map(|_| raw::append_sync(&b.dir, size, b.time() / 2)).collect::<Result<_>>()?;
        let text = format!(
            "p50 {}, p99 {} (sync alone {}, {}); {}, {}",
            ms(mid(&runs, |r| r.op_p50.as_secs_f64())),
            ms(mid(&runs, |r| r.op_p99.as_secs_f64())),
            ms(mid(&runs, |r| r.sync_p50.as_secs_f64())),
            ms(mid(&runs, |r| r.sync_p99.as_secs_f64())),
            per_s(mid(&runs, |r| r.ops_per_s), "syncs"),
            mb_s(mid(&runs, |r| r.bytes_per_s)),
        );
        b.add(Row::shown(format!("raw append + fdatasync, {}", size_name(size)), text));
    }
    let runs: Vec<f64> = (0..b.rounds())
        .map(|_| raw::append_sync_parallel(&b.dir, MIB, 12, b.time() / 2))
        .collect::<Result<_>>()?;
    b.add(Row::shown("raw append + fdatasync, 1 MiB, 12 files at once", mb_s(median(&runs))));
    for size in [64 * KIB, MIB] {
        let runs: Vec<f64> =
            (0..b.rounds()).map(|_| raw::loopback(size, b.time() / 2)).collect::<Result<_>>()?;
        b.add(Row::shown(
            format!("raw loopback TCP, {} buffers, one reader", size_name(size)),
            mb_s(median(&runs)),
        ));
    }
    Ok(())
}

/// Producers of one batch a request, each on its own connection, spread over the partitions.
fn producers(
    topic: &str,
    n: usize,
    partitions: usize,
    batch: &[u8],
    in_flight: usize,
) -> Result<Vec<Producer>> {
    let batch = bytes::Bytes::copy_from_slice(batch);
    (0..n)
        .map(|i| {
            let frame = wire::produce(topic, [(i % partitions) as i32], &batch)?;
            Ok(Producer { frames: vec![frame], payload: batch.len() as u64, in_flight })
        })
        .collect()
}

/// Runs a load and says what the broker counted meanwhile.
fn counted(broker: &Broker, plans: &[Producer], limit: Limit) -> Result<(Outcome, Metrics, Metrics)> {
    let before = broker.metrics()?;
    let out = load::produce(broker.addr, plans, limit)?;
    ensure!(out.acked > 0, "nothing was acknowledged");
    Ok((out, before, broker.metrics()?))
}

pub fn latency(b: &mut Bench) -> Result<()> {
    b.main()?.broker.client()?.create_topic("latency", 1)?;
    let plans = producers("latency", 1, 1, &wire::batch(1, 170)?, 1)?;
    let (mut raw_runs, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..b.rounds() {
        raw_runs.push(raw::append_sync(&b.dir, 4 * KIB, b.time() / 2)?);
        let limit = b.limit();
        let mut out = load::produce(b.main()?.broker.addr, &plans, limit)?;
        p50.push(percentile(&mut out.latencies, 0.5).as_secs_f64());
        p99.push(percentile(&mut out.latencies, 0.99).as_secs_f64());
    }
    let (p50, p99) = (median(&p50), median(&p99));
    let raw_p50 = mid(&raw_runs, |r| r.sync_p50.as_secs_f64());
    let bound = 1.3 * raw_p50 + 0.0005;
    b.add(Row::judged(
        "produce, acks=all, one client, one small record: p50",
        ms(p50),
        format!("fdatasync p50 {}", ms(raw_p50)),
        format!("{:.2}", p50 / raw_p50),
        format!("≤ 1.3 × raw + 0.5 ms = {}", ms(bound)),
        p50 <= bound,
    ));
    b.add(Row::shown("the same: p99", ms(p99)));
    b.main()?.broker.client()?.delete_topic("latency")
}

/// Large batches against the raw rate, then Kafka's default batch size on 1, 12 and 100 partitions.
pub fn throughput(b: &mut Bench) -> Result<()> {
    large_batches(b, 1)?;
    large_batches(b, 12)?;
    for partitions in [1, 12, 100] {
        default_batches(b, partitions)?;
    }
    Ok(())
}

fn large_batches(b: &mut Bench, partitions: usize) -> Result<()> {
    let topic = format!("large-{partitions}");
    b.main()?.broker.client()?.create_topic(&topic, partitions as i32)?;
    let batch = wire::batch(1000, MIB)?;
    let plans = producers(&topic, partitions, partitions, &batch, if partitions == 1 { 5 } else { 2 })?;
    let (mut raw_runs, mut runs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut per_batch = (0.0, 0.0);
    for _ in 0..b.rounds() {
        let raw = match partitions {
            1 => raw::append_sync(&b.dir, MIB, b.time())?.bytes_per_s,
            n => raw::append_sync_parallel(&b.dir, MIB, n, b.time())?,
        };
        let limit = b.limit();
        let (out, before, after) = counted(&b.main()?.broker, &plans, limit)?;
        raw_runs.push(raw);
        runs.push(out.bytes_per_s());
        ratios.push(out.bytes_per_s() / raw);
        per_batch = costs(&out, &before, &after)?;
    }
    let ratio = median(&ratios);
    b.add(Row::judged(
        format!("1 MiB batches, {}", counted_noun(partitions)),
        format!("{}; {}", mb_s(median(&runs)), cost_text(per_batch)),
        mb_s(median(&raw_runs)),
        format!("{:.0} %", ratio * 100.0),
        "≥ 90 % of raw",
        ratio >= 0.9,
    ));
    b.main()?.broker.client()?.delete_topic(&topic)
}

fn counted_noun(partitions: usize) -> String {
    format!("{partitions} partition{}", if partitions == 1 { "" } else { "s" })
}

/// Syncs and writes per acknowledged batch.
fn costs(out: &Outcome, before: &Metrics, after: &Metrics) -> Result<(f64, f64)> {
    let acked = out.acked as f64;
    Ok((after.since(before, LOG_SYNCS)? / acked, after.since(before, LOG_WRITES)? / acked))
}

fn cost_text((syncs, writes): (f64, f64)) -> String {
    format!("per batch {syncs:.3} syncs, {writes:.3} writes")
}

fn default_batches(b: &mut Bench, partitions: usize) -> Result<()> {
    let topic = format!("default-{partitions}");
    b.main()?.broker.client()?.create_topic(&topic, partitions as i32)?;
    let batch = wire::batch(16, 16 * KIB)?;
    let clients = 4;
    let plans = (0..clients)
        .map(|c| {
            let mine: Vec<i32> = (0..partitions as i32).filter(|p| *p as usize % clients == c).collect();
            let mine = if partitions == 1 { vec![0] } else { mine };
            let payload = (mine.len() * batch.len()) as u64;
            Ok(Producer { frames: vec![wire::produce(&topic, mine, &batch)?], payload, in_flight: 5 })
        })
        .collect::<Result<Vec<_>>>()?;
    let (mut runs, mut last) = (Vec::new(), (0.0, 0.0));
    for _ in 0..b.rounds() {
        let limit = b.limit();
        let (out, before, after) = counted(&b.main()?.broker, &plans, limit)?;
        runs.push((out.bytes_per_s(), out.acks_per_s()));
        last = costs(&out, &before, &after)?;
    }
    b.add(Row::shown(
        format!("16 KiB batches, 4 producers, {}", counted_noun(partitions)),
        format!(
            "{}, {}; {}",
            mb_s(mid(&runs, |r| r.0)),
            per_s(mid(&runs, |r| r.1), "batches"),
            cost_text(last)
        ),
    ));
    b.main()?.broker.client()?.delete_topic(&topic)
}

/// 32 producers that each wait for every message, on one partition.
pub fn sharing(b: &mut Bench) -> Result<()> {
    b.main()?.broker.client()?.create_topic("sharing", 1)?;
    let plans = producers("sharing", 32, 1, &wire::batch(1, 170)?, 1)?;
    let (mut raw_runs, mut rates, mut ratios, mut shared) = (vec![], vec![], vec![], vec![]);
    for _ in 0..b.rounds() {
        let raw = raw::append_sync(&b.dir, 4 * KIB, b.time() / 2)?.ops_per_s;
        let limit = b.limit();
        let (out, before, after) = counted(&b.main()?.broker, &plans, limit)?;
        raw_runs.push(raw);
        rates.push(out.acks_per_s());
        ratios.push(out.acks_per_s() / raw);
        shared.push(out.acked as f64 / after.since(&before, LOG_SYNCS)?.max(1.0));
    }
    let ratio = median(&ratios);
    b.add(Row::judged(
        "32 synchronous producers of one message, 1 partition",
        format!("{}; {:.1} batches a sync", per_s(median(&rates), "msgs"), median(&shared)),
        per_s(median(&raw_runs), "4 KiB syncs"),
        format!("{ratio:.2} ×"),
        "≥ 2.5 × raw",
        ratio >= 2.5,
    ));
    never_idle(b)?;
    b.main()?.broker.client()?.delete_topic("sharing")
}

/// With hundreds of batches under way, the committer may not wait for anything but the volume while one is queued. What
/// is counted includes the way from the first batch's arrival to the committer's first step, which on busy
/// cores takes some microseconds of each group.
fn never_idle(b: &mut Bench) -> Result<()> {
    let plans = producers("sharing", 8, 1, &wire::batch(1, 170)?, 64)?;
    let (mut idle, mut syncing, mut rates) = (vec![], vec![], vec![]);
    for _ in 0..b.rounds() {
        let limit = b.limit();
        let (out, before, after) = counted(&b.main()?.broker, &plans, limit)?;
        idle.push(after.since(&before, COMMIT_IDLE)? / out.wall.as_secs_f64());
        syncing.push(after.since(&before, SYNC_SECONDS)? / out.wall.as_secs_f64());
        rates.push(out.acks_per_s());
    }
    let idle = median(&idle);
    b.add(Row::judged(
        "512 batches always under way: committer idle while one waits",
        format!(
            "{:.2} % of the time ({:.0} % in write and sync); {}",
            idle * 100.0,
            median(&syncing) * 100.0,
            per_s(median(&rates), "msgs")
        ),
        "",
        "",
        "never: < 1 %",
        idle < 0.01,
    ));
    Ok(())
}

/// The same 32 producers on a volume whose every sync takes 10 ms longer.
pub fn padded(b: &mut Bench) -> Result<()> {
    const DELAY: Duration = Duration::from_millis(10);
    let mut setup = b.setup("padded");
    setup.sync_delay = Some(DELAY);
    let broker = Broker::start(&setup)?;
    broker.client()?.create_topic("padded", 1)?;
    let plans = producers("padded", 32, 1, &wire::batch(1, 170)?, 1)?;
    let (mut shared, mut rates, mut p50) = (vec![], vec![], vec![]);
    for _ in 0..b.rounds() {
        let (mut out, before, after) = counted(&broker, &plans, b.limit())?;
        shared.push(out.acked as f64 / after.since(&before, LOG_SYNCS)?.max(1.0));
        rates.push(out.acks_per_s());
        p50.push(percentile(&mut out.latencies, 0.5).as_secs_f64());
    }
    ensure!(median(&p50) >= DELAY.as_secs_f64(), "the delay had no effect on the broker's syncs");
    let share = median(&shared);
    b.add(Row::judged(
        "32 synchronous producers, syncs padded by 10 ms: producers that share a sync",
        format!("{share:.1}; {}, p50 {}", per_s(median(&rates), "msgs"), ms(median(&p50))),
        "",
        "",
        "≥ 25 of 32",
        share >= 25.0,
    ));
    broker.stop()?;
    Ok(())
}

pub fn consume(b: &mut Bench) -> Result<()> {
    const PARTITIONS: usize = 12;
    let addr = b.main()?.broker.addr;
    b.main()?.broker.client()?.create_topic("consume", PARTITIONS as i32)?;
    let plans = producers("consume", PARTITIONS, PARTITIONS, &wire::batch(1000, MIB - 64 * KIB)?, 2)?;
    let fill = Limit { time: Duration::from_secs(30), bytes: if b.quick { 256 << 20 } else { 1 << 30 } };
    load::produce(addr, &plans, fill)?;
    for partitions in [1, PARTITIONS] {
        let (mut raw_runs, mut runs, mut ratios, mut work) = (vec![], vec![], vec![], vec![]);
        for _ in 0..b.rounds() {
            let raw = raw::loopback(MIB, b.time() / 2)?;
            let limit = Limit { time: b.time(), bytes: u64::MAX };
            let before = b.main()?.broker.cpu()?;
            let out = load::consume(addr, "consume", partitions, limit)?;
            work.push((b.main()?.broker.cpu()? - before) / (out.bytes as f64 / MIB as f64));
            raw_runs.push(raw);
            runs.push(out.bytes_per_s());
            ratios.push(out.bytes_per_s() / raw);
        }
        let ratio = median(&ratios);
        b.add(Row::judged(
            format!("consume, one consumer, {}", counted_noun(partitions)),
            format!("{}; broker {} of processor time per MiB", mb_s(median(&runs)), ms(median(&work))),
            format!("loopback {}", mb_s(median(&raw_runs))),
            format!("{:.0} %", ratio * 100.0),
            "≥ 40 % of loopback",
            ratio >= 0.4,
        ));
    }
    b.main()?.broker.client()?.delete_topic("consume")
}

/// Consumers at the end of a quiet topic, with Kafka's default wait of 500 ms.
pub fn idle(b: &mut Bench) -> Result<()> {
    const CONSUMERS: usize = 100;
    let time = Duration::from_secs(if b.quick { 4 } else { 20 });
    let broker = &b.main()?.broker;
    broker.client()?.create_topic("idle", 12)?;
    let alone = broker.cpu()?;
    std::thread::sleep(time / 4);
    let alone = (broker.cpu()? - alone) / (time / 4).as_secs_f64();
    let frames = (0..CONSUMERS)
        .map(|i| wire::fetch("idle", (i % 12) as i32, &[0], 500, 1 << 20))
        .collect::<Result<Vec<_>>>()?;
    let before = broker.cpu()?;
    let answers = load::long_poll(broker.addr, frames, time)?;
    let per_consumer = (broker.cpu()? - before) / time.as_secs_f64() / CONSUMERS as f64;
    let polls = answers as f64 / time.as_secs_f64() / CONSUMERS as f64;
    broker.client()?.delete_topic("idle")?;
    b.add(Row::judged(
        "idle long-polling consumer, of 100: processor time",
        format!("{:.3} % of a core each ({polls:.1} polls/s)", per_consumer * 100.0),
        format!("broker without them {:.2} %", alone * 100.0),
        "",
        "≤ 0.1 % of a core",
        per_consumer <= 0.001,
    ));
    Ok(())
}

/// Resident memory some seconds after the load of the parts before.
pub fn memory(b: &mut Bench) -> Result<()> {
    if b.main.is_none() {
        throughput(b)?;
    }
    let settle = Duration::from_secs(if b.quick { 2 } else { 10 });
    std::thread::sleep(settle);
    let main = b.main()?;
    let (idle, after, peak) = (main.idle_rss, main.broker.rss()?, main.broker.peak_rss()?);
    b.add(Row::judged(
        format!("resident memory {} s after the load above", settle.as_secs()),
        format!("{} (peak {})", mib(after), mib(peak)),
        format!("idle {}", mib(idle)),
        format!("+{}", mib(after - idle)),
        "≤ idle + 64 MiB",
        after - idle <= (64 << 20) as f64,
    ));
    Ok(())
}
