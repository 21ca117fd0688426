//! A whole broker: what `highwater serve` runs, and what the simulator runs on each node.

use super::listener::{self, Open};
use crate::api::{Broker, Closing};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How long requests that are under way may take to end when the broker stops.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {addr}: {source}")]
    Bind { addr: String, source: std::io::Error },
}

/// A running broker.
pub struct Node {
    broker: Arc<Broker>,
    local_addr: SocketAddr,
    open: Arc<Open>,
    /// Ends connections that did not drain in time.
    cut: Arc<Closing>,
    accepting: JoinHandle<()>,
}

impl Node {
    /// Serves `broker` on a bound listener.
    pub fn serve(broker: Arc<Broker>, listener: TcpListener, local_addr: SocketAddr) -> Node {
        let open = Arc::new(Open::default());
        let cut = Arc::new(Closing::default());
        let accepting = tokio::spawn(listener::run(listener, broker.clone(), open.clone(), cut.clone()));
        Node { broker, local_addr, open, cut, accepting }
    }

    /// Where clients connect; the port is real even if 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// Stops accepting, answers what is under way (long polls at once), and closes all connections.
    pub async fn drain(&self) {
        self.broker.closing.say();
        if tokio::time::timeout(DRAIN, self.open.none()).await.is_err() {
            tracing::warn!("some requests did not end within {DRAIN:?}; their connections are closed");
            self.cut.say();
            self.open.none().await;
        }
    }
}

impl Drop for Node {
    /// A dropped node serves no longer; it does not drain.
    fn drop(&mut self) {
        self.accepting.abort();
        self.broker.closing.say();
        self.cut.say();
    }
}

/// Binds before anything on the volume is touched, so that a port in use changes nothing.
pub async fn bind(addr: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { addr: addr.to_owned(), source };
    let listener = TcpListener::bind(addr).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}
