//! The model against reality: what real file systems answered to a list of steps, the model answers too.
//!
//! The lists are in `*.steps`; `record` performs them on a directory of a real file system, with
//! `steps.c`, and keeps what it was answered in `local/` (ext4, Linux) and `nfs/` (an NFSv4.1 mount of a Linux
//! server). Here the records are replayed: on the model, and in the plain build on the broker's
//! `OsVolume`, so that the two cannot drift apart.

use bytes::Bytes;
use highwater::volume::{Class, EntryKind, Result, Volume, VolumeFile};
use std::collections::BTreeMap;
use std::sync::Arc;

const D: Class = Class::Data;

/// A client with the handles that it opened.
struct Client {
    volume: Box<dyn Volume>,
    files: BTreeMap<String, Arc<dyn VolumeFile>>,
}

impl Client {
    fn new(volume: impl Volume) -> Self {
        Client { volume: Box::new(volume), files: BTreeMap::new() }
    }

    async fn step(&mut self, step: &str) -> String {
        let words: Vec<&str> = step.split(' ').collect();
        let arg = |n: usize| words.get(n).copied().unwrap_or_default();
        let number = |n: usize| arg(n).parse::<u64>().expect("a number");
        let (v, (a, b)) = (&self.volume, (arg(1), arg(2)));
        let opened = match words[0] {
            "create" => Some(v.create_new(b, D).await),
            "open" => Some(v.open(b, D).await),
            "open-write" => Some(v.open_write(b, D).await),
            _ => None,
        };
        if let Some(opened) = opened {
            return told(opened.map(|file| {
                self.files.insert(a.to_owned(), file);
                "0".into()
            }));
        }
        let none = |()| "0".to_owned();
        let of_name = match words[0] {
            "rename" => Some(v.rename(a, b, D).await.map(none)),
            "unlink" => Some(v.unlink(a).await.map(none)),
            "mkdir" => Some(v.mkdir(a, D).await.map(none)),
            "rmdir" => Some(v.rmdir(a).await.map(none)),
            "sync-dir" => Some(v.sync_dir(a, D).await.map(none)),
            "list" => Some(list(&**v, a).await),
            "wait" => {
                tokio::time::sleep(std::time::Duration::from_millis(number(1))).await;
                Some(Ok("0".into()))
            }
            "close" => {
                self.files.remove(a);
                Some(Ok("0".into()))
            }
            _ => None,
        };
        if let Some(done) = of_name {
            return told(done);
        }
        let file = &self.files[a];
        told(match words[0] {
            "write" => {
                let bytes = Bytes::copy_from_slice(arg(3).as_bytes());
                file.write_at(number(2), vec![bytes]).await.map(|n| n.to_string())
            }
            "read" => file.read_at(number(2), number(3) as usize).await.map(|b| shown(&b)),
            "len" => file.len().await.map(|n| n.to_string()),
            "truncate" => file.truncate(number(2)).await.map(none),
            "sync" => file.sync().await.map(none),
            other => panic!("no such step: {other}"),
        })
    }
}

async fn list(v: &dyn Volume, dir: &str) -> Result<String> {
    let show = |name: &str, kind| {
        let name = if name.starts_with(".nfs") { ".nfs" } else { name };
        format!("{name}{}", if kind == EntryKind::Dir { "/" } else { "" })
    };
    let entries = v.read_dir(dir, D).await?;
    let names: Vec<String> = entries.iter().map(|e| show(&e.name, e.kind)).collect();
    Ok(format!("[{}]", names.join(" ")))
}

/// A zero byte as '.', as `steps.c` shows it.
fn shown(bytes: &[u8]) -> String {
    let text: Vec<u8> = bytes.iter().map(|b| if *b == 0 { b'.' } else { *b }).collect();
    format!("\"{}\"", String::from_utf8_lossy(&text))
}

fn told(done: Result<String>) -> String {
    const NAMES: [(i32, &str); 9] = [
        (2, "ENOENT"),
        (5, "EIO"),
        (9, "EBADF"),
        (17, "EEXIST"),
        (20, "ENOTDIR"),
        (21, "EISDIR"),
        (22, "EINVAL"),
        (39, "ENOTEMPTY"),
        (116, "ESTALE"),
    ];
    done.unwrap_or_else(|e| {
        let code = e.source.raw_os_error();
        let name = NAMES.iter().find(|(n, _)| Some(*n) == code);
        name.map_or(format!("{e}"), |(_, name)| (*name).to_owned())
    })
}

/// Replays a record: all is answered as it really was.
async fn replay(record: &str, clients: &mut [Client]) {
    let differ = differences(record, clients).await;
    assert!(differ.is_empty(), "{differ:#?}");
}

/// Replays a record, the steps of client a and, in a list for two, of client b, and tells what is not
/// answered as it really was.
async fn differences(record: &str, clients: &mut [Client]) -> Vec<String> {
    let mut differ = Vec::new();
    for line in record.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (step, want) = line.split_once(" -> ").expect("a step and its answer");
        let (who, plain) = match step.split_once(' ') {
            Some(("a", rest)) => (0, rest),
            Some(("b", rest)) => (1, rest),
            _ => (0, step),
        };
        let got = clients[who].step(plain).await;
        if got != want {
            differ.push(format!("{step}: really {want}, here {got}"));
        }
    }
    differ
}

macro_rules! record {
    ($path:literal) => {
        include_str!(concat!("../../tests/reality/", $path))
    };
}

#[cfg(not(madsim))]
mod on_this_file_system {
    use super::*;
    use highwater::volume::OsVolume;

    async fn check(name: &str, record: &str) {
        let dir = std::env::temp_dir().join(format!("highwater-reality-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).expect("a new directory");
        replay(record, &mut [Client::new(OsVolume::open(&dir).expect("a directory"))]).await;
        std::fs::remove_dir_all(&dir).expect("a directory of ours");
    }

    #[tokio::test]
    async fn the_brokers_volume_answers_as_recorded() {
        check("alone", record!("local/alone.record")).await;
        check("alone-local", record!("local/alone-local.record")).await;
    }
}

#[cfg(madsim)]
mod on_the_model {
    use super::*;
    use highwater_sim::volume::{Kind, Model, Options, Span};

    fn clients(kind: Kind, n: u32) -> Vec<Client> {
        let model = Model::new(Options { kind, ..Options::default() }, 1);
        (1..=n).map(|host| Client::new(model.process(host))).collect()
    }

    #[madsim::test]
    async fn a_local_volume_answers_as_a_local_file_system() {
        for record in [record!("local/alone.record"), record!("local/alone-local.record")] {
            replay(record, &mut clients(Kind::Local, 1)).await;
        }
    }

    #[madsim::test]
    async fn an_nfs_client_answers_as_a_real_one() {
        replay(record!("nfs/alone-nfs.record"), &mut clients(Kind::Nfs, 1)).await;
    }

    #[madsim::test]
    async fn two_nfs_clients_answer_as_real_ones() {
        // What Linux does, and that its kernel wrote back at once; the defaults are harsher.
        let options = Options {
            fresh_lists: true,
            keeps_open_files: true,
            writeback: Span(0.0, 0.0),
            ..Options::default()
        };
        let model = Model::new(options, 1);
        let mut clients = [1, 2].map(|host| Client::new(model.process(host)));
        let none: [&str; 0] = [];
        assert_eq!(differences(record!("nfs/pair.record"), &mut clients).await, none);
    }

    #[madsim::test]
    async fn what_is_the_same_everywhere_is_so_on_every_kind() {
        for kind in [Kind::Nfs, Kind::Coherent] {
            replay(record!("local/alone.record"), &mut clients(kind, 1)).await;
        }
        assert_eq!(record!("local/alone.record"), record!("nfs/alone.record"), "really, too");
        replay(record!("local/alone-local.record"), &mut clients(Kind::Coherent, 1)).await;
    }
}
