//! The second listener: `/metrics`, `/healthz` and `/readyz`.
//!
//! It answers while a volume hangs, because it reads memory only. It speaks plain HTTP, asks nobody who
//! they are and limits nothing: it is meant for loopback or a private network.

use axum::extract::State;
use axum::http::{header, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::Router;
use highwater::metrics::{Exposition, CONTENT_TYPE};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Whether the broker serves clients; if not, why.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Clone)]
struct Shown {
    exposition: Arc<Exposition>,
    ready: Ready,
}

/// Answers until the process ends.
pub async fn run(listener: TcpListener, exposition: Exposition, ready: Ready) {
    let app = router(exposition, ready);
    if let Err(e) = axum::serve(listener, app).await {
        tracing::error!("the metrics listener ended: {e}");
    }
}

fn router(exposition: Exposition, ready: Ready) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(Shown { exposition: Arc::new(exposition), ready })
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], shown.exposition.render())
}

async fn readyz(State(shown): State<Shown>) -> impl IntoResponse {
    match (shown.ready)() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater::metrics::{LagSample, Metrics, PartitionSample, Samples, TopicSample};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[derive(Debug)]
    struct Nothing;

    impl Samples for Nothing {
        fn partitions(&self) -> Vec<PartitionSample> {
            vec![]
        }
        fn topics(&self) -> Vec<TopicSample> {
            vec![]
        }
        fn group_lags(&self) -> Vec<LagSample> {
            vec![]
        }
    }

    async fn ask(addr: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        answer
    }

    #[tokio::test]
    async fn it_says_that_it_lives_whether_it_is_ready_and_what_it_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let metrics = Metrics::default();
        let held = Arc::new(AtomicBool::new(false));
        let seen = held.clone();
        let ready: Ready = Arc::new(move || match seen.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("the lease is not held".to_owned()),
        });
        let server = tokio::spawn(run(listener, Exposition::new(&metrics, Arc::new(Nothing)), ready));

        assert!(ask(addr, "/healthz").await.starts_with("HTTP/1.1 200 "));
        let not_yet = ask(addr, "/readyz").await;
        assert!(not_yet.starts_with("HTTP/1.1 503 ") && not_yet.ends_with("the lease is not held\n"));
        held.store(true, Ordering::Relaxed);
        assert!(ask(addr, "/readyz").await.starts_with("HTTP/1.1 200 "));

        metrics.storage.batches_in.inc_by(5);
        let shown = ask(addr, "/metrics").await;
        assert!(shown.contains("content-type: application/openmetrics-text"), "{shown}");
        assert!(shown.contains("\nhighwater_batches_in_total 5\n"), "{shown}");
        assert!(ask(addr, "/elsewhere").await.starts_with("HTTP/1.1 404 "));
        server.abort();
    }
}
