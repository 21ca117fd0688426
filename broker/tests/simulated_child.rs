//! Builds and runs the simulated test in a child process, so that plain `cargo test` covers it.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes
#![cfg(not(madsim))]

use std::process::Command;

#[test]
fn the_broker_lives_through_the_simulated_test() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/sim");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--manifest-path", manifest, "--target-dir", target]);
    cargo.args([
        "--config",
        "build.rustflags=['--cfg','madsim']",
        "--profile",
        "sim",
        "-p",
        "highwater",
        "--test",
        "simulated",
    ]);
    // An inherited RUSTFLAGS would silently replace the flags given here, and coverage or sanitizer settings of the outer
    // build do not fit this one.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    let output = cargo.output().expect("cargo runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("test result: ok. 2 passed"), "the simulated tests ran: {out}");
}
