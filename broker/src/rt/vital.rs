//! Tasks without which a process cannot go on.

use futures::FutureExt;
use parking_lot::Mutex;
use std::any::Any;
use std::future::Future;
use std::panic::{resume_unwind, AssertUnwindSafe};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Starts tasks, and says when one ended that should not have.
#[derive(Debug, Default)]
pub struct Vital {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct State {
    may_end: bool,
    failed: Option<String>,
}

impl Vital {
    /// Runs `work` as a task. That it panics is told by [`Vital::failed`] at any time; that it returns, until
    /// [`Vital::may_end`] was called. That it is aborted is never told.
    pub fn spawn(
        self: &Arc<Self>,
        name: impl Into<String>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let (vital, name) = (self.clone(), name.into());
        tokio::spawn(async move {
            // Nothing of it is used afterwards but to say how it ended.
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(()) => vital.returned(&name),
                Err(panic) => {
                    vital.fail(format!("{name} panicked: {}", message(&*panic)));
                    resume_unwind(panic)
                }
            }
        })
    }

    /// From now on tasks return because they were told to.
    pub fn may_end(&self) {
        self.state.lock().may_end = true;
    }

    /// Returns once a task ended that should not have, and says which and why: the first one.
    pub async fn failed(&self) -> String {
        loop {
            let told = self.notify.notified();
            tokio::pin!(told);
            // Registered before the look, so that nothing is told unseen in between.
            told.as_mut().enable();
            if let Some(why) = self.state.lock().failed.clone() {
                return why;
            }
            told.await;
        }
    }

    fn returned(&self, name: &str) {
        if !self.state.lock().may_end {
            self.fail(format!("{name} ended without being told to"));
        }
    }

    fn fail(&self, why: String) {
        tracing::error!("{why}");
        self.state.lock().failed.get_or_insert(why);
        self.notify.notify_waiters();
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

// A panic ends a simulated run.
#[cfg(all(test, not(madsim)))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_by_itself_is_told_of_and_one_that_may_end_is_not() {
        let vital = Arc::new(Vital::default());
        vital.spawn("the clerk", async {}).await.unwrap();
        assert_eq!(vital.failed().await, "the clerk ended without being told to");

        let vital = Arc::new(Vital::default());
        vital.spawn("the runner", std::future::pending()).abort();
        vital.may_end();
        vital.spawn("the clerk", async {}).await.unwrap();
        assert_eq!(vital.failed().now_or_never(), None);
        assert!(vital.spawn("the guard", async { panic!("on {}", "purpose") }).await.is_err());
        assert_eq!(vital.failed().await, "the guard panicked: on purpose");
    }
}
