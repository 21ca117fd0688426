//! Topics, configs, records and producer ids, as admin clients ask for them over the wire.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod ask;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod configs;
mod records;
mod topics;
