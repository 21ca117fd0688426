//! Each scenario file is a test of its own.
//!
//! In the simulated build (`cargo sim-test -p highwater-sim --test scenarios`) as madsim's users know it: MADSIM_TEST_SEED is
//! the first seed, MADSIM_TEST_NUM how many. In the plain build a handful of seeds of each is lived by a simulator that
//! this test builds; and the plain build's own binary must refuse to run.

#![allow(clippy::disallowed_methods)] // starts real processes, in real time

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Seeds of each scenario, if nobody says how many.
const SEEDS: u64 = if cfg!(madsim) { 10 } else { 3 };

/// Lives of hundreds of partitions take seconds each.
const HEAVY: [&str; 2] = ["many-partitions", "crash-images"];

/// A life takes minutes: `ci/nightly` lives some.
const TOO_HEAVY: &str = "mass-failure.toml";

fn main() {
    let args = Arguments::from_args();
    let simulator = simulator(&args);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let mut trials: Vec<Trial> = ["", "regressions"]
        .iter()
        .flat_map(|dir| files(&root.join(dir)))
        .map(|file| {
            let simulator = simulator.clone();
            let name =
                file.strip_prefix(&root).expect("below").with_extension("").to_string_lossy().into_owned();
            Trial::test(name, move || live(&simulator, &file))
        })
        .collect();
    if cfg!(not(madsim)) {
        trials.push(Trial::test("a build without madsim refuses to run", refuses));
    }
    libtest_mimic::run(&args, trials).exit();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut all: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    all.retain(|p| !p.ends_with(TOO_HEAVY));
    all.sort();
    all
}

/// The simulator's binary: this build's own, or one that is built now.
fn simulator(args: &Arguments) -> PathBuf {
    if cfg!(madsim) || args.list {
        return env!("CARGO_BIN_EXE_highwater-sim").into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&root).arg("sim-build");
    // An inherited RUSTFLAGS would silently replace the flags that make the build a simulated one.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    root.join("target/sim/sim/highwater-sim")
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

fn live(simulator: &Path, file: &Path) -> Result<(), Failed> {
    let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let seeds = if HEAVY.contains(&stem.as_str()) { 1 } else { SEEDS };
    let is_regression = file.parent().is_some_and(|d| d.ends_with("regressions"));
    let mut run = Command::new(simulator);
    run.arg("run").arg(file).arg("--keep-going");
    if !is_regression || std::env::var_os("MADSIM_TEST_SEED").is_some() {
        run.args(["--start", &number("MADSIM_TEST_SEED", 1).to_string()]);
        run.args(["--num", &number("MADSIM_TEST_NUM", seeds).to_string()]);
    }
    let output = run.output().map_err(|e| format!("{}: {e}", simulator.display()))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(said.into()),
    }
}

/// Only reached in a plain build.
fn refuses() -> Result<(), Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_highwater-sim")).arg("run").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cargo sim") && said.contains("RUSTFLAGS"), "{said}");
    Ok(())
}
