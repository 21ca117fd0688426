//! `__cluster/format.json`: what a data directory is.
//!
//! Promises: a directory that holds anything else is refused, and so is a newer format; both without a
//! write. The file is created once, by exclusive create, and then only read. If its creator died before
//! it was whole, and nothing else was made yet, it is replaced once it has been still for a lease.

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

/// Looks at the data directory. Writes nothing.
pub(super) async fn look(env: &Env) -> Result<Found, StartError> {
    // A root that is missing stays missing: no retry.
    let root = files::within(Patience::START.attempt, "list", "", env.volume.read_dir("", Class::Control))
        .await
        .map_err(unreadable_root)?;
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
    let other = root.iter().find(|e| e.name != layout::ROOT && !is_ignorable(&e.name));
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
pub(super) async fn make(env: &Env, found: Found, terms: LeaseTerms) -> Result<Format, StartError> {
    let v = &*env.volume;
    files::ensure_dir(v, "", layout::ROOT).await.map_err(StartError::write)?;
    let format = match found {
        Found::Ours(format) => format,
        Found::Fresh => create(env, terms).await?,
        Found::Unfinished => wait_out_the_unfinished(env, terms).await?,
    };
    for dir in [layout::BROKERS, layout::CONTROLLER, layout::METADATA] {
        files::ensure_dir(v, layout::ROOT, dir).await.map_err(StartError::write)?;
    }
    Ok(format)
}

async fn create(env: &Env, terms: LeaseTerms) -> Result<Format, StartError> {
    let new = Format { format: KNOWN, cluster_id: url_safe_base64(env.entropy.uuid()) };
    match files::create(&*env.volume, layout::ROOT, layout::FORMAT, encode(&new).into()).await {
        Ok(_) => reread(env).await,
        Err(e) if e.is_already_exists() => wait_out_the_unfinished(env, terms).await,
        Err(e) => Err(StartError::write(e)),
    }
}

/// Another process created the file and has not filled it. It may be about to: wait for a lease, and
/// then put a whole one in its place. A write of its creator that comes later goes to a file that has
/// no name any more.
async fn wait_out_the_unfinished(env: &Env, terms: LeaseTerms) -> Result<Format, StartError> {
    let since = env.clock.boot();
    while env.clock.boot().saturating_sub(since) < terms.lease {
        if let Ok(format) = reread(env).await {
            return Ok(format);
        }
        tokio::time::sleep(terms.beat()).await;
    }
    tracing::warn!("{} was never finished by its creator; replacing it", layout::FORMAT);
    let new = Format { format: KNOWN, cluster_id: url_safe_base64(env.entropy.uuid()) };
    let tmp = format!("{}.{}.tmp", layout::FORMAT, env.entropy.uuid().simple());
    replace(&*env.volume, &tmp, encode(&new)).await.map_err(StartError::write)?;
    reread(env).await
}

async fn replace(v: &dyn Volume, tmp: &str, content: Vec<u8>) -> Result<(), VolumeError> {
    let file = v.create_new(tmp, Class::Control).await?;
    file.write_sync(0, vec![content.into()]).await?;
    v.rename(tmp, layout::FORMAT, Class::Control).await?;
    v.sync_dir(layout::ROOT, Class::Control).await
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

fn encode(f: &Format) -> Vec<u8> {
    // A struct of a number and a string always encodes.
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
