//! The volume as a directory of the operating system (Linux).
//!
//! Every call that can block runs on a thread of a lane, never on the runtime's. There is a lane for
//! reads, one for what changes data (writes, syncs, renames), and one for heartbeats and claims; none
//! waits for another. Through any one handle at most one thread changes and four read, whatever hangs
//! there; a call by name takes one thread for that name.
//!
//! A call whose caller gave up is left out if it has not begun, and otherwise goes on to its end. Calls
//! of one handle that change it happen in the order in which they were asked for.
//!
//! Not promised: that a stuck call ever ends, or that what the host's page cache says is on disk.

#![allow(clippy::disallowed_methods)] // the operating system is reached here

mod buffers;
mod file;
mod lane;

// The simulator allows no threads.
#[cfg(all(test, not(madsim)))]
mod tests;

pub use crate::rt::{fs_kind, FsKind};

use super::{
    check_dir_path, check_path, Class, Entry, EntryKind, Result, Space, Volume, VolumeError, VolumeFile,
};
use async_trait::async_trait;
use buffers::Buffers;
use file::{Opened, OsFile};
use lane::{Key, Lane};
use rustix::fs::{Mode, OFlags};
use rustix::io::{retry_on_intr, Errno};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Threads of a lane that are not stuck. Syncs of different files share journal commits or round
/// trips, so that many at a time are cheaper than few.
const READ_THREADS: usize = 32;
const DATA_THREADS: usize = 64;
const CONTROL_THREADS: usize = 8;

struct Lanes {
    reads: Lane,
    data: Lane,
    control: Lane,
    buffers: Arc<Buffers>,
    next_id: AtomicU64,
    /// Called on the lane's thread before each call, with its operation and path.
    #[cfg(test)]
    hook: parking_lot::Mutex<Option<Hook>>,
}

#[cfg(test)]
type Hook = Arc<dyn Fn(&'static str, &str) + Send + Sync>;

impl Lanes {
    fn reads(&self, class: Class) -> &Lane {
        match class {
            Class::Data => &self.reads,
            Class::Control => &self.control,
        }
    }

    fn changes(&self, class: Class) -> &Lane {
        match class {
            Class::Data => &self.data,
            Class::Control => &self.control,
        }
    }
}

/// Runs `call` on a lane and brings its result back.
async fn ask<T, F>(
    lanes: &Arc<Lanes>,
    lane: &Lane,
    key: Key,
    op: &'static str,
    path: &str,
    call: F,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> rustix::io::Result<T> + Send + 'static,
{
    let (tx, rx) = oneshot::channel();
    #[cfg(test)]
    let hook = (lanes.hook.lock().clone(), path.to_owned());
    #[cfg(not(test))]
    let _ = lanes;
    lane.submit(key, move || {
        if tx.is_closed() {
            return;
        }
        #[cfg(test)]
        if let (Some(hook), path) = &hook {
            hook(op, path);
        }
        // If the caller has gone meanwhile, the result is dropped here, a new handle included.
        let _ = tx.send(call());
    });
    let fail = |e| VolumeError::new(op, path, e);
    match rx.await {
        Ok(done) => done.map_err(|e| fail(e.into())),
        Err(_) => Err(fail(io::Error::other("the call was broken off"))),
    }
}

/// A directory of this host as a volume.
pub struct OsVolume {
    root: PathBuf,
    lanes: Arc<Lanes>,
}

impl OsVolume {
    /// The volume at the directory `root`, which must exist. Asks the file system once, and blocks
    /// for it: for the start of a program.
    pub fn open(root: impl AsRef<Path>) -> Result<OsVolume> {
        let root = root.as_ref();
        let fail = |e| VolumeError::new("open", root.display().to_string(), e);
        // Absolute, so that a change of the working directory does not move the volume.
        let root = root.canonicalize().map_err(fail)?;
        if !root.is_dir() {
            return Err(fail(Errno::NOTDIR.into()));
        }
        let lanes = Lanes {
            reads: Lane::new("vol-read", READ_THREADS),
            data: Lane::new("vol-data", DATA_THREADS),
            control: Lane::new("vol-ctl", CONTROL_THREADS),
            buffers: Arc::default(),
            next_id: AtomicU64::new(0),
            #[cfg(test)]
            hook: parking_lot::Mutex::new(None),
        };
        Ok(OsVolume { root, lanes: Arc::new(lanes) })
    }

    /// The directory, as an absolute path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    async fn by_name<T, F>(&self, lane: &Lane, op: &'static str, path: &str, call: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(PathBuf) -> rustix::io::Result<T> + Send + 'static,
    {
        let full = self.root.join(path);
        ask(&self.lanes, lane, Key::Path(path.to_owned()), op, path, move || call(full)).await
    }

    async fn open_file(
        &self,
        lane: &Lane,
        op: &'static str,
        path: &str,
        flags: OFlags,
        class: Class,
    ) -> Result<Arc<dyn VolumeFile>> {
        check_path(op, path)?;
        let (lanes, name) = (self.lanes.clone(), path.to_owned());
        let open = move |full: PathBuf| Opened::open(lanes, &full, name, flags, class);
        let opened = self.by_name(lane, op, path, open).await?;
        Ok(Arc::new(OsFile::new(opened)))
    }
}

#[async_trait]
impl Volume for OsVolume {
    async fn open(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>> {
        self.open_file(self.lanes.reads(class), "open", path, OFlags::RDONLY, class).await
    }

    async fn open_write(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>> {
        self.open_file(self.lanes.changes(class), "open", path, OFlags::RDWR, class).await
    }

    async fn create_new(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        self.open_file(self.lanes.changes(class), "create", path, flags, class).await
    }

    async fn rename(&self, from: &str, to: &str, class: Class) -> Result<()> {
        check_path("rename", from)?;
        check_path("rename", to)?;
        let to = self.root.join(to);
        let call = move |from: PathBuf| rustix::fs::rename(&from, &to);
        self.by_name(self.lanes.changes(class), "rename", from, call).await
    }

    async fn unlink(&self, path: &str) -> Result<()> {
        check_path("unlink", path)?;
        self.by_name(&self.lanes.data, "unlink", path, |full| rustix::fs::unlink(&full)).await
    }

    async fn read_dir(&self, path: &str, class: Class) -> Result<Vec<Entry>> {
        check_dir_path("readdir", path)?;
        self.by_name(self.lanes.reads(class), "readdir", path, |full| read_dir(&full)).await
    }

    async fn mkdir(&self, path: &str, class: Class) -> Result<()> {
        check_path("mkdir", path)?;
        let call = |full: PathBuf| rustix::fs::mkdir(&full, Mode::from_raw_mode(0o777));
        self.by_name(self.lanes.changes(class), "mkdir", path, call).await
    }

    async fn rmdir(&self, path: &str) -> Result<()> {
        check_path("rmdir", path)?;
        self.by_name(&self.lanes.data, "rmdir", path, |full| rustix::fs::rmdir(&full)).await
    }

    async fn sync_dir(&self, path: &str, class: Class) -> Result<()> {
        check_dir_path("syncdir", path)?;
        let call = |full: PathBuf| rustix::fs::fsync(open_dir(&full)?);
        self.by_name(self.lanes.changes(class), "syncdir", path, call).await
    }

    async fn space(&self) -> Result<Space> {
        let call = |full: PathBuf| {
            let s = retry_on_intr(|| rustix::fs::statvfs(&full))?;
            // What a process without privileges can still fill, not the reserve of root.
            let [total, free] = [s.f_blocks, s.f_bavail].map(|n| n.saturating_mul(s.f_frsize));
            Ok(Space { total, free })
        };
        self.by_name(&self.lanes.control, "statvfs", "", call).await
    }
}

fn open_dir(full: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(full, flags, Mode::empty()))
}

fn read_dir(full: &Path) -> rustix::io::Result<Vec<Entry>> {
    let errno = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(full).map_err(errno)? {
        let entry = entry.map_err(errno)?;
        let kind = match entry.file_type() {
            Ok(t) if t.is_file() => EntryKind::File,
            Ok(t) if t.is_dir() => EntryKind::Dir,
            Ok(_) => EntryKind::Other,
            // Gone between the listing and the look.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(errno(e)),
        };
        entries.push(match entry.file_name().into_string() {
            Ok(name) => Entry { name, kind },
            // Nothing of ours: no path can name it.
            Err(name) => Entry { name: name.to_string_lossy().into_owned(), kind: EntryKind::Other },
        });
    }
    entries.sort();
    Ok(entries)
}

/// Raises the limit of open descriptors of this process as far as is allowed, and returns it.
pub fn raise_fd_limit() -> u64 {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, ..limit };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(error = %e, "cannot raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
