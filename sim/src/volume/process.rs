//! A process on a host, as the broker's `Volume`.

use super::call::{Ask, Call, Cost};
use super::fault::Op;
use super::names::Result;
use super::options::Kind;
use super::state::{Handle, State};
use super::trace::Counts;
use super::{now, Shared};
use async_trait::async_trait;
use bytes::Bytes;
use highwater::volume::{Class, Entry, Result as VolumeResult, Space, Volume, VolumeError, VolumeFile};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

/// A process with its view of the volume. Clones are the same process.
#[derive(Clone)]
pub struct Process {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u32,
    pub(super) host: u32,
    pub(super) client: u32,
    pub(super) generation: u64,
    pub(super) alive: Arc<AtomicBool>,
}

impl Process {
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn host(&self) -> u32 {
        self.host
    }

    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// Kills the process (SIGKILL): its handles are dead and what it asks from now on fails. Its dirty
    /// pages stay with the host, which writes them back some time; requests under way go on.
    pub fn kill(&self) {
        self.shared.kill(self.id);
    }

    fn call(&self, op: Op, path: &str) -> Arc<Call> {
        self.call_with(op, path, None, 0, 0)
    }

    fn call_with(&self, op: Op, path: &str, to: Option<&str>, pos: u64, len: u64) -> Arc<Call> {
        let ask = Ask {
            host: self.host,
            client: self.client,
            process: self.id,
            generation: self.generation,
            op,
            path: path.to_owned(),
            to: to.map(str::to_owned),
            pos,
            len,
            alive: self.alive.clone(),
            by_host: false,
        };
        Call::new(&self.shared, ask)
    }

    /// A change of names: the directories are found by what the host believes when it is sent.
    async fn change<F>(&self, op: Op, path: &str, to: Option<&str>, effect: F) -> VolumeResult<()>
    where
        F: Fn(&mut State, u32, (u64, &str), (u64, &str)) -> Result<()> + Send + Sync + 'static,
    {
        let call = self.call_with(op, path, to, 0, 0);
        let done = call.run(move |call| async move {
            call.go_on()?;
            let client = call.ask.client;
            let (from, to) = {
                let mut s = call.shared.state.lock();
                let from = s.parent(client, &call.ask.path, now())?;
                let to = call.ask.to.as_ref().map(|to| s.parent(client, to, now()));
                (from.clone(), to.unwrap_or(Ok(from))?)
            };
            let absent = call.shared.state.lock().believed(client, from.0, &from.1, now()) == Some(None);
            if absent && matches!(op, Op::Unlink | Op::Rename | Op::Rmdir) {
                return Err(Errno::NOENT);
            }
            let cost = if call.shared.options.kind == Kind::Local { Cost::Ask } else { Cost::Durable };
            let apply = |s: &mut State| {
                effect(s, client, (from.0, &from.1), (to.0, &to.1))?;
                s.settle_later(None, now());
                Ok(())
            };
            call.request(cost, apply).await.map_err(no_stale_names)
        });
        done.await.map_err(|e| fail(op, path, e))
    }

    async fn open_file(&self, path: &str, writable: bool) -> VolumeResult<Arc<dyn VolumeFile>> {
        check_path("open", path)?;
        let process = self.clone();
        let call = self.call(Op::Open, path);
        let done = call.run(move |call| async move {
            call.go_on()?;
            let client = call.ask.client;
            let (dir, name, known) = {
                let mut s = call.shared.state.lock();
                let (dir, name) = s.parent(client, &call.ask.path, now())?;
                let known = s.believed(client, dir, &name, now());
                (dir, name, known)
            };
            if known == Some(None) {
                return Err(Errno::NOENT);
            }
            let mut got = None;
            let open = |s: &mut State| {
                let ino = s.open(client, dir, &name, known.flatten(), now())?;
                process.attach(s, &mut got, ino, &call.ask.path)
            };
            let handle = call.request(Cost::Ask, open).await;
            let handle = process.or_close(handle, got).map_err(no_stale_names)?;
            Ok(process.file(&call, handle, writable))
        });
        done.await.map_err(|e| fail(Op::Open, path, e))
    }

    /// A handle of this process, in place of the one that an earlier execution of the request got.
    fn attach(&self, s: &mut State, got: &mut Option<u64>, ino: u64, path: &str) -> Result<u64> {
        if let Some(earlier) = got.take() {
            s.close(earlier, now());
        }
        let errors_seen = s.file(self.client, ino)?.errors;
        s.server.inode_mut(ino)?.opens += 1;
        let handle = Handle {
            host: self.host,
            client: self.client,
            process: self.id,
            ino,
            path: path.to_owned(),
            since: now(),
            errors_seen,
        };
        let id = s.next();
        s.handles.insert(id, handle);
        *got = Some(id);
        // A request that arrives after the death of its process opens for nobody: the host closes it.
        if !self.is_alive() {
            s.close(id, now());
        }
        Ok(id)
    }

    /// A request whose reply was lost may have opened the file, and fail when it is sent again: then nobody holds it.
    fn or_close(&self, opened: Result<u64>, got: Option<u64>) -> Result<u64> {
        if let (Err(_), Some(handle)) = (&opened, got) {
            self.shared.state.lock().close(handle, now());
        }
        opened
    }

    fn file(&self, call: &Call, handle: u64, writable: bool) -> Arc<dyn VolumeFile> {
        call.count(&mut self.shared.state.lock(), Counts { opens: 1, ..Counts::default() });
        Arc::new(OpenFile { process: self.clone(), handle, path: call.ask.path.clone(), writable })
    }
}

/// An old filehandle of a directory reads as a missing name, once the host looked again.
fn no_stale_names(e: Errno) -> Errno {
    if e == Errno::STALE {
        return Errno::NOENT;
    }
    e
}

fn fail(op: Op, path: &str, errno: Errno) -> VolumeError {
    VolumeError::new(op.name(), path, errno.into())
}

/// A plain path relative to the root, as the trait demands.
fn check_path(op: &'static str, path: &str) -> VolumeResult<()> {
    let plain = |c: &str| !c.is_empty() && c != "." && c != ".." && !c.contains('\0');
    if path.split('/').all(plain) {
        return Ok(());
    }
    let e = io::Error::new(io::ErrorKind::InvalidInput, "not a plain path relative to the volume");
    Err(VolumeError::new(op, path, e))
}

fn check_dir(op: &'static str, path: &str) -> VolumeResult<()> {
    if path.is_empty() {
        return Ok(());
    }
    check_path(op, path)
}

#[async_trait]
impl Volume for Process {
    async fn open(&self, path: &str, _: Class) -> VolumeResult<Arc<dyn VolumeFile>> {
        self.open_file(path, false).await
    }

    async fn open_write(&self, path: &str, _: Class) -> VolumeResult<Arc<dyn VolumeFile>> {
        self.open_file(path, true).await
    }

    async fn create_new(&self, path: &str, _: Class) -> VolumeResult<Arc<dyn VolumeFile>> {
        check_path("create", path)?;
        let process = self.clone();
        let call = self.call(Op::Create, path);
        let done = call.run(move |call| async move {
            call.go_on()?;
            let client = call.ask.client;
            let (dir, name) = call.shared.state.lock().parent(client, &call.ask.path, now())?;
            let cost = if call.shared.options.kind == Kind::Local { Cost::Ask } else { Cost::Durable };
            let mut got = None;
            let create = |s: &mut State| {
                // The reply always comes from the server. A name that was won ends what was believed of the directory;
                // one that was lost changed nothing, and NFSv4 tells nothing of the directory then (RFC 8881, 18.16).
                let created = s.server.create(dir, &name);
                match created {
                    Err(Errno::EXIST) => s.forget_name(client, dir, &name),
                    _ => s.forget_dir(client, dir),
                }
                let ino = created?;
                s.settle_later(None, now());
                s.refresh(client, ino, now())?;
                process.attach(s, &mut got, ino, &call.ask.path)
            };
            let handle = call.request(cost, create).await;
            let handle = process.or_close(handle, got).map_err(no_stale_names)?;
            Ok(process.file(&call, handle, true))
        });
        done.await.map_err(|e| fail(Op::Create, path, e))
    }

    async fn rename(&self, from: &str, to: &str, _: Class) -> VolumeResult<()> {
        check_path("rename", from)?;
        check_path("rename", to)?;
        self.change(Op::Rename, from, Some(to), |s, client, from, to| s.rename(client, from, to)).await
    }

    async fn unlink(&self, path: &str) -> VolumeResult<()> {
        check_path("unlink", path)?;
        self.change(Op::Unlink, path, None, |s, client, (dir, name), _| s.unlink(client, dir, name)).await
    }

    async fn read_dir(&self, path: &str, _: Class) -> VolumeResult<Vec<Entry>> {
        check_dir("readdir", path)?;
        let call = self.call(Op::ReadDir, path);
        let done = call.run(|call| async move {
            call.go_on()?;
            let client = call.ask.client;
            let (dir, known) = {
                let mut s = call.shared.state.lock();
                let dir = s.find_dir(client, &call.ask.path, now())?;
                (dir, s.believed_listing(client, dir, now()))
            };
            match known {
                Some(listing) => call.at_home(|_| Ok(listing)).await,
                None => {
                    let list = |s: &mut State| s.read_dir(client, dir, now());
                    call.request(Cost::Ask, list).await.map_err(no_stale_names)
                }
            }
        });
        done.await.map_err(|e| fail(Op::ReadDir, path, e))
    }

    async fn mkdir(&self, path: &str, _: Class) -> VolumeResult<()> {
        check_path("mkdir", path)?;
        let mkdir = |s: &mut State, client: u32, (dir, name): (u64, &str), _: (u64, &str)| {
            s.forget_dir(client, dir);
            s.server.mkdir(dir, name).map(|_| ())
        };
        self.change(Op::Mkdir, path, None, mkdir).await
    }

    async fn rmdir(&self, path: &str) -> VolumeResult<()> {
        check_path("rmdir", path)?;
        let rmdir = |s: &mut State, client: u32, (dir, name): (u64, &str), _: (u64, &str)| {
            s.forget_dir(client, dir);
            s.server.rmdir(dir, name)
        };
        self.change(Op::Rmdir, path, None, rmdir).await
    }

    async fn sync_dir(&self, path: &str, _: Class) -> VolumeResult<()> {
        check_dir("syncdir", path)?;
        let call = self.call(Op::SyncDir, path);
        let done = call.run(|call| async move {
            call.go_on()?;
            let client = call.ask.client;
            let dir = call.shared.state.lock().find_dir(client, &call.ask.path, now())?;
            if call.shared.options.kind != Kind::Local {
                // The server made every name durable before it answered, or says that it did.
                return call.at_home(|s| s.server.tree.dir(dir).map(|_| ()).map_err(no_stale_names)).await;
            }
            let commit = |s: &mut State| {
                if !s.options.lying {
                    s.server.commit_names(Some(dir));
                }
                Ok(())
            };
            call.request(Cost::Durable, commit).await
        });
        done.await.map_err(|e| fail(Op::SyncDir, path, e))
    }

    async fn space(&self) -> VolumeResult<Space> {
        let call = self.call(Op::Space, "");
        let done = call.run(|call| async move {
            call.go_on()?;
            let space = |s: &mut State| Ok(Space { total: s.server.capacity.bytes, free: s.server.room() });
            call.request(Cost::Ask, space).await
        });
        done.await.map_err(|e| fail(Op::Space, "", e))
    }
}

/// A handle; dropping it closes it.
struct OpenFile {
    process: Process,
    handle: u64,
    path: String,
    writable: bool,
}

impl OpenFile {
    fn call(&self, op: Op, pos: u64, len: u64) -> Arc<Call> {
        self.process.call_with(op, &self.path, None, pos, len)
    }

    fn check_writable(&self, op: Op) -> VolumeResult<()> {
        match op {
            _ if self.writable => Ok(()),
            Op::Truncate => Err(fail(op, &self.path, Errno::INVAL)),
            _ => Err(fail(op, &self.path, Errno::BADF)),
        }
    }

    /// The handle, if its process lives.
    fn get(&self) -> Result<Handle> {
        self.process.shared.state.lock().handles.get(&self.handle).cloned().ok_or(Errno::IO)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.process.shared.close(self.handle);
    }
}

#[async_trait]
impl VolumeFile for OpenFile {
    async fn read_at(&self, pos: u64, len: usize) -> VolumeResult<Bytes> {
        let call = self.call(Op::Read, pos, len as u64);
        let handle = self.get();
        let done = call.run(move |call| async move {
            let Handle { client, ino, .. } = handle?;
            let known = call.shared.state.lock().cached_read(client, ino, pos, len, now());
            let bytes = match known {
                Some(bytes) => call.at_home(|_| Ok(bytes)).await?,
                None => call.request(Cost::Ask, |s| s.read(client, ino, pos, len, now())).await?,
            };
            let more = Counts { reads: 1, bytes_read: bytes.len() as u64, ..Counts::default() };
            call.count(&mut call.shared.state.lock(), more);
            Ok(bytes)
        });
        done.await.map_err(|e| fail(Op::Read, &self.path, e))
    }

    async fn write_at(&self, pos: u64, bufs: Vec<Bytes>) -> VolumeResult<usize> {
        self.check_writable(Op::Write)?;
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        let call = self.call(Op::Write, pos, len);
        let handle = self.get();
        let done = call.run(move |call| async move {
            let handle = handle?;
            let limit = call.verdict.short.unwrap_or(u64::MAX);
            let mut write = |s: &mut State| {
                let n = s.write(&handle, pos, &bufs, limit, now())?;
                call.count(s, Counts { writes: 1, bytes_written: n as u64, ..Counts::default() });
                Ok(n)
            };
            // A local file system holds a write up while it is stalled; a client of a server takes it
            // into its cache and answers.
            if call.shared.options.kind == Kind::Local && call.verdict.waits() {
                return call.request(Cost::Ask, write).await;
            }
            call.at_home(&mut write).await
        });
        done.await.map_err(|e| fail(Op::Write, &self.path, e))
    }

    async fn sync(&self) -> VolumeResult<()> {
        let call = self.call(Op::Sync, 0, 0);
        let (handle, id) = (self.get(), self.handle);
        let done = call.run(move |call| async move {
            let ino = handle?.ino;
            tokio::task::yield_now().await;
            let done = call.flush(ino, false).await;
            let mut s = call.shared.state.lock();
            call.count(&mut s, Counts { syncs: 1, ..Counts::default() });
            s.tell_errors(id, done)
        });
        done.await.map_err(|e| fail(Op::Sync, &self.path, e))
    }

    async fn len(&self) -> VolumeResult<u64> {
        let call = self.call(Op::Len, 0, 0);
        let handle = self.get();
        let done = call.run(move |call| async move {
            let Handle { client, ino, .. } = handle?;
            let known = call.shared.state.lock().cached_len(client, ino, now());
            match known {
                Some(len) => call.at_home(|_| Ok(len)).await,
                None => {
                    let ask = |s: &mut State| {
                        s.refresh(client, ino, now())?;
                        s.file(client, ino).map(|f| f.cache.len)
                    };
                    call.request(Cost::Ask, ask).await
                }
            }
        });
        done.await.map_err(|e| fail(Op::Len, &self.path, e))
    }

    async fn truncate(&self, len: u64) -> VolumeResult<()> {
        self.check_writable(Op::Truncate)?;
        let call = self.call(Op::Truncate, len, 0);
        let handle = self.get();
        let done = call.run(move |call| async move {
            let Handle { client, ino, .. } = handle?;
            if call.shared.options.kind == Kind::Local {
                return call.request(Cost::Ask, |s| s.truncate(client, ino, len, now())).await;
            }
            let _turn = call.turn(ino).await?;
            call.flush_in_turn(ino, false).await?;
            call.go_on()?;
            call.request(Cost::Durable, |s| s.truncate(client, ino, len, now())).await
        });
        done.await.map_err(|e| fail(Op::Truncate, &self.path, e))
    }
}

impl State {
    /// What a sync returns on a handle: its own error, or one that a write-back met and that this
    /// handle was not told yet.
    fn tell_errors(&mut self, id: u64, done: Result<()>) -> Result<()> {
        let Some(handle) = self.handles.get(&id).cloned() else { return done };
        let Ok(file) = self.file(handle.client, handle.ino) else { return done };
        let (errors, error) = (file.errors, file.error);
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.errors_seen = errors;
        }
        match error.filter(|_| errors > handle.errors_seen) {
            Some(errno) => done.and(Err(errno)),
            None => done,
        }
    }
}
