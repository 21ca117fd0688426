//! The watchdog: an operation on the volume either ends in time or is left to drain by itself.

use crate::reached;
use crate::volume::{self, VolumeError};
use futures::future::{BoxFuture, FutureExt};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

/// How an operation did not succeed.
pub enum Failure {
    /// The lease ended: whatever was done may not be acknowledged or shown.
    Fenced,
    /// The volume said no. What it did of the operation is unknown.
    Failed(VolumeError),
    /// No answer in time. The future is the operation itself: it must be driven to its end before
    /// the volume is asked for more on this partition's behalf.
    Stuck(BoxFuture<'static, ()>),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Fenced => f.write_str("the lease ended"),
            Failure::Failed(e) => e.fmt(f),
            Failure::Stuck(_) => f.write_str("the volume does not answer"),
        }
    }
}

impl Failure {
    /// Says "stuck" of work that somebody else drives to its end.
    pub fn stuck() -> Failure {
        Failure::Stuck(Box::pin(std::future::ready(())))
    }
}

impl From<VolumeError> for Failure {
    fn from(e: VolumeError) -> Failure {
        Failure::Failed(e)
    }
}

/// Runs work whose assertions guard a partition's data: a breach ends that partition's present life, as a failure of
/// its volume would, and nothing else.
pub async fn contained<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match std::panic::AssertUnwindSafe(work).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(_) => {
            let e = std::io::Error::other("an internal check failed; see the log");
            Err(Failure::Failed(VolumeError::new("check", "", e)))
        }
    }
}

/// Runs `operation` for at most `limit`.
pub async fn guarded<T: Send + 'static>(
    limit: Duration,
    operation: impl Future<Output = volume::Result<T>> + Send + 'static,
) -> Result<T, Failure> {
    guarded_while(limit, Arc::default(), operation).await
}

/// Runs `operation` until it ends, or until `progress` has stood still for `limit` (seen within twice that).
pub async fn guarded_while<T: Send + 'static>(
    limit: Duration,
    progress: Arc<AtomicU64>,
    operation: impl Future<Output = volume::Result<T>> + Send + 'static,
) -> Result<T, Failure> {
    let mut operation: BoxFuture<'static, _> = Box::pin(operation);
    let mut seen = progress.load(Relaxed);
    loop {
        match tokio::time::timeout(limit, &mut operation).await {
            Ok(r) => return r.map_err(Failure::Failed),
            Err(_) if progress.load(Relaxed) == seen => {
                reached!("watchdog-struck");
                return Err(Failure::Stuck(Box::pin(async move { drop(operation.await) })));
            }
            Err(_) => seen = progress.load(Relaxed),
        }
    }
}
