//! The life of a serving process: look, start, serve, drain.

use super::banner::banner;
use super::http;
use super::notify;
use super::place::{self, PlaceError};
use super::samples::Seen;
use crate::cli::print;
use highwater::cluster::inspect;
use highwater::config::BrokerConfig;
use highwater::metrics::{Exposition, Metrics};
use highwater::rt::{Env, LockError, OsClock, OsEntropy, OsHost};
use highwater::server::{Node, StartError};
use highwater::volume::os::OsVolume;
use highwater::volume::{Volume, VolumeError};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{signal, Signal, SignalKind};

/// The exit code of a process that was told twice to stop: 128 and SIGINT.
const CUT_SHORT: i32 = 130;

/// Why a broker does not serve, or no longer does.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{0}; another address, or off, is set by metrics.listener")]
    Metrics(PlaceError),
    #[error("{0}")]
    Volume(#[from] VolumeError),
    #[error("{0}")]
    Host(#[from] LockError),
    #[error("{0}")]
    Start(#[from] StartError),
    #[error("the broker cannot go on: {0}")]
    Failed(String),
}

/// Serves until a signal says to stop. Ports are looked at before the data directory is made, so that a
/// start that fails leaves nothing behind.
pub async fn run(config: BrokerConfig) -> Result<(), RunError> {
    let mut stop = Stop::new().map_err(RunError::Signals)?;
    place::check_listener("listeners", &config.listen)?;
    let watching = bind_metrics(&config).await?;
    let (volume, data, control) = open_volume(&config)?;
    let host = OsHost::for_data_dir(&control)?;
    let env = Env { volume, clock: Arc::new(OsClock), entropy: Arc::new(OsEntropy), host: Arc::new(host) };
    let metrics = Arc::new(Metrics::default());
    let seen = Seen::default();
    let metrics_addr = watching.map(|(listener, addr)| {
        let exposition = Exposition::new(&metrics, Arc::new(seen.clone()));
        let asked = seen.clone();
        tokio::spawn(http::run(listener, exposition, Arc::new(move || asked.ready())));
        addr
    });

    let config = Arc::new(config);
    let node = tokio::select! { biased;
        () = stop.asked() => return Ok(()),
        started = Node::start(env, config.clone(), metrics) => started?,
    };
    seen.started(node.broker().clone());
    let (host, port) = &node.broker().advertised;
    print(&banner(&config, node.local_addr(), &join(host, *port), metrics_addr, &data, &control));
    notify::systemd("READY=1");

    let failed = tokio::select! { biased;
        () = stop.asked() => None,
        why = node.failed() => Some(why),
    };
    notify::systemd("STOPPING=1");
    tracing::info!(
        "stopping: requests in work are answered, all data is flushed; a second signal ends this at once"
    );
    tokio::select! { biased;
        () = stop.asked() => std::process::exit(CUT_SHORT),
        () = node.shutdown() => {}
    }
    match failed {
        None => {
            tracing::info!("stopped cleanly");
            Ok(())
        }
        Some(why) => Err(RunError::Failed(why.to_string())),
    }
}

/// The volume, where the data lies, and where the control plane's files do.
fn open_volume(config: &BrokerConfig) -> Result<(Arc<dyn Volume>, PathBuf, PathBuf), RunError> {
    place::data_dir(&config.data)?;
    let volume = OsVolume::open(&config.data)?;
    let data = volume.root().to_path_buf();
    let Some(dir) = &config.cluster_dir else { return Ok((Arc::new(volume), data.clone(), data)) };
    place::data_dir(dir)?;
    let apart = OsVolume::open(dir)?;
    let control = apart.root().to_path_buf();
    place::check_apart(&control, &data)?;
    Ok((Arc::new(inspect::split(Arc::new(apart), Arc::new(volume))), data, control))
}

async fn bind_metrics(config: &BrokerConfig) -> Result<Option<(TcpListener, SocketAddr)>, RunError> {
    let Some(address) = &config.metrics_listen else { return Ok(None) };
    let failed = |source| {
        RunError::Metrics(PlaceError::Listen { key: "metrics.listener", address: address.clone(), source })
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok(Some((listener, bound)))
}

fn join(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// SIGTERM and SIGINT; and SIGHUP, which a closed terminal sends.
struct Stop {
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Stop> {
        Ok(Stop {
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Returns when asked to stop, once for each time.
    async fn asked(&mut self) {
        tokio::select! { biased;
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
