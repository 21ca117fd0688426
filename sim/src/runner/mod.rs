//! Lives by the thousand: one process for each, as many at a time as there are cores.
//!
//! A life must have a process of its own: what is left in one (hash seeds, statics, the order of task ids)
//! must not reach the next one, or the same seed would not give the same history.

#![allow(clippy::disallowed_methods)] // the parent lives in real time, and starts real processes

mod child;
mod progress;

pub use child::{live, Ask};
pub use progress::Progress;

use crate::life::Outcome;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Mutex};

/// Lives all of `asks`, `jobs` at a time, and hands each outcome to `each` as it comes; `false` ends it,
/// when the lives under way have ended. Outcomes come in no particular order.
pub fn run(asks: impl Iterator<Item = Ask> + Send, jobs: usize, mut each: impl FnMut(&Ask, Outcome) -> bool) {
    let asks = Mutex::new(asks);
    let stop = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let tell = tell.clone();
            let (asks, stop) = (&asks, &stop);
            scope.spawn(move || loop {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let next = asks.lock().expect("no thread panics with it").next();
                let Some(ask) = next else { return };
                let outcome = child::live(&ask);
                if tell.send((ask, outcome)).is_err() {
                    return;
                }
            });
        }
        drop(tell);
        while let Ok((ask, outcome)) = told.recv() {
            if !stop.load(Ordering::Relaxed) && !each(&ask, outcome) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
}

/// As many lives at a time as there are cores.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
