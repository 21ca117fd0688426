//! Membership, lease, controller and the cluster's metadata.

mod admin;
mod image;
mod names;

pub use admin::{AdminError, Cluster, NewTopic};
pub use image::{ClusterImage, TopicImage};
pub use names::check_topic_name;
