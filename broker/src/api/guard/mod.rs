//! Refuses requests that announce more than they hold, before they are decoded.
//!
//! The decoder reserves room for as many array elements as a request *says* it has. So every request body is first
//! walked by a compact schema of its API and version: no array, string or byte string may be longer than what is
//! left, and elements may not be more than [`MAX_ELEMENTS`] (each takes up to some 128 bytes once decoded, while
//! two bytes on the wire can make one). After that, decoding allocates in proportion to what was received.
//!
//! What the walk leaves to the decoder: whether strings are UTF-8, and whether a null may stand where one stands.
//! The decoder reports both as errors; it has no panics of its own on this path.

mod schema;
#[cfg(test)]
mod schema_gen;
mod schemas;
mod walk;

pub use walk::{Malformed, Weight, MAX_ELEMENTS};

use kafka_protocol::messages::ApiKey;

/// Walks a request's header: all that stands before the body.
pub(super) fn check_header(frame: &[u8], header_version: i16) -> Result<(), Malformed> {
    walk::header(frame, header_version)
}

/// Walks the body of a request in a version that is served.
pub(super) fn check_body(key: ApiKey, version: i16, body: &[u8]) -> Result<Weight, Malformed> {
    match schemas::of(key) {
        Some(schema) => walk::body(schema, version, body),
        None => Err(Malformed::NoSchema),
    }
}

#[cfg(test)]
mod tests;
