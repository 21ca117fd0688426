//! Bounds what a read request waits for the volume, all its partitions together (P11): what is stuck fails, and what
//! comes after it fails at once, so that the whole answer is not late by the number of partitions.

use super::RequestContext;
use crate::rt::Clock;
use crate::storage::ReadError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Partitions of one request that are worked on side by side.
pub(super) const SIDE_BY_SIDE: usize = 64;

pub(super) struct Patience {
    clock: Arc<dyn Clock>,
    until: Duration,
}

impl Patience {
    /// From now on, for as long as a sync may take (`storage.sync.timeout.ms`).
    pub fn new(cx: &RequestContext) -> Self {
        let clock = cx.broker.env.clock.clone();
        let until = clock.boot().saturating_add(cx.broker.config.storage.sync_timeout);
        Patience { clock, until }
    }

    pub async fn bound<T>(&self, read: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
        let left = self.until.saturating_sub(self.clock.boot());
        let late = || Err(ReadError::Storage("the volume did not answer in time".into()));
        tokio::time::timeout(left, read).await.unwrap_or_else(|_| late())
    }
}
