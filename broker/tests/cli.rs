//! The program as a user meets it: what it says, how it ends, and that a start that fails touches nothing.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a busy machine; a broker that should not start would run for ever.
const PATIENCE: Duration = Duration::from_secs(20);

fn highwater(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(args).current_dir(dir).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs to the end, which must come.
fn run(mut command: Command) -> Output {
    let mut child = command.spawn().expect("the program starts");
    let begun = Instant::now();
    while child.try_wait().expect("its state can be asked for").is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().expect("it can be ended");
            let output = child.wait_with_output().expect("it ended");
            panic!("still running after {PATIENCE:?}: {output:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("it ended")
}

/// The refusal: exactly one line on stderr, nothing on stdout, nothing new in the directory.
fn refused(dir: &Path, command: Command, code: i32) -> String {
    let before = names(dir);
    let output = run(command);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "said on stdout: {:?}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "not one line: {stderr}");
    assert_eq!(names(dir), before, "the failed start left something behind");
    stderr.trim_end().to_owned()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn it_says_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(highwater(dir.path(), &["--version"]));
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("highwater {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn config_docs_prints_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(highwater(dir.path(), &["config-docs"]));
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), highwater::config::markdown());
}

#[test]
fn an_unknown_key_is_refused_wherever_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let set = highwater(dir.path(), &["--set", "log.segment.byte=4096"]);
    assert_eq!(
        refused(dir.path(), set, 2),
        "highwater: unknown configuration key log.segment.byte (from --set); did you mean log.segment.bytes?"
    );

    std::fs::write(dir.path().join("b.toml"), "[log]\nsegment.byte = 4096\n").unwrap();
    let file = highwater(dir.path(), &["serve", "--config", "b.toml"]);
    assert_eq!(
        refused(dir.path(), file, 2),
        "highwater: unknown configuration key log.segment.byte (from b.toml); did you mean log.segment.bytes?"
    );

    let mut env = highwater(dir.path(), &[]);
    env.env("HIGHWATER_LOG_SEGMENT_BYTE", "4096");
    assert!(refused(dir.path(), env, 2).contains("(from HIGHWATER_LOG_SEGMENT_BYTE)"));
}

#[test]
fn a_bad_value_is_refused_with_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let lease = highwater(dir.path(), &["--set", "broker.lease.ms=1000"]);
    assert_eq!(
        refused(dir.path(), lease, 2),
        "highwater: broker.lease.ms = \"1000\" (from --set): out of range (2000 to 600000)"
    );
    let id = highwater(dir.path(), &["--broker-id", "-1"]);
    assert_eq!(
        refused(dir.path(), id, 2),
        "highwater: broker.id = \"-1\" (from --broker-id): out of range (at least 0)"
    );
    let wildcard = highwater(dir.path(), &["--listen", "0.0.0.0:9092"]);
    assert!(refused(dir.path(), wildcard, 2).contains("set advertised.listeners"));
}

#[test]
fn a_file_that_is_missing_or_is_no_toml_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = highwater(dir.path(), &["--config", "b.toml"]);
    assert_eq!(refused(dir.path(), missing, 2), "highwater: b.toml: No such file or directory (os error 2)");
    std::fs::write(dir.path().join("b.toml"), "broker.id = 1\nbroker.id = 2\n").unwrap();
    let twice = highwater(dir.path(), &["--config", "b.toml"]);
    assert!(refused(dir.path(), twice, 2).starts_with("highwater: b.toml: line 2: "));
}

#[test]
fn a_log_filter_that_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = highwater(dir.path(), &[]);
    command.env("RUST_LOG", "highwater=loud");
    assert!(refused(dir.path(), command, 2).starts_with("highwater: RUST_LOG = \"highwater=loud\": "));
}

#[test]
fn a_data_directory_that_cannot_be_made_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let args = ["--data", "file/data", "--listen", "127.0.0.1:0", "--set", "metrics.listener=off"];
    assert_eq!(
        refused(dir.path(), highwater(dir.path(), &args), 1),
        "highwater: cannot create the data directory file/data: Not a directory (os error 20)"
    );
    let on_a_file = ["--data", "file", "--listen", "127.0.0.1:0", "--set", "metrics.listener=off"];
    let line = refused(dir.path(), highwater(dir.path(), &on_a_file), 1);
    assert!(line.starts_with("highwater: cannot create the data directory file: "), "{line}");
}

#[test]
fn a_port_in_use_is_refused_and_no_data_directory_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let clients = ["--listen", &address, "--set", "metrics.listener=off"];
    assert_eq!(
        refused(dir.path(), highwater(dir.path(), &clients), 1),
        format!("highwater: cannot listen on {address} (listeners): Address already in use (os error 98)")
    );
    let setting = format!("metrics.listener={address}");
    let metrics = ["--listen", "127.0.0.1:0", "--set", &setting];
    let line = refused(dir.path(), highwater(dir.path(), &metrics), 1);
    assert!(line.contains(&format!("cannot listen on {address} (metrics.listener): Address already in use")));
    assert!(line.ends_with("another address, or off, is set by metrics.listener"), "{line}");
}
