//! The line that says how far it is.

use crate::life::Outcome;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Counts lives, and says so on standard error: one line that is rewritten on a terminal, one now and then
/// elsewhere.
pub struct Progress {
    began: Instant,
    said: Option<Instant>,
    terminal: bool,
    total: u64,
    pub done: u64,
    pub failed: u64,
    sim_ms: u64,
}

impl Progress {
    pub fn new(total: u64) -> Progress {
        Progress {
            began: Instant::now(),
            said: None,
            terminal: std::io::stderr().is_terminal(),
            total,
            done: 0,
            failed: 0,
            sim_ms: 0,
        }
    }

    pub fn count(&mut self, outcome: &Outcome, failed: bool) {
        self.done += 1;
        self.failed += u64::from(failed);
        self.sim_ms += outcome.sim_ms;
        let every = if self.terminal { Duration::from_millis(200) } else { Duration::from_secs(20) };
        if self.said.unwrap_or(self.began).elapsed() >= every {
            self.said = Some(Instant::now());
            self.say(&outcome.scenario);
        }
    }

    fn say(&self, scenario: &str) {
        let (start, end) = if self.terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        let left = self.total.saturating_sub(self.done) as f64 / self.rate().max(0.001);
        eprint!(
            "{start}{} of {} lives, {} failed, {:.1} seeds/s, {} simulated, {} to go ({scenario}){end}",
            self.done,
            self.total,
            self.failed,
            self.rate(),
            span(self.sim_ms as f64 / 1000.0),
            span(left),
        );
        let _ = std::io::stderr().flush();
    }

    /// Lives per second of real time.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.began.elapsed().as_secs_f64().max(0.001)
    }

    /// Takes the line away, and says what it all came to.
    pub fn end(&self) -> String {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        let real = self.began.elapsed().as_secs_f64();
        format!(
            "{} lives, {} failed, in {}: {:.1} seeds/s, {} simulated ({:.0} times real time)",
            self.done,
            self.failed,
            span(real),
            self.rate(),
            span(self.sim_ms as f64 / 1000.0),
            self.sim_ms as f64 / 1000.0 / real.max(0.001),
        )
    }
}

/// Seconds, for people.
fn span(seconds: f64) -> String {
    match seconds as u64 {
        s if s < 100 => format!("{seconds:.1} s"),
        s if s < 6000 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{:.1} h", s as f64 / 3600.0),
    }
}
