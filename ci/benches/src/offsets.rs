//! Commits of group offsets, by one group and by a thousand. The groups have no members: the commits are those of a tool.

use crate::broker::Broker;
use crate::stats::{median, per_s};
use crate::table::Row;
use crate::wire::{self, Client, Source};
use crate::{load, raw, Bench};
use anyhow::{ensure, Result};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::OffsetCommitRequest;
use kafka_protocol::protocol::StrBytes;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The last version whose header and body have no tagged fields.
const VERSION: i16 = 7;
const CONNECTIONS: usize = 10;

fn frame(group: &str, topic: &str, offset: i64) -> Result<Vec<u8>> {
    let part = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1);
    let of =
        OffsetCommitRequestTopic::default().with_name(wire::topic_name(topic)).with_partitions(vec![part]);
    let body = OffsetCommitRequest::default()
        .with_group_id(StrBytes::from_string(group.to_string()).into())
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![of]);
    wire::frame(VERSION, &body)
}

/// The error of the only partition.
fn committed(mut body: &[u8]) -> Result<()> {
    body.skip(4 + 4)?;
    ensure!(body.i32()? == 1, "an answer for no topic");
    body.skip_string()?;
    ensure!(body.i32()? == 1, "an answer for no partition");
    body.i32()?;
    let error = body.i16()?;
    ensure!(error == 0, "an offset commit was refused with error {error}");
    Ok(())
}

fn plans(topic: &str, groups: usize) -> Result<Vec<load::Producer>> {
    (0..CONNECTIONS)
        .map(|c| {
            let mine = (0..groups).filter(|g| groups == 1 || g % CONNECTIONS == c);
            let frames = mine
                .map(|g| frame(&format!("bench-group-{groups}-{g}"), topic, g as i64))
                .collect::<Result<_>>()?;
            Ok(load::Producer { frames, payload: 0, in_flight: 10 })
        })
        .collect()
}

pub fn rates(b: &mut Bench) -> Result<()> {
    let topic = "offsets";
    b.main()?.broker.client()?.create_topic(topic, 1)?;
    let broker: &Broker = &b.main()?.broker;
    let addr = broker.addr;
    let (one, many) = (plans(topic, 1)?, plans(topic, 1000)?);
    // The first commit of each group makes it, and finds its coordinator ready.
    for plans in [&one, &many] {
        ready(addr, plans)?;
    }
    let (mut raw_runs, mut alone, mut spread, mut ratios) = (vec![], vec![], vec![], vec![]);
    for _ in 0..b.rounds() {
        raw_runs.push(raw::append_sync(&b.dir, 4 << 10, b.time() / 2)?.ops_per_s);
        let limit = b.limit();
        let a = load::answers(addr, &one, limit, committed)?;
        let m = load::answers(addr, &many, limit, committed)?;
        alone.push(a);
        spread.push(m);
        ratios.push(m / a);
    }
    let raw = median(&raw_runs);
    for (what, runs) in [("1 group", &alone), ("1,000 groups", &spread)] {
        let got = median(runs);
        b.add(Row::shown_against(
            format!("offset commits, {what}, {} under way", CONNECTIONS * 10),
            per_s(got, "commits"),
            per_s(raw, "4 KiB syncs"),
            format!("{:.2} ×", got / raw),
        ));
    }
    b.add(Row::shown("the same: 1,000 groups against 1", format!("{:.2} ×", median(&ratios))));
    b.main()?.broker.client()?.delete_topic(topic)
}

fn ready(addr: SocketAddr, plans: &[load::Producer]) -> Result<()> {
    let mut client = Client::connect(addr)?;
    client.coordinators(["bench".to_string()])?;
    for f in plans.iter().flat_map(|p| &p.frames) {
        let start = Instant::now();
        while let Err(e) = committed(client.exchange(f)?) {
            ensure!(start.elapsed() < Duration::from_secs(30), "{e:#}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}
