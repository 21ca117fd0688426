//! One file per Kafka API: decode → decide → encode. No storage logic, no file handling.
//!
//! Every handler has the shape `pub async fn handle(cx: &RequestContext, req: XRequest) -> XResponse`;
//! [`dispatch`] decodes by version, calls it and encodes. What must be started in the order of a
//! connection's requests (produce) is split into a start and a finish.

pub mod alter_configs;
pub mod api_versions;
mod assignment;
mod batches;
mod closing;
mod config_resource;
mod config_view;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod create_partitions;
pub mod create_topics;
mod deadline;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod dispatch;
pub mod fetch;
pub mod find_coordinator;
mod first_error;
mod frame;
mod group_terms;
pub mod guard;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
mod leaders;
pub mod leave_group;
pub mod list_groups;
pub mod list_offsets;
pub mod list_partition_reassignments;
pub mod members;
mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
mod operations;
mod partition_budget;
mod partitions;
mod patience;
pub mod produce;
mod refusal;
mod served;
mod side_by_side;
pub mod sync_group;
pub mod transactions;
pub mod verification;

pub use closing::Closing;
pub use dispatch::{begin, Hangup, Peer, Reply, Started, Work};
pub use frame::Answer;
pub use served::Served;

use crate::cluster::Cluster;
use crate::config::BrokerConfig;
use crate::coordinator::transactions::Transactions;
use crate::coordinator::{Groups, ProducerIds};
use crate::metrics::Metrics;
use crate::rt::Env;
use std::net::IpAddr;
use std::sync::Arc;

/// What handlers work on: one per broker.
pub struct Broker {
    /// What fetch responses hold in memory.
    pub fetched: fetch::Held,
    pub config: Arc<BrokerConfig>,
    pub env: Env,
    pub cluster: Arc<Cluster>,
    pub groups: Arc<Groups>,
    pub producer_ids: Arc<ProducerIds>,
    pub transactions: Arc<Transactions>,
    /// Those whom transactions concern, wherever they are led.
    pub peers: Arc<transactions::Peers>,
    /// Transactional batches whose coordinator is being asked.
    pub lines: verification::Lines,
    pub metrics: Arc<Metrics>,
    /// Where clients reach this broker: what Metadata, FindCoordinator and DescribeCluster say.
    pub advertised: (String, u16),
    /// Set once the broker stops: long polls answer at once.
    pub closing: Arc<Closing>,
}

/// Who asks, and in which version.
#[derive(Clone)]
pub struct RequestContext {
    pub broker: Arc<Broker>,
    pub api_version: i16,
    pub client_id: String,
    pub client_host: IpAddr,
}
