//! A segment file that holds anything: the recovery scan never believes a batch whose checksum fails.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater::storage::fuzz::recovery(data));
