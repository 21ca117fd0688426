//! Opening a batch with every codec: bounded output, whatever the compressed bytes claim.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater::storage::fuzz::records(data));
