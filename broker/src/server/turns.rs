//! Requests that take turns: each starts when the one before it on the connection has ended.
//!
//! A client may send a second offset commit before the first is answered; Kafka, which works on one request
//! of a connection at a time, applies them in that order, and so does this.
//!
//! A turn holds its share of the budget for as long as it lasts, though its client may have gone. What has not
//! begun when the client goes is not kept waiting for long: else clients that come and go could pile up requests
//! without end behind one that does not return.

use super::budget::Share;
use crate::api::{Answer, Hangup, Reply};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the request of a client that is gone may wait for its turn. A client that leaves its group and closes
/// the connection at once means it.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the line moves on: `false` is told to those behind a turn that was given up while an earlier one was
/// still under way.
type MovesOn = bool;

/// What became of a turn: the answer, and what it holds of the budget until that is written.
pub type Done = (Result<Answer, Hangup>, Option<Share>);

/// What happens to a turn that has begun when its client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It goes on to its end: a half-done change is worse than one that nobody waits for.
    GoesOn,
    /// It ends: all that it does is wait for others.
    IsGivenUp,
}

/// The line of one connection.
#[derive(Debug, Default)]
pub struct Turns {
    last: Option<oneshot::Receiver<MovesOn>>,
}

impl Turns {
    /// Starts `work` on a task of its own once its turn has come. Dropping the result says that the client is gone.
    pub fn run(
        &mut self,
        work: Reply,
        begun: Begun,
        share: Share,
    ) -> impl std::future::Future<Output = Done> {
        let (ended, when_ended) = oneshot::channel();
        let (here, gone) = oneshot::channel::<()>();
        let before = self.last.replace(when_ended);
        let task = tokio::spawn(async move {
            let mut gone = gone;
            let turn = match before {
                None => Turn::Comes,
                Some(before) => wait_for_turn(before, &mut gone).await,
            };
            let answer = match (turn, begun) {
                (Turn::Never, _) | (Turn::ComesLate, Begun::IsGivenUp) => Err(given_up()),
                (Turn::Comes, Begun::IsGivenUp) => tokio::select! {
                    biased;
                    answer = work => answer,
                    _ = &mut gone => Err(given_up()),
                },
                (_, Begun::GoesOn) => work.await,
            };
            // Nobody may be behind.
            let _ = ended.send(turn != Turn::Never);
            (answer, share)
        });
        async move {
            let _here = here;
            match task.await {
                Ok((answer, share)) => (answer, Some(share)),
                Err(e) => (Err(died(e)), None),
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Comes,
    /// The client is gone already.
    ComesLate,
    Never,
}

async fn wait_for_turn(mut before: oneshot::Receiver<MovesOn>, gone: &mut oneshot::Receiver<()>) -> Turn {
    let (moved, turn) = tokio::select! {
        biased;
        moved = &mut before => (moved, Turn::Comes),
        _ = gone => match tokio::time::timeout(GRACE, before).await {
            Ok(moved) => (moved, Turn::ComesLate),
            Err(_) => return Turn::Never,
        },
    };
    // A sender that was dropped died in its turn: that has ended, too.
    match moved.unwrap_or(true) {
        true => turn,
        false => Turn::Never,
    }
}

fn given_up() -> Hangup {
    Hangup::new("the client is gone")
}

fn died(e: impl std::fmt::Display) -> Hangup {
    Hangup::new(format!("the request's task died: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::budget::{unbounded, Budget};
    use futures::future::FutureExt;
    use parking_lot::Mutex;
    use std::sync::Arc;

    struct Line {
        turns: Turns,
        budget: Arc<Budget>,
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Line {
        fn new() -> Line {
            Line { turns: Turns::default(), budget: unbounded(), log: Arc::default() }
        }

        fn work(&mut self, name: &str, ms: u64, begun: Begun) -> impl std::future::Future<Output = Done> {
            let (name, log) = (name.to_owned(), self.log.clone());
            let work = async move {
                log.lock().push(format!("{name} starts"));
                tokio::time::sleep(Duration::from_millis(ms)).await;
                log.lock().push(format!("{name} ends"));
                Ok(Answer::Silence)
            };
            self.turns.run(work.boxed(), begun, self.budget.take(1))
        }

        fn log(&self) -> Vec<String> {
            self.log.lock().clone()
        }
    }

    /// Past every grace.
    async fn later() {
        tokio::time::sleep(GRACE * 2).await;
    }

    #[tokio::test]
    async fn a_slow_request_holds_back_those_behind_it_and_runs_to_its_end_though_its_client_is_gone() {
        let mut line = Line::new();
        drop(line.work("first", 30, Begun::GoesOn));
        let second = line.work("second", 1, Begun::GoesOn);
        assert!(second.await.0.is_ok());
        assert_eq!(line.log(), ["first starts", "first ends", "second starts", "second ends"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_begun_when_its_client_goes_is_given_up_and_gives_its_room_back() {
        let mut line = Line::new();
        let first = line.work("first", 60_000, Begun::GoesOn);
        let behind: Vec<_> = (0..3).map(|_| line.work("behind", 1, Begun::GoesOn)).collect();
        tokio::task::yield_now().await;
        drop((first, behind));
        later().await;
        assert_eq!(line.log(), ["first starts"], "nothing overtakes it");
        assert_eq!(line.budget.requests_under_way(), 1, "what goes on keeps its share");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(line.log(), ["first starts", "first ends"]);
        assert!(line.budget.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_for_others_goes_with_its_client_and_a_leave_behind_it_is_taken() {
        let mut line = Line::new();
        let join = line.work("join", 3_600_000, Begun::IsGivenUp);
        let leave = line.work("leave", 1, Begun::GoesOn);
        tokio::task::yield_now().await;
        drop((join, leave));
        later().await;
        assert_eq!(line.log(), ["join starts", "leave starts", "leave ends"]);
        assert!(line.budget.is_idle());
    }

    #[tokio::test]
    async fn a_request_that_panics_hangs_up_and_does_not_hold_the_line() {
        let mut line = Line::new();
        let first =
            line.turns.run(Box::pin(async { panic!("on purpose") }), Begun::GoesOn, line.budget.take(1));
        let second = line.work("second", 1, Begun::GoesOn);
        assert!(first.await.0.is_err());
        assert!(second.await.0.is_ok());
        assert!(line.budget.is_idle());
    }
}
