//! The whole broker under madsim, on a volume in memory: the same code that production runs.
//!
//! Built only with `--cfg madsim` (`cargo sim-test`); the plain build runs it in a child process, see
//! `simulated_child.rs`. The full simulator is elsewhere; this holds the broker to be simulatable.
#![cfg(madsim)]

mod common;

use common::{base_offsets, batch_at, fetch_request, row, Client};
use highwater::config::BrokerConfig;
use highwater::metrics::Metrics;
use highwater::rt::{Entropy, Env, OsClock, SeededEntropy, SoloHost};
use highwater::server::Node;
use highwater::volume::MemVolume;
use madsim::runtime::Handle;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const BROKER: &str = "10.0.0.1:9092";

/// One life of the broker on `volume`; ends with its node.
async fn serve(volume: MemVolume) {
    let config = BrokerConfig { listen: "0.0.0.0:9092".into(), ..BrokerConfig::default() };
    let env = Env {
        volume: Arc::new(volume.another_process()),
        clock: Arc::new(OsClock),
        entropy: Arc::new(SeededEntropy::new(madsim::rand::random())),
        host: Arc::new(SoloHost { name: "10.0.0.1".into(), boot: "boot".into() }),
    };
    let node =
        Node::start(env, Arc::new(config), Arc::new(Metrics::default())).await.expect("the broker starts");
    node.failed().await;
}

/// Connects once the broker listens.
async fn client() -> Client {
    let addr: SocketAddr = BROKER.parse().expect("an address");
    for _ in 0..600 {
        if tokio::net::TcpStream::connect(addr).await.is_ok() {
            return Client::connect(addr).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the broker does not come back");
}

/// Every value of partition 0, in order.
async fn values(client: &mut Client) -> Vec<i64> {
    let mut at = 0;
    let mut all = Vec::new();
    loop {
        let response = client.fetch(11, &fetch_request("t", 0, at)).await;
        let row = row(&response);
        assert_eq!(row.error_code, 0);
        let bases = base_offsets(row.records.as_deref().unwrap_or_default());
        let Some(last) = bases.last() else { return all };
        at = last + 1;
        all.extend(bases);
    }
}

/// Produces through five lives; between them the process is killed, or the host loses power.
async fn story() -> Vec<i64> {
    let handle = Handle::current();
    let volume = MemVolume::new();
    let served = volume.clone();
    let ip: IpAddr = "10.0.0.1".parse().expect("an address");
    let node = handle.create_node().name("broker").ip(ip).init(move || serve(served.clone())).build();
    let user = handle.create_node().name("client").ip("10.0.0.2".parse().expect("an address")).build();
    let script = async move {
        let mut acked = Vec::new();
        client().await.create_topic("t", 1, &[]).await;
        for life in 0..5u64 {
            let mut c = client().await;
            for i in 0..20 {
                let value = format!("life {life} record {i}");
                let row = c.produce("t", 0, batch_at(1000, &[&value])).await;
                assert_eq!(row.error_code, 0, "life {life}");
                acked.push(row.base_offset);
            }
            handle.kill(node.id());
            if life % 2 == 1 {
                volume.power_cut(&SeededEntropy::new(SeededEntropy::new(life).u64()));
            } else {
                volume.crash_process();
            }
            handle.restart(node.id());
        }
        let read = values(&mut client().await).await;
        assert_eq!(read, acked, "everything acknowledged is there, once, in order");
        acked
    };
    user.spawn(script).await.expect("the story ends")
}

#[madsim::test]
async fn what_was_acknowledged_is_read_back_after_kills_and_power_cuts() {
    assert_eq!(story().await, (0..100).collect::<Vec<i64>>());
}

#[test]
fn the_same_seed_gives_the_same_history() {
    // Panics if a second run draws other random numbers, at another time, than the first.
    madsim::runtime::Runtime::check_determinism(7, madsim::Config::default(), story);
}
