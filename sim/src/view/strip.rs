//! One file's bytes over time: where each byte is, which batches there are, what a crash took.
//!
//! A look at the file costs what changed since the last one, but for the pages that are not on the media. A
//! look after a crash reads it whole.
//!
//! Over NFS the bytes that only a host has can't be read from here: they are seen as such, and the batches in
//! them only once they were sent.

use super::data::{Batch, Snap, MARKER, TORN};
use crate::history::{BatchInfo, HEADER_LEN};
use crate::volume::{FileBytes, Model, Place, Strip};

pub const PAGE: u64 = 4096;
/// A batch larger than that is no batch but noise in its length.
const SANE: u64 = 64 << 20;
/// The bit of a batch's attributes that makes it a control batch (KIP-98).
const CONTROL: i16 = 0x20;

/// Where a byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Where {
    Disk,
    Server,
    Host,
    Lost,
    Nowhere,
}

impl Where {
    pub fn letter(self) -> char {
        match self {
            Where::Disk => 'D',
            Where::Server => 'S',
            Where::Host => 'H',
            Where::Lost => 'L',
            Where::Nowhere => 'Z',
        }
    }
}

/// Bytes `[from, to)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub from: u64,
    pub to: u64,
    pub at: Where,
}

/// A batch as long as it lies where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub pos: u64,
    pub len: u64,
    pub base: i64,
    pub count: u64,
    pub marker: bool,
    pub torn: bool,
    crc: u32,
    born: u64,
    gone: Option<u64>,
}

/// A file under observation.
#[derive(Default)]
pub struct Track {
    pub snaps: Vec<Snap>,
    pub runs: Vec<Run>,
    pub len: u64,
    /// All that there ever were; the living by position.
    all: Vec<Stored>,
    live: Vec<usize>,
    lost: Vec<(u64, u64)>,
    shown: FileBytes,
    is_log: bool,
    pub born: u64,
    pub gone: Option<u64>,
}

impl Track {
    pub fn new(is_log: bool, born: u64) -> Track {
        Track { is_log, born, ..Track::default() }
    }

    /// Takes down how the file is now, at `at`; `false`: there is no such file (any more). `crash`: something
    /// just took bytes away.
    pub fn look(&mut self, model: &Model, path: &str, at: u64, kept_name: bool, crash: bool) -> bool {
        let (Some(strip), Some((media, shown))) = (model.strip(path), model.versions(path)) else {
            self.gone.get_or_insert(at);
            return false;
        };
        self.gone = None;
        let now = runs(&strip, &media, &shown);
        let len = now.last().map_or(0, |r| r.to);
        if crash {
            self.lost.extend(lost(&self.runs, &self.shown, &shown, len));
        } else if shown != self.shown {
            // Whatever was lost here was written over.
            self.lost.retain(|(from, _)| *from >= len);
        }
        if self.is_log && (crash || shown != self.shown) {
            self.find_batches(&shown, at, crash);
        }
        (self.runs, self.len, self.shown) = (now, len, shown);
        self.snap(at, kept_name);
        true
    }

    fn snap(&mut self, at: u64, kept_name: bool) {
        let text: String =
            self.with_lost().iter().map(|r| format!("{}{}", r.to - r.from, r.at.letter())).collect();
        let snap = Snap(at, self.len, text, u8::from(!kept_name));
        match self.snaps.last_mut() {
            Some(last) if (last.1, &last.2, last.3) == (snap.1, &snap.2, snap.3) => {}
            Some(last) if last.0 == at => *last = snap,
            _ => self.snaps.push(snap),
        }
    }

    /// The bytes that are there, and those that a crash took.
    pub fn with_lost(&self) -> Vec<Run> {
        let mut all = self.runs.clone();
        for (from, to) in &self.lost {
            cover(&mut all, *from, *to);
        }
        all
    }

    /// The batches that are there now, by position.
    pub fn batches(&self) -> impl Iterator<Item = &Stored> {
        self.live.iter().filter_map(|i| self.all.get(*i))
    }

    fn find_batches(&mut self, shown: &FileBytes, at: u64, crash: bool) {
        let parsed = self.batches().filter(|b| !b.torn).last().map_or(0, |b| b.pos + b.len);
        let whole = crash || shown.len() < parsed || self.batches().any(|b| b.torn);
        let start = if whole { 0 } else { parsed };
        let found = walk(shown, start, crash || shown.len() < parsed, at);
        if whole {
            self.keep_only(&found, at);
        }
        for batch in found {
            if !self.batches().any(|b| b.same(&batch)) {
                self.live.push(self.all.len());
                self.all.push(batch);
            }
        }
        let all = &self.all;
        self.live.sort_by_key(|i| all[*i].pos);
    }

    fn keep_only(&mut self, found: &[Stored], at: u64) {
        let all = &mut self.all;
        self.live.retain(|i| {
            let kept = found.iter().any(|f| f.same(&all[*i]));
            if !kept {
                all[*i].gone = Some(at);
            }
            kept
        });
    }

    /// Every batch that was ever seen, as the page wants it.
    pub fn batch_rows(&self) -> Vec<Batch> {
        let rows = self.all.iter().map(|b| {
            let flags = if b.marker { MARKER } else { 0 } | if b.torn { TORN } else { 0 };
            Batch(b.pos, b.len, b.base, b.count, b.born, b.gone.map_or(-1, |t| t as i64), flags)
        });
        rows.collect()
    }
}

impl Stored {
    fn same(&self, o: &Stored) -> bool {
        (self.pos, self.len, self.base, self.crc, self.torn) == (o.pos, o.len, o.base, o.crc, o.torn)
    }
}

/// The batches from `start` on. What is no whole sound batch ends the walk, or is torn, if `torn` says that
/// nobody is still writing it.
fn walk(bytes: &FileBytes, start: u64, torn: bool, born: u64) -> Vec<Stored> {
    let mut found = Vec::new();
    let mut pos = start;
    while pos < bytes.len() {
        let head = bytes.read(pos, HEADER_LEN);
        let claimed =
            head.get(8..12).and_then(|b| Some(u64::from(u32::from_be_bytes(b.try_into().ok()?)) + 12));
        let len = claimed.filter(|n| (HEADER_LEN as u64..SANE).contains(n));
        let batch = len.and_then(|n| BatchInfo::parse(&bytes.read(pos, n as usize)));
        match batch {
            Some(b) if b.sound => found.push(stored(&b, pos, born)),
            _ if !torn => break,
            _ => found.push(damaged(bytes, pos, len, &head, born)),
        }
        pos = found.last().map_or(bytes.len(), |b| b.pos + b.len);
    }
    found
}

fn stored(b: &BatchInfo, pos: u64, born: u64) -> Stored {
    Stored {
        pos,
        len: u64::from(b.size),
        base: b.base,
        count: (b.last_delta.max(0) as u64) + 1,
        marker: b.attributes & CONTROL != 0,
        torn: false,
        crc: b.crc,
        born,
        gone: None,
    }
}

/// Up to where its head says it goes, if that can be; else to the end of the file.
fn damaged(bytes: &FileBytes, pos: u64, len: Option<u64>, head: &[u8], born: u64) -> Stored {
    let left = bytes.len() - pos;
    let len = len.map_or(left, |n| n.min(left)).max(1);
    let base = head.first_chunk::<8>().map_or(-1, |b| i64::from_be_bytes(*b));
    let last = head.get(23..27).and_then(|b| Some(i32::from_be_bytes(b.try_into().ok()?))).unwrap_or(0);
    let count = (last.clamp(0, 1 << 20) as u64) + 1;
    Stored { pos, len, base, count, marker: false, torn: true, crc: 0, born, gone: None }
}

/// Where each byte is, from the file's start, without holes.
fn runs(strip: &Strip, media: &FileBytes, shown: &FileBytes) -> Vec<Run> {
    let longest = strip.host_len.values().copied().fold(media.len().max(shown.len()), u64::max);
    let mut out = Vec::new();
    for (page, state) in strip.pages.iter().enumerate() {
        let (from, to) = (page as u64 * PAGE, ((page as u64 + 1) * PAGE).min(longest));
        if from >= to {
            break;
        }
        if state.ahead.is_empty() {
            push(&mut out, from, to.min(media.len().max(from)), Where::Disk);
            push(&mut out, from.max(media.len()), to, Where::Nowhere);
            continue;
        }
        let host = state.ahead.iter().any(|p| matches!(p, Place::Host(_)));
        let (a, b) = ahead(media, shown, from, to);
        push(&mut out, from, a, Where::Disk);
        push(&mut out, a, b, if host { Where::Host } else { Where::Server });
        push(&mut out, b, to, Where::Disk);
    }
    out
}

/// Which part of a page that is somewhere newer than on the media is newer.
fn ahead(media: &FileBytes, shown: &FileBytes, from: u64, to: u64) -> (u64, u64) {
    let both = media.len().min(shown.len()).clamp(from, to);
    let (m, s) = (media.read(from, (both - from) as usize), shown.read(from, (both - from) as usize));
    let first = m.iter().zip(&s).position(|(a, b)| a != b).map(|n| from + n as u64);
    if both < to {
        return (first.unwrap_or(both), to);
    }
    let last = m.iter().zip(&s).rposition(|(a, b)| a != b).map(|n| from + n as u64 + 1);
    // Newer, and no difference to be seen: it is in a host that does not show it.
    first.zip(last).unwrap_or((from, to))
}

fn push(out: &mut Vec<Run>, from: u64, to: u64, at: Where) {
    if from >= to {
        return;
    }
    match out.last_mut() {
        Some(last) if last.at == at && last.to == from => last.to = to,
        _ => out.push(Run { from, to, at }),
    }
}

/// What was only in a memory, and is in none now, nor on the media.
fn lost(before: &[Run], was: &FileBytes, is: &FileBytes, len: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    for run in before.iter().filter(|r| matches!(r.at, Where::Server | Where::Host)) {
        let mut pos = run.from;
        while pos < run.to.min(len) {
            let end = ((pos / PAGE + 1) * PAGE).min(run.to).min(len);
            let n = (end - pos) as usize;
            let known = was.len() >= end;
            if known && was.read(pos, n) != is.read(pos, n) {
                out.push((pos, end));
            }
            pos = end;
        }
        if run.to > len {
            out.push((run.from.max(len), run.to));
        }
    }
    out
}

/// Lays a lost stretch over the runs, and past their end.
fn cover(all: &mut Vec<Run>, from: u64, to: u64) {
    let old = std::mem::take(all);
    let end = old.last().map_or(0, |r| r.to);
    let mut pieces: Vec<Run> = Vec::new();
    for r in old {
        pieces.push(Run { to: r.to.min(from), ..r });
        pieces.push(Run { from: r.from.max(to), ..r });
    }
    pieces.push(Run { from: end, to: from.max(end), at: Where::Nowhere });
    pieces.push(Run { from, to, at: Where::Lost });
    pieces.retain(|r| r.from < r.to);
    pieces.sort_by_key(|r| r.from);
    for r in pieces {
        push(all, r.from, r.to, r.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::records::{batch, Identity};
    use crate::volume::PageState;
    use bytes::Bytes;

    fn text(runs: &[Run]) -> String {
        runs.iter().map(|r| format!("{}{}", r.to - r.from, r.at.letter())).collect()
    }

    #[test]
    fn a_page_in_a_page_cache_is_told_byte_by_byte_from_the_media() {
        let media = FileBytes::new(&[1; 5000]);
        let shown = FileBytes::new(&[&[1; 5000][..], &[2; 4000]].concat());
        let host = PageState { ahead: vec![Place::Host(1)] };
        let strip = Strip {
            pages: vec![PageState::default(), host.clone(), host],
            media_len: 5000,
            shown_len: 9000,
            ..Strip::default()
        };
        assert_eq!(text(&runs(&strip, &media, &shown)), "5000D4000H");
    }

    #[test]
    fn bytes_that_only_a_host_knows_are_seen_by_its_length() {
        let bytes = FileBytes::new(&[1; 100]);
        let pages = vec![PageState { ahead: vec![Place::Server, Place::Host(2)] }];
        let strip =
            Strip { pages, media_len: 100, shown_len: 100, host_len: [(2, 300)].into_iter().collect() };
        assert_eq!(text(&runs(&strip, &bytes, &bytes)), "100D200H");
    }

    #[test]
    fn what_a_crash_took_stays_to_be_seen() {
        let before =
            [Run { from: 0, to: 100, at: Where::Disk }, Run { from: 100, to: 9000, at: Where::Host }];
        let was = FileBytes::new(&[7; 9000]);
        // The first page was written back in time, the second not, of the third nothing is left.
        let is = FileBytes::new(&[&[7; 4096][..], &[0; 904]].concat());
        let gone = lost(&before, &was, &is, 5000);
        assert_eq!(gone, [(4096, 5000), (5000, 9000)]);
        let mut all = vec![Run { from: 0, to: 5000, at: Where::Disk }];
        for (a, b) in gone {
            cover(&mut all, a, b);
        }
        assert_eq!(text(&all), "4096D4904L");
    }

    #[test]
    fn a_cut_batch_is_torn_and_a_batch_in_the_making_is_not() {
        let two: Vec<Bytes> =
            (0..2u8).map(|i| batch(Identity::NONE, 5, &[Bytes::from(vec![i; 200])])).collect();
        let bytes = two.concat();
        let cut = FileBytes::new(&bytes[..bytes.len() - 30]);
        assert_eq!(walk(&cut, 0, false, 1).len(), 1);
        let found = walk(&cut, 0, true, 1);
        assert_eq!(found.iter().map(|b| b.torn).collect::<Vec<_>>(), [false, true]);
        assert_eq!(found[1].pos + found[1].len, cut.len());
    }
}
