//! A host's clocks: they drift against true time, and the wall clock jumps.

use highwater::rt::Clock;
use parking_lot::Mutex;
use std::time::Duration;

/// Wall time at true time zero, in milliseconds since the Unix epoch.
const EPOCH_MS: f64 = 1_700_000_000_000.0;

/// True time since the life began.
pub fn now() -> Duration {
    madsim::time::TimeHandle::current().elapsed()
}

/// The clocks of one host. Its processes share them.
#[derive(Debug)]
pub struct HostClock {
    /// How much faster than true time, as a factor near 1.
    rate: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// True time of the last boot.
    booted: Duration,
    /// What CLOCK_BOOTTIME said a moment after that.
    uptime: Duration,
    /// How far the wall clock was put ahead, in milliseconds.
    stepped: f64,
}

impl HostClock {
    pub fn new(drift_ppm: f64, uptime: Duration) -> Self {
        let state = State { booted: now(), uptime, stepped: 0.0 };
        HostClock { rate: 1.0 + drift_ppm / 1e6, state: Mutex::new(state) }
    }

    /// The host starts anew: its uptime is short again.
    pub fn reboot(&self) {
        let mut s = self.state.lock();
        s.booted = now();
        s.uptime = Duration::from_secs(8);
    }

    /// Puts the wall clock ahead, or back.
    pub fn step(&self, seconds: f64) {
        self.state.lock().stepped += seconds * 1000.0;
    }
}

impl Clock for HostClock {
    fn boot(&self) -> Duration {
        let s = self.state.lock();
        s.uptime + now().saturating_sub(s.booted).mul_f64(self.rate)
    }

    fn wall_ms(&self) -> i64 {
        (EPOCH_MS + now().as_secs_f64() * 1000.0 * self.rate + self.state.lock().stepped) as i64
    }
}
