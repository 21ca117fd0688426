//! What a broker counts. The counters live here; `registry` names them for Prometheus.

mod registry;
mod samples;
mod server;

pub use registry::{Exposition, CONTENT_TYPE};
pub use samples::{LagSample, MarksSample, PartitionSample, Samples, TopicSample};
pub use server::ServerMetrics;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};
use std::sync::atomic::AtomicU64;

/// Counted by the storage engine.
#[derive(Debug)]
pub struct StorageMetrics {
    /// Write requests sent to log segments.
    pub log_writes: Counter,
    /// Syncs of log segments.
    pub log_syncs: Counter,
    /// Seconds per log sync.
    pub sync_seconds: Histogram,
    /// Seconds in which batches waited for a partition's committer and it did nothing, over all partitions.
    pub commit_idle_seconds: Counter<f64, AtomicU64>,
    /// Batches acknowledged or made visible, and their bytes.
    pub batches_in: Counter,
    pub bytes_in: Counter,
    /// Batches read for consumers, and their bytes.
    pub batches_out: Counter,
    pub bytes_out: Counter,
    /// Batches that shared one sync.
    pub batches_per_sync: Histogram,
    /// Partitions whose volume does not answer.
    pub stalled_partitions: Gauge,
    /// Bytes read, and seconds taken, by recovery.
    pub recovery_bytes: Counter,
    pub recovery_seconds: Histogram,
    /// Records opened, by what for (P9). Produce to compacted topics must see the keys, and an exact timestamp
    /// lookup the timestamps; whoever opens one for anything else counts it in `records_opened`, which must
    /// stay 0.
    pub records_opened: Counter,
    pub records_opened_lookup: Counter,
    pub records_opened_compacted: Counter,
    /// Files held open by partitions.
    pub open_files: Gauge,
}

impl Default for StorageMetrics {
    fn default() -> Self {
        StorageMetrics {
            log_writes: Counter::default(),
            log_syncs: Counter::default(),
            sync_seconds: seconds_histogram(),
            commit_idle_seconds: Counter::default(),
            batches_in: Counter::default(),
            bytes_in: Counter::default(),
            batches_out: Counter::default(),
            bytes_out: Counter::default(),
            batches_per_sync: Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]),
            stalled_partitions: Gauge::default(),
            recovery_bytes: Counter::default(),
            recovery_seconds: seconds_histogram(),
            records_opened: Counter::default(),
            records_opened_lookup: Counter::default(),
            records_opened_compacted: Counter::default(),
            open_files: Gauge::default(),
        }
    }
}

/// From 200 µs, a fast disk's sync, to 30 s, where the watchdog barks.
fn seconds_histogram() -> Histogram {
    Histogram::new([
        0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
    ])
}

/// Everything that a broker counts.
#[derive(Debug, Default)]
pub struct Metrics {
    pub storage: std::sync::Arc<StorageMetrics>,
    pub server: ServerMetrics,
}
