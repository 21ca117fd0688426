//! The file system: every operation is done to the backing directory, once it has passed the gate.
//!
//! Nothing is cached by the kernel (direct I/O, attributes and names that lapse at once), so that
//! mounts of one backing directory see each other's writes as hosts with a strict NFS mount do. What a
//! broker asks of its volume is there, and links; symbolic links, special files, owners, times,
//! extended attributes and locks are not: flock(2) holds within one mount only.
//!
//! An operation that a rule hits waits on a thread of its own: it holds up none but those that the
//! kernel puts behind it (a file's writes and syncs stand in one queue there).

use crate::faults::{Faults, Op, Verdict};
use crate::nodes::{errno, proc_path, Nodes, Result};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{self, AtFlags, Mode, OFlags, StatVfs};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// For how long the kernel may believe what it was told.
const TTL: Duration = Duration::ZERO;

struct Entry {
    ino: INodeNo,
    kind: FileType,
    name: OsString,
}

struct Handle {
    fd: OwnedFd,
    /// What a directory held when it was last read from its start.
    listing: Mutex<Vec<Entry>>,
}

/// What the operations work on.
struct Files {
    nodes: Nodes,
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    next: AtomicU64,
}

pub struct Passthrough {
    files: Arc<Files>,
    faults: Arc<Faults>,
}

/// A reply of FUSE, and what it takes.
trait Answer: Send + 'static {
    type With;
    fn give(self, with: Self::With);
    fn refuse(self, error: Errno);
}

macro_rules! answer {
    ($reply:ty, $with:ty, |$it:ident, $value:ident| $give:expr) => {
        impl Answer for $reply {
            type With = $with;
            fn give(self, $value: $with) {
                #[allow(unused_mut)]
                let mut $it = self;
                $give
            }
            fn refuse(self, error: Errno) {
                self.error(error)
            }
        }
    };
}

answer!(ReplyEmpty, (), |reply, _done| reply.ok());
answer!(ReplyEntry, FileAttr, |reply, attr| reply.entry(&TTL, &attr, Generation(0)));
answer!(ReplyAttr, FileAttr, |reply, attr| reply.attr(&TTL, &attr));
answer!(ReplyData, Vec<u8>, |reply, data| reply.data(&data));
answer!(ReplyWrite, u32, |reply, size| reply.written(size));
answer!(ReplyOpen, FileHandle, |reply, handle| reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO));
answer!(ReplyCreate, (FileAttr, FileHandle), |reply, made| {
    reply.created(&TTL, &made.0, Generation(0), made.1, FopenFlags::FOPEN_DIRECT_IO)
});
answer!(ReplyDirectory, Vec<(u64, Entry)>, |reply, entries| {
    for (next, e) in entries {
        if reply.add(e.ino, next, e.kind, &e.name) {
            break; // full: the kernel asks for the rest
        }
    }
    reply.ok()
});
answer!(ReplyStatfs, StatVfs, |reply, s| {
    let (size, name) = (s.f_bsize as u32, s.f_namemax as u32);
    reply.statfs(s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, size, name, s.f_frsize as u32)
});

fn settle<A: Answer>(answer: A, result: Result<A::With>) {
    match result {
        Ok(with) => answer.give(with),
        Err(error) => answer.refuse(error),
    }
}

impl Passthrough {
    pub fn new(nodes: Nodes, faults: Arc<Faults>) -> Self {
        let files = Files { nodes, open: Mutex::default(), next: AtomicU64::new(1) };
        Passthrough { files: Arc::new(files), faults }
    }

    /// Does the work and answers with what comes of it, unless a rule says otherwise.
    fn pass<A, W>(&self, op: Op, ino: INodeNo, name: Option<&OsStr>, answer: A, work: W)
    where
        A: Answer,
        W: FnOnce(&Files) -> Result<A::With> + Send + 'static,
    {
        let Some(hit) = self.faults.meet(op, || self.files.nodes.path(ino, name)) else {
            return settle(answer, work(&self.files));
        };
        let (files, faults) = (self.files.clone(), self.faults.clone());
        std::thread::spawn(move || {
            let result = match faults.suffer(&hit) {
                Verdict::Pass => work(&files),
                Verdict::Fail => Err(Errno::EIO),
            };
            settle(answer, result);
        });
    }
}

impl Files {
    fn handle(&self, handle: FileHandle) -> Result<Arc<Handle>> {
        self.open.lock().get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn keep(&self, fd: OwnedFd) -> FileHandle {
        let id = self.next.fetch_add(1, Relaxed);
        self.open.lock().insert(id, Arc::new(Handle { fd, listing: Mutex::default() }));
        FileHandle(id)
    }

    /// Opens anew what a node stands for.
    fn reopen(&self, ino: INodeNo, flags: OFlags) -> Result<OwnedFd> {
        let node = self.nodes.get(ino)?;
        fs::open(proc_path(&*node), flags | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
    }

    fn attr(&self, ino: INodeNo, handle: Option<FileHandle>) -> Result<FileAttr> {
        match handle {
            Some(handle) => self.nodes.attr(&self.handle(handle)?.fd),
            None => self.nodes.attr(&*self.nodes.get(ino)?),
        }
    }

    fn create(&self, parent: INodeNo, name: &OsStr, mode: u32, flags: i32) -> Result<(FileAttr, FileHandle)> {
        let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CREATE | OFlags::CLOEXEC;
        let parent = self.nodes.get(parent)?;
        let fd = fs::openat(&*parent, name, flags, Mode::from_raw_mode(mode)).map_err(errno)?;
        Ok((self.nodes.learn(&fd)?, self.keep(fd)))
    }

    fn truncate(&self, ino: INodeNo, handle: Option<FileHandle>, size: u64) -> Result<()> {
        match handle {
            Some(handle) => fs::ftruncate(&self.handle(handle)?.fd, size),
            None => fs::ftruncate(self.reopen(ino, OFlags::WRONLY)?, size),
        }
        .map_err(errno)
    }

    fn read(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>> {
        let handle = self.handle(handle)?;
        let mut data = vec![0; size as usize];
        let mut filled = 0;
        while filled < data.len() {
            match rustix::io::pread(&handle.fd, &mut data[filled..], offset + filled as u64).map_err(errno)? {
                0 => break,
                n => filled += n,
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    fn sync(&self, handle: FileHandle, only_data: bool) -> Result<()> {
        let fd = &self.handle(handle)?.fd;
        if only_data { fs::fdatasync(fd) } else { fs::fsync(fd) }.map_err(errno)
    }

    fn list(&self, handle: FileHandle, offset: u64) -> Result<Vec<(u64, Entry)>> {
        let handle = self.handle(handle)?;
        let mut listing = handle.listing.lock();
        if offset == 0 {
            *listing = fs::Dir::read_from(&handle.fd)
                .and_then(|dir| dir.map(|e| e.map(entry)).collect::<rustix::io::Result<_>>())
                .map_err(errno)?;
        }
        let rest = listing.iter().enumerate().skip(offset as usize);
        Ok(rest.map(|(i, e)| (i as u64 + 1, Entry { name: e.name.clone(), ..*e })).collect())
    }
}

fn entry(e: fs::DirEntry) -> Entry {
    let kind = if e.file_type().is_dir() { FileType::Directory } else { FileType::RegularFile };
    Entry { ino: INodeNo(e.ino()), kind, name: OsString::from_vec(e.file_name().to_bytes().to_vec()) }
}

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A directory's stalled lookup must not hold up others; a kernel that cannot do it is too old.
        config
            .add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS)
            .map_err(|missing| std::io::Error::other(format!("the kernel lacks {missing:?}")))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let owned = name.to_owned();
        self.pass(Op::Lookup, parent, Some(name), reply, move |f| f.nodes.look_up(parent, &owned));
    }

    /// Not an operation of anybody: it passes no gate.
    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.files.nodes.forget(ino, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        self.pass(Op::Stat, ino, None, reply, move |f| f.attr(ino, handle));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.pass(Op::SetAttr, ino, None, reply, move |f| {
            if uid.is_some() || gid.is_some() || atime.is_some() || mtime.is_some() {
                return Err(Errno::EOPNOTSUPP);
            }
            if let Some(mode) = mode {
                let node = f.nodes.get(ino)?;
                fs::chmod(proc_path(&*node), Mode::from_raw_mode(mode)).map_err(errno)?;
            }
            if let Some(size) = size {
                f.truncate(ino, handle, size)?;
            }
            f.attr(ino, handle)
        });
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let owned = name.to_owned();
        self.pass(Op::MkDir, parent, Some(name), reply, move |f| {
            fs::mkdirat(&*f.nodes.get(parent)?, &owned, Mode::from_raw_mode(mode)).map_err(errno)?;
            f.nodes.look_up(parent, &owned)
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owned = name.to_owned();
        self.pass(Op::Unlink, parent, Some(name), reply, move |f| {
            fs::unlinkat(&*f.nodes.get(parent)?, &owned, AtFlags::empty()).map_err(errno)
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owned = name.to_owned();
        self.pass(Op::RmDir, parent, Some(name), reply, move |f| {
            fs::unlinkat(&*f.nodes.get(parent)?, &owned, AtFlags::REMOVEDIR).map_err(errno)
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (name.to_owned(), to_name.to_owned());
        self.pass(Op::Rename, parent, Some(name), reply, move |f| {
            let flags = fs::RenameFlags::from_bits_retain(flags.bits());
            fs::renameat_with(&*f.nodes.get(parent)?, &from, &*f.nodes.get(to_parent)?, &to, flags)
                .map_err(errno)
        });
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let owned = name.to_owned();
        self.pass(Op::Link, parent, Some(name), reply, move |f| {
            let (node, parent_fd) = (f.nodes.get(ino)?, f.nodes.get(parent)?);
            fs::linkat(fs::CWD, proc_path(&*node), &*parent_fd, &owned, AtFlags::SYMLINK_FOLLOW)
                .map_err(errno)?;
            f.nodes.look_up(parent, &owned)
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.pass(Op::Open, ino, None, reply, move |f| {
            // A link to the descriptor is what is opened: O_NOFOLLOW would refuse it.
            let flags = OFlags::from_bits_retain(flags.0 as u32) - OFlags::NOFOLLOW;
            Ok(f.keep(f.reopen(ino, flags)?))
        });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let owned = name.to_owned();
        self.pass(Op::Create, parent, Some(name), reply, move |f| f.create(parent, &owned, mode, flags));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.pass(Op::Read, ino, None, reply, move |f| f.read(handle, offset, size));
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        self.pass(Op::Write, ino, None, reply, move |f| {
            let written = rustix::io::pwrite(&f.handle(handle)?.fd, &data, offset).map_err(errno)?;
            Ok(written as u32)
        });
    }

    /// Close(2), as its caller sees it: nothing is kept back that it would have to write.
    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.pass(Op::Close, ino, None, reply, |_| Ok(()));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, only_data: bool, reply: ReplyEmpty) {
        self.pass(Op::Sync, ino, None, reply, move |f| f.sync(handle, only_data));
    }

    /// Nobody waits for it, so no rule applies.
    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.open.lock().remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.pass(Op::ReadDir, ino, None, reply, move |f| {
            Ok(f.keep(f.reopen(ino, OFlags::RDONLY | OFlags::DIRECTORY)?))
        });
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.pass(Op::ReadDir, ino, None, reply, move |f| f.list(handle, offset));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, only_data: bool, reply: ReplyEmpty) {
        self.pass(Op::SyncDir, ino, None, reply, move |f| f.sync(handle, only_data));
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.files.open.lock().remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.pass(Op::StatFs, ino, None, reply, move |f| fs::fstatvfs(&*f.nodes.get(ino)?).map_err(errno));
    }
}
