//! A whole broker: what `highwater serve` runs, and what the simulator runs on each node.

use super::listener::{self, Open};
use crate::api::transactions::Peers;
use crate::api::{Broker, Closing};
use crate::cluster::{self, Cluster};
use crate::config::BrokerConfig;
use crate::coordinator::transactions::{TransactionSettings, Transactions};
use crate::coordinator::{Groups, ProducerIds};
use crate::metrics::Metrics;
use crate::rt::Env;
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
    #[error(transparent)]
    Cluster(#[from] cluster::StartError),
}

/// Why a running broker cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeFailure {
    #[error("the listener ended without being told to")]
    ListenerEnded,
    /// A task died that the broker cannot be without; says which and why.
    #[error("{0}")]
    TaskDied(String),
}

/// A running broker.
pub struct Node {
    broker: Arc<Broker>,
    local_addr: SocketAddr,
    open: Arc<Open>,
    /// Ends connections that did not drain in time.
    cut: Arc<Closing>,
    accepting: JoinHandle<()>,
    /// Said when the listener has ended, however it did.
    listener_ended: Arc<Closing>,
}

impl Node {
    /// Starts a broker, and serves when it returns. The port is bound before anything on the volume is touched, so
    /// that a port in use changes nothing; connections that come before the broker is ready wait in the backlog.
    pub async fn start(
        env: Env,
        config: Arc<BrokerConfig>,
        metrics: Arc<Metrics>,
    ) -> Result<Node, StartError> {
        let (listener, local_addr) = bind(&config.listen).await?;
        let advertised = advertised(&config, local_addr, &env);
        // The other brokers send clients where this one is truly reached.
        let told = BrokerConfig { advertised: Some(advertised.clone()), ..BrokerConfig::clone(&config) };
        let cluster = Cluster::start(env.clone(), Arc::new(told), metrics.clone()).await?;
        let groups = Groups::start(env.clone(), &cluster, &config);
        let fence = cluster.lease().clone();
        let producer_ids = ProducerIds::new(&env, fence, cluster.broker_id(), config.storage.sync_timeout);
        let producer_ids = Arc::new(producer_ids);
        let transactions = Transactions::new(
            groups.clone(),
            producer_ids.clone(),
            TransactionSettings {
                max_timeout: config.transactions.max_timeout,
                id_expiration: config.transactions.id_expiration,
            },
        );
        let peers = Peers::new(&cluster, &transactions);
        let broker = Broker {
            advertised,
            config,
            env,
            cluster,
            groups,
            producer_ids,
            transactions,
            peers,
            lines: Default::default(),
            metrics,
            fetched: Default::default(),
            closing: Arc::new(Closing::default()),
        };
        broker.transactions.start(broker.peers.clone());
        Ok(Node::serve(Arc::new(broker), listener, local_addr))
    }

    fn serve(broker: Arc<Broker>, listener: TcpListener, local_addr: SocketAddr) -> Node {
        let open = Arc::new(Open::default());
        let cut = Arc::new(Closing::default());
        let listener_ended = Arc::new(Closing::default());
        let ended = SayOnDrop(listener_ended.clone());
        let accept = listener::run(listener, broker.clone(), open.clone(), cut.clone());
        let accepting = tokio::spawn(async move {
            let _ended = ended;
            accept.await;
        });
        Node { broker, local_addr, open, cut, accepting, listener_ended }
    }

    /// Where the broker listens; the port is real even if 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// Returns when the broker cannot go on, with the reason. It has yet to be shut down.
    pub async fn failed(&self) -> NodeFailure {
        let listener = async {
            self.listener_ended.heard().await;
            if self.broker.closing.is_said() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            why = self.broker.cluster.failed() => NodeFailure::TaskDied(why),
            why = self.broker.groups.failed() => NodeFailure::TaskDied(why),
            why = self.broker.transactions.failed() => NodeFailure::TaskDied(why),
            () = listener => NodeFailure::ListenerEnded,
        }
    }

    /// Clean stop: stop accepting, answer what is under way (long polls at once), close the connections; then
    /// groups and partitions: flush, checkpoint at the end, close.
    pub async fn shutdown(&self) {
        self.drain().await;
        self.broker.transactions.shutdown().await;
        self.broker.groups.shutdown().await;
        self.broker.cluster.shutdown().await;
    }

    async fn drain(&self) {
        self.broker.closing.say();
        if tokio::time::timeout(DRAIN, self.open.none()).await.is_err() {
            tracing::warn!("some requests did not end within {DRAIN:?}; their connections are closed");
            self.cut.say();
            self.open.none().await;
        }
    }
}

impl Drop for Node {
    /// A dropped node serves no longer; it does not drain, and closes nothing cleanly.
    fn drop(&mut self) {
        self.accepting.abort();
        self.broker.closing.say();
        self.cut.say();
    }
}

struct SayOnDrop(Arc<Closing>);

impl Drop for SayOnDrop {
    fn drop(&mut self) {
        self.0.say();
    }
}

async fn bind(addr: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { addr: addr.to_owned(), source };
    let listener = TcpListener::bind(addr).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

/// `advertised.listeners`, or as bound. Who binds to every address is reached by the host's name.
fn advertised(config: &BrokerConfig, local: SocketAddr, env: &Env) -> (String, u16) {
    match &config.advertised {
        Some(advertised) => advertised.clone(),
        None if local.ip().is_unspecified() => (env.host.name(), local.port()),
        None => (local.ip().to_string(), local.port()),
    }
}
