//! The file system as storage sees it.
//!
//! What callers may rely on, and nothing more (the volume may be NFS):
//!
//! 1. [`Volume::rename`] inside one directory is atomic;
//! 2. [`Volume::create_new`] has one winner;
//! 3. who opens a file after another client's `sync` or close returned sees all of it;
//! 4. after a successful [`VolumeFile::sync`] the file's bytes survive a crash of client and
//!    server; a new name is durable only after [`Volume::sync_dir`] of its directory.
//!
//! A request may take effect long after the process that sent it died. A file whose `sync` failed or
//! was given up must never be synced or written again: the pages may be clean, readable and not on
//! disk. Dropping a handle closes it and does no more.
//!
//! Paths are relative to the volume's root, separated by `/`, with no empty, `.` or `..` components;
//! the root itself is the empty path, for [`Volume::read_dir`] and [`Volume::sync_dir`] only. Any
//! other path is refused with `InvalidInput` before the volume is asked.
//!
//! A caller that stops waiting for an operation does not stop the operation.

mod mem;
pub mod os;
mod split;

// The simulator allows no threads, which the real volume needs.
#[cfg(all(test, not(madsim)))]
mod agree;
#[cfg(test)]
mod contract;

pub use mem::{Counts, Hang, MemVolume, Op};
pub use os::{raise_fd_limit, OsVolume};
pub use split::SplitVolume;

use async_trait::async_trait;
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// An operation that failed, with its path.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{op} {path}: {source}")]
pub struct VolumeError {
    pub op: &'static str,
    pub path: String,
    pub source: Arc<io::Error>,
}

impl VolumeError {
    pub fn new(op: &'static str, path: impl Into<String>, source: io::Error) -> Self {
        VolumeError { op, path: path.into(), source: Arc::new(source) }
    }

    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    pub fn is_already_exists(&self) -> bool {
        self.kind() == io::ErrorKind::AlreadyExists
    }
}

pub type Result<T> = std::result::Result<T, VolumeError>;

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    File,
    Dir,
    Other,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
}

/// Space on the volume, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
}

/// Which lane an operation takes: a stuck operation of one class delays no other class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Log segments and partition metadata.
    Data,
    /// Heartbeats and claims: must go through while data is stuck.
    Control,
}

/// An open file. Handles are shared; operations on one handle may run side by side, but a writer
/// must not start a write or a sync before the previous one returned.
#[async_trait]
#[allow(clippy::len_without_is_empty)] // Asking the length may fail and takes a round trip.
pub trait VolumeFile: Send + Sync + 'static {
    /// Reads up to `len` bytes at `pos`; fewer only at the end of the file.
    async fn read_at(&self, pos: u64, len: usize) -> Result<Bytes>;

    /// Writes the buffers one after another at `pos`, in one request where the system can, and
    /// returns how many bytes were written: possibly fewer than given (pwritev(2)). See
    /// [`write_all_at`].
    async fn write_at(&self, pos: u64, bufs: Vec<Bytes>) -> Result<usize>;

    /// Makes everything written through this client durable, and the file's length
    /// (fdatasync(2)).
    async fn sync(&self) -> Result<()>;

    /// Writes all of `bufs` at `pos` and makes them durable: [`write_all_at`], then `sync`.
    ///
    /// An implementation may override it to hand the work over once instead of twice; what is
    /// promised is the same. After an error an unknown part may have been written, and the file is
    /// to be given up.
    async fn write_sync(&self, pos: u64, bufs: Vec<Bytes>) -> Result<()> {
        write_all_at(self, pos, bufs).await?;
        self.sync().await
    }

    /// The file's length in bytes.
    async fn len(&self) -> Result<u64>;

    /// Cuts or extends the file.
    async fn truncate(&self, len: u64) -> Result<()>;
}

/// A shared volume.
#[async_trait]
pub trait Volume: Send + Sync + 'static {
    /// Opens an existing file for reading: a fresh open, so that close-to-open holds.
    async fn open(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>>;

    /// Opens an existing file for reading and writing.
    async fn open_write(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>>;

    /// Creates a file that does not exist yet (`AlreadyExists` if it does), open for reading and
    /// writing.
    async fn create_new(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>>;

    async fn rename(&self, from: &str, to: &str, class: Class) -> Result<()>;

    async fn unlink(&self, path: &str) -> Result<()>;

    /// The entries of a directory, sorted by name.
    async fn read_dir(&self, path: &str, class: Class) -> Result<Vec<Entry>>;

    /// Makes one directory; its parent must exist. `AlreadyExists` if it does.
    async fn mkdir(&self, path: &str, class: Class) -> Result<()>;

    /// Removes one empty directory.
    async fn rmdir(&self, path: &str) -> Result<()>;

    /// Makes the names in a directory durable.
    async fn sync_dir(&self, path: &str, class: Class) -> Result<()>;

    async fn space(&self) -> Result<Space>;
}

/// Writes all of `bufs` at `pos`, going on after short writes.
///
/// After an error an unknown part may have been written: the file is then to be given up.
pub async fn write_all_at<F>(file: &F, mut pos: u64, mut bufs: Vec<Bytes>) -> Result<()>
where
    F: VolumeFile + ?Sized,
{
    loop {
        bufs.retain(|b| !b.is_empty());
        if bufs.is_empty() {
            return Ok(());
        }
        let n = file.write_at(pos, bufs.clone()).await?;
        if n == 0 {
            let e = io::Error::new(io::ErrorKind::WriteZero, "the volume took no bytes");
            return Err(VolumeError::new("write", "", e));
        }
        pos += n as u64;
        advance(&mut bufs, n);
    }
}

/// Takes the first `n` bytes off.
fn advance(bufs: &mut [Bytes], mut n: usize) {
    for b in bufs.iter_mut() {
        let take = n.min(b.len());
        bytes::Buf::advance(b, take);
        n -= take;
    }
}

/// Refuses a path that is not a plain relative one.
fn check_path(op: &'static str, path: &str) -> Result<()> {
    let plain = |c: &str| !c.is_empty() && c != "." && c != ".." && !c.contains('\0');
    if path.split('/').all(plain) {
        return Ok(());
    }
    let e = io::Error::new(io::ErrorKind::InvalidInput, "not a plain path relative to the volume");
    Err(VolumeError::new(op, path, e))
}

/// As [`check_path`], but the root is allowed.
fn check_dir_path(op: &'static str, path: &str) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    check_path(op, path)
}
