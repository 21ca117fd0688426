//! Time, handed in: no code outside `rt/` asks the system for it.

use std::time::Duration;

/// A broker's clocks. Two brokers' clocks are never compared.
pub trait Clock: Send + Sync + 'static {
    /// Time since boot, suspended time included (CLOCK_BOOTTIME, clock_gettime(2)).
    /// Leases, timeouts and ages are measured with it.
    fn boot(&self) -> Duration;

    /// Wall time in milliseconds since the Unix epoch. For record timestamps and retention only.
    fn wall_ms(&self) -> i64;
}

/// The clocks of this process. Under madsim they are the simulated node's.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

#[cfg(not(madsim))]
impl Clock for OsClock {
    fn boot(&self) -> Duration {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(t.tv_sec.max(0) as u64, t.tv_nsec.max(0) as u32)
    }

    fn wall_ms(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }
}

#[cfg(madsim)]
impl Clock for OsClock {
    fn boot(&self) -> Duration {
        madsim::time::TimeHandle::current().elapsed()
    }

    fn wall_ms(&self) -> i64 {
        // madsim replaces SystemTime::now with the simulated time.
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }
}
