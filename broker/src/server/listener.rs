//! Accepts connections: no more than allowed, and never giving up.

use super::budget::Queued;
use super::connection::{self, End, Limits};
use crate::api::{Broker, Closing, Peer};
use crate::metrics::ServerMetrics;
use crate::rt;
use prometheus_client::metrics::gauge::Gauge;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// How long accepting rests after an error such as EMFILE, at first and at most.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_secs(1);
/// Refused connections are spoken of once in this time.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// Connections that are open.
#[derive(Debug, Default)]
pub struct Open {
    count: AtomicUsize,
    fewer: Notify,
}

impl Open {
    fn enter(self: &Arc<Self>, max: usize, metrics: &ServerMetrics) -> Option<Entry> {
        // Only the accept loop enters, so nothing comes between the two.
        if self.count.load(Ordering::Acquire) >= max {
            metrics.connections_refused.inc();
            return None;
        }
        metrics.connections_accepted.inc();
        metrics.connections.inc();
        self.count.fetch_add(1, Ordering::AcqRel);
        Some(Entry(self.clone(), metrics.connections.clone()))
    }

    /// Returns once none is open.
    pub async fn none(&self) {
        while self.count.load(Ordering::Acquire) > 0 {
            self.fewer.notified().await;
        }
    }
}

struct Entry(Arc<Open>, Gauge);

impl Drop for Entry {
    fn drop(&mut self) {
        self.1.dec();
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.fewer.notify_one();
    }
}

/// Accepts until `broker.closing`; connections end early at `cut`.
pub async fn run(listener: TcpListener, broker: Arc<Broker>, open: Arc<Open>, cut: Arc<Closing>) {
    let closing = broker.closing.clone();
    let mut closing = std::pin::pin!(closing.heard());
    let max = broker.config.max_connections;
    let queued = Arc::new(Queued::new(broker.config.queued_max_request_bytes));
    let mut rest = REST_MIN;
    let mut refused = Refused::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut closing => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, addr)) => {
                rest = REST_MIN;
                match open.enter(max, &broker.metrics.server) {
                    Some(entry) => spawn(stream, addr, broker.clone(), queued.clone(), entry, cut.clone()),
                    None => refused.count(addr, max, broker.env.clock.boot()),
                }
            }
            // A connection that was reset before it was accepted costs a short rest; want of descriptors or
            // memory passes when others close.
            Err(e) => {
                tracing::warn!("cannot accept a connection, trying again in {rest:?}: {e}");
                tokio::time::sleep(rest).await;
                rest = (rest * 2).min(REST_MAX);
            }
        }
    }
}

#[derive(Default)]
struct Refused {
    unsaid: u64,
    said: Option<Duration>,
}

impl Refused {
    fn count(&mut self, addr: SocketAddr, max: usize, now: Duration) {
        self.unsaid += 1;
        if self.said.is_none_or(|said| now.saturating_sub(said) >= SAY_AGAIN) {
            tracing::warn!(
                "closed {} new connection(s), the last from {addr}: max.connections is {max}",
                self.unsaid
            );
            (self.unsaid, self.said) = (0, Some(now));
        }
    }
}

fn spawn(
    stream: TcpStream,
    addr: SocketAddr,
    broker: Arc<Broker>,
    queued: Arc<Queued>,
    entry: Entry,
    cut: Arc<Closing>,
) {
    if let Err(e) = rt::tune_connection(&stream) {
        tracing::debug!("{addr}: {e}");
    }
    let limits = Limits {
        max_frame: broker.config.socket_request_max_bytes,
        max_idle: broker.config.connections_max_idle,
    };
    tokio::spawn(async move {
        let _entry = entry;
        let closing = broker.closing.clone();
        let end = tokio::select! {
            biased;
            () = cut.heard() => End::Closed,
            end = connection::serve(stream, Peer { broker, addr }, limits, queued, &closing) => end,
        };
        if end.is_noteworthy() {
            tracing::warn!("closed the connection of {addr}: {end}");
        } else {
            tracing::debug!("connection of {addr}: {end}");
        }
    });
}
