//! Requests that take turns: each starts when the one before it on the connection has ended.
//!
//! A client may send a second offset commit before the first is answered; Kafka, which works on one request
//! of a connection at a time, applies them in that order, and so does this.

use crate::api::{Hangup, Reply};
use tokio::sync::oneshot;

/// The line of one connection.
#[derive(Debug, Default)]
pub struct Turns {
    last: Option<oneshot::Receiver<()>>,
}

impl Turns {
    /// Starts `work` on a task of its own once its turn has come. The task goes on to its end even if
    /// the returned reply is dropped.
    pub fn run(&mut self, work: Reply) -> Reply {
        let (ended, when_ended) = oneshot::channel::<()>();
        let before = self.last.replace(when_ended);
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                // An error says that the sender was dropped: that task ended, too.
                let _ = before.await;
            }
            let answer = work.await;
            drop(ended);
            answer
        });
        Box::pin(async move { task.await.unwrap_or_else(|e| Err(died(e))) })
    }
}

fn died(e: impl std::fmt::Display) -> Hangup {
    Hangup::new(format!("the request's task died: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Answer;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test]
    async fn a_slow_request_holds_back_those_behind_it_and_a_dropped_one_still_runs() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut turns = Turns::default();
        let mut work = |name: &'static str, ms: u64| {
            let log = log.clone();
            turns.run(Box::pin(async move {
                log.lock().push(format!("{name} starts"));
                tokio::time::sleep(Duration::from_millis(ms)).await;
                log.lock().push(format!("{name} ends"));
                Ok(Answer::Silence)
            }))
        };
        drop(work("first", 30));
        let second = work("second", 1);
        second.await.unwrap();
        assert_eq!(*log.lock(), ["first starts", "first ends", "second starts", "second ends"]);
    }

    #[tokio::test]
    async fn a_request_that_panics_hangs_up_and_does_not_hold_the_line() {
        let mut turns = Turns::default();
        let first = turns.run(Box::pin(async { panic!("on purpose") }));
        let second = turns.run(Box::pin(async { Ok(Answer::Silence) }));
        assert!(first.await.is_err());
        assert!(second.await.is_ok());
    }
}
