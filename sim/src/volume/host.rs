//! A client of the volume: its page cache, and what it believes about names.
//!
//! What a host believes may be old; for how long is a mount option. Its own changes of a directory
//! make it forget what it believed about that directory, as the change information in the replies
//! does on Linux (RFC 8881, 18.16.4).

use super::content::{Content, Ranges, PAGE};
use super::names::Node;
use super::server::{Inode, Write};
use highwater::volume::Entry;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Default)]
pub struct Host {
    /// Rises when the host loses power: what was begun before belongs to nobody.
    pub generation: u64,
    pub files: BTreeMap<u64, HostFile>,
    pub dirs: BTreeMap<u64, DirCache>,
    /// Files that were unlinked here while open here: where their last name stands (silly rename).
    pub silly: BTreeMap<u64, (u64, String)>,
    /// Counts the trust put into directories, for draws.
    pub trusts: u64,
}

/// What a host believes about a directory until `until`.
#[derive(Default)]
pub struct DirCache {
    pub until: Duration,
    pub change: u64,
    /// `None`: there is no such name.
    pub names: BTreeMap<String, Option<Node>>,
    pub listing: Option<Vec<Entry>>,
}

/// A file in a host's page cache.
#[derive(Default)]
pub struct HostFile {
    /// A page that is missing is not cached.
    pub cache: Content,
    /// The file's change attribute that the clean pages belong to.
    pub change: u64,
    pub attrs_until: Duration,
    /// Written by processes here and not sent.
    pub dirty: Ranges,
    /// Sent and not answered.
    pub in_flight: Ranges,
    /// Answered as UNSTABLE, with the verifier of the answer.
    pub unstable: BTreeMap<u64, Ranges>,
    /// The last error of a write-back, and how many there were: every handle is told once.
    pub error: Option<Errno>,
    pub errors: u64,
    /// Held while bytes are on their way: one page is never sent twice at a time.
    pub gate: Arc<tokio::sync::Mutex<()>>,
    /// A write-back is due.
    pub due: bool,
    /// Counts write-backs, for draws.
    pub writebacks: u64,
    pub last_writer: u32,
    /// By which path it was opened.
    pub last_path: String,
}

impl HostFile {
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.unstable.is_empty()
    }

    /// Bytes that this host may know better than the server.
    pub fn own(&self) -> Ranges {
        let mut own = self.dirty.clone();
        own.add_all(&self.in_flight);
        self.unstable.values().for_each(|r| own.add_all(r));
        own
    }

    /// Takes the server's attributes for true: pages of another version are forgotten, but for the
    /// bytes that were written here.
    pub fn revalidate(&mut self, inode: &Inode, until: Duration) {
        let own = self.own();
        if self.change != inode.change {
            let old = std::mem::take(&mut self.cache);
            for page in own.pages() {
                let mine = old.pages.get(&page).expect("a page of one's own is cached");
                let fresh = self.cache.page_mut(page);
                if let Some(theirs) = inode.shown.page(page) {
                    fresh.copy_from_slice(&theirs[..]);
                }
                for (a, b) in own.in_page(page).iter() {
                    let (a, b) = ((a - page * PAGE as u64) as usize, (b - page * PAGE as u64) as usize);
                    fresh[a..b].copy_from_slice(&mine[a..b]);
                }
            }
            self.change = inode.change;
        }
        let end = own.iter().last().map_or(0, |(_, b)| b);
        self.cache.len = inode.shown.len.max(end);
        self.cache.trim();
        self.attrs_until = until;
    }

    /// Fetches what of `[pos, end)` is not cached; says whether there was anything.
    pub fn fetch(&mut self, inode: &Inode, pos: u64, end: u64) -> bool {
        let mut asked = false;
        for page in pos / PAGE as u64..end.div_ceil(PAGE as u64) {
            if self.cache.pages.contains_key(&page) {
                continue;
            }
            asked = true;
            let fresh = match inode.shown.page(page) {
                Some(p) => p.clone(),
                None => Arc::new([0; PAGE]),
            };
            self.cache.pages.insert(page, fresh);
        }
        if asked {
            self.cache.trim();
        }
        asked
    }

    pub fn has(&self, pos: u64, end: u64) -> bool {
        (pos / PAGE as u64..end.div_ceil(PAGE as u64)).all(|p| self.cache.pages.contains_key(&p))
    }

    /// Takes what is to be sent out of the dirty set: all, or the pages that `take` picks.
    pub fn begin_write(&mut self, take: impl Fn(u64) -> bool) -> Write {
        let mut write = Write::default();
        for page in self.dirty.pages() {
            if take(page) {
                write.ranges.add_all(&self.dirty.in_page(page));
                let bytes = self.cache.pages.get(&page).expect("a dirty page is cached");
                write.pages.insert(page, bytes.clone());
            }
        }
        for (a, b) in write.ranges.iter() {
            self.dirty.remove(a, b);
        }
        self.in_flight.add_all(&write.ranges);
        write
    }

    /// The answer to a WRITE came.
    pub fn sent(&mut self, write: &Write, unstable: Option<u64>) {
        // What was cut off meanwhile is not in flight any more, and nothing to be committed.
        let mut still = Ranges::default();
        for (a, b) in write.ranges.iter() {
            still.add_all(&self.in_flight.within(a, b));
            self.in_flight.remove(a, b);
        }
        if let Some(verifier) = unstable {
            self.unstable.entry(verifier).or_default().add_all(&still);
        }
    }

    /// The bytes could not be written: they stay readable, are clean, and nobody tries again.
    pub fn give_up(&mut self, errno: Errno) {
        self.dirty = Ranges::default();
        self.unstable.clear();
        self.error = Some(errno);
        self.errors += 1;
    }
}
