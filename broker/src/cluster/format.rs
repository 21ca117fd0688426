//! `__cluster/format.json`: what a data directory is.
//!
//! Promises: a directory that holds anything else is refused, and so is a newer format; both without a
//! write. The file is created once, by exclusive create, and then only read. If its creator died before
//! it was whole, and nothing else was made yet, it is replaced once it has been still for a lease.
//!
//! Where the control plane's files lie on a volume of their own, the data volume is marked as this cluster's before it
//! is used. From then on a data directory without the mark is refused: an empty directory where a mount is missing would
//! pass for partitions that were never written.

use super::error::StartError;
use super::files::{self, Patience};
use super::layout;
use super::lease::LeaseTerms;
use crate::rt::Env;
use crate::volume::{Class, Volume, VolumeError};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

/// The format of everything below the data directory.
pub(crate) const KNOWN: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Format {
    pub format: u32,
    /// Kafka's cluster id: 22 characters of URL-safe base64.
    pub cluster_id: String,
    /// The data lies on another volume (`cluster.dir`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
}

impl Format {
    /// Whether the data lies where this broker was told.
    fn agrees(&self, apart: bool) -> Result<(), StartError> {
        match (self.apart, apart) {
            (true, false) => Err(StartError::Apart),
            (false, true) => Err(StartError::Together),
            _ => Ok(()),
        }
    }
}

/// What marks a data volume.
#[derive(Serialize, Deserialize)]
struct Marker {
    format: u32,
    cluster_id: String,
}

/// What was found, before anything was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing of ours, and nothing of anybody's.
    Fresh,
    Ours(Format),
    /// A creator died on the way: a `format.json` that is not whole, and nothing that relies on it.
    Unfinished,
}

/// Looks at the data directory; `apart`: the control plane's files lie on a volume of their own. Writes nothing.
pub(super) async fn look(env: &Env, apart: bool) -> Result<Found, StartError> {
    let found = look_at_control(env, apart).await?;
    let Found::Ours(format) = &found else { return Ok(found) };
    format.agrees(apart)?;
    if !apart {
        return Ok(found);
    }
    // In this order: whoever uses the cluster has marked its data before.
    let used = in_use(&*env.volume).await?;
    match marked(env).await {
        Ok(data) => same_cluster(&data, format)?,
        Err(StartError::Volume(e)) if e.is_not_found() && used => return Err(StartError::Unmarked),
        Err(StartError::Volume(e)) if e.is_not_found() => {}
        Err(StartError::Unreadable { .. }) if !used => {}
        Err(e) => return Err(e),
    }
    Ok(found)
}

async fn look_at_control(env: &Env, apart: bool) -> Result<Found, StartError> {
    // A root that is missing stays missing: no retry.
    let root = files::within(Patience::START.attempt, "list", "", env.volume.read_dir("", Class::Control))
        .await
        .map_err(unreadable_root)?;
    if root.iter().any(|e| e.name == layout::MARKER)
        && !(apart && root.iter().any(|e| e.name == layout::ROOT))
    {
        return Err(StartError::Apart);
    }
    if !root.iter().any(|e| e.name == layout::ROOT) {
        return match root.iter().find(|e| !is_ignorable(&e.name)) {
            Some(other) => Err(StartError::Foreign(other.name.clone())),
            None => Ok(Found::Fresh),
        };
    }
    let inside =
        files::patiently(Patience::START, "list", layout::ROOT, || files::names(&*env.volume, layout::ROOT))
            .await
            .map_err(StartError::Volume)?;
    if inside.iter().any(|n| n == "format.json") {
        let bytes = files::patiently(Patience::START, "read", layout::FORMAT, || {
            files::read(&*env.volume, layout::FORMAT)
        })
        .await
        .map_err(StartError::Volume)?;
        match parse(&bytes) {
            Ok(format) => return Ok(Found::Ours(format)),
            Err(e @ StartError::FormatNewer { .. }) => return Err(e),
            Err(e) if in_use(&*env.volume).await? => return Err(e),
            Err(_) => return Ok(Found::Unfinished),
        }
    }
    let other = root.iter().find(|e| !is_ours(&e.name) && !is_ignorable(&e.name));
    match other {
        Some(other) => Err(StartError::Foreign(other.name.clone())),
        None if in_use(&*env.volume).await? => Err(StartError::Unreadable {
            path: layout::FORMAT.into(),
            why: "it is missing, though other cluster files are there".into(),
        }),
        None => Ok(Found::Fresh),
    }
}

/// Makes the directories and the format file where they are missing, and returns the format that stands.
pub(super) async fn make(
    env: &Env,
    found: Found,
    terms: LeaseTerms,
    apart: bool,
) -> Result<Format, StartError> {
    let v = &*env.volume;
    files::ensure_dir(v, "", layout::ROOT).await.map_err(StartError::write)?;
    let format = match found {
        Found::Ours(format) => format,
        Found::Fresh => create(env, terms, apart).await?,
        Found::Unfinished => wait_out_the_unfinished(env, terms, apart).await?,
    };
    // Another broker may have made it meanwhile, which was told otherwise.
    format.agrees(apart)?;
    if apart {
        mark(env, &format, terms).await?;
    }
    for dir in [layout::BROKERS, layout::CONTROLLER, layout::METADATA] {
        files::ensure_dir(v, layout::ROOT, dir).await.map_err(StartError::write)?;
    }
    Ok(format)
}

async fn create(env: &Env, terms: LeaseTerms, apart: bool) -> Result<Format, StartError> {
    let new = Format { format: KNOWN, cluster_id: url_safe_base64(env.entropy.uuid()), apart };
    match files::create(&*env.volume, layout::ROOT, layout::FORMAT, encode(&new).into()).await {
        Ok(_) => reread(env).await,
        Err(e) if e.is_already_exists() => wait_out_the_unfinished(env, terms, apart).await,
        Err(e) => Err(StartError::write(e)),
    }
}

/// Another process created the file and has not filled it. It may be about to: wait for a lease, and
/// then put a whole one in its place. A write of its creator that comes later goes to a file that has
/// no name any more.
async fn wait_out_the_unfinished(env: &Env, terms: LeaseTerms, apart: bool) -> Result<Format, StartError> {
    let since = env.clock.boot();
    while env.clock.boot().saturating_sub(since) < terms.lease {
        if let Ok(format) = reread(env).await {
            return Ok(format);
        }
        tokio::time::sleep(terms.beat()).await;
    }
    let new = Format { format: KNOWN, cluster_id: url_safe_base64(env.entropy.uuid()), apart };
    replace(env, layout::ROOT, layout::FORMAT, encode(&new)).await.map_err(StartError::write)?;
    reread(env).await
}

async fn replace(env: &Env, dir: &str, path: &str, content: Vec<u8>) -> Result<(), VolumeError> {
    tracing::warn!("{path} was never finished by its creator; replacing it");
    let v = &*env.volume;
    let tmp = format!("{path}.{}.tmp", env.entropy.uuid().simple());
    let file = v.create_new(&tmp, Class::Control).await?;
    file.write_sync(0, vec![content.into()]).await?;
    v.rename(&tmp, path, Class::Control).await?;
    v.sync_dir(dir, Class::Control).await
}

/// Marks the data volume as this cluster's, if it is not yet.
async fn mark(env: &Env, format: &Format, terms: LeaseTerms) -> Result<(), StartError> {
    let content = encode(&Marker { format: KNOWN, cluster_id: format.cluster_id.clone() });
    match files::create(&*env.volume, "", layout::MARKER, content.clone().into()).await {
        Ok(_) => return Ok(()),
        Err(e) if e.is_already_exists() => {}
        Err(e) => return Err(StartError::write(e)),
    }
    // As with the format file: its creator may be about to fill it, or died.
    let since = env.clock.boot();
    loop {
        match marked(env).await {
            Err(StartError::Unreadable { .. }) if env.clock.boot().saturating_sub(since) < terms.lease => {
                tokio::time::sleep(terms.beat()).await;
            }
            Err(StartError::Unreadable { .. }) if !in_use(&*env.volume).await? => {
                return replace(env, "", layout::MARKER, content).await.map_err(StartError::write);
            }
            data => {
                same_cluster(&data?, format)?;
                // Who made it may have died before it was durable.
                return env.volume.sync_dir("", Class::Control).await.map_err(StartError::write);
            }
        }
    }
}

/// The cluster that the data volume is marked for.
async fn marked(env: &Env) -> Result<String, StartError> {
    let path = layout::MARKER;
    let read = files::patiently(Patience::START, "read", path, || files::read(&*env.volume, path));
    let bytes = read.await.map_err(StartError::Volume)?;
    let marker = serde_json::from_slice::<Marker>(&bytes);
    let marker = marker.map_err(|e| StartError::Unreadable { path: path.into(), why: e.to_string() })?;
    match marker.format {
        ..=KNOWN => Ok(marker.cluster_id),
        found => Err(StartError::FormatNewer { path: path.into(), found, known: KNOWN }),
    }
}

fn same_cluster(data: &str, format: &Format) -> Result<(), StartError> {
    if data == format.cluster_id {
        return Ok(());
    }
    Err(StartError::Mismatch { data: data.to_owned(), control: format.cluster_id.clone() })
}

/// What stands on the volume counts, whoever wrote it.
async fn reread(env: &Env) -> Result<Format, StartError> {
    let bytes = files::patiently(Patience::START, "read", layout::FORMAT, || {
        files::read(&*env.volume, layout::FORMAT)
    })
    .await
    .map_err(StartError::Volume)?;
    parse(&bytes)
}

/// Whether anything beside the format file shows that the cluster was used.
pub(super) async fn in_use(v: &dyn Volume) -> Result<bool, StartError> {
    for dir in [layout::BROKERS, layout::CONTROLLER, layout::METADATA] {
        let names = files::names_if_any(v, dir).await.map_err(StartError::Volume)?;
        if names.iter().any(|n| !n.ends_with(".lock")) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn encode(f: &impl Serialize) -> Vec<u8> {
    // A struct of numbers, strings and flags always encodes.
    let mut b = serde_json::to_vec_pretty(f).unwrap_or_default();
    b.push(b'\n');
    b
}

pub(super) fn parse(bytes: &[u8]) -> Result<Format, StartError> {
    // The number first: a newer format may have any other fields.
    #[derive(Deserialize)]
    struct Number {
        format: u32,
    }
    let unreadable =
        |e: serde_json::Error| StartError::Unreadable { path: layout::FORMAT.into(), why: e.to_string() };
    let Number { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if format > KNOWN {
        let path = layout::FORMAT.into();
        return Err(StartError::FormatNewer { path, found: format, known: KNOWN });
    }
    serde_json::from_slice(bytes).map_err(unreadable)
}

/// What the control plane has in the root; a mark that is being replaced has a longer name.
pub(super) fn is_ours(name: &str) -> bool {
    name == layout::ROOT || name.starts_with(layout::MARKER)
}

/// What file systems themselves put into an empty directory.
pub(super) fn is_ignorable(name: &str) -> bool {
    matches!(name, "lost+found" | ".snapshot") || name.starts_with(".nfs")
}

fn unreadable_root(e: VolumeError) -> StartError {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => StartError::NotADirectory(e),
        ErrorKind::PermissionDenied => StartError::NotWritable(e),
        ErrorKind::TimedOut => StartError::NoAnswer(e.to_string()),
        _ => StartError::Volume(e),
    }
}

/// A UUID as Kafka writes it (`org.apache.kafka.common.Uuid`): RFC 4648 section 5, without padding.
fn url_safe_base64(id: uuid::Uuid) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let n = id.as_u128();
    // 22 digits of 6 bits are 132: the last has 4 zero bits below the UUID's.
    (0..22u32)
        .map(|i| {
            let six = if i == 21 { n << 4 } else { n >> (122 - 6 * i) } & 63;
            char::from(ALPHABET[six as usize])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_id_is_kafkas_base64() {
        assert_eq!(url_safe_base64(uuid::Uuid::nil()), "A".repeat(22));
        assert_eq!(url_safe_base64(uuid::Uuid::max()), format!("{}w", "_".repeat(21)));
        // RFC 4648: the bytes 0x14fb9c03d97e are "FPucA9l-".
        let id = uuid::Uuid::from_u128(0x14fb_9c03_d97e_0000_0000_0000_0000_0000);
        assert_eq!(url_safe_base64(id), format!("FPucA9l-{}", "A".repeat(14)));
    }

    #[test]
    fn a_newer_format_is_told_from_a_damaged_one() {
        let newer = br#"{"format": 2, "something": []}"#;
        assert!(matches!(parse(newer), Err(StartError::FormatNewer { found: 2, .. })));
        assert!(matches!(parse(b""), Err(StartError::Unreadable { .. })));
        assert!(matches!(parse(br#"{"format": 1}"#), Err(StartError::Unreadable { .. })));
    }
}
