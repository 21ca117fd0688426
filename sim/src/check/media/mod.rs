//! Reads the media of a volume as the disk format's documentation says, and not as the broker does.
//!
//! ```text
//! {topic}/{topic id, 32 hex digits}/{partition}/
//!     {epoch:08x}-manifest.json                {"crc32c":…,"body":{…}}: what older epochs left, and where it ends
//!     {epoch:08x}-{base offset:020}.log        record batches
//! ```
//!
//! What counts: the highest epoch with a sound manifest. Of older segments, those that it lists, up to the
//! positions where it seals them. Of its own, all; the last of them up to the first batch that is not sound.
//! Bytes past a seal and files that no manifest lists do not exist.

use crate::history::{BatchInfo, BatchReader};
use bytes::Bytes;
use serde::Deserialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A partition as the media has it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub epoch: u32,
    pub log_start: i64,
    /// In the order of their offsets.
    pub batches: Vec<BatchInfo>,
    /// The offset after the last.
    pub end: i64,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    crc32c: u32,
    #[serde(borrow)]
    body: &'a serde_json::value::RawValue,
}

/// What we need of a manifest.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    pub topic_id: Uuid,
    pub partition: i32,
    pub epoch: u32,
    pub log_start: i64,
    pub start: i64,
    pub segments: Vec<Sealed>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Sealed {
    pub epoch: u32,
    pub base: i64,
    pub end: i64,
    pub end_pos: u64,
    /// Byte ranges that are known to be damaged, and kept.
    #[serde(default)]
    pub damage: Vec<(u64, u64)>,
    /// Who listed its aborted transactions, if there are any.
    #[serde(default)]
    pub aborted: Option<u32>,
}

/// What a name in a partition's directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    Claim(u32),
    Manifest(u32),
    Producers(u32),
    Checkpoint(u32),
    Log {
        epoch: u32,
        base: i64,
    },
    Index {
        epoch: u32,
        base: i64,
    },
    /// Aborted transactions of the segment at `base`, as `epoch` listed them.
    Aborted {
        epoch: u32,
        base: i64,
    },
    Temp,
}

/// `None`: not a name of ours.
pub fn name(of: &str) -> Option<Name> {
    let (epoch, rest) = of.split_once('-')?;
    let is_hex = epoch.len() == 8 && epoch.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let epoch = u32::from_str_radix(epoch, 16).ok().filter(|_| is_hex)?;
    if rest.ends_with(".tmp") {
        return Some(Name::Temp);
    }
    match rest {
        "claim" => return Some(Name::Claim(epoch)),
        "manifest.json" => return Some(Name::Manifest(epoch)),
        "producer-state.snapshot" => return Some(Name::Producers(epoch)),
        "recovery-checkpoint.json" => return Some(Name::Checkpoint(epoch)),
        _ => {}
    }
    let (base, extension) = rest.split_once('.')?;
    let base = base.parse().ok().filter(|_| base.len() == 20)?;
    match extension {
        "log" => Some(Name::Log { epoch, base }),
        "index" => Some(Name::Index { epoch, base }),
        "aborted" => Some(Name::Aborted { epoch, base }),
        _ => None,
    }
}

/// The files of one directory, by name, without those of directories below it.
pub fn directory<'a>(
    files: &'a BTreeMap<String, Bytes>,
    dir: &'a str,
) -> impl Iterator<Item = (&'a str, &'a Bytes)> + 'a {
    let prefix = format!("{dir}/");
    let skip = prefix.len();
    let within = files.range(prefix.clone()..).take_while(move |(path, _)| path.starts_with(&prefix));
    within.filter_map(move |(path, bytes)| {
        let name = path.get(skip..)?;
        (!name.contains('/')).then_some((name, bytes))
    })
}

/// A sound document's body.
fn document<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if crc32c::crc32c(envelope.body.get().as_bytes()) != envelope.crc32c {
        return Err("its checksum is wrong".into());
    }
    serde_json::from_str(envelope.body.get()).map_err(|e| e.to_string())
}

/// The manifest that counts in a directory.
pub fn manifest(files: &BTreeMap<String, Bytes>, dir: &str) -> Result<Option<Manifest>, String> {
    let manifests = directory(files, dir).filter_map(|(n, bytes)| match name(n) {
        Some(Name::Manifest(epoch)) => Some((epoch, n, bytes)),
        _ => None,
    });
    let Some((epoch, file, bytes)) = manifests.max_by_key(|(epoch, ..)| *epoch) else { return Ok(None) };
    let manifest: Manifest = document(bytes).map_err(|why| format!("{dir}/{file}: {why}"))?;
    if manifest.epoch != epoch {
        return Err(format!("{dir}/{file} says that it is of epoch {}", manifest.epoch));
    }
    Ok(Some(manifest))
}

/// Reads one partition. An error: nothing can be said about it.
pub fn partition(
    files: &BTreeMap<String, Bytes>,
    topic: &str,
    id: Uuid,
    partition: i32,
) -> Result<Log, String> {
    let dir = format!("{topic}/{}/{partition}", id.simple());
    let Some(manifest) = manifest(files, &dir)? else { return Err(format!("{dir} has no manifest")) };
    if manifest.topic_id != id || manifest.partition != partition {
        return Err(format!("the manifest in {dir} is of {}-{}", manifest.topic_id, manifest.partition));
    }
    Ok(read(files, &dir, &manifest))
}

fn read(files: &BTreeMap<String, Bytes>, dir: &str, manifest: &Manifest) -> Log {
    let mut log = Log { epoch: manifest.epoch, log_start: manifest.log_start, ..Log::default() };
    log.end = manifest.log_start;
    let mut sealed = manifest.segments.clone();
    sealed.sort_by_key(|s| s.base);
    for segment in sealed {
        let file = format!("{:08x}-{:020}.log", segment.epoch, segment.base);
        match files.get(&format!("{dir}/{file}")) {
            None => log.problems.push(format!("{file} is listed and is not there")),
            Some(bytes) if (bytes.len() as u64) < segment.end_pos => {
                log.problems.push(format!("{file} has {} bytes, sealed at {}", bytes.len(), segment.end_pos));
                take(&mut log, &file, bytes, segment.end);
            }
            Some(bytes) => {
                let bytes = &bytes[..usize::try_from(segment.end_pos).unwrap_or(usize::MAX)];
                for piece in around(bytes, &segment.damage) {
                    take(&mut log, &file, piece, segment.end);
                }
                if log.end != segment.end && segment.damage.is_empty() {
                    log.problems.push(format!("{file} ends at {}, sealed at {}", log.end, segment.end));
                }
            }
        }
    }
    let mut own: Vec<(i64, &str, &Bytes)> = directory(files, dir)
        .filter_map(|(n, bytes)| match name(n) {
            Some(Name::Log { epoch, base }) if epoch == manifest.epoch => Some((base, n, bytes)),
            _ => None,
        })
        .collect();
    own.sort_by_key(|(base, ..)| *base);
    for (i, (_, file, bytes)) in own.iter().enumerate() {
        let next = own.get(i + 1).map_or(i64::MAX, |(base, ..)| *base);
        if next > manifest.log_start {
            take(&mut log, file, bytes, next);
        }
    }
    log
}

/// What lies between damaged ranges.
fn around<'a>(bytes: &'a [u8], damage: &[(u64, u64)]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut from = 0usize;
    for (start, end) in damage {
        pieces.extend(bytes.get(from..usize::try_from(*start).unwrap_or(usize::MAX)));
        from = usize::try_from(*end).unwrap_or(usize::MAX);
    }
    pieces.extend(bytes.get(from..));
    pieces
}

/// Appends the sound batches of a file, up to the first that is not, or that begins at or past `limit`.
fn take(log: &mut Log, file: &str, bytes: &[u8], limit: i64) {
    for (pos, batch) in BatchReader::new(bytes) {
        if !batch.sound || batch.magic != 2 || batch.base >= limit {
            return;
        }
        if let Some(last) = log.batches.last() {
            if last.end() != batch.base {
                let what = format!("{file} at byte {pos}: offset {} follows {}", batch.base, last.end());
                log.problems.push(what);
            }
        }
        log.end = batch.end();
        log.batches.push(batch);
    }
}

#[cfg(test)]
mod tests;
