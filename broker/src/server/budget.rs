//! What one connection may have under way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use tokio::sync::Notify;

/// Requests that are under way on one connection. Reached, reading stops until a response is written:
/// back-pressure is TCP's. Kafka's clients keep 5 (Java) or up to 1,000,000 (librdkafka) under way.
const MAX_REQUESTS: usize = 256;
/// Bytes of requests and of the responses they may bring. One request more than this is let in, however large.
const MAX_BYTES: usize = 128 << 20;

/// Counts what is under way; shared by the half that reads and the half that writes.
#[derive(Debug, Default)]
pub struct Budget {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    freed: Notify,
}

impl Budget {
    /// Whether another request may be read.
    pub fn has_room(&self) -> bool {
        self.requests.load(Ordering::Acquire) < MAX_REQUESTS && self.bytes.load(Ordering::Acquire) < MAX_BYTES
    }

    pub fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Returns after something was given back; may return without reason.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Takes a request in. Dropping the share gives it back.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Share {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        Share { budget: self.clone(), bytes }
    }
}

/// One request's part of the budget.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    /// Takes `bytes` more.
    pub fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.budget.bytes.fetch_add(bytes, Ordering::AcqRel);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.requests.fetch_sub(1, Ordering::AcqRel);
        self.budget.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.budget.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_stopped_by_count_and_by_bytes() {
        let budget = Arc::new(Budget::default());
        let mut shares: Vec<_> = (0..MAX_REQUESTS).map(|_| budget.take(1)).collect();
        assert!(!budget.has_room());
        shares.pop();
        assert!(budget.has_room());
        let large = budget.take(MAX_BYTES);
        shares.truncate(1);
        assert!(!budget.has_room());
        drop(large);
        assert!(budget.has_room() && !budget.is_idle());
        shares.clear();
        assert!(budget.is_idle());
    }
}
