//! The word that the broker stops.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Said once, heard by all. Waiters are woken in the order in which they came, so that a simulated
/// run replays (tokio's `watch` wakes them in a random order).
#[derive(Debug, Default)]
pub struct Closing {
    said: AtomicBool,
    notify: Notify,
}

impl Closing {
    pub fn say(&self) {
        self.said.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub fn is_said(&self) -> bool {
        self.said.load(Ordering::Acquire)
    }

    /// Returns once [`Closing::say`] was called.
    pub async fn heard(&self) {
        let notified = self.notify.notified();
        tokio::pin!(notified);
        // Registered before the flag is read, so that a word said in between is not missed.
        notified.as_mut().enable();
        if !self.is_said() {
            notified.await;
        }
    }
}
