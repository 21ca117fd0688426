//! What one connection may have under way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use tokio::sync::Notify;

/// Requests that are under way on one connection. Reached, reading stops until a response is written:
/// back-pressure is TCP's. Kafka's clients keep 5 (Java) or up to 1,000,000 (librdkafka) under way.
const MAX_REQUESTS: usize = 256;
/// Bytes of requests and of the responses they may bring. One request more than this is let in, however large.
const MAX_BYTES: usize = 128 << 20;

/// Requests that are in work over all connections (`queued.max.request.bytes`).
#[derive(Debug)]
pub struct Queued {
    bytes: AtomicUsize,
    max: usize,
    freed: Notify,
}

impl Queued {
    /// `None` is unbounded.
    pub fn new(max: Option<usize>) -> Self {
        Queued { bytes: AtomicUsize::new(0), max: max.unwrap_or(usize::MAX), freed: Notify::new() }
    }

    fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < self.max
    }
}

/// Counts what is under way; shared by the half that reads and the half that writes.
#[derive(Debug)]
pub struct Budget {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    freed: Notify,
    queued: Arc<Queued>,
}

impl Budget {
    pub fn new(queued: Arc<Queued>) -> Self {
        Budget { requests: AtomicUsize::new(0), bytes: AtomicUsize::new(0), freed: Notify::new(), queued }
    }

    /// Whether another request may be taken in.
    pub fn has_room(&self) -> bool {
        self.requests.load(Ordering::Acquire) < MAX_REQUESTS
            && self.bytes.load(Ordering::Acquire) < MAX_BYTES
            && self.queued.has_room()
    }

    pub fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    #[cfg(test)]
    pub fn requests_under_way(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }

    /// Returns when there is room.
    pub async fn room(&self) {
        loop {
            let mut elsewhere = std::pin::pin!(self.queued.freed.notified());
            // Registered before the look, so that nothing is freed unseen in between.
            elsewhere.as_mut().enable();
            if self.has_room() {
                return;
            }
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                () = elsewhere => {}
            }
        }
    }

    /// Takes a request in. Dropping the share gives it back.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Share {
        self.requests.fetch_add(1, Ordering::AcqRel);
        let mut share = Share { budget: self.clone(), request: 0, response: 0 };
        share.grow(bytes, 0);
        share
    }
}

/// One request's part of the budget.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    request: usize,
    response: usize,
}

impl Share {
    /// Takes more: bytes that the request holds, and bytes that its response may have. The latter count for
    /// this connection only: an idle consumer's long poll may bring much and holds nothing.
    pub fn grow(&mut self, request: usize, response: usize) {
        self.request += request;
        self.response += response;
        self.budget.bytes.fetch_add(request + response, Ordering::AcqRel);
        self.budget.queued.bytes.fetch_add(request, Ordering::AcqRel);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Budget { requests, bytes, freed, queued } = &*self.budget;
        requests.fetch_sub(1, Ordering::AcqRel);
        bytes.fetch_sub(self.request + self.response, Ordering::AcqRel);
        freed.notify_one();
        let was = queued.bytes.fetch_sub(self.request, Ordering::AcqRel);
        if was >= queued.max {
            queued.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
pub(super) fn unbounded() -> Arc<Budget> {
    Arc::new(Budget::new(Arc::new(Queued::new(None))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_stopped_by_count_and_by_bytes() {
        let budget = unbounded();
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

    #[test]
    fn long_polls_that_may_bring_much_hold_up_no_other_connection() {
        let queued = Arc::new(Queued::new(Some(100)));
        let [one, other] = [(); 2].map(|()| Arc::new(Budget::new(queued.clone())));
        let mut poll = one.take(50);
        poll.grow(0, MAX_BYTES);
        assert!(!one.has_room());
        assert!(other.has_room());
    }

    #[tokio::test]
    async fn a_request_waits_for_those_of_other_connections() {
        let queued = Arc::new(Queued::new(Some(100)));
        let [one, other] = [(); 2].map(|()| Arc::new(Budget::new(queued.clone())));
        let first = one.take(90);
        assert!(other.has_room());
        let second = one.take(20);
        assert!(!other.has_room());
        let waiting = tokio::spawn(async move { other.room().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        drop(first);
    }
}
