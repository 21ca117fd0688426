//! The `timeout_ms` of admin requests: how long the client waits for the answer.
//!
//! As in Kafka, the time limit ends the wait and not the work: what was begun goes on, and the client is told
//! REQUEST_TIMED_OUT (7). What was not begun by then is not begun at all.

use super::refusal::Refusal;
use crate::rt::Clock;
use kafka_protocol::ResponseError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// For clients that give no time (0 or less; old librdkafka does so, meaning "answer at once", and hides
/// the REQUEST_TIMED_OUT that it expects). The true outcome, which nearly always comes soon, serves them better.
const UNSAID: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Deadline {
    clock: Arc<dyn Clock>,
    end: Duration,
}

impl Deadline {
    pub fn new(clock: &Arc<dyn Clock>, timeout_ms: i32) -> Self {
        let patience = match u64::try_from(timeout_ms) {
            Ok(ms) if ms > 0 => Duration::from_millis(ms),
            _ => UNSAID,
        };
        Deadline { clock: clock.clone(), end: clock.boot().saturating_add(patience) }
    }

    fn left(&self) -> Duration {
        self.end.saturating_sub(self.clock.boot())
    }

    /// Runs `work` to its end, and waits for it until the deadline.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let left = self.left();
        if left.is_zero() {
            return Err(Refusal::new(
                ResponseError::RequestTimedOut,
                "the time was up before this was begun",
            ));
        }
        match tokio::time::timeout(left, tokio::spawn(work)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(e)) => {
                tracing::error!(error = %e, "an admin operation ended unfinished");
                Err(Refusal::new(ResponseError::UnknownServerError, "the operation ended unfinished"))
            }
            Err(_) => {
                let message = "the time is up; what was begun goes on";
                Err(Refusal::new(ResponseError::RequestTimedOut, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Default)]
    struct HandClock(Mutex<Duration>);

    impl Clock for HandClock {
        fn boot(&self) -> Duration {
            *self.0.lock()
        }

        fn wall_ms(&self) -> i64 {
            0
        }
    }

    #[tokio::test]
    async fn what_is_not_begun_in_time_is_not_begun_at_all() {
        let hand = Arc::new(HandClock::default());
        let clock: Arc<dyn Clock> = hand.clone();
        let deadline = Deadline::new(&clock, 50);
        let ran = Arc::new(Mutex::new(0));
        let count = |ran: Arc<Mutex<i32>>| async move {
            *ran.lock() += 1;
            Ok(())
        };

        assert_eq!(deadline.run(count(ran.clone())).await, Ok(()));
        *hand.0.lock() = Duration::from_millis(50);
        let late = deadline.run(count(ran.clone())).await.unwrap_err();

        assert_eq!(late.error, ResponseError::RequestTimedOut);
        assert_eq!(*ran.lock(), 1);
    }

    #[tokio::test]
    async fn what_was_begun_goes_on_though_the_client_is_told_that_time_is_up() {
        let clock: Arc<dyn Clock> = Arc::new(HandClock::default());
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let (done, finished) = tokio::sync::oneshot::channel::<()>();
        let slow = async move {
            let _ = wait.await;
            let _ = done.send(());
            Ok(())
        };

        let late = Deadline::new(&clock, 10).run(slow).await.unwrap_err();
        assert_eq!(late.error, ResponseError::RequestTimedOut);
        go.send(()).unwrap();
        finished.await.unwrap();
    }
}
