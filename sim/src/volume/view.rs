//! What the volume looks like from outside: trees of bytes, strips of pages, open handles.

use super::content::{Content, PAGE};
use super::model::Model;
use super::names::Node;
use super::options::Kind;
use super::state::State;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A file's bytes as they were; copies share them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FileBytes(Arc<Content>);

impl FileBytes {
    pub fn new(bytes: &[u8]) -> Self {
        FileBytes(Arc::new(Content::from_bytes(bytes)))
    }

    pub(super) fn of(content: Content) -> Self {
        FileBytes(Arc::new(content))
    }

    pub(super) fn content(&self) -> &Content {
        &self.0
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Up to `len` bytes at `pos`; fewer at the end.
    pub fn read(&self, pos: u64, len: usize) -> Bytes {
        self.0.read(pos, len)
    }

    pub fn to_bytes(&self) -> Bytes {
        self.read(0, self.0.len as usize)
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Files and directories by path, without the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub dirs: BTreeSet<String>,
    pub files: BTreeMap<String, FileBytes>,
}

/// What a crash left.
pub type Image = Tree;

impl Tree {
    /// The bytes of a file, if there is one at that path.
    pub fn bytes(&self, path: &str) -> Option<Bytes> {
        self.files.get(path).map(FileBytes::to_bytes)
    }
}

/// A file that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenHandle {
    pub host: u32,
    pub process: u32,
    /// The path by which it was opened.
    pub path: String,
    pub since: Duration,
    /// The file was unlinked, or replaced: no name leads to it but the one that an NFS client gives it until it is closed.
    pub is_unlinked: bool,
}

/// Where a page is known that the media do not have, or not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Server,
    Host(u32),
}

/// One page of a file: the places that know it otherwise than the media; none if it is on the media.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageState {
    pub ahead: Vec<Place>,
}

/// A file by pages of 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    pub pages: Vec<PageState>,
    /// Bytes on the media.
    pub media_len: u64,
    /// Bytes that a fresh client sees.
    pub shown_len: u64,
    /// Bytes as each host with unsent bytes sees it.
    pub host_len: BTreeMap<u32, u64>,
}

impl Model {
    /// What is durable now.
    pub fn media(&self) -> Tree {
        let state = self.shared.state.lock();
        state.tree(true, |s, ino| s.server.inode(ino).ok().map(|i| i.media.clone()))
    }

    /// What a fresh client without any cache sees; of a local file system, what a fresh process sees.
    pub fn shown(&self) -> Tree {
        self.shared.state.lock().tree(false, State::shown)
    }

    /// All open handles of living processes, in the order in which they were opened.
    pub fn open_handles(&self) -> Vec<OpenHandle> {
        let state = self.shared.state.lock();
        let is_silly = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with(".nfs"));
        let tree = state.server.tree.walk(false).filter(|(path, _)| !is_silly(path));
        let named: BTreeSet<u64> = tree
            .filter_map(|(_, node)| match node {
                Node::File(ino) => Some(ino),
                Node::Dir(_) => None,
            })
            .collect();
        let open = state.handles.values().map(|h| OpenHandle {
            host: h.host,
            process: h.process,
            path: h.path.clone(),
            since: h.since,
            is_unlinked: !named.contains(&h.ino),
        });
        open.collect()
    }

    /// Where the bytes of the file at that path are.
    pub fn strip(&self, path: &str) -> Option<Strip> {
        let state = self.shared.state.lock();
        let Ok(Node::File(ino)) = state.server.tree.find(path) else { return None };
        state.strip(ino)
    }

    /// One file's bytes on the media, and as a fresh client sees them.
    pub fn versions(&self, path: &str) -> Option<(FileBytes, FileBytes)> {
        let state = self.shared.state.lock();
        let Ok(Node::File(ino)) = state.server.tree.find(path) else { return None };
        let media = state.server.inode(ino).ok()?.media.clone();
        Some((FileBytes::of(media), FileBytes::of(state.shown(ino)?)))
    }

    /// The paths of all files, and whether a crash of everything would keep the name.
    pub fn names(&self) -> BTreeMap<String, bool> {
        let state = self.shared.state.lock();
        let files = |durable| {
            let all = state.server.tree.walk(durable).filter(|(_, node)| matches!(node, Node::File(_)));
            all.map(|(path, _)| path).collect::<BTreeSet<_>>()
        };
        let kept = files(true);
        files(false).into_iter().map(|path| (path.clone(), kept.contains(&path))).collect()
    }
}

impl State {
    fn tree(&self, durable: bool, content: impl Fn(&State, u64) -> Option<Content>) -> Tree {
        let mut tree = Tree::default();
        for (path, node) in self.server.tree.walk(durable) {
            match node {
                Node::Dir(_) => {
                    tree.dirs.insert(path);
                }
                Node::File(ino) => {
                    tree.files.insert(path, FileBytes::of(content(self, ino).unwrap_or_default()));
                }
            }
        }
        tree
    }

    /// What who opens the file now sees; caches that all share are laid over the server's bytes.
    fn shown(&self, ino: u64) -> Option<Content> {
        let mut content = self.server.inode(ino).ok()?.shown.clone();
        if self.kind() == Kind::Nfs {
            return Some(content);
        }
        for file in self.hosts.values().filter_map(|h| h.files.get(&ino)) {
            let pages: Vec<u64> = match self.kind() {
                Kind::Local => file.cache.pages.keys().copied().collect(),
                _ => file.dirty.pages(),
            };
            for page in pages {
                content.take_page(page, &file.cache);
            }
            content.len = content.len.max(file.cache.len);
        }
        Some(content)
    }

    fn strip(&self, ino: u64) -> Option<Strip> {
        let inode = self.server.inode(ino).ok()?;
        let mut strip = Strip { media_len: inode.media.len, shown_len: inode.shown.len, ..Strip::default() };
        let mut ahead: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
        for page in &inode.volatile {
            ahead.entry(*page).or_default().push(Place::Server);
        }
        for (id, file) in self.hosts.iter().filter_map(|(id, h)| Some((id, h.files.get(&ino)?))) {
            let mut unsent = file.dirty.clone();
            unsent.add_all(&file.in_flight);
            if !unsent.is_empty() {
                strip.host_len.insert(*id, file.cache.len);
            }
            for page in unsent.pages() {
                ahead.entry(page).or_default().push(Place::Host(*id));
            }
        }
        let longest = strip.host_len.values().copied().fold(inode.media.len.max(inode.shown.len), u64::max);
        strip.pages.resize(longest.div_ceil(PAGE as u64) as usize, PageState::default());
        for (page, places) in ahead {
            if let Some(state) = strip.pages.get_mut(page as usize) {
                state.ahead = places;
            }
        }
        Some(strip)
    }
}
