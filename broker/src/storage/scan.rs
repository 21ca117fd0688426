//! Walking a segment file batch by batch.
//!
//! Two walks: [`recover`] checks length, bounds and checksum of every batch and says where the log ends; [`Walker`]
//! steps over batch heads. Neither believes anything it reads before it has checked it, neither reads past the
//! limit that it was given, and what they hold in memory is bounded by one batch.

use super::batch::{crc_matches, Header, HEADER_LEN};
use crate::types::{Offset, Pos};
use crate::volume::{self, VolumeFile};
use bytes::Bytes;
use std::sync::Arc;

/// Bytes per read of a recovery scan.
const SCAN_CHUNK: usize = 1 << 20;
/// Bytes per read of a walk over heads.
const WALK_CHUNK: usize = 64 << 10;

/// A window on a file: reads ahead in chunks, never past `limit`.
pub struct Window {
    file: Arc<dyn VolumeFile>,
    limit: u64,
    chunk: usize,
    buf: Bytes,
    at: u64,
    pub bytes_read: u64,
}

impl Window {
    pub fn new(file: Arc<dyn VolumeFile>, limit: Pos, chunk: usize) -> Window {
        Window { file, limit: limit.0, chunk, buf: Bytes::new(), at: 0, bytes_read: 0 }
    }

    /// `len` bytes at `pos`, or fewer at the limit or the end of the file.
    pub async fn get(&mut self, pos: u64, len: usize) -> volume::Result<Bytes> {
        let len = len.min(usize::try_from(self.limit.saturating_sub(pos)).unwrap_or(usize::MAX));
        let held = pos.checked_sub(self.at).and_then(|o| usize::try_from(o).ok());
        if let Some(b) = held.filter(|o| o.saturating_add(len) <= self.buf.len()) {
            return Ok(self.buf.slice(b..b + len));
        }
        let want =
            len.max(self.chunk).min(usize::try_from(self.limit.saturating_sub(pos)).unwrap_or(usize::MAX));
        self.buf = self.file.read_at(pos, want).await?;
        self.at = pos;
        self.bytes_read += self.buf.len() as u64;
        Ok(self.buf.slice(..len.min(self.buf.len())))
    }

    /// The head at `pos`, if the batch that begins at `expected` is there and ends within the limit.
    pub async fn head(&mut self, pos: u64, expected: Offset) -> volume::Result<Option<Header>> {
        let b = self.get(pos, HEADER_LEN).await?;
        let fits = |h: &Header| pos.checked_add(h.size).is_some_and(|end| end <= self.limit);
        Ok(Header::parse(&b).filter(|h| h.follows(expected) && fits(h)))
    }

    /// The whole valid batch at `pos`, checksum included.
    pub async fn batch(&mut self, pos: u64, expected: Offset) -> volume::Result<Option<(Header, Bytes)>> {
        let Some(h) = self.head(pos, expected).await? else { return Ok(None) };
        let b = self.get(pos, usize::try_from(h.size).unwrap_or(usize::MAX)).await?;
        Ok((b.len() as u64 == h.size && crc_matches(&b, &h)).then_some((h, b)))
    }

    /// The size of the bad batch at `pos`, as far as its head can be believed. One that is alone in its group may be
    /// larger than a group, and holds whatever a client put there, other batches, too.
    ///
    /// The size itself may be what is damaged, and would then hide all that lies behind it. So it is not believed
    /// where a sound batch inside begins with the very offset that the head says comes next: there it ended.
    async fn size_of_bad(&mut self, pos: u64, expected: Offset, group_bytes: u64) -> volume::Result<u64> {
        let head = self.get(pos, HEADER_LEN).await?;
        let Some(h) = Header::parse(&head).filter(|h| h.follows(expected)) else { return Ok(0) };
        if h.size <= group_bytes {
            return Ok(h.size);
        }
        let next = self.search(pos + 1, h.next_offset()).await?;
        let ended = next.filter(|(_, n)| n.base_offset == h.next_offset().0).map(|(at, _)| at.0 - pos);
        Ok(ended.map_or(h.size, |size| size.min(h.size)))
    }

    /// The first valid batch at or after `from`, of whatever offset from `expected` on: a search byte by byte,
    /// for use behind damage.
    pub async fn search(&mut self, from: u64, expected: Offset) -> volume::Result<Option<(Pos, Header)>> {
        let mut pos = from;
        while pos.saturating_add(HEADER_LEN as u64) <= self.limit {
            let b = self.get(pos, self.chunk).await?;
            if b.len() < HEADER_LEN {
                return Ok(None);
            }
            let last = b.len() - HEADER_LEN;
            for i in 0..=last {
                // Magic 2 first: it rules out nearly everything at the cost of one byte.
                if b.get(i + 16) != Some(&2) {
                    continue;
                }
                let Some(h) = b.get(i..).and_then(Header::parse) else { continue };
                let at = pos + i as u64;
                // A jump of more than 2^31 offsets is garbage that happens to parse.
                let near = h.base_offset.saturating_sub(expected.0) <= i64::from(i32::MAX);
                if !h.plausible_from(expected) || !near || h.size > self.limit - at {
                    continue;
                }
                let whole = self.file.read_at(at, usize::try_from(h.size).unwrap_or(usize::MAX)).await?;
                self.bytes_read += whole.len() as u64;
                if crc_matches(&whole, &h) {
                    return Ok(Some((Pos(at), h)));
                }
            }
            pos += last as u64 + 1;
        }
        Ok(None)
    }
}

/// What a recovery scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// End of the last valid batch.
    pub end_pos: Pos,
    pub end: Offset,
    /// Damaged ranges before `end_pos`: kept, and served around.
    pub damage: Vec<(Pos, Pos)>,
    /// Bytes after `end_pos` that an unclean end left.
    pub torn: u64,
    pub bytes_read: u64,
}

/// Scans from `from` (where `expected` is the next offset) to `len`, calling `each` with every valid batch.
///
/// The log ends at the first bad batch, unless a valid one lies more than `group_bytes` beyond: since a group is
/// written only after the one before it was synced, such a place was durable once, and is damage.
pub async fn recover(
    file: Arc<dyn VolumeFile>,
    from: Pos,
    len: Pos,
    mut expected: Offset,
    group_bytes: u64,
    mut each: impl FnMut(&Header, Pos, &Bytes) + Send,
) -> volume::Result<Recovered> {
    let mut w = Window::new(file, len, SCAN_CHUNK);
    let mut pos = from.0;
    let mut damage = Vec::new();
    while pos < len.0 {
        if let Some((h, bytes)) = w.batch(pos, expected).await? {
            each(&h, Pos(pos), &bytes);
            pos += h.size;
            expected = h.next_offset();
            continue;
        }
        let own = w.size_of_bad(pos, expected, group_bytes).await?;
        let beyond = pos.saturating_add(group_bytes.max(own));
        if w.search(beyond, expected).await?.is_none() {
            break;
        }
        let Some((next, h)) = w.search(pos + 1, expected).await? else { break };
        damage.push((Pos(pos), next));
        pos = next.0;
        expected = Offset(h.base_offset);
    }
    Ok(Recovered {
        end_pos: Pos(pos),
        end: expected,
        damage,
        torn: len.0.saturating_sub(pos),
        bytes_read: w.bytes_read,
    })
}

/// Steps over the heads of a segment whose content up to `end` is known to be log.
pub struct Walker {
    window: Window,
    pos: Pos,
    end: Pos,
    expected: Offset,
    /// The batch stepped over last: where it is, and what was expected there.
    last: Option<(Pos, Offset)>,
}

/// A step of a [`Walker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Batch(Header, Pos),
    /// No batch head is at this position; [`Walker::skip_to`] goes on elsewhere.
    Damaged(Pos),
    End,
}

impl Walker {
    pub fn new(file: Arc<dyn VolumeFile>, from: Pos, end: Pos, expected: Offset) -> Walker {
        Walker { window: Window::new(file, end, WALK_CHUNK), pos: from, end, expected, last: None }
    }

    pub async fn step(&mut self) -> volume::Result<Step> {
        if self.pos >= self.end {
            return Ok(Step::End);
        }
        match self.window.head(self.pos.0, self.expected).await? {
            Some(h) => {
                let at = self.pos;
                self.last = Some((at, self.expected));
                self.pos = at.plus(h.size);
                self.expected = h.next_offset();
                Ok(Step::Batch(h, at))
            }
            None => {
                // A wrong length in the batch before leads here just as well.
                self.confirm().await?;
                Ok(Step::Damaged(self.pos))
            }
        }
    }

    /// The batch that was stepped over last, if it is sound as a whole.
    pub async fn whole(&mut self) -> volume::Result<Option<Bytes>> {
        let Some((at, expected)) = self.last else { return Ok(None) };
        Ok(self.window.batch(at.0, expected).await?.map(|(_, bytes)| bytes))
    }

    /// Whether the batch that was stepped over last is sound as a whole. If not, the walk is back before it.
    pub async fn confirm(&mut self) -> volume::Result<bool> {
        let Some((at, expected)) = self.last else { return Ok(true) };
        let sound = self.window.batch(at.0, expected).await?.is_some();
        if !sound {
            (self.pos, self.expected, self.last) = (at, expected, None);
        }
        Ok(sound)
    }

    /// Goes on at the first valid batch at or behind `from`; `false` if there is none.
    pub async fn skip_to(&mut self, from: Pos) -> volume::Result<bool> {
        match self.window.search(from.0, self.expected).await? {
            Some((pos, h)) => {
                self.pos = pos;
                self.expected = Offset(h.base_offset);
                Ok(true)
            }
            None => {
                self.pos = self.end;
                Ok(false)
            }
        }
    }

    /// The offset that comes next.
    pub fn expected(&self) -> Offset {
        self.expected
    }

    pub fn bytes_read(&self) -> u64 {
        self.window.bytes_read
    }
}
