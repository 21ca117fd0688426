//! Many connections, slow ones, idle ones: each costs itself only.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use common::*;
use highwater::volume::raise_fd_limit;
use kafka_protocol::messages::MetadataRequest;
use std::time::{Duration, Instant};

async fn answers(client: &mut Client) {
    let response = client.call(9, &MetadataRequest::default().with_topics(Some(vec![]))).await;
    assert_eq!(response.brokers.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_are_served() {
    let limit = raise_fd_limit();
    // Both ends are in this process, and some descriptors are needed for other things.
    let count = 10_000.min((limit.saturating_sub(200) / 2) as usize);
    let broker = TestBroker::start(|_| {}).await;
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(broker.client().await);
    }
    for client in clients.iter_mut().step_by(97) {
        answers(client).await;
    }
    assert_eq!(broker.metrics.server.connections.get(), count as i64);
    drop(clients);
    let began = Instant::now();
    while broker.metrics.server.connections.get() > 0 {
        assert!(began.elapsed() < PATIENCE, "closed connections are still counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    answers(&mut broker.client().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_past_the_limit_are_closed_at_once_and_room_is_given_back() {
    let broker = TestBroker::start(|c| c.max_connections = 3).await;
    let mut clients = vec![broker.client().await, broker.client().await, broker.client().await];
    for client in &mut clients {
        answers(client).await;
    }
    let mut fourth = broker.client().await;
    assert!(fourth.frame().await.is_none());
    clients.pop();
    let began = Instant::now();
    while broker.metrics.server.connections.get() > 2 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    answers(&mut broker.client().await).await;
    for client in &mut clients {
        answers(client).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_a_byte_at_a_time_is_served_and_delays_nobody() {
    let broker = TestBroker::start(|c| c.connections_max_idle = Duration::from_millis(300)).await;
    let mut slow = broker.client().await;
    let mut quick = broker.client().await;
    let frame = request_frame(9, 1, &MetadataRequest::default().with_topics(Some(vec![])));
    for byte in frame.iter() {
        // Slower in all than the idle limit, but never idle.
        slow.send_bytes(&[*byte]).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        let asked = Instant::now();
        answers(&mut quick).await;
        assert!(asked.elapsed() < Duration::from_secs(2));
    }
    assert!(slow.frame().await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_and_a_long_poll_is_not_idle() {
    let broker = TestBroker::start(|c| c.connections_max_idle = Duration::from_millis(200)).await;
    let mut setup = broker.client().await;
    setup.create_topic("t", 1, &[]).await;
    let mut polling = broker.client().await;
    let mut idle = broker.client().await;
    let poll = polling.send(12, &fetch_request("t", 0, 0).with_max_wait_ms(1000)).await;
    assert!(idle.frame().await.is_none());
    polling.receive::<kafka_protocol::messages::FetchRequest>(12, poll).await;
    assert!(polling.frame().await.is_none(), "now it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_is_announced_and_never_comes_costs_no_memory() {
    let broker = TestBroker::start(|_| {}).await;
    let before = resident();
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = broker.client().await;
        client.send_bytes(&(100i32 << 20).to_be_bytes()).await;
        client.send_bytes(&[0; 1000]).await;
        clients.push(client);
    }
    answers(&mut broker.client().await).await;
    let grown = resident().saturating_sub(before);
    // 100 connections have announced 10 GiB.
    assert!(grown < 64 << 20, "{grown} bytes more");
}

/// Bytes of this process in memory (proc(5): statm, second field, in pages).
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
