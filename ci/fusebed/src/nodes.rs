//! Which file the kernel means by a node number.
//!
//! A node is a descriptor that names a file and opens nothing (O_PATH). It stays with its file however
//! the file is renamed, through this mount or another, and while it is held the inode's number is
//! not given to another file. So a node's number is simply the inode's, and stays the same however
//! often the kernel forgets it. All files must lie on one file system.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use parking_lot::Mutex;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{fstat, openat, AtFlags, Mode, OFlags, Stat};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub type Result<T> = std::result::Result<T, Errno>;

/// What FUSE calls the root, whatever inode it is.
const ROOT: u64 = 1;

struct Node {
    fd: Arc<OwnedFd>,
    /// How often the kernel was told of it and has not forgotten it yet.
    lookups: u64,
}

pub struct Nodes {
    root: Arc<OwnedFd>,
    root_path: PathBuf,
    root_stat: Stat,
    known: Mutex<HashMap<u64, Node>>,
}

impl Nodes {
    pub fn new(backing: &Path) -> rustix::io::Result<Nodes> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(rustix::fs::open(backing, flags, Mode::empty())?);
        let root_stat = fstat(&root)?;
        let root_path = std::fs::read_link(proc_path(&root)).map_err(|_| rustix::io::Errno::IO)?;
        Ok(Nodes { root, root_path, root_stat, known: Mutex::default() })
    }

    /// The descriptor of a node that the kernel has not forgotten.
    pub fn get(&self, ino: INodeNo) -> Result<Arc<OwnedFd>> {
        if ino.0 == ROOT {
            return Ok(self.root.clone());
        }
        self.known.lock().get(&ino.0).map(|n| n.fd.clone()).ok_or(Errno::ESTALE)
    }

    /// Looks a name up, for the kernel to know the node from now on.
    pub fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&*self.get(parent)?, name, flags, Mode::empty()).map_err(errno)?;
        self.remember(fd)
    }

    /// The same for a file that is open already.
    pub fn learn(&self, open: &OwnedFd) -> Result<FileAttr> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = rustix::fs::open(proc_path(open), flags, Mode::empty()).map_err(errno)?;
        self.remember(fd)
    }

    fn remember(&self, fd: OwnedFd) -> Result<FileAttr> {
        let attr = self.attr(fd.as_fd())?;
        let mut known = self.known.lock();
        known.entry(attr.ino.0).or_insert_with(|| Node { fd: Arc::new(fd), lookups: 0 }).lookups += 1;
        Ok(attr)
    }

    pub fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut known = self.known.lock();
        if let Some(node) = known.get_mut(&ino.0) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                known.remove(&ino.0);
            }
        }
    }

    /// The attributes of what a descriptor stands for.
    pub fn attr(&self, fd: impl AsFd) -> Result<FileAttr> {
        let stat = rustix::fs::statat(fd, "", AtFlags::EMPTY_PATH).map_err(errno)?;
        if stat.st_dev != self.root_stat.st_dev {
            return Err(Errno::EXDEV);
        }
        let root = stat.st_ino == self.root_stat.st_ino;
        if !root && stat.st_ino == ROOT {
            return Err(Errno::EIO); // it could not be told from the root
        }
        attr_of(&stat, INodeNo(if root { ROOT } else { stat.st_ino }))
    }

    /// Where a node, or a name in it, lies now below the root: for the rules only.
    pub fn path(&self, ino: INodeNo, name: Option<&OsStr>) -> String {
        let full = self.get(ino).ok().and_then(|fd| std::fs::read_link(proc_path(&*fd)).ok());
        let mut path = full.unwrap_or_default();
        if let Ok(below) = path.strip_prefix(&self.root_path) {
            path = below.to_owned();
        }
        path.extend(name);
        path.to_string_lossy().into_owned()
    }
}

/// By this path what a descriptor names can be opened anew.
pub fn proc_path(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub fn errno(e: rustix::io::Errno) -> Errno {
    Errno::from_i32(e.raw_os_error())
}

fn attr_of(stat: &Stat, ino: INodeNo) -> Result<FileAttr> {
    let kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => FileType::RegularFile,
        rustix::fs::FileType::Directory => FileType::Directory,
        _ => return Err(Errno::EOPNOTSUPP), // a broker makes nothing else
    };
    let changed = time(stat.st_ctime, stat.st_ctime_nsec);
    Ok(FileAttr {
        ino,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: changed,
        crtime: changed,
        kind,
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: 0,
        blksize: stat.st_blksize as u32,
        flags: 0,
    })
}

fn time(seconds: i64, nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), nanos as u32)
}
