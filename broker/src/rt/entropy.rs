//! Randomness, handed in: topic ids, incarnations, member ids and jitter come from here.

use parking_lot::Mutex;
use rand::{rngs::SmallRng, RngCore, SeedableRng};

/// A source of random numbers.
pub trait Entropy: Send + Sync + 'static {
    fn u64(&self) -> u64;

    /// A random (version 4) UUID that is never one of those Kafka reserves (KIP-516: the zero
    /// id, the metadata topic's, and the two that begin a directory id).
    fn uuid(&self) -> uuid::Uuid {
        loop {
            let b = [self.u64().to_be_bytes(), self.u64().to_be_bytes()].concat();
            let mut raw = [0u8; 16];
            raw.copy_from_slice(&b);
            let id = uuid::Builder::from_random_bytes(raw).into_uuid();
            if id.as_u128() > 100 {
                return id;
            }
        }
    }
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn u64(&self) -> u64 {
        // Under madsim, getrandom(2) is replaced by the seed's generator.
        rand::rngs::OsRng.next_u64()
    }
}

/// A reproducible source, for tests and the simulator.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<SmallRng>);

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        SeededEntropy(Mutex::new(SmallRng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn u64(&self) -> u64 {
        self.0.lock().next_u64()
    }
}
