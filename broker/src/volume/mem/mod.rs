//! A volume in memory, for tests.
//!
//! It plays one local file system with a page cache in front of it: pages of 4 KiB, a length and
//! directory entries that are durable only once synced, a power cut that lets some of the rest
//! through, and faults that a test sets while it runs. Random choices come from the `Entropy` that
//! is handed in; nothing else varies between runs. It works on tokio and under madsim.
//!
//! It does not play a network file system: no second client's cache, no late write-back, no stale
//! names. It is harsher than common local file systems in that a file's sync never makes its name
//! durable, and space is freed only when the directory that lost the last name was synced.

#[allow(clippy::indexing_slicing)]
mod disk;
mod faults;

#[cfg(test)]
mod tests;

pub use faults::{Counts, Hang, Op};

use super::{check_dir_path, check_path, Class, Entry, Result, Space, Volume, VolumeError, VolumeFile};
use crate::rt::Entropy;
use async_trait::async_trait;
use bytes::Bytes;
use disk::{Disk, FileNode};
use faults::{Faults, Verdict};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Space on a new volume, in bytes.
const CAPACITY: u64 = 4 << 30;

/// A handle to a volume in memory. Clones belong to the same process as the original;
/// [`MemVolume::another_process`] gives a handle for a further one.
#[derive(Clone)]
pub struct MemVolume {
    shared: Arc<Shared>,
    process: Arc<Process>,
}

struct Shared {
    disk: Mutex<Disk>,
    faults: Mutex<Faults>,
    processes: Mutex<Vec<Weak<Process>>>,
}

/// Counts the lives of a process. A handle serves the life in which it was opened.
struct Process {
    life: watch::Sender<u64>,
}

impl Default for MemVolume {
    fn default() -> Self {
        MemVolume::new()
    }
}

impl MemVolume {
    /// An empty volume of 4 GiB.
    pub fn new() -> Self {
        let shared = Arc::new(Shared {
            disk: Mutex::new(Disk::new(CAPACITY)),
            faults: Mutex::default(),
            processes: Mutex::default(),
        });
        MemVolume::view(shared)
    }

    fn view(shared: Arc<Shared>) -> Self {
        let process = Arc::new(Process { life: watch::Sender::new(0) });
        shared.processes.lock().push(Arc::downgrade(&process));
        MemVolume { shared, process }
    }

    /// The same volume as seen by another process of the same host.
    pub fn another_process(&self) -> MemVolume {
        MemVolume::view(self.shared.clone())
    }

    /// Kills this process: its handles and the operations under way fail, the page cache stays. The
    /// handle may be used on, as that of the process's next life.
    pub fn crash_process(&self) {
        self.process.life.send_modify(|life| *life += 1);
    }

    /// Cuts the power of the host: every process dies, and of what was not synced only a part
    /// survives, page by page, by chance.
    pub fn power_cut(&self, entropy: &dyn Entropy) {
        for process in self.shared.processes.lock().iter().filter_map(Weak::upgrade) {
            process.life.send_modify(|life| *life += 1);
        }
        self.shared.disk.lock().power_cut(entropy);
    }

    /// Sets the volume's size in bytes; a write that does not fit is short, then fails with ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.disk.lock().capacity = bytes;
    }

    /// Lets the next `times` operations `op` on paths that contain `path` fail with `errno`, without
    /// effect; but a failed sync leaves the pages clean and not durable, as Linux does.
    pub fn fail(&self, op: Op, path: &str, errno: Errno, times: u64) {
        self.shared.faults.lock().fail(op, path, errno, times);
    }

    /// Lets every operation `op` on paths that contain `path` wait until the returned handle is
    /// released; then they take effect, even if nobody waits for them any more.
    pub fn hang(&self, op: Op, path: &str) -> Hang {
        self.shared.faults.lock().hang(op, path)
    }

    /// Lets every operation `op` on paths that contain `path` take that long.
    pub fn delay(&self, op: Op, path: &str, by: Duration) {
        self.shared.faults.lock().delay(op, path, by);
    }

    /// Lets the next `times` writes to paths that contain `path` take `bytes` bytes at most.
    pub fn short_writes(&self, path: &str, bytes: usize, times: u64) {
        self.shared.faults.lock().short(path, bytes, times);
    }

    /// Takes all faults away and releases all hangs. The capacity stays.
    pub fn heal(&self) {
        self.shared.faults.lock().heal();
    }

    /// What was asked of the volume so far, by all processes.
    pub fn counts(&self) -> Counts {
        self.counts_of("")
    }

    /// What was asked so far of paths that contain `path`. A file counts under the path by which
    /// it was opened.
    pub fn counts_of(&self, path: &str) -> Counts {
        self.shared.faults.lock().counts_of(path)
    }

    /// Sets all counts to zero.
    pub fn reset_counts(&self) {
        self.shared.faults.lock().reset_counts();
    }

    fn call(&self, op: Op, path: &str) -> Call {
        Call { volume: self.clone(), life: *self.process.life.borrow(), op, path: path.to_owned() }
    }

    async fn open_file(&self, path: &str, writable: bool) -> Result<Arc<dyn VolumeFile>> {
        check_path("open", path)?;
        let call = self.call(Op::Open, path);
        let key = path.to_owned();
        let node = call.run(move |s, _| s.disk.lock().file(&key)).await?;
        Ok(self.handle(path, node, writable))
    }

    fn handle(&self, path: &str, node: Arc<FileNode>, writable: bool) -> Arc<dyn VolumeFile> {
        let life = *self.process.life.borrow();
        Arc::new(MemFile { volume: self.clone(), life, path: path.to_owned(), node, writable })
    }
}

/// One operation on its way.
struct Call {
    volume: MemVolume,
    /// The life of the process that asked; what outlives it has no effect.
    life: u64,
    op: Op,
    path: String,
}

impl Call {
    /// Lets the faults have their way, then applies `effect`.
    ///
    /// A call that must wait does so in a task of its own: as with a real volume, the caller may
    /// give up, and the operation goes on.
    async fn run<T, F>(self, effect: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Shared, &Verdict) -> std::result::Result<T, Errno> + Send + 'static,
    {
        tokio::task::yield_now().await;
        let verdict = self.volume.shared.faults.lock().judge(self.op, &self.path);
        if verdict.waits() {
            let (op, path) = (self.op, self.path.clone());
            let task = tokio::spawn(async move {
                self.wait(&verdict).await;
                self.apply(&verdict, effect)
            });
            let ended = |e| VolumeError::new(op.name(), path, io::Error::other(e));
            return task.await.map_err(ended)?;
        }
        self.apply(&verdict, effect)
    }

    async fn wait(&self, verdict: &Verdict) {
        let mut life = self.volume.process.life.subscribe();
        tokio::select! {
            biased;
            _ = life.wait_for(|now| *now != self.life) => {}
            () = verdict.wait() => {}
        }
    }

    fn apply<T, F>(self, verdict: &Verdict, effect: F) -> Result<T>
    where
        F: FnOnce(&Shared, &Verdict) -> std::result::Result<T, Errno>,
    {
        let shared = &self.volume.shared;
        let fail = |e| Err(VolumeError::new(self.op.name(), self.path.clone(), e));
        if *self.volume.process.life.borrow() != self.life {
            return fail(io::Error::other("the process that asked for this is dead"));
        }
        let done = match verdict.errno {
            // A failed sync has an effect, which only the caller knows.
            Some(errno) if self.op != Op::Sync => Err(errno),
            _ => effect(shared, verdict),
        };
        done.or_else(|errno| fail(errno.into()))
    }
}

#[async_trait]
impl Volume for MemVolume {
    async fn open(&self, path: &str, _: Class) -> Result<Arc<dyn VolumeFile>> {
        self.open_file(path, false).await
    }

    async fn open_write(&self, path: &str, _: Class) -> Result<Arc<dyn VolumeFile>> {
        self.open_file(path, true).await
    }

    async fn create_new(&self, path: &str, _: Class) -> Result<Arc<dyn VolumeFile>> {
        check_path("create", path)?;
        let key = path.to_owned();
        let node = self.call(Op::Create, path).run(move |s, _| s.disk.lock().create(&key)).await?;
        Ok(self.handle(path, node, true))
    }

    async fn rename(&self, from: &str, to: &str, _: Class) -> Result<()> {
        check_path("rename", from)?;
        check_path("rename", to)?;
        let (f, t) = (from.to_owned(), to.to_owned());
        self.call(Op::Rename, from).run(move |s, _| s.disk.lock().rename(&f, &t)).await
    }

    async fn unlink(&self, path: &str) -> Result<()> {
        check_path("unlink", path)?;
        let key = path.to_owned();
        self.call(Op::Unlink, path).run(move |s, _| s.disk.lock().unlink(&key)).await
    }

    async fn read_dir(&self, path: &str, _: Class) -> Result<Vec<Entry>> {
        check_dir_path("readdir", path)?;
        let key = path.to_owned();
        self.call(Op::ReadDir, path).run(move |s, _| s.disk.lock().read_dir(&key)).await
    }

    async fn mkdir(&self, path: &str, _: Class) -> Result<()> {
        check_path("mkdir", path)?;
        let key = path.to_owned();
        self.call(Op::Mkdir, path).run(move |s, _| s.disk.lock().mkdir(&key)).await
    }

    async fn rmdir(&self, path: &str) -> Result<()> {
        check_path("rmdir", path)?;
        let key = path.to_owned();
        self.call(Op::Rmdir, path).run(move |s, _| s.disk.lock().rmdir(&key)).await
    }

    async fn sync_dir(&self, path: &str, _: Class) -> Result<()> {
        check_dir_path("syncdir", path)?;
        let key = path.to_owned();
        self.call(Op::SyncDir, path).run(move |s, _| s.disk.lock().sync_dir(&key)).await
    }

    async fn space(&self) -> Result<Space> {
        let disk = self.shared.disk.lock();
        Ok(Space { total: disk.capacity, free: disk.room() })
    }
}

struct MemFile {
    volume: MemVolume,
    life: u64,
    path: String,
    node: Arc<FileNode>,
    writable: bool,
}

impl MemFile {
    fn call(&self, op: Op) -> Call {
        Call { life: self.life, ..self.volume.call(op, &self.path) }
    }

    fn check_writable(&self, op: Op) -> Result<()> {
        let errno = match op {
            _ if self.writable => return Ok(()),
            Op::Truncate => Errno::INVAL,
            _ => Errno::BADF,
        };
        Err(VolumeError::new(op.name(), self.path.clone(), errno.into()))
    }
}

#[async_trait]
impl VolumeFile for MemFile {
    async fn read_at(&self, pos: u64, len: usize) -> Result<Bytes> {
        let node = self.node.clone();
        let path = self.path.clone();
        let read = move |s: &Shared, _: &Verdict| {
            let bytes = node.read(pos, len);
            s.faults.lock().count_bytes(Op::Read, &path, bytes.len());
            Ok(bytes)
        };
        self.call(Op::Read).run(read).await
    }

    async fn write_at(&self, pos: u64, bufs: Vec<Bytes>) -> Result<usize> {
        self.check_writable(Op::Write)?;
        let node = self.node.clone();
        let path = self.path.clone();
        let write = move |s: &Shared, verdict: &Verdict| {
            let mut data = bufs.concat();
            data.truncate(verdict.short.unwrap_or(usize::MAX));
            let room = s.disk.lock().room();
            let n = node.write(pos, &data, room)?;
            s.faults.lock().count_bytes(Op::Write, &path, n);
            Ok(n)
        };
        self.call(Op::Write).run(write).await
    }

    async fn sync(&self) -> Result<()> {
        let node = self.node.clone();
        let sync = move |_: &Shared, verdict: &Verdict| match verdict.errno {
            Some(errno) => {
                node.sync_failed();
                Err(errno)
            }
            None => {
                node.sync();
                Ok(())
            }
        };
        self.call(Op::Sync).run(sync).await
    }

    async fn len(&self) -> Result<u64> {
        let node = self.node.clone();
        self.call(Op::Len).run(move |_, _| Ok(node.len())).await
    }

    async fn truncate(&self, len: u64) -> Result<()> {
        self.check_writable(Op::Truncate)?;
        let node = self.node.clone();
        let cut = move |s: &Shared, _: &Verdict| node.truncate(len, s.disk.lock().room());
        self.call(Op::Truncate).run(cut).await
    }
}
