//! The program as a user meets it: what it says, how it ends, and that a start that fails touches nothing.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
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

/// A broker that serves; killed if the test ends before it does.
struct Serving {
    child: Child,
    banner: Vec<String>,
}

impl Serving {
    /// Starts it on free ports and waits for the last line of what it says.
    fn start(dir: &Path) -> Serving {
        let args = ["--listen", "127.0.0.1:0", "--set", "metrics.listener=127.0.0.1:0"];
        let mut child = highwater(dir, &args).spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (said, hear) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| said.send(l)));
        let mut serving = Serving { child, banner: vec![] };
        while !serving.banner.last().is_some_and(|l| l.starts_with("  try ")) {
            serving.banner.push(hear.recv_timeout(PATIENCE).expect("a broker says where it serves"));
        }
        serving
    }

    /// What stands behind `what` in the banner.
    fn said(&self, what: &str) -> &str {
        let value = self.banner.iter().find_map(|l| l.trim().strip_prefix(what));
        value.unwrap_or_else(|| panic!("no {what} in {:?}", self.banner)).trim()
    }

    fn get(&self, path: &str) -> String {
        let url = self.said("metrics");
        let address = url.trim_start_matches("http://").trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(address).expect("the second listener");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Sends a signal and waits for the end; returns it with everything that was logged.
    fn stop(mut self, signal: rustix::process::Signal) -> (ExitStatus, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the signal is sent");
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("its state can be asked for") {
                Some(status) => break status,
                None => assert!(begun.elapsed() < PATIENCE, "it does not stop"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut log = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut log).expect("text");
        (status, log)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_broker_says_where_it_serves_and_drains_when_told_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let broker = Serving::start(dir.path());
        TcpStream::connect(broker.said("listening")).expect("clients can connect");
        assert_eq!(Path::new(broker.said("data")), dir.path().join("data").canonicalize().unwrap());
        assert_eq!(broker.said("durability"), "every acknowledged batch is fsynced");
        assert_eq!(broker.said("try"), format!("kcat -b {} -L", broker.said("listening")));
        assert!(broker.get("/healthz").starts_with("HTTP/1.1 200 "));
        assert!(broker.get("/readyz").starts_with("HTTP/1.1 200 "));
        assert!(broker.get("/metrics").contains("\nhighwater_records_decoded_total 0\n"));
        let (status, log) = broker.stop(signal);
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("stopped cleanly"), "{log}");
    }
}

#[test]
fn a_second_broker_with_the_same_id_on_the_same_data_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = Serving::start(dir.path());
    let second = highwater(dir.path(), &["--listen", "127.0.0.1:0", "--set", "metrics.listener=off"]);
    let line = refused(dir.path(), second, 1);
    assert!(line.starts_with("highwater: broker id 1 is already running on this data directory"), "{line}");
    assert!(first.get("/readyz").starts_with("HTTP/1.1 200 "), "the first goes on");
}
