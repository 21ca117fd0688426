//! Transactions: how many a second, and how soon a decision shows on every partition that it concerns.
//!
//! The clients are the bench's own, and speak the second generation of the protocol (KIP-890): a produce adds its
//! partition by itself, and every end answers the identity to go on with. An end is answered when the outcome is durable; the
//! markers follow. "Visible" is when a reader of what is committed, who waits at each partition, has been given the records:
//! counted from the moment at which the end is sent.

use crate::cluster::Members;
use crate::stats::{median, ms, per_s, percentile};
use crate::table::Row;
use crate::wire::{self, Client};
use crate::{raw, Bench};
use anyhow::{bail, ensure, Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    produce_request::{PartitionProduceData, TopicProduceData},
    EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest, ProduceRequest, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PRODUCE_VERSION: i16 = 12;
const END_TXN_VERSION: i16 = 5;
const INIT_VERSION: i16 = 4;
const CONCURRENT_TRANSACTIONS: i16 = 51;
/// Partitions of one transaction, and of the topic.
const SPREAD: i32 = 3;
const PARTITIONS: i32 = 12;
const KIB: usize = 1 << 10;

/// Errors by which a broker says that the one who leads is another, or that it cannot tell yet (19: of a verification).
fn not_yet(error: i16) -> bool {
    matches!(error, 3 | 5 | 6 | 14 | 15 | 16 | 19)
}

/// Asks until there is an answer that is not `CONCURRENT_TRANSACTIONS`, and not one of a broker that only begins.
fn patiently<T>(what: &str, mut ask: impl FnMut() -> Result<(i16, T)>) -> Result<T> {
    let start = Instant::now();
    loop {
        let (error, answer) = ask()?;
        match error {
            0 => return Ok(answer),
            e if e != CONCURRENT_TRANSACTIONS && !not_yet(e) => bail!("{what} was refused with error {e}"),
            e => ensure!(start.elapsed() < Duration::from_secs(30), "{what}: error {e} for 30 s"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where a topic's leaders and a transactional id's coordinator are.
struct Places {
    leaders: BTreeMap<i32, SocketAddr>,
}

impl Places {
    fn of(addr: SocketAddr, topic: &str, partitions: i32) -> Result<Self> {
        let start = Instant::now();
        loop {
            let found = Client::connect(addr)?.metadata(topic)?;
            let brokers: BTreeMap<i32, SocketAddr> = found
                .brokers
                .iter()
                .map(|b| Ok((b.node_id.0, format!("{}:{}", b.host.as_str(), b.port).parse()?)))
                .collect::<Result<_>>()?;
            let leaders: BTreeMap<i32, SocketAddr> = found
                .topics
                .iter()
                .flat_map(|t| &t.partitions)
                .filter_map(|p| Some((p.partition_index, *brokers.get(&p.leader_id.0)?)))
                .collect();
            if leaders.len() == partitions as usize {
                return Ok(Places { leaders });
            }
            ensure!(start.elapsed() < Duration::from_secs(60), "{topic} has {} leaders", leaders.len());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn leader(&self, partition: i32) -> Result<SocketAddr> {
        self.leaders.get(&partition).copied().with_context(|| format!("partition {partition} has no leader"))
    }
}

fn coordinator(addr: SocketAddr, id: &str) -> Result<SocketAddr> {
    let mut client = Client::connect(addr)?;
    let key = StrBytes::from_string(id.to_string());
    let req = FindCoordinatorRequest::default().with_key_type(1).with_coordinator_keys(vec![key]);
    patiently("FindCoordinator", || {
        let found = client.call(4, &req)?.coordinators.into_iter().next().context("no coordinator")?;
        Ok((found.error_code, format!("{}:{}", found.host.as_str(), found.port)))
    })?
    .parse()
    .context("the coordinator's address")
}

/// One transactional producer, one request at a time.
struct Producer {
    id: TransactionalId,
    producer_id: i64,
    epoch: i16,
    sequences: BTreeMap<i32, i32>,
    coordinator: Client,
    leaders: BTreeMap<i32, Client>,
    record: Bytes,
}

impl Producer {
    fn open(addr: SocketAddr, places: &Places, id: &str) -> Result<Self> {
        let mut coordinator = Client::connect(coordinator(addr, id)?)?;
        let id = TransactionalId(StrBytes::from_string(id.to_string()));
        let req = InitProducerIdRequest::default()
            .with_transactional_id(Some(id.clone()))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        let (producer_id, epoch) = patiently("InitProducerId", || {
            let a = coordinator.call(INIT_VERSION, &req)?;
            Ok((a.error_code, (a.producer_id.0, a.producer_epoch)))
        })?;
        let leaders = places
            .leaders
            .iter()
            .map(|(p, addr)| Ok((*p, Client::connect(*addr)?)))
            .collect::<Result<_>>()?;
        let record = wire::batch(1, 170)?;
        Ok(Producer { id, producer_id, epoch, sequences: BTreeMap::new(), coordinator, leaders, record })
    }

    fn produce(&mut self, topic: &str, partition: i32) -> Result<()> {
        let sequence = self.sequences.entry(partition).or_default();
        let records = transactional(&self.record, self.producer_id, self.epoch, *sequence);
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(records));
        let of =
            TopicProduceData::default().with_name(wire::topic_name(topic)).with_partition_data(vec![data]);
        let req = ProduceRequest::default()
            .with_transactional_id(Some(self.id.clone()))
            .with_acks(-1)
            .with_timeout_ms(30_000)
            .with_topic_data(vec![of]);
        let leader = self.leaders.get_mut(&partition).context("no leader")?;
        patiently("a transactional produce", || {
            let answer = leader.call(PRODUCE_VERSION, &req)?;
            let part = answer.responses.first().and_then(|t| t.partition_responses.first());
            Ok((part.context("an empty answer")?.error_code, ()))
        })?;
        *sequence += 1;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let req = EndTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(self.producer_id.into())
            .with_producer_epoch(self.epoch)
            .with_committed(true);
        let coordinator = &mut self.coordinator;
        let (producer_id, epoch) = patiently("EndTxn", || {
            let a = coordinator.call(END_TXN_VERSION, &req)?;
            Ok((a.error_code, (a.producer_id.0, a.producer_epoch)))
        })?;
        ensure!((producer_id, epoch) != (self.producer_id, self.epoch), "the epoch was not bumped");
        (self.producer_id, self.epoch) = (producer_id, epoch);
        self.sequences.clear();
        Ok(())
    }
}

/// The batch as this producer's next, part of a transaction; its checksum made anew.
fn transactional(batch: &Bytes, producer_id: i64, epoch: i16, sequence: i32) -> Bytes {
    const TRANSACTIONAL: i16 = 1 << 4;
    let mut out = BytesMut::from(&batch[..]);
    out[21..23].copy_from_slice(&TRANSACTIONAL.to_be_bytes());
    let mut identity = BytesMut::new();
    identity.put_i64(producer_id);
    identity.put_i16(epoch);
    identity.put_i32(sequence);
    out[43..57].copy_from_slice(&identity);
    let crc = crc32c::crc32c(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    out.freeze()
}

/// One who waits at a partition's end for what is committed.
struct Reader {
    client: Client,
    topic: String,
    partition: i32,
    at: i64,
}

impl Reader {
    fn ask(&mut self) -> Result<()> {
        self.client.send(&wire::fetch_committed(&self.topic, self.partition, self.at, 10_000, 1 << 20)?)
    }

    /// Waits for records; an answer without any is asked for again.
    fn given(&mut self) -> Result<()> {
        loop {
            let (mut answer, mut next) = (self.client.receive()?, None);
            wire::walk_fetched(&mut answer, |f| next = f.next.or(next))?;
            if let Some(next) = next {
                self.at = next;
                return Ok(());
            }
            self.ask()?;
        }
    }
}

/// How long ends took to be answered, and to be visible.
#[derive(Default)]
struct Commits {
    answered: Vec<Duration>,
    visible: Vec<Duration>,
}

/// Commits transactions of one record on each of three partitions, one after the other, and waits for each to be seen.
fn commits(addr: SocketAddr, places: &Places, topic: &str, id: &str, time: Duration) -> Result<Commits> {
    let mut producer = Producer::open(addr, places, id)?;
    let mut readers = (0..SPREAD)
        .map(|partition| {
            let client = Client::connect(places.leader(partition)?)?;
            Ok(Reader { client, topic: topic.to_string(), partition, at: 0 })
        })
        .collect::<Result<Vec<_>>>()?;
    for r in &mut readers {
        let ends = r.client.ends(topic, &[r.partition])?;
        r.at = ends.first().context("no end")?.2;
    }
    let (mut found, mut start, mut rehearsals) = (Commits::default(), Instant::now(), 5);
    while start.elapsed() < time {
        for partition in 0..SPREAD {
            producer.produce(topic, partition)?;
        }
        for r in &mut readers {
            r.ask()?;
        }
        let sent = Instant::now();
        producer.commit()?;
        found.answered.push(sent.elapsed());
        for r in &mut readers {
            r.given()?;
        }
        found.visible.push(sent.elapsed());
        if rehearsals > 0 {
            // Connections, and all that is made at its first use, are no part of a commit.
            rehearsals -= 1;
            (found, start) = (Commits::default(), Instant::now());
        }
    }
    ensure!(!found.visible.is_empty(), "nothing was committed");
    Ok(found)
}

/// So many producers at once, each with transactions of one record; how many were committed a second.
fn rate(addr: SocketAddr, places: &Places, topic: &str, producers: i32, time: Duration) -> Result<f64> {
    let mut all = (0..producers)
        .map(|i| Producer::open(addr, places, &format!("{topic}-rate-{i}")))
        .collect::<Result<Vec<_>>>()?;
    let (done, over, start) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter_mut()
            .zip(0..)
            .map(|(producer, i)| {
                let (done, over) = (&done, &over);
                scope.spawn(move || -> Result<()> {
                    while !over.load(Ordering::Relaxed) {
                        producer.produce(topic, i % PARTITIONS)?;
                        producer.commit()?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a producer panicked"))).collect()
    });
    let wall = start.elapsed();
    results.into_iter().collect::<Result<()>>()?;
    Ok(done.load(Ordering::Relaxed) as f64 / wall.as_secs_f64())
}

/// One broker: the latency of a commit, and transactions a second.
pub fn one_broker(b: &mut Bench) -> Result<()> {
    let topic = "transactions";
    b.main()?.broker.client()?.create_topic(topic, PARTITIONS)?;
    let addr = b.main()?.broker.addr;
    let places = Places::of(addr, topic, PARTITIONS)?;
    latency(b, "one broker", addr, &places, topic, &["bench-latency".to_string()])?;
    for producers in [1, 32] {
        let (mut raw_runs, mut runs, mut ratios) = (vec![], vec![], vec![]);
        for _ in 0..b.rounds() {
            let raw = raw::append_sync(&b.dir, 4 * KIB, b.time() / 2)?.ops_per_s;
            let got = rate(addr, &places, topic, producers, b.time())?;
            raw_runs.push(raw);
            runs.push(got);
            ratios.push(got / raw);
        }
        b.add(Row::shown_against(
            format!(
                "transactions of one record, {producers} producer{}",
                if producers == 1 { "" } else { "s" }
            ),
            per_s(median(&runs), "transactions"),
            per_s(median(&raw_runs), "4 KiB syncs"),
            format!("{:.2} ×", median(&ratios)),
        ));
    }
    b.main()?.broker.client()?.delete_topic(topic)
}

/// Commits of these ids in turn, so that each coordinator has its part.
fn latency(
    b: &mut Bench,
    what: &str,
    addr: SocketAddr,
    places: &Places,
    topic: &str,
    ids: &[String],
) -> Result<()> {
    let (mut raw_p50, mut p50, mut p99, mut answered) = (vec![], vec![], vec![], vec![]);
    for _ in 0..b.rounds() {
        raw_p50.push(raw::append_sync(&b.dir, 4 * KIB, b.time() / 2)?.sync_p50.as_secs_f64());
        let mut all = Commits::default();
        for id in ids {
            let part = commits(addr, places, topic, id, b.time() / ids.len() as u32)?;
            all.answered.extend(part.answered);
            all.visible.extend(part.visible);
        }
        p50.push(percentile(&mut all.visible, 0.5).as_secs_f64());
        p99.push(percentile(&mut all.visible, 0.99).as_secs_f64());
        answered.push(percentile(&mut all.answered, 0.5).as_secs_f64());
    }
    let (raw, p50, p99) = (median(&raw_p50), median(&p50), median(&p99));
    b.add(Row::shown_against(
        format!("commit of a transaction on 3 partitions, {what}, from EndTxn to visible on all: p50"),
        format!("{} (answered after {})", ms(p50), ms(median(&answered))),
        format!("fdatasync p50 {}", ms(raw)),
        format!("{:.1}", p50 / raw),
    ));
    b.add(Row::judged(
        format!("the same, {what}: p99"),
        ms(p99),
        "",
        format!("{:.1}", p99 / raw),
        "≤ 100 ms",
        p99 <= 0.1,
    ));
    Ok(())
}

/// Three brokers: partitions led by each of them, transactional ids coordinated by each of them.
pub fn three_brokers(b: &mut Bench) -> Result<()> {
    let members = Members::start(b, "transactions", 3, Duration::from_secs(10), |_| ())?;
    let topic = "transactions";
    members.create_topic(topic, SPREAD)?;
    let routes = members.routes(topic);
    members.settle(&routes, SPREAD as usize, 1)?;
    let addr = members.broker(1)?.addr;
    let places = Places::of(addr, topic, SPREAD)?;
    let mut ids = BTreeMap::new();
    for i in 0..64 {
        let id = format!("bench-{i}");
        ids.entry(coordinator(addr, &id)?).or_insert(id);
    }
    ensure!(ids.len() == 3, "{} of 3 brokers coordinate", ids.len());
    let ids: Vec<String> = ids.into_values().collect();
    latency(b, "three brokers, each coordinates and leads", addr, &places, topic, &ids)?;
    members.stop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Buf;

    #[test]
    fn a_batch_is_made_a_transaction_s_and_its_checksum_is_right() {
        let plain = wire::batch(1, 170).unwrap();
        let b = transactional(&plain, 7, 3, 11);
        assert_eq!(b.len(), plain.len());
        assert_eq!((&b[21..23]).get_i16() & (1 << 4), 1 << 4);
        assert_eq!(((&b[43..51]).get_i64(), (&b[51..53]).get_i16(), (&b[53..57]).get_i32()), (7, 3, 11));
        assert_eq!((&b[17..21]).get_u32(), crc32c::crc32c(&b[21..]));
        assert_eq!((&plain[17..21]).get_u32(), crc32c::crc32c(&plain[21..]), "as the codec has it");
    }

    #[test]
    fn a_refusal_is_told_and_a_delay_is_waited_for() {
        let mut answers = [51, 15, 0].into_iter();
        assert!(patiently("it", || Ok((answers.next().unwrap(), ()))).is_ok());
        let e = patiently("it", || Ok((47, ()))).unwrap_err();
        assert!(format!("{e:#}").contains("error 47"), "{e:#}");
    }
}
