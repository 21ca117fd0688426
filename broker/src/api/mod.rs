//! One file per Kafka API: decode → decide → encode. No storage logic, no file handling.
//!
//! Every handler has the shape `pub async fn handle(cx: &RequestContext, req: XRequest) -> XResponse`;
//! `dispatch` decodes by version, calls it and encodes. What needs to be started in the order of a connection's requests
//! (produce) is split into a start and a finish.

use crate::cluster::Cluster;
use crate::config::BrokerConfig;
use crate::coordinator::{Groups, ProducerIds};
use crate::metrics::Metrics;
use crate::rt::Env;
use std::net::IpAddr;
use std::sync::Arc;

/// What handlers work on: one per broker.
pub struct Broker {
    pub config: Arc<BrokerConfig>,
    pub env: Env,
    pub cluster: Arc<Cluster>,
    pub groups: Arc<Groups>,
    pub producer_ids: Arc<ProducerIds>,
    pub metrics: Arc<Metrics>,
}

/// Who asks, and in which version.
#[derive(Clone)]
pub struct RequestContext {
    pub broker: Arc<Broker>,
    pub api_version: i16,
    pub client_id: String,
    pub client_host: IpAddr,
}
