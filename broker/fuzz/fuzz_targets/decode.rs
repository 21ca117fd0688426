//! What a client sends to the listener: framing, header, version check, body.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| highwater::server::fuzz::decode(data));
