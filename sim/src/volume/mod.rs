//! A model of one volume that many hosts share: one server, many clients, each with a page cache.
//!
//! ```text
//! process (a `Volume`)  ->  host: page cache, name and attribute caches  ->  server: memory  ->  media
//! ```
//!
//! A process dies and leaves its host's dirty pages behind, which the host writes back later. A host
//! loses power and its cache is gone. The server restarts and forgets what it had not committed. What
//! lies on the media survives everything but bit rot.

pub mod fault;
pub mod options;
pub mod trace;

pub use fault::{FaultId, Op, Ops, Scope};
pub use options::{Kind, Options, Span};
pub use trace::{OpEvent, Outcome};
