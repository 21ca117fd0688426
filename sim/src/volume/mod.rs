//! A model of one volume that many hosts share: one server, many clients, each with a page cache.
//!
//! ```text
//! process (a `Volume`)  ->  host: page cache, believed names and attributes  ->  server: memory  ->  media
//! ```
//!
//! A process dies and leaves its host's dirty pages behind, which the host writes back later. A host
//! loses power and its cache is gone. The server restarts and forgets what it had not committed. What
//! lies on the media survives everything but bit rot.
//!
//! What is played, over NFS ([`Kind::Nfs`]):
//!
//! - a write goes to the host's cache; a sync sends WRITE and COMMIT, or one stable WRITE if that is
//!   all; a sync with nothing outstanding of its own host sends nothing, so that it makes no other
//!   host's bytes durable;
//! - who opens a file asks the server for its attributes and forgets cached pages of another version;
//!   between opens attributes are believed for `actimeo`, names, missing names and listings for half
//!   of `acdirmax` to all of it; a host's own change of a directory ends its beliefs about it;
//! - unlinking a file that is open on the same host renames it to `.nfs…` until it is closed; a file
//!   that another host removed answers ESTALE, or lives on until the server restarts
//!   ([`Options::keeps_open_files`]);
//! - a server that restarts forgets UNSTABLE bytes, and its clients send them again when the verifier
//!   of a COMMIT tells them; names are durable before they are answered, unless the server lies.
//!
//! Over a coherent file system ([`Kind::Coherent`]) every host sees every other's writes at once. A
//! local one ([`Kind::Local`]) has one host, whatever number is given; names are durable once their
//! directory was synced.
//!
//! A request that was sent takes effect though its sender died or gave up, unless the sender's own
//! memory had still to do something for it.
//!
//! Not played: byte-range locks, delegations, permissions, hard links, more than one file server, and
//! that a host's memory is full. A chain of requests to look a path up counts as one. A write-back of
//! a page always carries all bytes that were written to it; the caches never forget for lack of space.
//!
//! Everything is decided by the seed that [`Model::new`] got and by what is asked, in which order.
//! [`Process`] is the broker's `Volume`; see `examples/shared_volume.rs` for a use of one's own.

mod background;
mod call;
pub mod content;
mod crash;
mod draw;
pub mod fault;
mod faults;
mod host;
mod model;
mod names;
pub mod options;
mod process;
mod server;
mod state;
pub mod trace;
mod view;

#[cfg(test)]
mod tests;

pub use crash::CrashImages;
pub use fault::{ErrorName, Fault, FaultId, FullAt, Op, Ops, Scope};
pub use model::Model;
pub use options::{Kind, Options, Span};
pub use process::Process;
pub use trace::{Counts, OpEvent, Outcome, Sender};
pub use view::{FileBytes, Image, OpenHandle, PageState, Place, Strip, Tree};

use model::{now, Shared};
