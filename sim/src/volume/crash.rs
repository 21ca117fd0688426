//! What crashes leave: a host's power cut, the server's restart, and all that could be left if
//! everything lost power now.
//!
//! Of bytes that are not durable any set of pages of 4 KiB may have reached the media, a prefix or
//! not; a file that grew is as long as its last page that did, or, as some file systems have it, as
//! long as it was, with zeros. Of the changes of a directory that are not durable a prefix is kept.

use super::content::{Content, Page, Ranges, PAGE, SECTOR};
use super::draw::Draw;
use super::host::HostFile;
use super::model::Model;
use super::names::{Node, Tree as Names};
use super::options::Kind;
use super::server::{Inode, Write};
use super::state::State;
use super::view::{FileBytes, Image};
use std::collections::{BTreeMap, BTreeSet};

/// Sets of survivals of names up to this many are told apart; of more, a part is drawn.
const NAMES: usize = 4096;

/// What could be left if everything lost power.
///
/// A torn page can be in more states than anyone enumerates: of each file one page is torn, at one of
/// its sectors, either way. Page and sector are drawn anew each time that is asked.
#[derive(Clone, Debug)]
pub struct CrashImages {
    pub images: Vec<Image>,
    /// How many different survivals there are, of which `images` are all or a part. Two of them may
    /// look alike, if bytes were overwritten by the same bytes.
    pub total: u128,
}

impl CrashImages {
    pub fn is_complete(&self) -> bool {
        self.total == self.images.len() as u128
    }
}

impl Model {
    /// What could survive if everything lost power now: every legal survival if there are at most
    /// `limit`, else `limit` of them, drawn by the seed and by how often this was asked before.
    pub fn crash_images(&self, limit: usize) -> CrashImages {
        let mut state = self.shared.state.lock();
        state.images_drawn += 1;
        let draw = state.draw.of("images").at(state.images_drawn);
        state.crash_images(limit, draw)
    }
}

/// Says that something rare happened: a trace event with the target `reached`, for whoever counts them.
pub fn mark(mark: &'static str) {
    tracing::trace!(target: "reached", mark);
}

/// Which of the unsynced pages a crash keeps.
enum Kept {
    None,
    All,
    /// So many of the first.
    Prefix(u64),
    /// Each by its own chance.
    Some,
}

impl Kept {
    fn draw(draw: Draw, pages: usize) -> Kept {
        match draw.of("kept").below(6) {
            0 => Kept::None,
            1 => Kept::All,
            2 => Kept::Prefix(draw.of("prefix").below(pages as u64 + 1)),
            _ => Kept::Some,
        }
    }

    fn keeps(&self, nth: usize, draw: Draw) -> bool {
        match self {
            Kept::None => false,
            Kept::All => true,
            Kept::Prefix(n) => (nth as u64) < *n,
            Kept::Some => draw.at(nth as u64).chance(0.5),
        }
    }
}

impl State {
    /// A host loses power.
    pub fn power_cut(&mut self, client: u32) {
        let draw = self.draw.of("power cut").at(client.into());
        let host = self.host(client);
        host.generation += 1;
        let draw = draw.at(host.generation);
        host.dirs.clear();
        host.silly.clear();
        let files = std::mem::take(&mut host.files);
        if files.values().any(|f| !f.dirty.is_empty()) {
            mark("power-cut-lost-dirty-pages");
        }
        for (ino, mut file) in files {
            // What was on its way had not all left the host, or not all reached the disk.
            file.dirty = file.unsent();
            match self.kind() {
                Kind::Local => self.cut_local(ino, file, draw.at(ino)),
                _ => self.cut_client(ino, file, draw.at(ino)),
            }
        }
        if self.kind() == Kind::Local {
            self.crash_server(draw);
        }
    }

    /// Dirty pages may just have been sent; the rest is gone. What was sent stays with the server. (Of a request that
    /// was under way, all may come later instead: see [`State::land`].)
    fn cut_client(&mut self, ino: u64, mut file: HostFile, draw: Draw) {
        let pages = file.dirty.pages();
        let kept = Kept::draw(draw, pages.len());
        let nth = |page: u64| pages.binary_search(&page).unwrap_or(0);
        let write = file.begin_write(|page| kept.keeps(nth(page), draw));
        if !write.ranges.is_empty() {
            // If the file is gone, or the volume full, that is nobody's trouble any more.
            let _ = self.server.write(ino, &write, self.kind() == Kind::Coherent);
        }
    }

    /// The page cache becomes what the file system holds in doubt.
    fn cut_local(&mut self, ino: u64, mut file: HostFile, draw: Draw) {
        let mut write = file.begin_write(|_| true);
        if let Ok(inode) = self.server.inode(ino) {
            write.tear(inode, self.options.torn, draw);
        }
        let _ = self.server.write(ino, &write, false);
    }

    pub fn restart_server(&mut self) {
        self.server.verifier += 1;
        self.crash_server(self.draw.of("restart").at(self.server.verifier));
    }

    /// Of what the server holds in memory a part survives.
    fn crash_server(&mut self, draw: Draw) {
        for (ino, inode) in &mut self.server.inodes {
            if !inode.is_settled() {
                inode.crash(draw.at(*ino));
            }
        }
        let doubts = self.server.tree.doubts();
        let kept: Vec<(u64, u64)> = doubts
            .into_iter()
            .filter_map(|(dir, steps)| {
                let n = draw.of("names").at(dir).below(steps.len() as u64 + 1) as usize;
                n.checked_sub(1).map(|last| (dir, steps[last]))
            })
            .collect();
        if !self.server.tree.is_settled() {
            self.server.tree.crash(&kept);
        }
        let all: Vec<u64> = self.server.inodes.keys().copied().collect();
        self.server.find_names();
        let forgotten = |i: &&mut Inode| match self.options.kind {
            Kind::Local => true,
            // A client that opens it again after the restart finds no name.
            Kind::Nfs => !i.named,
            Kind::Coherent => false,
        };
        for inode in self.server.inodes.values_mut().filter(forgotten) {
            inode.opens = 0;
        }
        for ino in all {
            self.server.maybe_free(ino);
        }
        self.server.used = self.server.inodes.values().map(|i| i.shown.len).sum();
    }
}

impl Write {
    /// Some pages were being written when the power went: some of their sectors are new, others old.
    fn tear(&mut self, inode: &Inode, p: f64, draw: Draw) {
        for (page, bytes) in &mut self.pages {
            let draw = draw.of("torn").at(*page);
            if !draw.chance(p) {
                continue;
            }
            let mut torn: [u8; PAGE] = **bytes;
            for sector in (0..PAGE / SECTOR).filter(|s| draw.at(*s as u64).chance(0.5)) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                match inode.media.page(*page) {
                    Some(old) => torn[range.clone()].copy_from_slice(&old[range]),
                    None => torn[range].fill(0),
                }
            }
            *bytes = Page::new(torn);
        }
    }
}

impl Inode {
    fn crash(&mut self, draw: Draw) {
        let doubt = Doubt::of(self, std::iter::empty());
        let kept = Kept::draw(draw, doubt.pages.len());
        let picks: Vec<usize> = (0..doubt.pages.len()).map(|i| usize::from(kept.keeps(i, draw))).collect();
        let content = doubt.build(&picks, draw.of("cut").chance(0.5), draw.of("len").chance(0.25));
        *self = Inode {
            shown: content.clone(),
            media: content,
            change: self.change + 1,
            opens: self.opens,
            named: self.named,
            ..Inode::default()
        };
    }
}

/// A page as it may be, and the length of the file that it belongs to.
type Version = (Option<Page>, u64);

/// What is not certain of one file.
struct Doubt {
    media: Content,
    /// The length to which it may have been cut.
    cut: Option<u64>,
    /// Of each page in doubt, the versions that may be there instead of the media's, each with the
    /// length of the file that it belongs to.
    pages: Vec<(u64, Vec<Version>)>,
    /// The greatest length of all versions.
    longest: u64,
}

impl Doubt {
    fn of<'a>(inode: &Inode, hosts: impl Iterator<Item = &'a HostFile>) -> Doubt {
        let mut pages: BTreeMap<u64, Vec<(Option<Page>, u64)>> = BTreeMap::new();
        let mut longest = inode.shown.len;
        for page in &inode.volatile {
            pages.entry(*page).or_default().push((inode.shown.page(*page).cloned(), inode.shown.len));
        }
        for file in hosts {
            let unsent = file.unsent();
            for page in unsent.pages() {
                let version = (file.cache.page(page).cloned(), file.cache.len);
                let known = pages.entry(page).or_default();
                if !known.contains(&version) {
                    known.push(version);
                }
            }
            if !unsent.is_empty() {
                longest = longest.max(file.cache.len);
            }
        }
        let cut = inode.cut.filter(|cut| *cut < inode.media.len);
        Doubt { media: inode.media.clone(), cut, pages: pages.into_iter().collect(), longest }
    }

    /// Adds, of one page, the versions of which a first or a last part of the sectors is new and the rest
    /// as on the media.
    fn tear(&mut self, draw: Draw) {
        let pages = self.pages.len();
        let first = draw.of("page").below(pages as u64) as usize;
        for n in (0..pages).map(|i| (first + i) % pages) {
            let (page, versions) = &mut self.pages[n];
            let (new, len) = versions[draw.of("version").below(versions.len() as u64) as usize].clone();
            let zeros = || Page::new([0; PAGE]);
            let (new, old) =
                (new.unwrap_or_else(zeros), self.media.page(*page).cloned().unwrap_or_else(zeros));
            let sector = |s: usize| s * SECTOR..(s + 1) * SECTOR;
            let differing: Vec<usize> =
                (0..PAGE / SECTOR).filter(|s| new[sector(*s)] != old[sector(*s)]).collect();
            // What differs in one sector only is there or not.
            let Some(cuts) = differing.len().checked_sub(1).filter(|n| *n > 0) else { continue };
            let cut = differing[1 + draw.of("sector").below(cuts as u64) as usize] * SECTOR;
            let mixed = |head: &Page, rest: &Page| {
                let mut page = **rest;
                page[..cut].copy_from_slice(&head[..cut]);
                (Some(Page::new(page)), len)
            };
            versions.extend([mixed(&new, &old), mixed(&old, &new)]);
            return;
        }
    }

    fn is_certain(&self) -> bool {
        self.pages.is_empty() && self.cut.is_none() && self.longest == self.media.len
    }

    /// The file if of each page the version with that number survived (0: the media's), and the cut,
    /// and all of the length.
    fn build(&self, picks: &[usize], cut: bool, full: bool) -> Content {
        let mut content = self.media.clone();
        if let Some(len) = self.cut.filter(|_| cut) {
            content.truncate(len);
        }
        for ((page, versions), pick) in self.pages.iter().zip(picks) {
            let Some((bytes, len)) = pick.checked_sub(1).and_then(|n| versions.get(n)) else { continue };
            let mut version = Content { len: *len, ..Content::default() };
            version.pages.extend(bytes.clone().map(|b| (*page, b)));
            content.take_page(*page, &version);
        }
        if full && self.grew() {
            content.len = content.len.max(self.longest);
        }
        content
    }

    fn grew(&self) -> bool {
        self.longest > self.media.len && self.cut.is_none()
    }

    fn page_choices(&self) -> u128 {
        self.pages.iter().fold(1u128, |n, (_, v)| n.saturating_mul(v.len() as u128 + 1))
    }

    /// Of the last page's versions, those that make the file as long as it ever was.
    fn reaching(&self) -> u128 {
        let reaches = |page: u64, len: u64| len == self.longest && (page + 1) * PAGE as u64 >= len;
        let Some((page, versions)) = self.pages.last() else { return 0 };
        versions.iter().filter(|(_, len)| reaches(*page, *len)).count() as u128
    }

    /// How many survivals there are. For one with the pages that make the file as long as it was,
    /// a length kept in full is no other survival.
    fn total(&self) -> u128 {
        let pages = self.page_choices();
        if self.cut.is_some() {
            return pages.saturating_mul(2);
        }
        if !self.grew() {
            return pages;
        }
        let last = self.pages.last().map_or(1, |(_, v)| v.len() as u128 + 1);
        pages.saturating_mul(2).saturating_sub(pages / last * self.reaching())
    }

    /// The survival with that number.
    fn nth(&self, n: u128) -> Content {
        let pages = self.page_choices();
        let (mut left, second) = (n % pages, n >= pages);
        if second && self.cut.is_none() {
            // Those of the second half whose last page does not reach the end: it varies slowest.
            left = self.skip_reaching(n - pages);
        }
        let mut picks = Vec::with_capacity(self.pages.len());
        for (_, versions) in &self.pages {
            let base = versions.len() as u128 + 1;
            picks.push((left % base) as usize);
            left /= base;
        }
        self.build(&picks, second, second)
    }

    /// The number of the choice of pages that is the `n`th among those that leave the file short.
    fn skip_reaching(&self, n: u128) -> u128 {
        let Some((page, versions)) = self.pages.last() else { return n };
        let each = self.page_choices() / (versions.len() as u128 + 1);
        let reaches = |len: u64| len == self.longest && (page + 1) * PAGE as u64 >= len;
        let short = (0..=versions.len()).filter(|v| v.checked_sub(1).is_none_or(|i| !reaches(versions[i].1)));
        let version = short.clone().nth((n / each) as usize).unwrap_or(0) as u128;
        version * each + n % each
    }
}

impl HostFile {
    /// Bytes that this host holds and that the server may not have.
    fn unsent(&self) -> Ranges {
        let mut unsent = self.dirty.clone();
        unsent.add_all(&self.in_flight);
        unsent
    }
}

impl State {
    fn crash_images(&self, limit: usize, draw: Draw) -> CrashImages {
        let names = self.names_left(limit, draw);
        let doubts = self.doubts(draw);
        let settled: BTreeMap<u64, FileBytes> = self
            .server
            .inodes
            .iter()
            .filter(|(ino, _)| !doubts.contains_key(ino))
            .map(|(ino, inode)| (*ino, FileBytes::of(inode.media.clone())))
            .collect();
        let totals: Vec<u128> = names.iter().map(|n| total_of(n, &doubts)).collect();
        let total = totals.iter().fold(0u128, |a, b| a.saturating_add(*b));
        let mut images = Vec::new();
        if total <= limit as u128 {
            for (names, total) in names.iter().zip(&totals) {
                images.extend((0..*total).map(|n| image(names, &doubts, &settled, n)));
            }
        } else {
            for i in 0..limit as u64 {
                let draw = draw.at(i);
                let pick = draw.of("names").below(names.len() as u64) as usize;
                let wide = u128::from(draw.of("high").u64()) << 64 | u128::from(draw.of("low").u64());
                images.push(image(&names[pick], &doubts, &settled, wide % totals[pick].max(1)));
            }
        }
        CrashImages { images, total }
    }

    fn doubts(&self, draw: Draw) -> BTreeMap<u64, Doubt> {
        let mut doubts = BTreeMap::new();
        for (ino, inode) in &self.server.inodes {
            let mut doubt = Doubt::of(inode, self.hosts.values().filter_map(|h| h.files.get(ino)));
            if self.kind() == Kind::Local && self.options.torn > 0.0 {
                doubt.tear(draw.of("torn").at(*ino));
            }
            if !doubt.is_certain() {
                doubts.insert(*ino, doubt);
            }
        }
        doubts
    }

    /// The names that a crash may leave: all different sets, or as many as `limit` drawn ones.
    fn names_left(&self, limit: usize, draw: Draw) -> Vec<Vec<(String, Node)>> {
        let doubts = self.server.tree.doubts();
        let ways = doubts.iter().try_fold(1usize, |n, (_, steps)| n.checked_mul(steps.len() + 1));
        let left = |kept: &dyn Fn(usize, u64, &[u64]) -> usize| {
            let cut = |(i, (dir, steps)): (usize, &(u64, Vec<u64>))| {
                kept(i, *dir, steps).checked_sub(1).map(|last| (*dir, steps[last]))
            };
            let mut tree: Names = self.server.tree.clone();
            tree.crash(&doubts.iter().enumerate().filter_map(cut).collect::<Vec<_>>());
            tree.fingerprint()
        };
        let all: BTreeSet<Vec<(String, Node)>> = match ways {
            Some(ways) if ways <= NAMES => (0..ways)
                .map(|way| {
                    let base: Vec<usize> = doubts.iter().map(|(_, steps)| steps.len() + 1).collect();
                    left(&|i, _, steps| way / base[..i].iter().product::<usize>() % (steps.len() + 1))
                })
                .collect(),
            _ => (0..limit.min(NAMES) as u64)
                .map(|way| left(&|_, dir, steps| draw.at(way).at(dir).below(steps.len() as u64 + 1) as usize))
                .collect(),
        };
        all.into_iter().collect()
    }
}

fn files_of(names: &[(String, Node)]) -> impl Iterator<Item = (&String, u64)> {
    names.iter().filter_map(|(path, node)| match node {
        Node::File(ino) => Some((path, *ino)),
        Node::Dir(_) => None,
    })
}

fn total_of(names: &[(String, Node)], doubts: &BTreeMap<u64, Doubt>) -> u128 {
    let totals = files_of(names).filter_map(|(_, ino)| doubts.get(&ino)).map(Doubt::total);
    totals.fold(1u128, u128::saturating_mul)
}

fn image(
    names: &[(String, Node)],
    doubts: &BTreeMap<u64, Doubt>,
    settled: &BTreeMap<u64, FileBytes>,
    mut n: u128,
) -> Image {
    let mut image = Image::default();
    for (path, node) in names {
        let Node::File(ino) = node else {
            image.dirs.insert(path.clone());
            continue;
        };
        let bytes = match doubts.get(ino) {
            Some(doubt) => {
                let total = doubt.total();
                let content = doubt.nth(n % total);
                n /= total;
                FileBytes::of(content)
            }
            None => settled.get(ino).cloned().unwrap_or_default(),
        };
        image.files.insert(path.clone(), bytes);
    }
    image
}
