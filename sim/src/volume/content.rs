//! Bytes of a file in pages that versions share, and sets of byte ranges.
//!
//! The same page often lies on the media, in the server's memory and in caches; a page is copied
//! only when one of them changes it.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

pub const PAGE: usize = 4096;
/// What a device writes in one piece.
pub const SECTOR: usize = 512;

pub type Page = Arc<[u8; PAGE]>;

/// Page and position within it.
pub fn split(pos: u64) -> (u64, usize) {
    (pos / PAGE as u64, (pos % PAGE as u64) as usize)
}

/// One version of a file's bytes. A missing page is zeros; past `len` nothing but zeros is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub pages: BTreeMap<u64, Page>,
    pub len: u64,
}

impl Content {
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut content = Content::default();
        content.write(0, bytes);
        content
    }

    /// Up to `len` bytes at `pos`; fewer at the end.
    pub fn read(&self, pos: u64, len: usize) -> Bytes {
        let end = pos.saturating_add(len as u64).min(self.len);
        if pos >= end {
            return Bytes::new();
        }
        let mut out = vec![0; (end - pos) as usize];
        for (at, n, page, from) in pieces(pos, end) {
            if let Some(p) = self.pages.get(&page) {
                out[at..at + n].copy_from_slice(&p[from..from + n]);
            }
        }
        out.into()
    }

    pub fn write(&mut self, pos: u64, data: &[u8]) {
        let end = pos + data.len() as u64;
        for (at, n, page, from) in pieces(pos, end) {
            self.page_mut(page)[from..from + n].copy_from_slice(&data[at..at + n]);
        }
        if !data.is_empty() {
            self.len = self.len.max(end);
        }
    }

    /// Cuts, or extends with zeros.
    pub fn truncate(&mut self, len: u64) {
        if len < self.len {
            let (page, from) = split(len);
            self.pages.split_off(&if from == 0 { page } else { page + 1 });
            if from != 0 && self.pages.contains_key(&page) {
                self.page_mut(page)[from..].fill(0);
            }
        }
        self.len = len;
    }

    pub fn page(&self, page: u64) -> Option<&Page> {
        self.pages.get(&page)
    }

    pub fn page_mut(&mut self, page: u64) -> &mut [u8; PAGE] {
        Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Takes over one page as another version has it, and so much of that one's length as the page
    /// accounts for.
    pub fn take_page(&mut self, page: u64, from: &Content) {
        let start = page * PAGE as u64;
        if start >= from.len {
            return;
        }
        match from.pages.get(&page) {
            Some(p) => {
                self.pages.insert(page, p.clone());
            }
            None => {
                self.pages.remove(&page);
            }
        }
        self.len = self.len.max(from.len.min(start + PAGE as u64));
        self.trim();
    }

    /// Restores that nothing is stored past the end.
    pub fn trim(&mut self) {
        let (page, from) = split(self.len);
        self.pages.split_off(&if from == 0 { page } else { page + 1 });
        let dirty = from != 0 && self.pages.get(&page).is_some_and(|p| p[from..].iter().any(|b| *b != 0));
        if dirty {
            self.page_mut(page)[from..].fill(0);
        }
    }
}

/// The parts of `[pos, end)` by page: where in the span, how long, which page, where in the page.
pub fn pieces(pos: u64, end: u64) -> impl Iterator<Item = (usize, usize, u64, usize)> {
    let mut at = pos;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (page, from) = split(at);
        let n = ((end - at) as usize).min(PAGE - from);
        let piece = ((at - pos) as usize, n, page, from);
        at += n as u64;
        Some(piece)
    })
}

/// A set of byte positions, as ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(a, b)| (*a, *b))
    }

    pub fn bytes(&self) -> u64 {
        self.iter().map(|(a, b)| b - a).sum()
    }

    pub fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        while let Some((a, b)) = self.0.range(..=to).next_back().map(|(a, b)| (*a, *b)) {
            if b < from {
                break;
            }
            self.0.remove(&a);
            (from, to) = (from.min(a), to.max(b));
        }
        self.0.insert(from, to);
    }

    pub fn add_all(&mut self, other: &Ranges) {
        for (a, b) in other.iter() {
            self.add(a, b);
        }
    }

    /// Takes out what lies at or past `from`.
    pub fn cut(&mut self, from: u64) {
        self.0.split_off(&from);
        if let Some((_, b)) = self.0.range_mut(..from).next_back() {
            *b = (*b).min(from);
        }
    }

    /// Takes out `[from, to)`.
    pub fn remove(&mut self, from: u64, to: u64) {
        let hit: Vec<_> = self.0.range(..to).filter(|(_, b)| **b > from).map(|(a, b)| (*a, *b)).collect();
        for (a, b) in hit {
            self.0.remove(&a);
            self.add(a, from.min(b));
            self.add(to.max(a), b);
        }
    }

    /// The pages touched, in order.
    pub fn pages(&self) -> Vec<u64> {
        let mut all: Vec<u64> =
            self.iter().flat_map(|(a, b)| a / PAGE as u64..=(b - 1) / PAGE as u64).collect();
        all.dedup();
        all
    }

    /// What of the set lies in that page.
    pub fn in_page(&self, page: u64) -> Ranges {
        self.within(page * PAGE as u64, (page + 1) * PAGE as u64)
    }

    /// What of the set lies in `[start, end)`.
    pub fn within(&self, start: u64, end: u64) -> Ranges {
        let inside = self.0.range(..end).filter(|(_, b)| **b > start);
        Ranges(inside.map(|(a, b)| ((*a).max(start), (*b).min(end))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_are_cut_and_split() {
        let mut r = Ranges::default();
        for (a, b) in [(10, 20), (30, 40), (20, 30), (50, 60), (5, 5)] {
            r.add(a, b);
        }
        assert_eq!(r.iter().collect::<Vec<_>>(), [(10, 40), (50, 60)]);
        r.remove(15, 35);
        assert_eq!(r.iter().collect::<Vec<_>>(), [(10, 15), (35, 40), (50, 60)]);
        r.cut(52);
        assert_eq!((r.bytes(), r.pages()), (12, vec![0]));
        r.add(4000, 9000);
        assert_eq!(r.pages(), [0, 1, 2]);
        assert_eq!(r.in_page(1).iter().collect::<Vec<_>>(), [(4096, 8192)]);
    }

    #[test]
    fn content_keeps_no_bytes_past_its_end() {
        let mut c = Content::from_bytes(&[7; 5000]);
        c.truncate(4100);
        c.truncate(6000);
        assert_eq!(c.read(4090, 20), [&[7u8; 10][..], &[0; 10]].concat());
        assert_eq!(c.read(5999, 9), [0u8; 1][..]);
        c.truncate(4096);
        assert_eq!((c.pages.len(), c.len), (1, 4096));
    }
}
