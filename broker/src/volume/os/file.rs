//! One open file of the operating system.

use super::buffers::Buffers;
use super::lane::{Key, Lane};
use super::{ask, Lanes};
use crate::volume::{advance, Class, Result, VolumeFile};
use async_trait::async_trait;
use bytes::Bytes;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{fdatasync, ftruncate, statx, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{pread, pwritev, retry_on_intr, Errno};
use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Linux' limit of buffers in one pwritev(2) (IOV_MAX).
const MAX_BUFS: usize = 1024;
/// A read of more bytes looks first how many there are, so as not to reserve memory in vain.
const BIG_READ: usize = 1 << 20;

/// A descriptor, shared by the handle and the jobs under way.
pub(super) struct Opened {
    /// `None` only while it is being dropped.
    fd: Option<OwnedFd>,
    id: u64,
    path: String,
    class: Class,
    lanes: Arc<Lanes>,
}

impl Opened {
    /// Opens a regular file; blocks.
    pub(super) fn open(
        lanes: Arc<Lanes>,
        full: &Path,
        path: String,
        flags: OFlags,
        class: Class,
    ) -> rustix::io::Result<Opened> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = retry_on_intr(|| rustix::fs::open(full, flags, Mode::from_raw_mode(0o666)))?;
        let id = lanes.next_id.fetch_add(1, Relaxed);
        let opened = Opened { fd: Some(fd), id, path, class, lanes };
        match FileType::from_raw_mode(stat(opened.fd()?, StatxFlags::TYPE)?.stx_mode.into()) {
            FileType::RegularFile => Ok(opened),
            FileType::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    fn fd(&self) -> rustix::io::Result<&OwnedFd> {
        self.fd.as_ref().ok_or(Errno::BADF)
    }
}

impl Drop for Opened {
    /// Close(2) can block, on NFS for as long as the server likes: never on the caller's thread.
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.lanes.changes(self.class).submit(Key::Changes(self.id), move || drop(fd));
        }
    }
}

/// Asks for nothing but what `mask` says: an fstat(2), which asks for the times of change too, makes an
/// NFS client write back first what is dirty, and would hang with it.
fn stat(fd: &OwnedFd, mask: StatxFlags) -> rustix::io::Result<rustix::fs::Statx> {
    retry_on_intr(|| statx(fd, "", AtFlags::EMPTY_PATH, mask))
}

fn read(fd: &OwnedFd, buffers: &Arc<Buffers>, pos: u64, mut len: usize) -> rustix::io::Result<Bytes> {
    if len > BIG_READ {
        let there = stat(fd, StatxFlags::SIZE)?.stx_size.saturating_sub(pos);
        len = len.min(usize::try_from(there).unwrap_or(usize::MAX));
    }
    let mut buf = buffers.take(len);
    while buf.len() < len {
        let at = pos.saturating_add(buf.len() as u64);
        let n = loop {
            match pread(fd, rustix::buffer::spare_capacity(&mut buf), at) {
                Err(Errno::INTR) => {}
                done => break done?,
            }
        };
        if n == 0 {
            break;
        }
    }
    // The buffer may have had room for more than was asked for, which was then read.
    buf.truncate(len);
    Ok(buffers.lend(buf))
}

/// One pwritev(2).
fn write(fd: impl AsFd, pos: u64, bufs: &[Bytes]) -> rustix::io::Result<usize> {
    let full = bufs.iter().filter(|b| !b.is_empty()).take(MAX_BUFS);
    let slices: Vec<IoSlice<'_>> = full.map(|b| IoSlice::new(b)).collect();
    if slices.is_empty() {
        return Ok(0);
    }
    retry_on_intr(|| pwritev(&fd, &slices, pos))
}

fn write_all(fd: &OwnedFd, mut pos: u64, mut bufs: Vec<Bytes>) -> rustix::io::Result<()> {
    loop {
        bufs.retain(|b| !b.is_empty());
        if bufs.is_empty() {
            return Ok(());
        }
        let n = write(fd, pos, &bufs)?;
        if n == 0 {
            return Err(Errno::IO);
        }
        pos += n as u64;
        advance(&mut bufs, n);
    }
}

/// Not retried after a signal: whether the interrupted call already took the error of a failed
/// write-back with it is not told, so that a second one may succeed in vain. (A signal that does
/// not kill interrupts a sync on hardly any file system.)
///
/// fdatasync(2) leaves out what is not needed to read the bytes back; a changed length, after a
/// truncation too, is needed and becomes durable.
fn sync(fd: &OwnedFd) -> rustix::io::Result<()> {
    fdatasync(fd)
}

/// A handle.
pub(super) struct OsFile(Arc<Opened>);

impl OsFile {
    pub(super) fn new(opened: Opened) -> Self {
        OsFile(Arc::new(opened))
    }

    async fn on<T, F>(&self, lane: &Lane, key: Key, op: &'static str, call: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&OwnedFd) -> rustix::io::Result<T> + Send + 'static,
    {
        let opened = self.0.clone();
        ask(&self.0.lanes, lane, key, op, &self.0.path, move || call(opened.fd()?)).await
    }

    async fn change<T, F>(&self, op: &'static str, call: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&OwnedFd) -> rustix::io::Result<T> + Send + 'static,
    {
        self.on(self.0.lanes.changes(self.0.class), Key::Changes(self.0.id), op, call).await
    }

    async fn look<T, F>(&self, op: &'static str, call: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&OwnedFd) -> rustix::io::Result<T> + Send + 'static,
    {
        self.on(self.0.lanes.reads(self.0.class), Key::Reads(self.0.id), op, call).await
    }
}

#[async_trait]
impl VolumeFile for OsFile {
    async fn read_at(&self, pos: u64, len: usize) -> Result<Bytes> {
        let buffers = self.0.lanes.buffers.clone();
        self.look("read", move |fd| read(fd, &buffers, pos, len)).await
    }

    async fn write_at(&self, pos: u64, bufs: Vec<Bytes>) -> Result<usize> {
        self.change("write", move |fd| write(fd, pos, &bufs)).await
    }

    async fn sync(&self) -> Result<()> {
        self.change("sync", sync).await
    }

    async fn write_sync(&self, pos: u64, bufs: Vec<Bytes>) -> Result<()> {
        let call = move |fd: &OwnedFd| {
            write_all(fd, pos, bufs)?;
            sync(fd)
        };
        self.change("write_sync", call).await
    }

    async fn len(&self) -> Result<u64> {
        self.look("len", |fd| Ok(stat(fd, StatxFlags::SIZE)?.stx_size)).await
    }

    async fn truncate(&self, len: u64) -> Result<()> {
        self.change("truncate", move |fd| retry_on_intr(|| ftruncate(fd, len))).await
    }
}
