//! Aborted transactions, by segment: what a `read_committed` consumer must leave out.
//!
//! An entry belongs to the segment of its marker, as in Kafka. A transaction may have records in earlier segments, so a
//! search begins in the segment of the first offset asked for and goes forward, until an entry says that every transaction
//! that began before the last offset asked for was decided by then.
//!
//! The entries of the segment that is written live in memory and in each checkpoint, and those behind the checkpoint come
//! back from the markers themselves ([`super::marker`]). When a segment closes, its entries go to a file, durable before the
//! next segment exists; where there are none, there is no file, and the segment's description says so. A segment
//! that a predecessor left open gets its file from the successor, under the successor's epoch, before the manifest that
//! names it. So a closed segment is never scanned for them, unless its file is damaged.
//!
//! File: `HWA1`, entry count u32, CRC32C of the entries u32, then entries of (producer id, first offset, offset of the
//! marker, stable offset), i64 each, big-endian, in the order of the markers.

use super::api::ReadError;
use super::docs;
use super::marker::Written;
use super::partition::{Partition, View};
use super::scan::{Step, Walker};
use super::segment::Segment;
use crate::reached;
use crate::types::{Offset, Pos};
use crate::volume::Class;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const MAGIC: &[u8; 4] = b"HWA1";
/// Bytes before the entries.
pub const HEAD: usize = 12;
/// Bytes of one entry.
pub const ENTRY: usize = 32;

/// One aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct Aborted {
    pub producer_id: i64,
    /// The transaction's first offset; it may lie before the log start.
    pub first: Offset,
    /// The offset of its marker.
    pub last: Offset,
    /// Every transaction that began before this was decided, with this one.
    pub stable: Offset,
}

type Row = (i64, Offset, Offset, Offset);

impl From<Row> for Aborted {
    fn from((producer_id, first, last, stable): Row) -> Aborted {
        Aborted { producer_id, first, last, stable }
    }
}

impl From<Aborted> for Row {
    fn from(a: Aborted) -> Row {
        (a.producer_id, a.first, a.last, a.stable)
    }
}

/// The file form.
pub fn encode(entries: &[Aborted]) -> Bytes {
    let mut body = BytesMut::with_capacity(entries.len() * ENTRY);
    for a in entries {
        body.put_i64(a.producer_id);
        body.put_i64(a.first.0);
        body.put_i64(a.last.0);
        body.put_i64(a.stable.0);
    }
    let mut b = BytesMut::with_capacity(HEAD + body.len());
    b.put_slice(MAGIC);
    b.put_u32(entries.len() as u32);
    b.put_u32(crc32c::crc32c(&body));
    b.put_slice(&body);
    b.freeze()
}

/// Reads such a file, of a segment from `base` to `end`. `None` for anything that is not whole, in order and within it.
pub fn decode(b: &[u8], base: Offset, end: Offset) -> Option<Vec<Aborted>> {
    let word = |at: usize| Some(u32::from_be_bytes(b.get(at..at + 4)?.try_into().ok()?));
    let body = b.get(HEAD..)?;
    let is_whole = b.get(..4)? == MAGIC && Some(body.len()) == (word(4)? as usize).checked_mul(ENTRY);
    if !is_whole || crc32c::crc32c(body) != word(8)? {
        return None;
    }
    let long = |row: &[u8], at: usize| Some(i64::from_be_bytes(row.get(at..at + 8)?.try_into().ok()?));
    let entry = |row: &[u8]| {
        let offset = |at| long(row, at).map(Offset);
        Some(Aborted {
            producer_id: long(row, 0)?,
            first: offset(8)?,
            last: offset(16)?,
            stable: offset(24)?,
        })
    };
    let entries: Vec<Aborted> = body.chunks_exact(ENTRY).map(entry).collect::<Option<_>>()?;
    let rising = entries.iter().zip(entries.iter().skip(1)).all(|(a, b)| a.last < b.last);
    let inside = entries.iter().all(|a| a.first < a.last && (base..end).contains(&a.last));
    (rising && inside).then_some(entries)
}

/// Takes what concerns `[from, to)` into `found`. `true`: nothing behind these entries can concern it.
fn collect(entries: &[Aborted], from: Offset, to: Offset, found: &mut Vec<Aborted>) -> bool {
    for a in entries {
        if a.last >= from && a.first < to {
            found.push(*a);
        }
        if a.stable >= to {
            return true;
        }
    }
    false
}

impl Partition {
    /// Aborted transactions with records in `[from, to)`, by their first offsets. All before `to` must be decided in
    /// `view`.
    pub(super) async fn aborted(
        &self,
        view: &View,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<Aborted>, ReadError> {
        let mut found = Vec::new();
        let first = view.segments.partition_point(|s| s.sealed.end <= from);
        let mut is_done = from >= to;
        for s in view.segments.iter().skip(first).filter(|s| s.sealed.aborted.is_some()) {
            if is_done {
                break;
            }
            is_done = collect(&self.aborted_of(s).await?, from, to, &mut found);
        }
        if let Some(active) = view.active.as_ref().filter(|_| !is_done) {
            // What was added since has begun at or behind the view's last stable offset.
            collect(&active.aborted.read(), from, to, &mut found);
        }
        found.sort_by_key(|a| (a.first, a.last));
        Ok(found)
    }

    async fn aborted_of(&self, s: &Segment) -> Result<Arc<Vec<Aborted>>, ReadError> {
        if let Some(known) = s.known_aborted() {
            return Ok(known);
        }
        let Some(name) = s.sealed.aborted_name() else { return Ok(Arc::default()) };
        let path = self.path(&name.aborted());
        let loaded = match docs::read_file(&*self.shared.volume, &path).await {
            Ok(b) => decode(&b, s.sealed.base, s.sealed.end),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e.into()),
        };
        let entries = match loaded {
            Some(entries) => entries,
            None => {
                reached!("aborted-index-rebuilt");
                tracing::warn!(%path, "missing or damaged, rebuilding it from the log");
                let log = self.path(&s.sealed.name().log());
                let file = self.shared.volume.open(&log, Class::Data).await?;
                rebuild(Walker::new(file, Pos::ZERO, s.sealed.end_pos, s.sealed.base)).await?
            }
        };
        Ok(s.learn_aborted(entries))
    }
}

/// The entries of what `walk` leads through.
async fn rebuild(mut walk: Walker) -> crate::volume::Result<Vec<Aborted>> {
    let mut entries = Vec::new();
    loop {
        match walk.step().await? {
            Step::Batch(h, _) if h.is_control() => {
                let marker = walk.whole().await?.and_then(|b| Written::parse(&b, &h));
                entries.extend(marker.and_then(|m| m.aborted()));
            }
            Step::Batch(..) => {}
            Step::Damaged(at) => {
                if !walk.skip_to(at.plus(1)).await? {
                    return Ok(entries);
                }
            }
            Step::End => return Ok(entries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: i64, first: i64, last: i64, stable: i64) -> Aborted {
        Aborted { producer_id: id, first: Offset(first), last: Offset(last), stable: Offset(stable) }
    }

    #[test]
    fn every_flipped_bit_of_the_file_is_seen() {
        let all = vec![entry(1, 2, 9, 4), entry(2, 4, 12, 13)];
        let b = encode(&all);
        assert_eq!(decode(&b, Offset(5), Offset(20)), Some(all));
        assert_eq!(decode(&b, Offset(5), Offset(12)), None, "a marker past the segment's end");
        assert_eq!(decode(&b, Offset(10), Offset(20)), None, "a marker before its base");
        assert_eq!(decode(&encode(&[]), Offset(0), Offset(1)), Some(Vec::new()));
        for i in 0..b.len() {
            let mut v = b.to_vec();
            v[i] ^= 4;
            assert_eq!(decode(&v, Offset(5), Offset(20)), None, "byte {i}");
            assert_eq!(decode(&b[..i], Offset(5), Offset(20)), None, "cut at {i}");
        }
    }

    #[test]
    fn a_search_takes_what_overlaps_and_ends_where_all_is_decided() {
        let all = [entry(1, 2, 9, 4), entry(2, 4, 12, 13), entry(3, 30, 33, 34)];
        let mut found = Vec::new();
        assert!(collect(&all, Offset(9), Offset(13), &mut found));
        assert_eq!(found, all[..2]);
        found.clear();
        assert!(!collect(&all, Offset(10), Offset(40), &mut found));
        assert_eq!(found, all[1..]);
        found.clear();
        assert!(collect(&all, Offset(0), Offset(3), &mut found), "the first entry decides all before 4");
        assert_eq!(found, all[..1]);
    }
}
