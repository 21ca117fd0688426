//! What the coordinator needs of the broker's configuration.

use super::group::Limits;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct GroupSettings {
    pub limits: Limits,
    /// `offset.metadata.max.bytes`
    pub metadata_max: usize,
    /// `offsets.retention.minutes`
    pub retention: Duration,
    /// `offsets.retention.check.interval.ms`
    pub sweep_every: Duration,
    /// The longest that a request waits for its records to be durable: the storage watchdog and a second.
    pub patience: Duration,
    /// A slot's log is trimmed once it has grown past this, and past four times its state.
    pub trim_bytes: u64,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            limits: Limits::default(),
            metadata_max: 4096,
            retention: Duration::from_secs(7 * 24 * 3600),
            sweep_every: Duration::from_secs(600),
            patience: Duration::from_secs(31),
            trim_bytes: 1 << 20,
        }
    }
}
