//! Coordinators: groups with their offsets, transactions, and producer ids.
//!
//! # Why groups lie in slots with a log each
//!
//! The design speaks of a file per group and epoch, replaced atomically. We keep groups in [`SLOTS`] slots
//! instead, and a slot's state in a log of its own, held by the storage engine as if it were a partition
//! (`__cluster/groups/{slot}`). What that buys:
//!
//! - a commit costs one write and one sync, and commits that arrive together share them, as produces do;
//!   replacing a file costs create, write, sync, rename and the directory's sync: five round trips;
//! - claims, epochs, seals, the fence after the durable step, torn tails, the stalled sync: all that has
//!   one implementation, and `dump-log` reads it;
//! - a group id is only ever a field of a record. There is no file name that `../../x` could become;
//! - a group that commits to ten thousand partitions rewrites only the one that changed.
//!
//! What it costs: a snapshot now and then, so that the log can be trimmed, and reading the log at a load.
//!
//! What is kept: offsets, and each group's generation, members and assignment, so that neither a restart nor
//! a takeover makes anybody rebalance. What is not kept: ids promised to members that never joined, who is
//! in the middle of joining, and how much of a session timeout has passed.
//!
//! Transactional ids lie in the same slots and logs ([`transaction`], [`transactions`]).
//!
//! There are two protocols of groups, each a state machine of its own: the classic one, in which a member assigns
//! ([`group`]), and that of KIP-848, in which the coordinator does ([`consumer`]).

pub(crate) mod hex;

mod any;
pub mod consumer;
mod consumer_groups;
mod durable;
pub mod group;
mod group_admin;
mod groups;
pub mod inspect;
mod pending;
mod producer_ids;
mod record;
mod serving;
mod settings;
mod slot;
mod slot_log;
pub mod transaction;
pub mod transactions;

#[cfg(test)]
mod fake_log;
#[cfg(test)]
mod tests;

pub use consumer_groups::{ConsumerDescription, ConsumerLook};
pub use durable::Place;
pub use group_admin::{CommittedOffset, Description, GroupKind, Listed, OffsetDeletion};
pub use groups::{Groups, Topics};
pub use producer_ids::{ProducerIdError, ProducerIds};
pub use record::{Committed, MAX_GROUP_BYTES};
pub use serving::CommitInput;
pub use settings::GroupSettings;
pub use transactions::Transactions;

/// How many slots there are. Part of the format: every slot's log says it, and one that says otherwise is
/// not loaded.
pub use crate::cluster::SLOTS;

/// The hash that spreads group ids over slots. Part of the format, too.
pub const HASH: &str = "crc32c";

/// The slot of a group or of a transactional id.
pub fn slot_of(id: &str) -> u32 {
    crc32c::crc32c(id.as_bytes()) % SLOTS
}
