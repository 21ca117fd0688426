//! Broker-wide settings of the storage engine.

use std::time::Duration;

/// Broker-wide settings of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// `storage.sync.timeout.ms`: how long a sync may take before its waiters fail (P11).
    pub sync_timeout: Duration,
    /// `storage.group.bytes`: the most bytes that are written between two syncs (one larger batch excepted): what a
    /// successor must copy.
    pub group_bytes: u64,
    /// `storage.checkpoint.bytes`: how far the log may grow past its recovery checkpoint.
    pub checkpoint_bytes: u64,
    /// `storage.queue.bytes`: bytes that may wait for the committer of one partition before appends wait.
    pub queue_bytes: u64,
    /// `storage.max.open.files`: segment files held open at most, over all partitions.
    pub max_open_files: usize,
    /// `log.retention.check.interval.ms`
    pub retention_check: Duration,
    /// `producer.id.expiration.ms`
    pub producer_expiry: Duration,
}

impl Default for StorageConfig {
    fn default() -> Self {
        StorageConfig {
            sync_timeout: Duration::from_secs(30),
            group_bytes: 4 << 20,
            checkpoint_bytes: 64 << 20,
            queue_bytes: 16 << 20,
            max_open_files: 512,
            retention_check: Duration::from_secs(300),
            producer_expiry: Duration::from_secs(24 * 3600),
        }
    }
}
