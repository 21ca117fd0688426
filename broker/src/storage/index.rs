//! The sparse offset index of one segment: where to begin to look for an offset.
//!
//! A hint and no more: every lookup is checked against the batch head found there, and a missing or damaged
//! index file is rebuilt from the log. It is written when a segment closes and at checkpoints, never
//! synced before an acknowledgement.
//!
//! File: `HWI1`, entry count u32, CRC32C of the entries u32, position up to which the log is covered u32,
//! then entries of (offset − base u32, position u32), big-endian.

use crate::types::Pos;
use bytes::{BufMut, Bytes, BytesMut};

const MAGIC: &[u8; 4] = b"HWI1";
/// Bytes before the entries.
pub const HEAD: usize = 16;
/// Bytes of one entry.
pub const ENTRY: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    entries: Vec<(u32, u32)>,
    /// End of the part of the log that the entries describe.
    covered: u32,
}

impl Index {
    /// Notes a batch at `pos` whose first record is `rel` past the segment's base, if the last entry is at least
    /// `interval` bytes back. `end` is the position after the batch.
    pub fn note(&mut self, rel: i64, pos: Pos, end: Pos, interval: u64) {
        // Rolls keep both below 2^31 (case 9); a batch that does not fit is findable from the entry before.
        let (Ok(rel), Ok(at), Ok(end)) = (u32::try_from(rel), u32::try_from(pos.0), u32::try_from(end.0))
        else {
            return;
        };
        self.covered = self.covered.max(end);
        let due = match self.entries.last() {
            None => true,
            Some((r, p)) => rel > *r && at > *p && (at - p) as u64 >= interval.max(1),
        };
        if due {
            self.entries.push((rel, at));
        }
    }

    /// The closest known batch that begins at or before `rel`: what it begins with, and where. The segment's
    /// start if none is known.
    pub fn lookup(&self, rel: i64) -> (i64, Pos) {
        let n = self.entries.partition_point(|(r, _)| i64::from(*r) <= rel);
        let entry = n.checked_sub(1).and_then(|i| self.entries.get(i));
        entry.map_or((0, Pos::ZERO), |(r, p)| (i64::from(*r), Pos(u64::from(*p))))
    }

    pub fn covered(&self) -> Pos {
        Pos(u64::from(self.covered))
    }

    /// (offset − base, position) of every noted batch.
    pub fn entries(&self) -> impl Iterator<Item = (i64, Pos)> + '_ {
        self.entries.iter().map(|(r, p)| (i64::from(*r), Pos(u64::from(*p))))
    }

    pub fn encode(&self) -> Bytes {
        let mut body = BytesMut::with_capacity(self.entries.len() * 8);
        for (rel, pos) in &self.entries {
            body.put_u32(*rel);
            body.put_u32(*pos);
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&self.covered.to_be_bytes()), &body);
        let mut b = BytesMut::with_capacity(HEAD + body.len());
        b.put_slice(MAGIC);
        b.put_u32(self.entries.len() as u32);
        b.put_u32(crc);
        b.put_u32(self.covered);
        b.put_slice(&body);
        b.freeze()
    }

    /// Reads an index file. `None` for anything that is not whole, in order and within `end`.
    pub fn decode(b: &[u8], end: Pos) -> Option<Index> {
        let word =
            |at: usize| -> Option<u32> { Some(u32::from_be_bytes(b.get(at..at + 4)?.try_into().ok()?)) };
        let body = b.get(HEAD..)?;
        if b.get(..4)? != MAGIC || body.len() != (word(4)? as usize).checked_mul(8)? {
            return None;
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(b.get(12..16)?), body);
        let covered = word(12)?;
        if crc != word(8)? || u64::from(covered) > end.0 {
            return None;
        }
        let entries: Vec<(u32, u32)> = (0..body.len() / 8)
            .map(|i| Some((word(HEAD + i * 8)?, word(HEAD + i * 8 + 4)?)))
            .collect::<Option<_>>()?;
        let rising = entries.iter().zip(entries.iter().skip(1)).all(|(a, b)| a.0 < b.0 && a.1 < b.1);
        let inside = entries.last().is_none_or(|(_, p)| *p < covered);
        (rising && inside).then_some(Index { entries, covered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Index {
        let mut i = Index::default();
        for n in 0..100u64 {
            i.note(n as i64 * 3, Pos(n * 50), Pos(n * 50 + 50), 120);
        }
        i
    }

    #[test]
    fn lookups_never_point_past_what_they_look_for() {
        let i = sample();
        assert_eq!(i.lookup(0), (0, Pos(0)));
        for n in 0..100i64 {
            let (rel, p) = i.lookup(n * 3);
            assert_eq!(rel as u64 / 3 * 50, p.0);
            assert!(p.0 <= n as u64 * 50 && p.0 + 200 > n as u64 * 50, "{n} {p}");
        }
        assert_eq!(Index::default().lookup(77), (0, Pos(0)));
    }

    #[test]
    fn case_08_a_damaged_index_file_is_not_believed() {
        let i = sample();
        let b = i.encode();
        assert_eq!(Index::decode(&b, Pos(5000)), Some(i));
        assert_eq!(Index::decode(&b, Pos(4999)), None, "entries past the end of the log");
        assert_eq!(Index::decode(&b[..7], Pos(5000)), None);
        assert_eq!(Index::decode(&vec![0; b.len()], Pos(5000)), None);
        assert_eq!(Index::decode(&[], Pos(5000)), None);
        for at in 0..b.len() {
            let mut v = b.to_vec();
            v[at] ^= 0x10;
            assert_eq!(Index::decode(&v, Pos(5000)), None, "byte {at}");
        }
    }

    #[test]
    fn case_09_offsets_and_positions_beyond_32_bits_are_left_out_not_wrapped() {
        let mut i = Index::default();
        i.note(0, Pos(0), Pos(10), 1);
        i.note(1 << 33, Pos(10), Pos(20), 1);
        i.note(5, Pos(1 << 33), Pos((1 << 33) + 5), 1);
        assert_eq!(i.lookup(1 << 34), (0, Pos(0)));
    }
}
