//! Stories: each plays one behaviour of the volume.

mod agree;
mod caches;
mod crashes;
mod deaths;
mod faults;

use super::*;
use bytes::Bytes;
use highwater::volume::{Class, Volume, VolumeFile};
use std::sync::Arc;
use std::time::Duration;

const D: Class = Class::Data;

fn of(s: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(s.as_bytes())]
}

fn nfs() -> Options {
    Options::default()
}

fn local() -> Options {
    Options { kind: Kind::Local, ..Options::default() }
}

/// A local file system whose device never tears a page.
fn whole_pages() -> Options {
    Options { torn: 0.0, ..local() }
}

fn coherent() -> Options {
    Options { kind: Kind::Coherent, ..Options::default() }
}

async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn read(v: &Process, path: &str) -> Option<Bytes> {
    v.open(path, D).await.ok()?.read_at(0, 1 << 20).await.ok()
}

/// A file with durable bytes and a durable name.
async fn settled(v: &Process, path: &str, text: &str) -> Arc<dyn VolumeFile> {
    let file = v.create_new(path, D).await.unwrap();
    file.write_sync(0, of(text)).await.unwrap();
    v.sync_dir(path.rsplit_once('/').map_or("", |(dir, _)| dir), D).await.unwrap();
    file
}

async fn names(v: &Process, dir: &str) -> Vec<String> {
    v.read_dir(dir, D).await.unwrap().into_iter().map(|e| e.name).collect()
}

fn errno<T>(r: highwater::volume::Result<T>) -> i32 {
    r.err().expect("an error").source.raw_os_error().expect("an error number")
}

const EIO: i32 = 5;
const ESTALE: i32 = 116;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;
