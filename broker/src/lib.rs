//! Highwater: a Kafka-wire-compatible broker for one shared volume.
//!
//! Modules, in the order that a request travels. A module imports only what
//! stands below it; `types`, `config` and `metrics` are leaves that all may use.
//!
//! ```text
//! cli/          serve, dump-log, verify
//! server/       listener, framing, dispatch, connection limits
//! api/          one file per Kafka API: decode → decide → encode
//! coordinator/  groups, offsets, producer ids
//! cluster/      lease, heartbeat, controller, metadata, fencing
//! storage/      log, segment, committer, recovery, manifest, retention
//! volume/       the file system as storage sees it
//! rt/           time, tasks, randomness, host: the one place that knows of madsim
//! ```

#[deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
pub mod api;
pub mod cluster;
pub mod config;
pub mod coordinator;
pub mod metrics;
pub mod rt;
#[deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
pub mod server;
#[deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
pub mod storage;
pub mod types;
#[deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
pub mod volume;
