//! Membership, lease, controller and the cluster's metadata.
//!
//! Brokers talk to each other through the volume only. What lies there, and who may write which file, is
//! in `layout`; the parts are:
//!
//! - `lease`: the right to act, and how it ends; `keeper` writes the heartbeats that extend it;
//! - `membership`: how a broker id's next lease is taken; `roster`: who else is there;
//! - `election`: who may propose; `seat`: when; `office`: who won proposes, `metadata` says what, `assign` who leads what,
//!   `store` makes it durable; `controller` shows it to all tasks of a broker, and `follower` tells it of the others' changes;
//! - `requests`: what other brokers ask of the controller;
//! - `deleter`: frees the disk of deleted topics;
//! - `inspect`: looks at all these files offline, `strays` for directories that nobody owns; `status`: how the cluster
//!   stands, by all of that;
//! - `format`: what a data directory is; `core` puts all together; `admin` is what the rest calls.
//!
//! One broker alone is a cluster of one, by the same code.

mod admin;
mod assign;
mod controller;
mod core;
mod deleter;
mod disown;
mod election;
mod error;
mod files;
mod follower;
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
mod office;
mod partitions;
mod raised;
mod requests;
pub mod roster;
mod seat;
pub mod status;
mod store;
pub mod strays;
mod watch;

#[cfg(test)]
mod tests;

pub use admin::{AdminError, Cluster, ConfigChange, NewTopic};
pub use assign::SLOTS;
pub use election::{Candidate, ClaimFiles, Election, ElectionError};
pub use error::StartError;
pub use image::{ClusterImage, TopicImage};
pub use lease::{Lease, LeaseState, LeaseTerms};
pub use names::check_topic_name;
