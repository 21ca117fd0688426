//! The server: files and names as every fresh client sees them, and as the media hold them.

use super::content::{pieces, Content, Page, Ranges};
use super::fault::FullAt;
use super::names::{Node, Result, Tree};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// One file. What is shown and what is on the media differ in the volatile pages only, and perhaps
/// in the length.
#[derive(Clone, Debug, Default)]
pub struct Inode {
    pub shown: Content,
    pub media: Content,
    pub volatile: BTreeSet<u64>,
    pub len_volatile: bool,
    /// The least length to which it was cut since that was durable.
    pub cut: Option<u64>,
    /// Rises with every change of the bytes (the change attribute, RFC 8881 5.8.1.4).
    pub change: u64,
    /// Whether a name leads to it.
    pub named: bool,
    /// Handles that keep it when its last name goes; not counted over NFS.
    pub opens: u32,
}

/// Bytes on their way: what a WRITE request carries, as they were when it was sent.
#[derive(Clone, Debug, Default)]
pub struct Write {
    pub ranges: Ranges,
    pub pages: BTreeMap<u64, Page>,
}

#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub bytes: u64,
    pub at: FullAt,
    pub errno: Errno,
}

pub struct Server {
    pub tree: Tree,
    pub inodes: BTreeMap<u64, Inode>,
    /// Files that lost their name and are kept by a handle or by the media's names.
    nameless: BTreeSet<u64>,
    /// The write verifier: another one after each restart (RFC 8881, 18.32.3).
    pub verifier: u64,
    pub capacity: Capacity,
    /// Bytes in all files.
    pub used: u64,
    /// Names and COMMITs are durable when the reply says so.
    honest: bool,
    /// A handle does not keep a file whose names are gone.
    stateless: bool,
}

impl Server {
    pub fn new(capacity: Capacity, honest: bool, stateless: bool) -> Self {
        Server {
            tree: Tree::default(),
            inodes: BTreeMap::new(),
            nameless: BTreeSet::new(),
            verifier: 1,
            capacity,
            used: 0,
            honest,
            stateless,
        }
    }

    pub fn inode(&self, ino: u64) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    pub fn inode_mut(&mut self, ino: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    pub fn room(&self) -> u64 {
        self.capacity.bytes.saturating_sub(self.used)
    }

    /// What follows every change of names: over an honest network file system it is durable.
    fn named(&mut self) {
        if self.honest {
            self.tree.commit_all();
        }
    }

    fn has_room_for_a_name(&self) -> Result<()> {
        if self.room() == 0 {
            return Err(self.capacity.errno);
        }
        Ok(())
    }

    pub fn create(&mut self, dir: u64, name: &str) -> Result<u64> {
        if self.tree.lookup(dir, name).is_err() {
            self.has_room_for_a_name()?;
        }
        let ino = self.tree.next();
        self.tree.put(dir, name, Node::File(ino))?;
        self.inodes.insert(ino, Inode { change: 1, named: true, ..Inode::default() });
        self.named();
        Ok(ino)
    }

    pub fn mkdir(&mut self, dir: u64, name: &str) -> Result<u64> {
        if self.tree.lookup(dir, name).is_err() {
            self.has_room_for_a_name()?;
        }
        let id = self.tree.mkdir(dir, name)?;
        self.named();
        Ok(id)
    }

    pub fn unlink(&mut self, dir: u64, name: &str) -> Result<()> {
        let ino = self.tree.unlink(dir, name)?;
        self.named();
        self.unnamed(ino);
        Ok(())
    }

    pub fn rmdir(&mut self, dir: u64, name: &str) -> Result<()> {
        self.tree.rmdir(dir, name)?;
        self.named();
        Ok(())
    }

    pub fn rename(&mut self, from: (u64, &str), to: (u64, &str)) -> Result<()> {
        let replaced = self.tree.rename(from, to)?;
        self.named();
        if let Some(Node::File(ino)) = replaced {
            self.unnamed(ino);
        }
        Ok(())
    }

    fn unnamed(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.named = false;
        }
        self.nameless.insert(ino);
        self.maybe_free(ino);
    }

    /// After a crash: which files have names.
    pub fn find_names(&mut self) {
        let names: BTreeSet<Node> = self.tree.walk(false).map(|(_, node)| node).collect();
        for (ino, inode) in &mut self.inodes {
            inode.named = names.contains(&Node::File(*ino));
            if !inode.named {
                self.nameless.insert(*ino);
            }
        }
    }

    /// Frees a file that nothing leads to any more.
    pub fn maybe_free(&mut self, ino: u64) {
        let kept = self.inodes.get(&ino).is_none_or(|i| i.named || (i.opens > 0 && !self.stateless));
        if !kept && !self.tree.names_file(ino) {
            self.nameless.remove(&ino);
            if let Some(inode) = self.inodes.remove(&ino) {
                self.used -= inode.shown.len;
            }
        }
    }

    /// Makes names durable, and frees what only kept them.
    pub fn commit_names(&mut self, dir: Option<u64>) {
        if self.tree.is_settled() {
            return;
        }
        match dir {
            Some(dir) => self.tree.commit(dir, u64::MAX),
            None => self.tree.commit_all(),
        }
        for ino in self.nameless.clone() {
            self.maybe_free(ino);
        }
    }

    /// Applies a WRITE. What does not fit is left out, and the error says so.
    pub fn write(&mut self, ino: u64, write: &Write, stable: bool) -> Result<()> {
        let (room, full) = (self.room(), self.capacity.errno);
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let before = inode.shown.len;
        let limit = before + room;
        let mut done = Ok(());
        for (from, to) in write.ranges.iter() {
            let end = to.min(limit.max(from));
            if end < to {
                done = Err(full);
            }
            inode.put(from, end, &write.pages);
        }
        inode.change += 1;
        self.used = self.used - before + inode.shown.len;
        if stable {
            inode.harden(&write.ranges);
        }
        done
    }

    /// SETATTR of the length; durable when it is answered, if the server is honest.
    pub fn set_len(&mut self, ino: u64, len: u64) -> Result<()> {
        let (room, full) = (self.room(), self.capacity.errno);
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::STALE)?;
        let before = inode.shown.len;
        if len > before + room {
            return Err(full);
        }
        inode.set_len(len);
        if self.honest {
            inode.harden(&Ranges::default());
        }
        self.used = self.used - before + len;
        Ok(())
    }

    /// COMMIT of those bytes.
    pub fn commit(&mut self, ino: u64, ranges: &Ranges) -> Result<()> {
        let honest = self.honest;
        let inode = self.inode_mut(ino)?;
        if honest {
            inode.harden(ranges);
        }
        Ok(())
    }
}

impl Inode {
    fn put(&mut self, from: u64, to: u64, pages: &BTreeMap<u64, Page>) {
        for (_, n, page, at) in pieces(from, to) {
            let Some(source) = pages.get(&page) else { continue };
            if n == super::content::PAGE {
                self.shown.pages.insert(page, source.clone());
            } else {
                self.shown.page_mut(page)[at..at + n].copy_from_slice(&source[at..at + n]);
            }
            self.volatile.insert(page);
        }
        if to > from && to > self.shown.len {
            self.shown.len = to;
            self.len_volatile = true;
        }
    }

    fn set_len(&mut self, len: u64) {
        if len < self.shown.len {
            let (page, at) = super::content::split(len);
            self.volatile.split_off(&if at == 0 { page } else { page + 1 });
            self.cut = Some(self.cut.map_or(len, |cut| cut.min(len)));
        }
        self.shown.truncate(len);
        self.change += 1;
        self.len_volatile = true;
    }

    /// The pages of those ranges reach the media, and so much of the length; and every cut.
    pub fn harden(&mut self, ranges: &Ranges) {
        if let Some(cut) = self.cut.take().filter(|cut| *cut < self.media.len) {
            self.media.truncate(cut);
        }
        for page in ranges.pages() {
            self.volatile.remove(&page);
            self.media.take_page(page, &self.shown);
        }
        if self.volatile.is_empty() {
            self.media.truncate(self.shown.len);
            self.len_volatile = false;
        }
    }

    /// All of it reaches the media.
    pub fn harden_all(&mut self) {
        self.media = self.shown.clone();
        self.volatile.clear();
        self.len_volatile = false;
        self.cut = None;
    }

    pub fn is_settled(&self) -> bool {
        self.volatile.is_empty() && !self.len_volatile
    }
}
