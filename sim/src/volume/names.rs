//! Directories: the names as they are, the names on the media, and the steps between them.
//!
//! Of the steps of one directory a crash keeps a prefix. A move between two directories is kept on
//! both sides or on none.

use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const ROOT: u64 = 0;

pub type Result<T> = std::result::Result<T, Errno>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    File(u64),
    Dir(u64),
}

/// A change of one directory that a crash may undo.
#[derive(Clone, Debug)]
enum Step {
    /// A new name; with the directory it was moved here from.
    Put(String, Node, Option<u64>),
    /// A name gone; with the directory it was moved to.
    Del(String, Option<u64>),
    /// A rename inside the directory.
    Move(String, String),
}

#[derive(Clone, Debug, Default)]
pub struct Dir {
    pub names: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    pending: VecDeque<(u64, Step)>,
    parent: u64,
    /// Rises with every change of the names (the change attribute, RFC 8881 5.8.1.4).
    pub change: u64,
}

#[derive(Clone, Debug)]
pub struct Tree {
    dirs: BTreeMap<u64, Dir>,
    /// Directories with steps that are not durable.
    unsettled: BTreeSet<u64>,
    /// How often a file stands in a directory, on the media or as things are, or in a step between.
    holds: BTreeMap<u64, u32>,
    /// Numbers directories, files and steps.
    seq: u64,
}

impl Default for Tree {
    fn default() -> Self {
        Tree {
            dirs: BTreeMap::from([(ROOT, Dir::default())]),
            unsettled: BTreeSet::new(),
            holds: BTreeMap::new(),
            seq: ROOT,
        }
    }
}

impl Tree {
    pub fn next(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub fn dir(&self, id: u64) -> Result<&Dir> {
        self.dirs.get(&id).ok_or(Errno::STALE)
    }

    fn dir_mut(&mut self, id: u64) -> Result<&mut Dir> {
        self.dirs.get_mut(&id).ok_or(Errno::STALE)
    }

    pub fn lookup(&self, dir: u64, name: &str) -> Result<Node> {
        self.dir(dir)?.names.get(name).copied().ok_or(Errno::NOENT)
    }

    /// What a path stands for, without any cache; the empty path is the root.
    pub fn find(&self, path: &str) -> Result<Node> {
        let mut at = Node::Dir(ROOT);
        for name in path.split('/').filter(|c| !c.is_empty()) {
            let Node::Dir(dir) = at else { return Err(Errno::NOTDIR) };
            at = self.lookup(dir, name)?;
        }
        Ok(at)
    }

    pub fn put(&mut self, dir: u64, name: &str, node: Node) -> Result<()> {
        let d = self.dir_mut(dir)?;
        if d.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        d.insert(name, node);
        self.hold(node);
        let seq = self.next();
        self.step(dir, seq, Step::Put(name.to_owned(), node, None))
    }

    pub fn mkdir(&mut self, dir: u64, name: &str) -> Result<u64> {
        let id = self.next();
        self.put(dir, name, Node::Dir(id))?;
        self.dirs.insert(id, Dir { parent: dir, ..Dir::default() });
        Ok(id)
    }

    pub fn unlink(&mut self, dir: u64, name: &str) -> Result<u64> {
        match self.lookup(dir, name)? {
            Node::File(ino) => self.delete(dir, name).map(|()| ino),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    pub fn rmdir(&mut self, dir: u64, name: &str) -> Result<()> {
        match self.lookup(dir, name)? {
            Node::Dir(id) if self.dir(id)?.names.is_empty() => self.delete(dir, name),
            Node::Dir(_) => Err(Errno::NOTEMPTY),
            Node::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn delete(&mut self, dir: u64, name: &str) -> Result<()> {
        let gone = self.dir_mut(dir)?.remove(name);
        self.let_go(gone);
        let seq = self.next();
        self.step(dir, seq, Step::Del(name.to_owned(), None))
    }

    fn step(&mut self, dir: u64, seq: u64, step: Step) -> Result<()> {
        if let Step::Put(_, node, _) = &step {
            self.hold(*node);
        }
        self.dir_mut(dir)?.pending.push_back((seq, step));
        self.unsettled.insert(dir);
        Ok(())
    }

    /// rename(2); returns what stood at the new name.
    pub fn rename(&mut self, from: (u64, &str), to: (u64, &str)) -> Result<Option<Node>> {
        let node = self.lookup(from.0, from.1)?;
        let replaced = self.dir(to.0)?.names.get(to.1).copied();
        if from == to || replaced == Some(node) {
            return Ok(None);
        }
        self.check_rename(node, from.0, to.0, replaced)?;
        let seq = self.next();
        self.dir_mut(from.0)?.remove(from.1);
        let name = to.1.to_owned();
        let over = self.dir_mut(to.0)?.insert(&name, node);
        self.let_go(over);
        if from.0 == to.0 {
            self.step(to.0, seq, Step::Move(from.1.to_owned(), name))?;
        } else {
            self.step(to.0, seq, Step::Put(name, node, Some(from.0)))?;
            self.step(from.0, seq, Step::Del(from.1.to_owned(), Some(to.0)))?;
        }
        if let Node::Dir(id) = node {
            self.dir_mut(id)?.parent = to.0;
        }
        Ok(replaced)
    }

    fn check_rename(&self, node: Node, from: u64, to: u64, replaced: Option<Node>) -> Result<()> {
        if matches!(node, Node::Dir(id) if self.is_below(to, id)) {
            return Err(Errno::INVAL);
        }
        match (node, replaced) {
            (_, Some(Node::Dir(id))) if self.is_below(from, id) => Err(Errno::NOTEMPTY),
            (_, None) | (Node::File(_), Some(Node::File(_))) => Ok(()),
            (Node::File(_), Some(Node::Dir(_))) => Err(Errno::ISDIR),
            (Node::Dir(_), Some(Node::File(_))) => Err(Errno::NOTDIR),
            (Node::Dir(_), Some(Node::Dir(id))) if self.dir(id)?.names.is_empty() => Ok(()),
            (Node::Dir(_), Some(Node::Dir(_))) => Err(Errno::NOTEMPTY),
        }
    }

    /// Whether `dir` is `above` or lies somewhere below it.
    fn is_below(&self, mut dir: u64, above: u64) -> bool {
        while dir != above {
            match self.dirs.get(&dir) {
                Some(d) if dir != ROOT => dir = d.parent,
                _ => return false,
            }
        }
        true
    }

    /// Whether a name leads to the file, on the media or as things are, or may do so after a crash.
    pub fn names_file(&self, ino: u64) -> bool {
        self.holds.contains_key(&ino)
    }

    fn hold(&mut self, node: Node) {
        if let Node::File(ino) = node {
            *self.holds.entry(ino).or_default() += 1;
        }
    }

    fn let_go(&mut self, node: Option<Node>) {
        let Some(Node::File(ino)) = node else { return };
        if let Some(n) = self.holds.get_mut(&ino) {
            *n -= 1;
            if *n == 0 {
                self.holds.remove(&ino);
            }
        }
    }

    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    pub fn commit_all(&mut self) {
        while let Some(id) = self.unsettled.first().copied() {
            self.commit(id, u64::MAX);
            self.unsettled.remove(&id);
        }
    }

    /// Makes the steps of one directory up to number `last` durable.
    pub fn commit(&mut self, id: u64, last: u64) {
        while let Some(d) = self.dirs.get_mut(&id) {
            if d.pending.front().is_none_or(|(seq, _)| *seq > last) {
                break;
            }
            let Some((seq, step)) = d.pending.pop_front() else { break };
            let is_moved = matches!(step, Step::Del(_, Some(_)));
            let (gone, other) = match step {
                Step::Put(name, node, other) => {
                    // Held by the step until now, by the media from now on.
                    (d.durable.insert(name, node), other)
                }
                Step::Del(name, other) => (d.durable.remove(&name), other),
                Step::Move(from, to) => {
                    let node = d.durable.remove(&from);
                    (node.and_then(|n| d.durable.insert(to, n)), None)
                }
            };
            self.let_go(gone);
            // A directory that went is gone, but for one that moved elsewhere.
            if let Some(Node::Dir(gone)) = gone.filter(|_| !is_moved) {
                self.dirs.remove(&gone);
            }
            if let Some(other) = other {
                self.commit(other, seq);
            }
        }
        if self.dirs.get(&id).is_none_or(|d| d.pending.is_empty()) {
            self.unsettled.remove(&id);
        }
    }

    /// For each directory with steps that are not durable: the numbers of those steps.
    pub fn doubts(&self) -> Vec<(u64, Vec<u64>)> {
        let doubtful = self.unsettled.iter().filter_map(|id| Some((*id, self.dirs.get(id)?)));
        doubtful.map(|(id, d)| (id, d.pending.iter().map(|(seq, _)| *seq).collect())).collect()
    }

    /// A crash that kept of each directory the steps up to the given number.
    pub fn crash(&mut self, kept: &[(u64, u64)]) {
        for (id, last) in kept {
            self.commit(*id, *last);
        }
        for d in self.dirs.values_mut() {
            d.pending.clear();
            d.names = d.durable.clone();
            d.change += 1;
        }
        self.unsettled.clear();
        self.holds.clear();
        let durable: Vec<Node> = self.dirs.values().flat_map(|d| d.durable.values().copied()).collect();
        for node in durable {
            // Once for the media, once for what is.
            self.hold(node);
            self.hold(node);
        }
        let live: BTreeSet<u64> = self.walk(false).filter_map(|(_, n)| dir_of(n)).chain([ROOT]).collect();
        self.dirs.retain(|id, _| live.contains(id));
        let parents: Vec<(u64, u64)> = self
            .dirs
            .iter()
            .flat_map(|(id, d)| d.names.values().filter_map(|n| dir_of(*n)).map(|sub| (sub, *id)))
            .collect();
        for (sub, parent) in parents {
            self.dirs.entry(sub).or_default().parent = parent;
        }
    }

    /// All paths but the root's, in order; of the media if `durable`.
    pub fn walk(&self, durable: bool) -> impl Iterator<Item = (String, Node)> {
        let mut out = Vec::new();
        let mut todo = vec![(String::new(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            let Some(d) = self.dirs.get(&id) else { continue };
            for (name, node) in if durable { &d.durable } else { &d.names } {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if let Node::Dir(sub) = node {
                    todo.push((path.clone(), *sub));
                }
                out.push((path, *node));
            }
        }
        out.sort();
        out.into_iter()
    }

    /// Identifies what is there: two survivals with the same names are one.
    pub fn fingerprint(&self) -> Vec<(String, Node)> {
        self.walk(false).collect()
    }
}

fn dir_of(node: Node) -> Option<u64> {
    match node {
        Node::Dir(id) => Some(id),
        Node::File(_) => None,
    }
}

impl Dir {
    fn insert(&mut self, name: &str, node: Node) -> Option<Node> {
        self.change += 1;
        self.names.insert(name.to_owned(), node)
    }

    fn remove(&mut self, name: &str) -> Option<Node> {
        self.change += 1;
        self.names.remove(name)
    }
}
