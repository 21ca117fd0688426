//! The offline tools on the data of a real broker: beside it while it runs, after it was killed, and after
//! somebody damaged its files.

#![allow(clippy::disallowed_methods)] // tests run in real time, beside real processes

mod common;

use bytes::Bytes;
use common::*;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, InitProducerIdRequest, OffsetCommitRequest};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::SystemTime;

fn highwater(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(p: &Path) -> &str {
    p.to_str().expect("a path of ASCII")
}

/// Runs a tool to its end; returns its exit code and what it said on stdout.
fn tool(args: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = highwater(args).output().expect("the program starts");
    let said = String::from_utf8(stdout).expect("text");
    let code = status.code().expect("it ends by itself");
    assert!(code != 101, "it panicked: {}", String::from_utf8_lossy(&stderr));
    (code, said + &String::from_utf8_lossy(&stderr))
}

/// A broker on `dir`, killed with SIGKILL when dropped.
struct Running {
    child: Child,
    address: std::net::SocketAddr,
}

impl Running {
    fn start(dir: &Path) -> Running {
        Running::start_as(dir, "1", "10000")
    }

    fn start_as(dir: &Path, id: &str, lease: &str) -> Running {
        let lease = format!("broker.lease.ms={lease}");
        let mut args = vec!["--data", text(dir), "--listen", "127.0.0.1:0", "--broker-id", id];
        args.extend(["--set", "metrics.listener=off", "--set", &lease]);
        let mut command = highwater(&args);
        let mut child = command.stderr(Stdio::null()).spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (said, hear) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| said.send(l)));
        let address = loop {
            let line = hear.recv_timeout(PATIENCE).expect("a broker says where it serves");
            if let Some(address) = line.trim().strip_prefix("listening") {
                break address.trim().parse().expect("an address");
            }
        };
        Running { child, address }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Produces until segments roll, commits an offset and takes a producer id.
async fn use_it(broker: &Running, fresh: bool) {
    let mut client = Client::connect(broker.address).await;
    if fresh {
        client.create_topic("orders", 2, &[("segment.bytes", "16384")]).await;
    }
    let padding = "x".repeat(3000);
    for i in 0..12 {
        let values = [format!("order-{i}"), padding.clone()];
        let row = client.produce("orders", 0, batch(&[&values[0], &values[1]])).await;
        assert_eq!(row.error_code, 0);
    }
    let partition = OffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(7);
    let topic =
        OffsetCommitRequestTopic::default().with_name(topic_name("orders")).with_partitions(vec![partition]);
    let commit = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("readers")))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    // Slots load after the start: a client is told to try again.
    let begun = std::time::Instant::now();
    loop {
        match client.call(7, &commit).await.topics[0].partitions[0].error_code {
            0 => break,
            code => assert!(begun.elapsed() < PATIENCE, "error {code}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let ask = InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(1000);
    let id = client.call(4, &ask).await;
    assert_eq!(id.error_code, 0);
}

/// Every file with its time of change and content.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let changed = std::fs::metadata(&dir).unwrap().modified().unwrap();
        files.insert(dir.clone(), (changed, Vec::new()));
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                dirs.push(entry.path());
            } else {
                let content = std::fs::read(entry.path()).unwrap();
                files.insert(entry.path(), (meta.modified().unwrap(), content));
            }
        }
    }
    files
}

/// The files under `dir` whose paths satisfy `wanted`, sorted.
fn files(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = picture(dir).into_iter().filter(|(p, (_, content))| !content.is_empty() && wanted(text(p)));
    all.map(|(p, _)| p).collect()
}

/// Flips a bit of one byte, hands the file over, and flips it back.
fn with_flipped(path: &Path, at: usize, then: impl FnOnce()) {
    let whole = std::fs::read(path).unwrap();
    let mut damaged = whole.clone();
    damaged[at] ^= 1;
    std::fs::write(path, damaged).unwrap();
    then();
    std::fs::write(path, whole).unwrap();
}

/// A directory on which a broker ran twice, killed both times; `beside` sees each while it runs.
async fn lived_in(dir: &Path, beside: impl Fn(&Path)) {
    for fresh in [true, false] {
        let broker = Running::start(dir);
        use_it(&broker, fresh).await;
        beside(dir);
    }
}

fn sound(dir: &Path) -> String {
    let (code, said) = tool(&["verify", text(dir)]);
    assert_eq!(code, 0, "{said}");
    assert!(said.ends_with(": sound\n"), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_is_content_beside_a_broker_and_after_its_end_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    lived_in(dir.path(), |dir| {
        sound(dir);
    })
    .await;
    let before = picture(dir.path());
    let said = sound(dir.path());
    assert!(said.contains("2 partitions, 8 group slots, "), "{said}");
    assert_eq!(tool(&["verify", "--quiet", text(dir.path())]), (0, String::new()));
    assert!(picture(dir.path()) == before, "verify has changed something");

    let stray = dir.path().join("orders/00000000000000000000000000000001/0");
    std::fs::create_dir_all(stray).unwrap();
    let said = sound(dir.path());
    assert!(said.contains("note: orders/00000000000000000000000000000001: of no topic"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_found_and_its_file_named() {
    let dir = tempfile::tempdir().unwrap();
    lived_in(dir.path(), |_| {}).await;
    let newest = |suffix: &'static str, under: &'static str| {
        let found = files(dir.path(), |p| p.ends_with(suffix) && p.contains(under));
        found.into_iter().max_by_key(|p| p.file_name().map(ToOwned::to_owned)).expect(suffix)
    };
    let oldest = |suffix: &'static str, under: &'static str| {
        files(dir.path(), |p| p.ends_with(suffix) && p.contains(under)).remove(0)
    };
    let slot_log = files(dir.path(), |p| {
        let found = p.contains("/groups/") && p.ends_with(".log");
        found && std::fs::read(p).is_ok_and(|b| b.windows(7).any(|w| w == b"readers"))
    });
    // Which file, which byte of it, and where it is then said to be wrong.
    let sealed = oldest(".log", "/orders/");
    let cases = [
        (sealed.clone(), 500, Some(0)),
        (sealed.clone(), 14, Some(0)),
        (oldest(".index", "/orders/"), 5, None),
        (newest("-manifest.json", "/orders/"), 60, None),
        (slot_log.last().expect("a commit").clone(), 100, None),
        (newest("-manifest.json", "/groups/"), 60, None),
        (newest(".heartbeat", "/brokers/"), 30, None),
        (newest(".claim", "/controller/"), 0, None),
        (newest("-metadata.json", "/metadata/"), 0, None),
        (newest("format.json", "/__cluster/"), 0, None),
        (newest(".block", "/producer-ids/"), 0, None),
    ];
    for (path, at, byte) in cases {
        with_flipped(&path, at, || {
            let (code, said) = tool(&["verify", "-q", text(dir.path())]);
            let named = match byte {
                Some(b) => format!("{} byte {b}: ", path.display()),
                None => text(&path).to_owned(),
            };
            assert!(said.contains(&named), "byte {at} of {}: {said:?}", path.display());
            assert_eq!(code, 1);
        });
    }
    std::fs::rename(&sealed, sealed.with_extension("away")).unwrap();
    let (code, said) = tool(&["verify", "-q", text(dir.path())]);
    assert!(code == 1 && said.contains(&format!("{}: is missing", sealed.display())), "{said}");
    std::fs::rename(sealed.with_extension("away"), &sealed).unwrap();
    sound(dir.path());
}

#[test]
fn what_is_no_data_directory_is_a_mistake_in_usage() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for path in [dir.path().to_owned(), dir.path().join("file"), dir.path().join("missing")] {
        for args in [&["verify"][..], &["cluster", "status", "--data"]] {
            let (code, said) = tool(&[args, &[text(&path)]].concat());
            assert_eq!(code, 2, "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
    assert_eq!(tool(&["cluster", "status"]).0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn dump_log_shows_batches_and_records_of_a_broker_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    lived_in(dir.path(), |dir| {
        let logs = files(dir, |p| p.contains("/orders/") && p.ends_with(".log"));
        assert!(logs.len() > 2, "segments rolled");
        let mut args = vec!["dump-log", "--records", "--max-bytes", "16"];
        args.extend(logs.iter().map(|p| text(p)));
        let (code, said) = tool(&args);
        assert_eq!(code, 0, "{said}");
        for i in 0..12 {
            assert!(said.contains(&format!("value=\"order-{i}\" headers=[]")), "order-{i} in {said}");
        }
        assert!(said.contains("value=\"xxxxxxxxxxxxxxxx\"+2984 bytes"), "{said}");
    })
    .await;
    let first = files(dir.path(), |p| p.contains("/orders/") && p.ends_with(".log")).remove(0);
    let (code, said) = tool(&["dump-log", text(&first)]);
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with(&format!("{}: epoch 256, base offset 0, ", first.display())), "{said}");
    assert!(said.contains("\nposition=0 size="), "{said}");
    assert!(said.contains(" base=0 last=1 count=2 leader_epoch=256 producer=-1 "), "{said}");
    assert!(!said.contains("order-"), "records stay closed unless asked for");

    let small = |p: &str| p.contains("/orders/") && [".index", ".json"].iter().any(|end| p.ends_with(end));
    for path in files(dir.path(), small) {
        let (code, said) = tool(&["dump-log", text(&path)]);
        assert!(code == 0 && said.contains("checksum ok"), "{said}");
    }
}

/// Asks for the status again and again until it ends with `code`; returns what it says.
fn status_until(dir: &Path, code: i32, why: &str) -> String {
    let begun = std::time::Instant::now();
    loop {
        let (ended, said) = tool(&["cluster", "status", "--data", text(dir)]);
        if ended == code {
            return said;
        }
        assert!(begun.elapsed() < PATIENCE, "{why}: {said}");
    }
}

fn status_json(dir: &Path) -> (i32, serde_json::Value) {
    let (code, said) = tool(&["cluster", "status", "--json", "--data", text(dir)]);
    (code, serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_status_tells_who_leads_who_died_and_that_others_took_over() {
    let dir = tempfile::tempdir().unwrap();
    let first = Running::start_as(dir.path(), "1", "2000");
    let mut client = Client::connect(first.address).await;
    client.create_topic("orders", 2, &[]).await;
    let said = status_until(dir.path(), 0, "one broker leads all");
    assert!(said.contains(": 1 of 1 broker alive, 2 partitions of 1 topic, 8 group slots\n"), "{said}");
    assert!(said.contains("\ncontroller: epoch 1, broker 1 (lease 1)\n"), "{said}");
    assert!(said.contains("\nbroker 1: alive, heartbeat written within 0."), "{said}");
    assert!(said.contains(" leads 2 partitions and 8 slots, lease 1 of 2.0 s, 127.0.0.1:"), "{said}");
    assert!(said.ends_with("\nall is well\n"), "{said}");

    let second = Running::start_as(dir.path(), "2", "2000");
    let begun = std::time::Instant::now();
    let both = loop {
        let (code, s) = status_json(dir.path());
        let led = |n: usize| s["brokers"][n]["led"]["slots"].as_u64() > Some(0);
        if code == 0 && led(0) && led(1) {
            break s;
        }
        assert!(begun.elapsed() < PATIENCE, "both get a share: {s:#}");
    };
    assert_eq!((&both["well"], &both["places"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(both["states"], serde_json::json!({"led": 10}));
    assert_eq!(both["controller"]["holder"], serde_json::json!({"broker": 1, "lease": 1}));

    drop(second);
    let (code, s) = status_json(dir.path());
    let gone = &s["brokers"][1];
    assert!(gone["standing"] == "silent" && code == 1 && s["well"] == false, "{s:#}");
    assert!(s["places"].as_array().is_some_and(|p| p.iter().all(|p| p["state"] == "stalled")), "{s:#}");
    let said = status_until(dir.path(), 0, "the other takes over");
    assert!(said.contains("\nbroker 2: recorded dead, leads 0 partitions and 0 slots, "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_status_of_a_killed_broker_names_what_is_stalled_orphaned_and_unreadable() {
    let dir = tempfile::tempdir().unwrap();
    {
        let broker = Running::start_as(dir.path(), "1", "2000");
        use_it(&broker, true).await;
        status_until(dir.path(), 0, "all is led");
    }
    let before = picture(dir.path());
    let said = status_until(dir.path(), 1, "nobody leads");
    assert!(
        said.contains("\ncontroller: none: epoch 1, broker 1 (lease 1): its lease is silent\n"),
        "{said}"
    );
    let stalled = "\nstalled: slot 0, slot 1, slot 2, slot 3, slot 4, slot 5, slot 6, slot 7 and 2 more: it is assigned to \
        lease 1 of broker 1, which is silent\n";
    assert!(said.contains(stalled), "{said}");
    assert!(said.ends_with("\nnot well: no controller, 1 broker silent, 10 places stalled\n"), "{said}");
    let (_, said) = tool(&["cluster", "status", "--partitions", "--data", text(dir.path())]);
    assert!(
        said.contains(
            "\norders-1: stalled: assigned to broker 1 (lease 1), claim 256 by 1-00000001, manifest 256: "
        ),
        "{said}"
    );
    assert!(picture(dir.path()) == before, "it has changed something");

    let stray = dir.path().join("orders/00000000000000000000000000000001");
    std::fs::create_dir_all(stray.join("0")).unwrap();
    let (_, s) = status_json(dir.path());
    let want = serde_json::json!([{
        "dir": "orders/00000000000000000000000000000001", "why": "unknown-topic"
    }]);
    assert_eq!(s["orphaned"], want);
    std::fs::remove_dir_all(stray).unwrap();

    let first = |end: &'static str, under: &'static str| {
        files(dir.path(), |p| p.ends_with(end) && p.contains(under)).remove(0)
    };
    let cases = [
        first("-manifest.json", "/orders/"),
        first("-claim", "/groups/"),
        first(".claim", "/controller/"),
        first(".heartbeat", "/brokers/"),
        first("-metadata.json", "/metadata/"),
        first("format.json", "/__cluster/"),
    ];
    for path in cases {
        with_flipped(&path, 0, || {
            let (code, said) = tool(&["cluster", "status", "--data", text(dir.path())]);
            assert_eq!(code, 1);
            assert!(said.contains(&format!("\nunreadable: {}: ", path.display())), "{said}");
        });
    }
}

/// A batch as it is stored.
fn at_offset(offset: i64, value: &str) -> Bytes {
    let mut b = batch(&[value]).to_vec();
    b[..8].copy_from_slice(&offset.to_be_bytes());
    Bytes::from(b)
}

#[test]
fn dump_log_goes_on_behind_damage_and_tells_a_torn_tail_from_it() {
    let dir = tempfile::tempdir().unwrap();
    // As another broker has it: no epoch in the name, and offsets may have gaps.
    let foreign = dir.path().join("00000000000000000100.log");
    let batches = [at_offset(100, "first"), at_offset(101, "second"), at_offset(110, "third")];
    let whole = batches.concat();
    let n = batches[0].len();
    let dump = |content: &[u8]| {
        std::fs::write(&foreign, content).unwrap();
        tool(&["dump-log", "--records", text(&foreign)])
    };
    let (code, said) = dump(&whole);
    assert_eq!((code, said.matches("crc=ok").count()), (0, 3), "{said}");
    assert!(said.contains("base offset 100, "), "{said}");

    let (code, said) = dump(&whole[..whole.len() - 1]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&format!("torn tail from byte {}", whole.len() - batches[2].len())), "{said}");

    let mut bad = whole.clone();
    bad[n + 70] ^= 1;
    let (code, said) = dump(&bad);
    assert_eq!((code, said.matches("crc=ok").count(), said.matches("crc=BAD(").count()), (1, 2, 1), "{said}");
    assert!(said.contains("\"third\"") && !said.contains("econd\""), "{said}");

    let mut bad = whole.clone();
    bad[n + 8..n + 17].fill(0xff);
    let (code, said) = dump(&bad);
    let damage = format!("DAMAGED bytes {n}..{}: ", n + batches[1].len());
    assert!(code == 1 && said.contains(&damage) && said.contains("\"third\""), "{said}");

    // In a file of ours offsets have no gaps, and no checksum covers them.
    let ours = dir.path().join("00000001-00000000000000000100.log");
    std::fs::write(&ours, &whole).unwrap();
    let (code, said) = tool(&["dump-log", text(&ours)]);
    assert!(code == 1 && said.contains("offset 110, expected is 102"), "{said}");

    let (code, _) = tool(&["dump-log", text(&dir.path().join("missing.log"))]);
    assert_eq!(code, 1);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("many.log");
    std::fs::write(&path, (0..20_000).map(|i| at_offset(i, "v")).collect::<Vec<_>>().concat()).unwrap();
    let mut child = highwater(&["dump-log", text(&path)]).spawn().unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}
