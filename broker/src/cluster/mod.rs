//! Membership, lease, controller and the cluster's metadata.
//!
//! Brokers talk to each other through the volume only. What lies there, and who may write which file, is
//! in `layout`; the parts are:
//!
//! - `lease`: the right to act, and how it ends; `keeper` writes the heartbeats that extend it;
//! - `membership`: who is alive, and how a broker id's next lease is taken; `watch` remembers what was seen on the way;
//! - `election`: who may propose; `controller` proposes, `metadata` says what, `store` makes it durable;
//! - `deleter`: frees the disk of deleted topics;
//! - `inspect`: looks at all these files offline;
//! - `format`: what a data directory is; `core` puts all together; `admin` is what the rest calls.
//!
//! For now the cluster is of one broker: a second live id on the volume is refused at start.

mod admin;
mod controller;
mod core;
mod deleter;
mod election;
mod error;
mod files;
mod format;
mod heartbeat;
mod image;
pub mod inspect;
mod keeper;
mod layout;
mod lease;
mod membership;
mod metadata;
mod names;
mod partitions;
mod store;
mod watch;

#[cfg(test)]
mod tests;

pub use admin::{AdminError, Cluster, ConfigChange, NewTopic};
pub use election::{Candidate, ClaimFiles, Election, ElectionError};
pub use error::StartError;
pub use image::{ClusterImage, TopicImage};
pub use lease::{Lease, LeaseState, LeaseTerms};
pub use names::check_topic_name;
