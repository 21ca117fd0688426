//! Small steps on the volume that the control plane's parts share.
//!
//! Promises: nothing here waits for ever; a write is durable, its name too, when it returns; reads
//! open the file afresh, so that close-to-open holds.

use super::error::StartError;
use super::layout;
use crate::rt::Env;
use crate::volume::{Class, Entry, EntryKind, Volume, VolumeError, VolumeFile};
use bytes::Bytes;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The largest control-plane file that is read: what lies beyond is no file of ours.
const MAX_FILE: u64 = 1 << 30;

/// Errors that a shared volume gives for a while and that then go away by themselves: a server that
/// restarts, a handle or a name that another client just replaced, an interrupted call.
pub(super) fn is_transient(e: &VolumeError) -> bool {
    use io::ErrorKind::*;
    const EIO: i32 = 5;
    matches!(e.kind(), NotFound | StaleNetworkFileHandle | Interrupted | TimedOut | ResourceBusy)
        || e.source.raw_os_error() == Some(EIO)
}

pub(super) fn no_answer(op: &'static str, path: &str, after: Duration) -> VolumeError {
    let why = format!("no answer within {:.1} s", after.as_secs_f64());
    VolumeError::new(op, path, io::Error::new(io::ErrorKind::TimedOut, why))
}

/// How long a listing waits for its probe to be made: what it hastens may not delay it.
const PROBE: Duration = Duration::from_secs(2);

/// Runs one step, for at most `limit`.
///
/// The step may still take effect later: whoever gives up must go on under another file name.
pub(super) async fn within<T>(
    limit: Duration,
    op: &'static str,
    path: &str,
    step: impl Future<Output = Result<T, VolumeError>>,
) -> Result<T, VolumeError> {
    match tokio::time::timeout(limit, step).await {
        Ok(r) => r,
        Err(_) => Err(no_answer(op, path, limit)),
    }
}

/// Waits for something of ours that depends on the volume, for at most `limit`.
pub(super) async fn or_no_answer<T>(
    limit: Duration,
    what: &str,
    step: impl Future<Output = T>,
) -> Result<T, StartError> {
    let none = |_| StartError::NoAnswer(format!("it took more than {:.1} s to {what}", limit.as_secs_f64()));
    tokio::time::timeout(limit, step).await.map_err(none)
}

/// How patiently reads are retried at start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For one attempt.
    pub attempt: Duration,
    /// Attempts; transient errors only.
    pub attempts: u32,
    pub pause: Duration,
}

impl Patience {
    pub const START: Patience =
        Patience { attempt: Duration::from_secs(10), attempts: 6, pause: Duration::from_millis(500) };
}

/// Repeats a read while it fails transiently, with a line in the log for each retry.
pub(super) async fn patiently<T, F>(
    p: Patience,
    op: &'static str,
    path: &str,
    mut step: impl FnMut() -> F,
) -> Result<T, VolumeError>
where
    F: Future<Output = Result<T, VolumeError>>,
{
    let mut left = p.attempts;
    loop {
        match within(p.attempt, op, path, step()).await {
            Err(e) if left > 1 && is_transient(&e) => {
                left -= 1;
                tracing::warn!("{e}; trying again ({left} attempts left)");
                tokio::time::sleep(p.pause).await;
            }
            done => return done,
        }
    }
}

/// The whole file, by a fresh open.
pub(super) async fn read(volume: &dyn Volume, path: &str) -> Result<Bytes, VolumeError> {
    let file = volume.open(path, Class::Control).await?;
    let len = file.len().await?;
    if len > MAX_FILE {
        let e = io::Error::new(io::ErrorKind::InvalidData, format!("{len} bytes are too many"));
        return Err(VolumeError::new("read", path, e));
    }
    let mut all = Vec::new();
    while (all.len() as u64) < len {
        let got = file.read_at(all.len() as u64, (len - all.len() as u64) as usize).await?;
        if got.is_empty() {
            break;
        }
        all.extend_from_slice(&got);
    }
    Ok(all.into())
}

/// Creates `path` exclusively and makes content and name durable.
pub(super) async fn create(
    volume: &dyn Volume,
    dir: &str,
    path: &str,
    content: Bytes,
) -> Result<Arc<dyn VolumeFile>, VolumeError> {
    let file = volume.create_new(path, Class::Control).await?;
    file.write_sync(0, vec![content]).await?;
    volume.sync_dir(dir, Class::Control).await?;
    Ok(file)
}

/// Makes a directory that may be there already, and its name durable in `parent`.
pub(super) async fn ensure_dir(volume: &dyn Volume, parent: &str, path: &str) -> Result<(), VolumeError> {
    match volume.mkdir(path, Class::Control).await {
        Err(e) if !e.is_already_exists() => return Err(e),
        _ => {}
    }
    // Whoever made it may have died before it was durable.
    volume.sync_dir(parent, Class::Control).await
}

/// Names in `dir`. A missing directory is an error: taken for an empty one, a passing ENOENT would let
/// a broker believe in a fresh volume.
pub(super) async fn names(volume: &dyn Volume, dir: &str) -> Result<Vec<String>, VolumeError> {
    let entries = volume.read_dir(dir, Class::Control).await?;
    Ok(entries.into_iter().map(|e| e.name).collect())
}

/// Names in `dir`; none if it does not exist. Only for looking, before the directories are made.
pub(super) async fn names_if_any(volume: &dyn Volume, dir: &str) -> Result<Vec<String>, VolumeError> {
    match names(volume, dir).await {
        Err(e) if e.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

/// The names in `dir` as they are, and not as this host remembers them.
pub(super) async fn fresh_names(env: &Env, dir: &str) -> Result<Vec<String>, VolumeError> {
    defeat_name_cache(env, dir).await;
    names(&*env.volume, dir).await
}

/// As [`fresh_names`], or an error: where something is decided that a later look cannot mend.
pub(super) async fn true_names(env: &Env, dir: &str) -> Result<Vec<String>, VolumeError> {
    let path = layout::probe(dir, env.entropy.u64());
    drop(env.volume.create_new(&path, Class::Control).await?);
    let listed = names(&*env.volume, dir).await;
    let volume = env.volume.clone();
    tokio::spawn(async move { tidy_away(&*volume, &path).await });
    listed
}

/// Makes a name of nobody else's in `dir`, so that the listing which follows comes from the server.
///
/// A host may believe a listing for a minute (nfs(5), acdirmax). A start that saw only old leases would wait for one of
/// those to be proven dead, and then for the present one. Where this fails the listing is as good as it was: what safety
/// needs is seen to by exclusive creates, and by [`true_names`].
pub(super) async fn defeat_name_cache(env: &Env, dir: &str) {
    let path = layout::probe(dir, env.entropy.u64());
    let volume = env.volume.clone();
    let (told, made) = oneshot::channel();
    // In a task of its own: the name is taken away also when nobody waits any more for its creation.
    tokio::spawn(async move {
        if let Err(e) = volume.create_new(&path, Class::Control).await {
            tracing::debug!("the listing may be old: {e}");
        }
        let _ = told.send(());
        tidy_away(&*volume, &path).await;
    });
    let _ = tokio::time::timeout(PROBE, made).await;
}

/// Removes a file, for tidiness only: a failure is logged and nothing more.
pub(super) async fn tidy_away(volume: &dyn Volume, path: &str) {
    match volume.unlink(path).await {
        Err(e) if !e.is_not_found() => tracing::debug!("left behind: {e}"),
        _ => {}
    }
}

/// Removes a directory and all in it, and goes on past what is busy.
///
/// Returns whether it is gone. On NFS a file that some client holds open turns into a `.nfs…` name
/// that goes away when that client closes it: then the directory stays for the next attempt.
///
/// `limit` is for each step; `may` is asked before each, and `false` stops the work.
pub(super) async fn remove_tree(
    volume: &dyn Volume,
    path: &str,
    limit: Duration,
    may: &(dyn Fn() -> bool + Send + Sync),
) -> Result<bool, VolumeError> {
    // Depth first, with a stack of our own: (directory, whether its entries were dealt with).
    let mut stack = vec![(path.to_owned(), false)];
    let mut failed: Option<VolumeError> = None;
    while let Some((dir, emptied)) = stack.pop() {
        if !may() {
            return Ok(false);
        }
        if emptied {
            match within(limit, "rmdir", &dir, volume.rmdir(&dir)).await {
                Err(e) if !e.is_not_found() => failed = failed.or(Some(e)),
                _ => {}
            }
            continue;
        }
        let listed = within(limit, "readdir", &dir, volume.read_dir(&dir, Class::Data)).await;
        let entries: Vec<Entry> = match listed {
            Ok(entries) => entries,
            Err(e) if e.is_not_found() => continue,
            Err(e) => {
                failed = failed.or(Some(e));
                continue;
            }
        };
        stack.push((dir.clone(), true));
        for entry in entries {
            let child = format!("{dir}/{}", entry.name);
            if entry.kind == EntryKind::Dir {
                stack.push((child, false));
                continue;
            }
            if !may() {
                return Ok(false);
            }
            match within(limit, "unlink", &child, volume.unlink(&child)).await {
                Err(e) if !e.is_not_found() => failed = failed.or(Some(e)),
                _ => {}
            }
        }
    }
    match failed {
        None => Ok(true),
        Some(e) => Err(e),
    }
}
