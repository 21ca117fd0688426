//! Chance without state: a number depends on the seed and on what it is drawn for, and on no draw
//! before it. So leaving out one fault, or one request, leaves the draws of all others as they were.

use super::options::Span;
use std::time::Duration;

/// A place in the tree of draws.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u64);

/// The finisher of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Draw {
    pub fn new(seed: u64) -> Self {
        Draw(mix(seed))
    }

    /// The branch for one use, by name.
    pub fn of(self, what: &str) -> Self {
        Draw(what.bytes().fold(self.0, |h, b| mix(h ^ u64::from(b))))
    }

    /// The branch with that number.
    pub fn at(self, n: u64) -> Self {
        Draw(mix(self.0 ^ mix(n)))
    }

    pub fn u64(self) -> u64 {
        self.0
    }

    /// A whole number below `n`; 0 if `n` is 0.
    pub fn below(self, n: u64) -> u64 {
        self.0.checked_rem(n).unwrap_or(0)
    }

    /// From 0 to 1, without 1.
    pub fn unit(self) -> f64 {
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(self, p: f64) -> bool {
        self.unit() < p
    }

    pub fn span(self, span: Span) -> Duration {
        millis(span.0 + (span.1 - span.0).max(0.0) * self.unit())
    }
}

/// Milliseconds; negative counts as none.
pub fn millis(ms: f64) -> Duration {
    Duration::from_nanos((ms.max(0.0) * 1e6) as u64)
}
