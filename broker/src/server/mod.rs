//! Listener, framing and connections; and [`Node`], which puts a whole broker together.
//!
//! Promises: responses of one connection leave in the order of its requests, though the requests may be
//! worked on side by side; no connection can make the broker hold more than it sent plus what a fixed
//! budget allows; a connection that is slow, idle or hostile costs itself only.
//!
//! Does not know any API: that is [`crate::api`].

mod budget;
mod connection;
mod framing;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod listener;
mod node;
mod outbox;
mod turns;

pub use node::{Node, NodeFailure, StartError};
