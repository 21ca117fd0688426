//! What holds for any bytes at all: run by the fuzz targets in `broker/fuzz`, and over random input by the tests below.
//!
//! Each function takes the fuzzer's bytes and panics when a promise is broken.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // a test support: it fails by panicking

use super::batch::{self, Header, HEADER_LEN};
use super::records::{require_keys, Record, Records};
use super::scan;
use crate::config::TopicConfig;
use crate::metrics::StorageMetrics;
use crate::types::{Epoch, Offset, Pos};
use crate::volume::{self, VolumeFile};
use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use std::io::Write;
use std::sync::Arc;

/// Wall time of the checks: any will do.
const NOW: i64 = 1_700_000_000_000;

/// One partition's `records` of a produce request: what passes the check is one well-formed batch, and it is stored
/// byte for byte but for what P9 names.
pub fn batch(data: &[u8]) {
    check_batch(&Bytes::copy_from_slice(data));
    // Hardly any random input has the right length and checksum: try the same bytes with both mended.
    check_batch(&mended(data));
}

fn check_batch(records: &Bytes) {
    let Ok(head) = batch::validate(records, &TopicConfig::default(), NOW) else { return };
    assert_eq!(head.size, records.len() as u64);
    assert!(batch::crc_matches(records, &head));
    assert!(head.count > 0 && head.count - 1 == head.last_offset_delta);
    assert!(!head.is_control() && (head.has_producer() || !head.is_transactional()) && head.codec() <= 4);
    for append_time in [None, Some(NOW)] {
        let stored = batch::stamp(records, Offset(42), Epoch(7), append_time).concat();
        let back = Header::parse(&stored).expect("what was stored can be read");
        assert_eq!((back.base_offset, back.leader_epoch, back.size), (42, 7, head.size));
        assert!(batch::crc_matches(&stored, &back));
        assert_eq!(stored[HEADER_LEN..], records[HEADER_LEN..]);
        assert_eq!(back.is_log_append_time(), append_time.is_some());
        // Under CreateTime nothing else changes, unless the client claimed the other type (as Kafka, the topic's
        // type is stored, and so the checksum changes).
        if append_time.is_none() {
            assert_eq!(stored[23..], records[23..]);
            if !head.is_log_append_time() {
                assert_eq!(stored[16..], records[16..]);
            }
        }
    }
}

/// `data` as a batch: magic, length and checksum are made right, the rest stays.
fn mended(data: &[u8]) -> Bytes {
    let mut b = data.to_vec();
    b.resize(b.len().max(HEADER_LEN), 0);
    let len = (b.len() - batch::PREFIX_LEN) as u32;
    b[8..12].copy_from_slice(&len.to_be_bytes());
    b[16] = 2;
    let crc = crc32c::crc32c(&b[21..]);
    b[17..21].copy_from_slice(&crc.to_be_bytes());
    b.into()
}

/// A segment file that holds anything: recovery never claims a batch whose checksum fails, and all it says of the
/// file fits together.
pub fn recovery(data: &[u8]) {
    recover(data);
    recover(&segment(data));
}

fn recover(content: &[u8]) {
    const GROUP: u64 = 4096;
    let file = Arc::new(Still(Bytes::copy_from_slice(content)));
    let len = content.len() as u64;
    let mut batches: Vec<(Header, Pos)> = Vec::new();
    let run =
        scan::recover(file, Pos::ZERO, Pos(len), Offset::ZERO, GROUP, |h, at, _| batches.push((*h, at)));
    let found = run.now_or_never().expect("a file in memory does not wait").expect("and does not fail");

    // Batches and damage lie side by side, and together they are all that the log holds.
    let mut ranges: Vec<(u64, u64)> = batches.iter().map(|(h, at)| (at.0, at.0 + h.size)).collect();
    ranges.extend(found.damage.iter().map(|(a, b)| (a.0, b.0)));
    ranges.sort_unstable();
    let mut at = 0;
    for (from, to) in ranges {
        assert_eq!(from, at);
        assert!(to > from);
        at = to;
    }
    assert_eq!(at, found.end_pos.0);
    assert_eq!(found.end_pos.0 + found.torn, len);

    let mut next = Offset::ZERO;
    for (h, at) in &batches {
        let whole = &content[at.0 as usize..(at.0 + h.size) as usize];
        let stated = u32::from_be_bytes([whole[17], whole[18], whole[19], whole[20]]);
        assert_eq!(crc32c::crc32c(&whole[21..]), stated, "a batch is claimed whose checksum fails");
        assert_eq!(whole[16], 2);
        assert!(h.base_offset >= next.0, "offsets go back");
        next = h.next_offset();
    }
    assert!(found.end >= next);
}

/// Records in every compression: what opens is bounded by what a batch may open to, the walk that keeps nothing
/// agrees with the one that keeps all, and bytes that were truly compressed open to what they were.
pub fn records(data: &[u8]) {
    let [codec, count, body @ ..] = data else { return };
    let (codec, count) = (codec % 5, i32::from(*count));
    open(codec, count, body);
    let plain = open(0, count, body);
    assert_eq!(open(codec, count, &compressed(codec, body)), plain);
}

/// The records up to the first that does not open.
fn open(codec: u8, count: i32, body: &[u8]) -> Vec<Record> {
    let mut b = vec![0; HEADER_LEN];
    b[22] = codec;
    b[57..61].copy_from_slice(&count.to_be_bytes());
    b.extend_from_slice(body);
    let b = mended(&b);
    let head = Header::parse(&b).expect("a mended head");
    let mut all = true;
    let mut found = Vec::new();
    match Records::open(&b, &head, &StorageMetrics::default().records_opened) {
        Ok(records) => {
            for r in records {
                match r {
                    Ok(r) => found.push(r),
                    Err(_) => all = false,
                }
            }
        }
        Err(_) => all = false,
    }
    let len = |f: &Option<Vec<u8>>| f.as_ref().map_or(0, Vec::len);
    let opened: usize = found.iter().map(|r| len(&r.key) + len(&r.value)).sum();
    assert!(opened <= 1 << 30);
    let keyed = require_keys(&b, &head, &StorageMetrics::default()).is_ok();
    assert_eq!(keyed, all && found.iter().all(|r| r.key.is_some()));
    found
}

fn compressed(codec: u8, plain: &[u8]) -> Vec<u8> {
    let done = "compressing to memory does not fail";
    match codec {
        1 => {
            let mut w = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            w.write_all(plain).expect(done);
            w.finish().expect(done)
        }
        2 => snap::raw::Encoder::new().compress_vec(plain).expect(done),
        3 => {
            let mut w = lz4::EncoderBuilder::new().build(Vec::new()).expect(done);
            w.write_all(plain).expect(done);
            w.finish().0
        }
        4 => zstd::encode_all(plain, 1).expect(done),
        _ => plain.to_vec(),
    }
}

/// A file made of valid batches and garbage, as `data` says.
fn segment(mut data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut next = 0i64;
    while let [kind, len, rest @ ..] = data {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        data = rest;
        match kind % 4 {
            0 => out.extend_from_slice(body),
            1 => out.resize(out.len() + usize::from(*len) * 64, 0),
            kind => {
                let mut b = vec![0; HEADER_LEN];
                // A hole before it now and then, as compaction leaves one.
                let base = next + i64::from(kind == 3) * i64::from(*len);
                b[0..8].copy_from_slice(&base.to_be_bytes());
                b[23..27].copy_from_slice(&i32::from(*len).to_be_bytes());
                b[57..61].copy_from_slice(&(i32::from(*len) + 1).to_be_bytes());
                b.extend_from_slice(body);
                out.extend_from_slice(&mended(&b));
                next = base + i64::from(*len) + 1;
            }
        }
    }
    out
}

/// A file that nobody changes.
struct Still(Bytes);

#[async_trait]
impl VolumeFile for Still {
    async fn read_at(&self, pos: u64, len: usize) -> volume::Result<Bytes> {
        let from = usize::try_from(pos).unwrap_or(usize::MAX).min(self.0.len());
        Ok(self.0.slice(from..from.saturating_add(len).min(self.0.len())))
    }

    async fn write_at(&self, _pos: u64, _bufs: Vec<Bytes>) -> volume::Result<usize> {
        panic!("a scan writes nothing")
    }

    async fn sync(&self) -> volume::Result<()> {
        panic!("a scan syncs nothing")
    }

    async fn len(&self) -> volume::Result<u64> {
        Ok(self.0.len() as u64)
    }

    async fn truncate(&self, _len: u64) -> volume::Result<()> {
        panic!("a scan cuts nothing")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..2000)
    }

    proptest! {
        #[test]
        fn any_bytes_as_a_produced_batch_are_refused_or_stored_as_sent(data in bytes()) {
            super::batch(&data);
        }

        #[test]
        fn any_bytes_as_a_segment_are_recovered_without_believing_a_wrong_checksum(data in bytes()) {
            super::recovery(&data);
        }

        #[test]
        fn any_bytes_as_records_open_within_bounds(data in bytes()) {
            super::records(&data);
        }
    }
}
