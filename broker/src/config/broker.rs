//! A broker's configuration.

use super::{StorageConfig, TopicConfig};
use crate::types::BrokerId;
use std::time::Duration;

/// A broker's configuration, resolved and checked.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// `broker.id` (alias `node.id`)
    pub broker_id: BrokerId,
    /// `listeners`: host and port, port 0 for any
    pub listen: String,
    /// `advertised.listeners`; `None`: as bound
    pub advertised: Option<(String, u16)>,
    /// `log.dirs`: exactly one directory
    pub data: std::path::PathBuf,
    /// `metrics.listener`; `None` is off
    pub metrics_listen: Option<String>,
    /// `num.partitions`
    pub num_partitions: i32,
    /// `auto.create.topics.enable`
    pub auto_create_topics: bool,
    /// `socket.request.max.bytes`
    pub socket_request_max_bytes: usize,
    /// `max.connections`
    pub max_connections: usize,
    /// `connections.max.idle.ms`
    pub connections_max_idle: Duration,
    /// `broker.lease.ms`
    pub lease: Duration,
    /// Topic defaults as the broker's `log.*` keys give them
    pub topic_defaults: TopicConfig,
    pub storage: StorageConfig,
}
