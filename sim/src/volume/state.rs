//! All that the model knows, and what the operations do to it: plain state, no waiting.

use super::content::Ranges;
use super::draw::{millis, Draw};
use super::fault::{Fault, FullAt};
use super::faults::Faults;
use super::host::{DirCache, Host, HostFile};
use super::names::{Node, Result, ROOT};
use super::options::{Kind, Options};
use super::server::{Capacity, Server, Write};
use super::trace::Counts;
use bytes::Bytes;
use highwater::volume::{Entry, EntryKind};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A file held open by a process.
#[derive(Clone, Debug)]
pub struct Handle {
    pub host: u32,
    pub client: u32,
    pub process: u32,
    pub ino: u64,
    pub path: String,
    pub since: Duration,
    /// Errors of write-backs that were told to it.
    pub errors_seen: u64,
}

/// What is done at a time of its own.
#[derive(Clone, Debug)]
pub enum Job {
    /// A host writes a file back.
    Writeback { client: u32, generation: u64, ino: u64 },
    /// A host closed a file: what is dirty is sent, and a silly name goes.
    Closed { client: u32, generation: u64, ino: u64, process: u32, path: String, flush: bool },
    /// The file system commits the names by itself.
    Journal,
    /// The server writes a file to its media by itself.
    Harden { ino: u64 },
}

pub struct State {
    pub options: Options,
    pub draw: Draw,
    pub server: Server,
    pub hosts: BTreeMap<u32, Host>,
    pub handles: BTreeMap<u64, Handle>,
    /// Host and client of each process; only the living.
    pub processes: BTreeMap<u32, (u32, u32)>,
    pub faults: Faults,
    pub jobs: BTreeMap<(Duration, u64), Job>,
    /// Told when a job comes in that is due before all others.
    pub new_job: Arc<tokio::sync::Notify>,
    pub counts: BTreeMap<(u32, String), Counts>,
    pub journal_due: bool,
    pub next_process: u32,
    /// Counts the processes' calls, for draws.
    calls: BTreeMap<u32, u64>,
    journals: u64,
    pub images_drawn: u64,
    seq: u64,
}

impl State {
    pub fn new(options: Options, seed: u64) -> Self {
        let honest = !options.lying && options.kind != Kind::Local;
        let capacity = capacity(&options, &Faults::default());
        State {
            server: Server::new(capacity, honest, options.kind == Kind::Nfs && !options.keeps_open_files),
            options,
            draw: Draw::new(seed).of("volume"),
            hosts: BTreeMap::new(),
            handles: BTreeMap::new(),
            processes: BTreeMap::new(),
            faults: Faults::default(),
            jobs: BTreeMap::new(),
            new_job: Arc::default(),
            counts: BTreeMap::new(),
            journal_due: false,
            next_process: 1,
            calls: BTreeMap::new(),
            journals: 0,
            images_drawn: 0,
            seq: 0,
        }
    }

    pub fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The draw for a process's next call: the same whatever others do meanwhile.
    pub fn next_call(&mut self, process: u32) -> Draw {
        let nth = self.calls.entry(process).or_default();
        *nth += 1;
        self.draw.of("call").at(process.into()).at(*nth)
    }

    pub fn kind(&self) -> Kind {
        self.options.kind
    }

    pub fn later(&mut self, at: Duration, job: Job) {
        let seq = self.next();
        if self.jobs.keys().next().is_none_or(|(first, _)| at < *first) {
            self.new_job.notify_one();
        }
        self.jobs.insert((at, seq), job);
    }

    pub fn update_capacity(&mut self) {
        self.server.capacity = capacity(&self.options, &self.faults);
    }

    pub fn host(&mut self, client: u32) -> &mut Host {
        self.hosts.entry(client).or_default()
    }

    /// What follows a change: a server that is not held to durability writes back some time.
    pub fn settle_later(&mut self, ino: Option<u64>, now: Duration) {
        if let Some(ino) = ino.filter(|_| self.options.lying) {
            let change = self.server.inode(ino).map_or(0, |i| i.change);
            let at = now + self.draw.of("harden").at(ino).at(change).span(self.options.writeback);
            self.later(at, Job::Harden { ino });
        }
        if !self.journal_due && !self.server.tree.is_settled() {
            self.journal_due = true;
            self.journals += 1;
            let at = now + self.draw.of("journal").at(self.journals).span(self.options.writeback);
            self.later(at, Job::Journal);
        }
    }

    // ---- names ----

    /// What the host believes about a directory, asked anew if that is too old.
    fn dir_cache(&mut self, client: u32, dir: u64, now: Duration) -> Result<&mut DirCache> {
        let change = self.server.tree.dir(dir).map(|d| d.change);
        let (max, draw) = (self.options.acdirmax, self.draw.of("trust").at(client.into()));
        let host = self.host(client);
        let fresh = host.dirs.get(&dir).is_some_and(|c| now < c.until);
        if !fresh {
            let change = change?;
            host.trusts += 1;
            let trust = millis(max * (0.5 + 0.5 * draw.at(host.trusts).unit()));
            let cache = host.dirs.entry(dir).or_default();
            if cache.change != change {
                *cache = DirCache { change, ..DirCache::default() };
            }
            cache.until = now + trust;
        }
        Ok(self.host(client).dirs.entry(dir).or_default())
    }

    fn lookup(&mut self, client: u32, dir: u64, name: &str, now: Duration) -> Result<Node> {
        if self.kind() != Kind::Nfs {
            return self.server.tree.lookup(dir, name);
        }
        if let Some(known) = self.dir_cache(client, dir, now)?.names.get(name) {
            return known.ok_or(Errno::NOENT);
        }
        let found = match self.server.tree.lookup(dir, name) {
            Err(Errno::NOENT) => None,
            other => Some(other?),
        };
        self.dir_cache(client, dir, now)?.names.insert(name.to_owned(), found);
        found.ok_or(Errno::NOENT)
    }

    pub fn find_dir(&mut self, client: u32, path: &str, now: Duration) -> Result<u64> {
        let found = self.walk_to(client, path, now);
        if found != Err(Errno::STALE) {
            return found;
        }
        // As Linux does: once more, and nothing cached is believed.
        self.host(client).dirs.clear();
        self.walk_to(client, path, now).map_err(|e| if e == Errno::STALE { Errno::NOENT } else { e })
    }

    fn walk_to(&mut self, client: u32, path: &str, now: Duration) -> Result<u64> {
        let mut at = ROOT;
        for name in path.split('/').filter(|c| !c.is_empty()) {
            match self.lookup(client, at, name, now)? {
                Node::Dir(id) => at = id,
                Node::File(_) => return Err(Errno::NOTDIR),
            }
        }
        Ok(at)
    }

    /// The directory of a path, as the host believes, and the last name.
    pub fn parent(&mut self, client: u32, path: &str, now: Duration) -> Result<(u64, String)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find_dir(client, parent, now)?, name.to_owned()))
    }

    /// What the host believes of a name without asking; `None`: nothing.
    pub fn believed(&self, client: u32, dir: u64, name: &str, now: Duration) -> Option<Option<Node>> {
        let cache = self.hosts.get(&client)?.dirs.get(&dir)?;
        cache.names.get(name).filter(|_| now < cache.until).copied()
    }

    /// A change by this host: its own beliefs about the directory end.
    pub fn forget_dir(&mut self, client: u32, dir: u64) {
        self.host(client).dirs.remove(&dir);
    }

    /// One name turned out to be otherwise: no more is known than that.
    pub fn forget_name(&mut self, client: u32, dir: u64, name: &str) {
        if let Some(cache) = self.host(client).dirs.get_mut(&dir) {
            cache.names.remove(name);
        }
    }

    /// Opens a file by name, or by the handle that the host has cached for the name.
    pub fn open(
        &mut self,
        client: u32,
        dir: u64,
        name: &str,
        known: Option<Node>,
        now: Duration,
    ) -> Result<u64> {
        let stale = |s: &State, n: &Node| matches!(n, Node::File(ino) if s.server.inode(*ino).is_err());
        let node = match known {
            Some(node) if !stale(self, &node) => node,
            Some(_) => {
                self.forget_dir(client, dir);
                self.lookup(client, dir, name, now)?
            }
            None => self.lookup(client, dir, name, now)?,
        };
        match node {
            Node::File(ino) => {
                self.refresh(client, ino, now)?;
                Ok(ino)
            }
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    pub fn unlink(&mut self, client: u32, dir: u64, name: &str) -> Result<()> {
        self.forget_dir(client, dir);
        match self.server.tree.lookup(dir, name)? {
            Node::File(ino) if self.is_in_use(client, ino) && !name.starts_with(".nfs") => {
                self.silly_rename(client, ino, dir, name)
            }
            _ => self.server.unlink(dir, name),
        }
    }

    pub fn rename(&mut self, client: u32, from: (u64, &str), to: (u64, &str)) -> Result<()> {
        self.forget_dir(client, from.0);
        self.forget_dir(client, to.0);
        let source = self.server.tree.lookup(from.0, from.1)?;
        match self.server.tree.lookup(to.0, to.1) {
            Ok(Node::File(ino))
                if matches!(source, Node::File(s) if s != ino) && self.is_in_use(client, ino) =>
            {
                self.silly_rename(client, ino, to.0, to.1)?;
            }
            _ => {}
        }
        self.server.rename(from, to)
    }

    fn is_in_use(&self, client: u32, ino: u64) -> bool {
        let here = |h: &Handle| h.client == client && h.ino == ino;
        self.kind() == Kind::Nfs && self.handles.values().any(here)
    }

    /// The file that is open here gets another name until it is closed.
    fn silly_rename(&mut self, client: u32, ino: u64, dir: u64, name: &str) -> Result<()> {
        let silly = format!(".nfs{ino:016x}{:08x}", self.next());
        self.server.rename((dir, name), (dir, &silly))?;
        self.host(client).silly.insert(ino, (dir, silly));
        Ok(())
    }

    pub fn read_dir(&mut self, client: u32, dir: u64, now: Duration) -> Result<Vec<Entry>> {
        let entry = |(name, node): (&String, &Node)| Entry {
            name: name.clone(),
            kind: if matches!(node, Node::File(_)) { EntryKind::File } else { EntryKind::Dir },
        };
        let found = self.server.tree.dir(dir)?;
        let listing: Vec<Entry> = found.names.iter().map(entry).collect();
        let (names, change) = (found.names.clone(), found.change);
        if self.kind() == Kind::Nfs {
            // The reply tells what each name stands for (READDIRPLUS), and that is believed from now on.
            let cache = self.dir_cache(client, dir, now)?;
            cache.listing = Some(listing.clone());
            cache.names = names.into_iter().map(|(name, node)| (name, Some(node))).collect();
            cache.change = change;
        }
        Ok(listing)
    }

    /// The listing that the host still believes.
    pub fn believed_listing(&mut self, client: u32, dir: u64, now: Duration) -> Option<Vec<Entry>> {
        if self.kind() != Kind::Nfs || self.options.fresh_lists {
            return None;
        }
        self.dir_cache(client, dir, now).ok()?.listing.clone()
    }

    // ---- bytes ----

    /// The file in the host's cache, which is made if there is none.
    pub fn file(&mut self, client: u32, ino: u64) -> Result<&mut HostFile> {
        let files = &mut self.hosts.entry(client).or_default().files;
        if let std::collections::btree_map::Entry::Vacant(free) = files.entry(ino) {
            let inode = self.server.inodes.get(&ino).ok_or(Errno::STALE)?;
            let mut file = HostFile { change: inode.change, ..HostFile::default() };
            file.cache.len = inode.shown.len;
            free.insert(file);
        }
        files.get_mut(&ino).ok_or(Errno::STALE)
    }

    /// Asks the server for the file's attributes (GETATTR).
    pub fn refresh(&mut self, client: u32, ino: u64, now: Duration) -> Result<()> {
        let until = now + millis(self.options.actimeo);
        if self.kind() == Kind::Coherent {
            self.recall(client, ino);
        }
        let kind = self.kind();
        self.server.inode(ino)?;
        self.file(client, ino)?;
        let State { server, hosts, .. } = self;
        let file = hosts.get_mut(&client).and_then(|h| h.files.get_mut(&ino)).ok_or(Errno::STALE)?;
        if kind != Kind::Local {
            file.revalidate(server.inode(ino)?, until);
        }
        Ok(())
    }

    /// What other hosts have not sent yet is taken from them (a coherent file system's recall).
    fn recall(&mut self, client: u32, ino: u64) {
        let State { server, hosts, .. } = self;
        for (_, host) in hosts.iter_mut().filter(|(id, _)| **id != client) {
            let Some(file) = host.files.get_mut(&ino).filter(|f| !f.dirty.is_empty()) else { continue };
            let write = file.begin_write(|_| true);
            if server.write(ino, &write, true).is_err() {
                file.give_up(Errno::IO);
            }
            file.sent(&write, None);
        }
    }

    /// Whether the host may answer from its cache, now.
    fn trusts(&mut self, client: u32, ino: u64, now: Duration) -> bool {
        match self.kind() {
            Kind::Local => true,
            Kind::Coherent => self.refresh(client, ino, now).is_ok(),
            Kind::Nfs => self.file(client, ino).is_ok_and(|f| now < f.attrs_until),
        }
    }

    pub fn cached_len(&mut self, client: u32, ino: u64, now: Duration) -> Option<u64> {
        self.trusts(client, ino, now).then(|| self.file(client, ino).ok().map(|f| f.cache.len))?
    }

    pub fn cached_read(
        &mut self,
        client: u32,
        ino: u64,
        pos: u64,
        len: usize,
        now: Duration,
    ) -> Option<Bytes> {
        let trusted = self.trusts(client, ino, now);
        let file = self.file(client, ino).ok().filter(|_| trusted)?;
        let end = pos.saturating_add(len as u64).min(file.cache.len);
        file.has(pos, end).then(|| file.cache.read(pos, len))
    }

    pub fn read(&mut self, client: u32, ino: u64, pos: u64, len: usize, now: Duration) -> Result<Bytes> {
        self.server.inode(ino)?;
        if !self.trusts(client, ino, now) {
            self.refresh(client, ino, now)?;
        }
        self.file(client, ino)?;
        let State { server, hosts, .. } = self;
        let file = hosts.get_mut(&client).and_then(|h| h.files.get_mut(&ino)).ok_or(Errno::STALE)?;
        let inode = server.inode(ino)?;
        let end = pos.saturating_add(len as u64).min(file.cache.len);
        if file.fetch(inode, pos, end) && file.change != inode.change {
            // The reply's attributes tell that the file changed: what is cached is doubtful.
            file.attrs_until = Duration::ZERO;
        }
        Ok(file.cache.read(pos, len))
    }

    /// A write into the page cache; as much of it as the volume has room for.
    pub fn write(
        &mut self,
        who: &Handle,
        pos: u64,
        bufs: &[Bytes],
        limit: u64,
        now: Duration,
    ) -> Result<usize> {
        let want = bufs.iter().map(|b| b.len() as u64).sum::<u64>();
        if want == 0 {
            return Ok(0);
        }
        let (client, ino) = (who.client, who.ino);
        if self.kind() == Kind::Coherent {
            self.refresh(client, ino, now)?;
        }
        let room = self.room_to_write();
        let full = self.server.capacity.errno;
        let there = self.file(client, ino)?.cache.len;
        let fits = there.saturating_add(room).saturating_sub(pos).min(want).min(limit.max(1));
        if fits == 0 {
            return Err(full);
        }
        self.fetch_edges(client, ino, pos, pos + fits);
        let file = self.file(client, ino)?;
        let (mut at, mut left) = (pos, fits as usize);
        for b in bufs {
            let n = left.min(b.len());
            file.cache.write(at, &b[..n]);
            (at, left) = (at + n as u64, left - n);
        }
        file.dirty.add(pos, pos + fits);
        if file.last_writer != who.process || file.last_path != who.path {
            file.last_writer = who.process;
            file.last_path.clone_from(&who.path);
        }
        self.writeback_later(client, ino, now);
        Ok(fits as usize)
    }

    /// Space for further bytes, if the volume is one that tells at the write.
    fn room_to_write(&self) -> u64 {
        let room = self.server.room();
        if self.server.capacity.at != FullAt::Write {
            return u64::MAX;
        }
        if room > 1 << 28 {
            return room; // far from the edge: not worth a look at what is still dirty
        }
        let grown = |(ino, f): (&u64, &HostFile)| {
            f.cache.len.saturating_sub(self.server.inode(*ino).map_or(0, |i| i.shown.len))
        };
        room.saturating_sub(self.hosts.values().flat_map(|h| h.files.iter().map(grown)).sum())
    }

    /// Pages that a write covers in part only must be known as a whole.
    fn fetch_edges(&mut self, client: u32, ino: u64, pos: u64, end: u64) {
        let State { server, hosts, .. } = self;
        let file = hosts.get_mut(&client).and_then(|h| h.files.get_mut(&ino));
        if let (Some(file), Ok(inode)) = (file, server.inode(ino)) {
            file.fetch(inode, pos, pos + 1);
            file.fetch(inode, end - 1, end);
        }
    }

    pub fn writeback_later(&mut self, client: u32, ino: u64, now: Duration) {
        let (draw, span) = (self.draw.of("writeback").at(client.into()).at(ino), self.options.writeback);
        let generation = self.host(client).generation;
        let Ok(file) = self.file(client, ino) else { return };
        if !file.due && !file.is_clean() {
            file.due = true;
            file.writebacks += 1;
            let at = now + draw.at(file.writebacks).span(span);
            self.later(at, Job::Writeback { client, generation, ino });
        }
    }

    /// Sets the length; what was dirty has been sent before, but on a local file system.
    pub fn truncate(&mut self, client: u32, ino: u64, len: u64, now: Duration) -> Result<()> {
        self.server.set_len(ino, len)?;
        let change = self.server.inode(ino)?.change;
        let file = self.file(client, ino)?;
        file.dirty.cut(len);
        file.in_flight.cut(len);
        file.unstable.values_mut().for_each(|r| r.cut(len));
        file.cache.truncate(len);
        file.change = change;
        self.settle_later(Some(ino), now);
        Ok(())
    }

    /// Whether of the bytes that were under way when the host lost power no more come than those that came by then.
    fn is_cut_short(&self, client: u32, generation: u64, ino: u64) -> bool {
        self.draw.of("cut short").at(client.into()).at(generation).at(ino).chance(0.5)
    }

    /// A WRITE reaches the server.
    pub fn land(
        &mut self,
        client: u32,
        generation: u64,
        ino: u64,
        write: &Write,
        stable: bool,
    ) -> Result<u64> {
        if self.host(client).generation != generation && self.is_cut_short(client, generation, ino) {
            return Err(Errno::IO);
        }
        let before = self.server.inode(ino)?.change;
        let whole = self.kind() == Kind::Local && self.file(client, ino)?.dirty.is_empty();
        let done = self.server.write(ino, write, stable && !self.options.lying);
        if whole && done.is_ok() && !self.options.lying {
            self.server.inode_mut(ino)?.harden_all();
        }
        let after = self.server.inode(ino)?.change;
        let host = self.host(client);
        if let Some(file) = host.files.get_mut(&ino).filter(|_| host.generation == generation) {
            if file.change == before {
                file.change = after;
            }
        }
        done.map(|()| self.server.verifier)
    }

    /// A COMMIT reaches the server: makes durable what this host sent, if the server still has it;
    /// else says false, and the bytes are dirty again.
    pub fn commit(&mut self, client: u32, generation: u64, ino: u64) -> Result<bool> {
        let verifier = self.server.verifier;
        if self.host(client).generation != generation {
            return Ok(true);
        }
        let file = self.file(client, ino)?;
        let sent = std::mem::take(&mut file.unstable);
        let mut lost = false;
        let mut kept = Ranges::default();
        for (at, ranges) in sent {
            if at == verifier {
                kept = ranges;
            } else {
                lost = true;
                super::crash::mark("commit-verifier-changed");
                file.dirty.add_all(&ranges);
            }
        }
        self.server.commit(ino, &kept)?;
        Ok(!lost)
    }
}

/// The options' capacity, or the least that a fault sets.
fn capacity(options: &Options, faults: &Faults) -> Capacity {
    let at = if options.kind == Kind::Nfs { FullAt::Sync } else { FullAt::Write };
    let usual = Capacity { bytes: options.capacity, at, errno: Errno::NOSPC };
    let set = faults.iter().filter_map(|f| match f {
        Fault::Capacity { bytes, at, errno } => {
            Some(Capacity { bytes: *bytes, at: *at, errno: (*errno).into() })
        }
        _ => None,
    });
    set.fold(usual, |a, b| if b.bytes < a.bytes { b } else { a })
}
