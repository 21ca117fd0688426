//! Membership, lease, controller and the cluster's metadata.

mod admin;
mod image;

pub use admin::{AdminError, Cluster, NewTopic};
pub use image::{ClusterImage, TopicImage};
