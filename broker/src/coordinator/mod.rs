//! Coordinators: groups with their offsets, and producer ids.

mod groups;
mod producer_ids;

pub use groups::Groups;
pub use producer_ids::{ProducerIdError, ProducerIds};
