//! What lies on the medium and what lies in the page cache: plain state, no waiting.
//!
//! Every file has its bytes twice, as cached and as durable, and a set of dirty pages by which the
//! two may lawfully differ. Every directory has its names twice, and the operations that lead from
//! the durable ones to the present ones, in order.

use crate::rt::Entropy;
use crate::volume::{Entry, EntryKind};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

pub(super) const PAGE: usize = 4096;
const ROOT: u64 = 0;

pub(super) type Result<T> = std::result::Result<T, Errno>;

/// A whole number below `n`, by chance.
fn below(entropy: &dyn Entropy, n: usize) -> usize {
    (entropy.u64() % n.max(1) as u64) as usize
}

/// One file, whatever its names. It lives as long as a name or a handle leads to it.
pub(super) struct FileNode {
    pages: Mutex<Pages>,
    /// Bytes of all files of the volume.
    used: Arc<AtomicU64>,
}

#[derive(Default)]
struct Pages {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Numbers of the pages that were changed since they were last written back.
    dirty: BTreeSet<usize>,
    len_dirty: bool,
}

impl Drop for FileNode {
    fn drop(&mut self) {
        self.used.fetch_sub(self.pages.get_mut().cached.len() as u64, SeqCst);
    }
}

impl FileNode {
    pub(super) fn read(&self, pos: u64, len: usize) -> bytes::Bytes {
        let p = self.pages.lock();
        let from = usize::try_from(pos).map_or(p.cached.len(), |pos| pos.min(p.cached.len()));
        let to = from.saturating_add(len).min(p.cached.len());
        bytes::Bytes::copy_from_slice(&p.cached[from..to])
    }

    pub(super) fn len(&self) -> u64 {
        self.pages.lock().cached.len() as u64
    }

    /// Writes as much of `data` as `room` more bytes allow; returns how much that was.
    pub(super) fn write(&self, pos: u64, data: &[u8], room: u64) -> Result<usize> {
        let mut p = self.pages.lock();
        let pos = usize::try_from(pos).map_err(|_| Errno::FBIG)?;
        let limit = p.cached.len() as u64 + room;
        let fits = limit.saturating_sub(pos as u64).min(data.len() as u64) as usize;
        if fits == 0 {
            return if data.is_empty() { Ok(0) } else { Err(Errno::NOSPC) };
        }
        let end = pos + fits;
        if end > p.cached.len() {
            self.resize(&mut p, end);
        }
        p.cached[pos..end].copy_from_slice(&data[..fits]);
        p.dirty.extend(pos / PAGE..=(end - 1) / PAGE);
        Ok(fits)
    }

    pub(super) fn truncate(&self, len: u64, room: u64) -> Result<()> {
        let mut p = self.pages.lock();
        if len > p.cached.len() as u64 + room {
            return Err(Errno::NOSPC);
        }
        // What lay past the new end reads as zeros if the file ever grows again, so those pages
        // are changed even though there is nothing of them now.
        let was = p.cached.len().max(p.durable.len());
        if (len as usize) < was {
            p.dirty.extend(len as usize / PAGE..=was / PAGE);
        }
        self.resize(&mut p, len as usize);
        Ok(())
    }

    fn resize(&self, p: &mut Pages, len: usize) {
        self.used.fetch_add(len as u64, SeqCst);
        self.used.fetch_sub(p.cached.len() as u64, SeqCst);
        p.len_dirty |= len != p.cached.len();
        p.cached.resize(len, 0);
    }

    pub(super) fn sync(&self) {
        let mut p = self.pages.lock();
        if p.dirty.is_empty() && !p.len_dirty {
            return;
        }
        for page in std::mem::take(&mut p.dirty) {
            p.write_back(page);
        }
        let len = p.cached.len();
        p.durable.resize(len, 0);
        p.len_dirty = false;
    }

    /// A sync that failed, as Linux does it: the pages are clean and readable, and not on disk. The
    /// next sync finds nothing to do and succeeds.
    pub(super) fn sync_failed(&self) {
        let mut p = self.pages.lock();
        p.dirty.clear();
        p.len_dirty = false;
    }

    /// Each dirty page reached the disk or did not; so did the length, or a part of the change.
    fn power_cut(&self, entropy: &dyn Entropy) {
        let mut p = self.pages.lock();
        let (old, new) = (p.durable.len(), p.cached.len());
        let len = match (p.len_dirty, below(entropy, 3)) {
            (false, _) | (true, 0) => old,
            (true, 1) => new,
            (true, _) => old.min(new) + below(entropy, old.abs_diff(new) + 1),
        };
        for page in std::mem::take(&mut p.dirty) {
            if entropy.u64().is_multiple_of(2) {
                p.write_back(page);
            }
        }
        p.durable.resize(len, 0);
        p.len_dirty = false;
        self.resize(&mut p, len);
        p.len_dirty = false;
        p.cached = p.durable.clone();
    }
}

impl Pages {
    fn write_back(&mut self, page: usize) {
        let from = page * PAGE;
        let to = (from + PAGE).min(self.cached.len());
        if from >= to {
            return;
        }
        if self.durable.len() < to {
            self.durable.resize(to, 0);
        }
        self.durable[from..to].copy_from_slice(&self.cached[from..to]);
    }
}

/// What a name stands for.
#[derive(Clone)]
pub(super) enum Node {
    File(Arc<FileNode>),
    Dir(u64),
}

/// A change of one directory that a power cut may undo.
enum DirOp {
    /// A new name; with the directory that it was moved here from.
    Put(String, Node, Option<u64>),
    /// A name gone; with the directory that it was moved to.
    Del(String, Option<u64>),
    /// A rename inside the directory.
    Move(String, String),
}

#[derive(Default)]
struct Dir {
    names: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    pending: VecDeque<(u64, DirOp)>,
}

/// The tree of names.
pub(super) struct Disk {
    dirs: BTreeMap<u64, Dir>,
    /// Numbers directories and directory operations.
    seq: u64,
    used: Arc<AtomicU64>,
    pub(super) capacity: u64,
}

impl Disk {
    pub(super) fn new(capacity: u64) -> Self {
        let dirs = BTreeMap::from([(ROOT, Dir::default())]);
        Disk { dirs, seq: ROOT, used: Arc::default(), capacity }
    }

    /// Free space in bytes.
    pub(super) fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.used.load(SeqCst))
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    fn dir_mut(&mut self, id: u64) -> Result<&mut Dir> {
        self.dirs.get_mut(&id).ok_or(Errno::NOENT)
    }

    /// The directory at `path`; the empty path is the root.
    fn find_dir(&self, path: &str) -> Result<u64> {
        let mut at = ROOT;
        for name in path.split('/').filter(|c| !c.is_empty()) {
            match self.dirs.get(&at).and_then(|d| d.names.get(name)) {
                Some(Node::Dir(id)) => at = *id,
                Some(Node::File(_)) => return Err(Errno::NOTDIR),
                None => return Err(Errno::NOENT),
            }
        }
        Ok(at)
    }

    /// The directory that holds the name at `path`, and that name.
    fn find_parent<'p>(&self, path: &'p str) -> Result<(u64, &'p str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find_dir(parent)?, name))
    }

    fn find(&self, path: &str) -> Result<Node> {
        let (dir, name) = self.find_parent(path)?;
        self.dirs.get(&dir).and_then(|d| d.names.get(name)).cloned().ok_or(Errno::NOENT)
    }

    pub(super) fn file(&self, path: &str) -> Result<Arc<FileNode>> {
        match self.find(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    pub(super) fn create(&mut self, path: &str) -> Result<Arc<FileNode>> {
        let file = Arc::new(FileNode { pages: Mutex::default(), used: self.used.clone() });
        self.put(path, Node::File(file.clone()))?;
        Ok(file)
    }

    pub(super) fn mkdir(&mut self, path: &str) -> Result<()> {
        let id = self.next_seq();
        self.put(path, Node::Dir(id))?;
        self.dirs.insert(id, Dir::default());
        Ok(())
    }

    fn put(&mut self, path: &str, node: Node) -> Result<()> {
        let (id, name) = self.find_parent(path)?;
        let seq = self.next_seq();
        let dir = self.dir_mut(id)?;
        if dir.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        dir.names.insert(name.to_owned(), node.clone());
        dir.pending.push_back((seq, DirOp::Put(name.to_owned(), node, None)));
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &str) -> Result<()> {
        match self.find(path)? {
            Node::File(_) => self.delete(path),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Result<()> {
        match self.find(path)? {
            Node::Dir(id) if self.dir_mut(id)?.names.is_empty() => self.delete(path),
            Node::Dir(_) => Err(Errno::NOTEMPTY),
            Node::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn delete(&mut self, path: &str) -> Result<()> {
        let (id, name) = self.find_parent(path)?;
        let seq = self.next_seq();
        let dir = self.dir_mut(id)?;
        dir.names.remove(name);
        dir.pending.push_back((seq, DirOp::Del(name.to_owned(), None)));
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let (from_dir, from_name) = self.find_parent(from)?;
        let (to_dir, to_name) = self.find_parent(to)?;
        let node = self.find(from)?;
        if from == to {
            return Ok(());
        }
        if matches!(node, Node::Dir(_)) && to.starts_with(&format!("{from}/")) {
            return Err(Errno::INVAL);
        }
        if from.starts_with(&format!("{to}/")) {
            return Err(Errno::NOTEMPTY);
        }
        match (&node, self.find(to).ok()) {
            (_, None) | (Node::File(_), Some(Node::File(_))) => {}
            (Node::File(_), Some(Node::Dir(_))) => return Err(Errno::ISDIR),
            (Node::Dir(_), Some(Node::File(_))) => return Err(Errno::NOTDIR),
            (Node::Dir(_), Some(Node::Dir(id))) if self.dir_mut(id)?.names.is_empty() => {}
            (Node::Dir(_), Some(Node::Dir(_))) => return Err(Errno::NOTEMPTY),
        }
        let seq = self.next_seq();
        let (from_name, to_name) = (from_name.to_owned(), to_name.to_owned());
        self.dir_mut(from_dir)?.names.remove(&from_name);
        self.dir_mut(to_dir)?.names.insert(to_name.clone(), node.clone());
        if from_dir == to_dir {
            self.dir_mut(to_dir)?.pending.push_back((seq, DirOp::Move(from_name, to_name)));
        } else {
            let put = DirOp::Put(to_name, node, Some(from_dir));
            self.dir_mut(to_dir)?.pending.push_back((seq, put));
            let del = DirOp::Del(from_name, Some(to_dir));
            self.dir_mut(from_dir)?.pending.push_back((seq, del));
        }
        Ok(())
    }

    pub(super) fn read_dir(&self, path: &str) -> Result<Vec<Entry>> {
        let dir = self.dirs.get(&self.find_dir(path)?).ok_or(Errno::NOENT)?;
        let entry = |(name, node): (&String, &Node)| Entry {
            name: name.clone(),
            kind: match node {
                Node::File(_) => EntryKind::File,
                Node::Dir(_) => EntryKind::Dir,
            },
        };
        Ok(dir.names.iter().map(entry).collect())
    }

    pub(super) fn sync_dir(&mut self, path: &str) -> Result<()> {
        let id = self.find_dir(path)?;
        self.commit(id, u64::MAX);
        Ok(())
    }

    /// Makes the operations of one directory up to number `last` durable. A move between two
    /// directories carries the other one along, so that it becomes durable on both sides or on none.
    fn commit(&mut self, id: u64, last: u64) {
        while let Some(dir) = self.dirs.get_mut(&id) {
            if dir.pending.front().is_none_or(|(seq, _)| *seq > last) {
                return;
            }
            let Some((seq, op)) = dir.pending.pop_front() else { return };
            let (gone, other) = match op {
                DirOp::Put(name, node, other) => (dir.durable.insert(name, node), other),
                DirOp::Del(name, other) => (dir.durable.remove(&name).filter(|_| other.is_none()), other),
                DirOp::Move(from, to) => {
                    let node = dir.durable.remove(&from);
                    (node.and_then(|n| dir.durable.insert(to, n)), None)
                }
            };
            if let Some(Node::Dir(gone)) = gone {
                self.dirs.remove(&gone);
            }
            if let Some(other) = other {
                self.commit(other, seq);
            }
        }
    }

    /// Forgets what is not durable, but for what chance lets through: of each directory a prefix of
    /// its operations, of each file some pages.
    pub(super) fn power_cut(&mut self, entropy: &dyn Entropy) {
        let mut kept = Vec::new();
        for (id, dir) in &self.dirs {
            let k = below(entropy, dir.pending.len() + 1);
            if k > 0 {
                kept.push((*id, dir.pending[k - 1].0));
            }
        }
        for (id, last) in kept {
            self.commit(id, last);
        }
        for dir in self.dirs.values_mut() {
            dir.pending.clear();
            dir.names = dir.durable.clone();
            for node in dir.durable.values() {
                if let Node::File(file) = node {
                    file.power_cut(entropy);
                }
            }
        }
    }
}
