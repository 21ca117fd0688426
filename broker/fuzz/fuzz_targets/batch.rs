//! One partition's records of a produce request: what passes the check is well-formed and is stored as sent.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater::storage::fuzz::batch(data));
