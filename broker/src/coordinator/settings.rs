//! What the coordinator needs of the broker's configuration.

use super::consumer::{Assignor, ConsumerLimits};
use super::group::Limits;
use crate::config::{GroupConfig, StorageConfig};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct GroupSettings {
    pub limits: Limits,
    pub consumer: ConsumerLimits,
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

impl GroupSettings {
    pub fn new(groups: &GroupConfig, storage: &StorageConfig) -> Self {
        GroupSettings {
            limits: Limits {
                min_session: groups.min_session_timeout,
                max_session: groups.max_session_timeout,
                initial_delay: groups.initial_rebalance_delay,
                max_size: groups.max_size,
            },
            consumer: ConsumerLimits {
                session: groups.consumer_session_timeout,
                heartbeat: groups.consumer_heartbeat_interval,
                max_size: groups.consumer_max_size,
                assignors: groups.consumer_assignors.iter().filter_map(|n| Assignor::from_name(n)).collect(),
            },
            metadata_max: groups.offset_metadata_max_bytes,
            retention: groups.offsets_retention,
            sweep_every: groups.offsets_retention_check,
            patience: storage.sync_timeout + Duration::from_secs(1),
            trim_bytes: 1 << 20,
        }
    }
}
