//! Opening a batch: decompress and walk its records (Kafka docs: *Message Format → Record*).
//!
//! The one place that looks inside (P9): for produce to a compacted topic, an exact timestamp lookup, compaction
//! and `dump-log --records`. It streams: what it holds in memory is one record's head, never a count or a length that
//! a client merely claimed. Compression is left to flate2, zstd, lz4 and snap.

use super::batch::{Header, HEADER_LEN};
use super::AppendError;
use crate::metrics::StorageMetrics;
use crate::types::Offset;
use prometheus_client::metrics::counter::Counter;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Most bytes that one batch may decompress to here; a larger one is taken for an attack.
const MAX_OPENED: u64 = 1 << 30;
/// Most bytes of one key, value or header that are kept.
const MAX_FIELD: u64 = 128 << 20;

const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\x00";

/// One record, with offset and timestamp still relative to its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// The records of a batch, one after another.
pub struct Records<'a> {
    from: BufReader<io::Take<Box<dyn Read + Send + 'a>>>,
    left: i32,
    /// Keys and values are skipped, not kept; only whether there is a key is known.
    heads_only: bool,
    opened: Counter,
}

impl<'a> Records<'a> {
    /// Opens a whole batch whose checksum the caller has verified. Each record is counted in `opened`: no record
    /// is opened unseen (P9), and the counter says for what.
    pub fn open(batch: &'a [u8], h: &Header, opened: &Counter) -> io::Result<Records<'a>> {
        Self::with(batch, h, opened, false)
    }

    fn heads(batch: &'a [u8], h: &Header, opened: &Counter) -> io::Result<Records<'a>> {
        Self::with(batch, h, opened, true)
    }

    fn with(batch: &'a [u8], h: &Header, opened: &Counter, heads_only: bool) -> io::Result<Records<'a>> {
        let end = usize::try_from(h.size).unwrap_or(usize::MAX);
        let body = batch.get(HEADER_LEN..end).ok_or_else(|| bad("the batch is cut short"))?;
        let plain: Box<dyn Read + Send + 'a> = match h.codec() {
            0 => Box::new(body),
            1 => Box::new(flate2::read::MultiGzDecoder::new(body)),
            2 => snappy(body)?,
            3 => Box::new(lz4::Decoder::new(body)?),
            4 => Box::new(zstd::stream::read::Decoder::new(body)?),
            other => return Err(bad(format!("unknown compression {other}"))),
        };
        let from = BufReader::new(plain.take(MAX_OPENED));
        Ok(Records { from, left: h.count, heads_only, opened: opened.clone() })
    }

    fn record(&mut self) -> io::Result<Record> {
        let length = self.varint()?;
        let length = u64::try_from(length).map_err(|_| bad("negative record length"))?;
        let _attributes = self.byte()?;
        let timestamp_delta = self.varint()?;
        let offset_delta = i32::try_from(self.varint()?).map_err(|_| bad("offset delta out of range"))?;
        let key = self.field()?;
        let value = self.field()?;
        let count = self.varint()?;
        let mut headers = Vec::new();
        for _ in 0..u64::try_from(count).map_err(|_| bad("negative header count"))?.min(length) {
            let name = self.field()?.ok_or_else(|| bad("a header without a name"))?;
            headers.push((String::from_utf8_lossy(&name).into_owned(), self.field()?));
            if self.heads_only {
                headers.clear();
            }
        }
        Ok(Record { timestamp_delta, offset_delta, key, value, headers })
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut b = [0];
        self.from.read_exact(&mut b)?;
        Ok(b[0])
    }

    /// A zigzag varint of up to 64 bits.
    fn varint(&mut self) -> io::Result<i64> {
        let mut n: u64 = 0;
        for shift in (0..70).step_by(7) {
            let b = self.byte()?;
            n |= u64::from(b & 0x7f).checked_shl(shift).unwrap_or(0);
            if b & 0x80 == 0 {
                return Ok((n >> 1) as i64 ^ -((n & 1) as i64));
            }
        }
        Err(bad("varint too long"))
    }

    /// A nullable byte field.
    fn field(&mut self) -> io::Result<Option<Vec<u8>>> {
        let n = self.varint()?;
        let Ok(n) = u64::try_from(n) else { return Ok(None) };
        if n > MAX_FIELD {
            return Err(bad(format!("a field of {n} bytes")));
        }
        let mut kept = Vec::new();
        // Grows with what arrives, not with what is claimed.
        let got = match self.heads_only {
            true => skip(&mut self.from, n)?,
            false => (&mut self.from).take(n).read_to_end(&mut kept)? as u64,
        };
        if got < n {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(kept))
    }
}

fn skip(from: &mut impl BufRead, n: u64) -> io::Result<u64> {
    let mut left = n;
    while left > 0 {
        let have = from.fill_buf()?.len() as u64;
        if have == 0 {
            break;
        }
        let step = have.min(left);
        from.consume(step as usize);
        left -= step;
    }
    Ok(n - left)
}

impl Iterator for Records<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            return None;
        }
        self.left -= 1;
        self.opened.inc();
        let r = self.record();
        if r.is_err() {
            self.left = 0;
        }
        Some(r)
    }
}

fn bad(m: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, m.into())
}

/// Kafka's snappy: the Java library's framing of raw blocks, or one raw block.
fn snappy<'a>(body: &'a [u8]) -> io::Result<Box<dyn Read + Send + 'a>> {
    if body.starts_with(XERIAL_MAGIC) {
        let blocks = body.get(16..).ok_or_else(|| bad("snappy header cut short"))?;
        return Ok(Box::new(Xerial { rest: blocks, block: Cursor::default() }));
    }
    Ok(Box::new(Cursor::new(unsnap(body)?)))
}

fn unsnap(block: &[u8]) -> io::Result<Vec<u8>> {
    let claimed = snap::raw::decompress_len(block).map_err(|e| bad(e.to_string()))?;
    // Snappy copies at most 64 bytes per 3 bytes of input: a larger claim can't be true.
    if claimed as u64 > MAX_OPENED || claimed / 64 > block.len() {
        return Err(bad(format!("{} snappy bytes claim to be {claimed}", block.len())));
    }
    snap::raw::Decoder::new().decompress_vec(block).map_err(|e| bad(e.to_string()))
}

struct Xerial<'a> {
    rest: &'a [u8],
    block: Cursor<Vec<u8>>,
}

impl Read for Xerial<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.block.read(out)?;
            if n > 0 || out.is_empty() || self.rest.is_empty() {
                return Ok(n);
            }
            let (len, rest) =
                self.rest.split_first_chunk::<4>().ok_or_else(|| bad("snappy block cut short"))?;
            let len = u32::from_be_bytes(*len) as usize;
            let block = rest.get(..len).ok_or_else(|| bad("snappy block cut short"))?;
            self.rest = rest.get(len..).unwrap_or_default();
            self.block = Cursor::new(unsnap(block)?);
        }
    }
}

/// Refuses a batch with a keyless record: on a compacted topic nothing could ever supersede it (Kafka:
/// *Log Compaction*).
pub(super) fn require_keys(batch: &[u8], h: &Header, m: &StorageMetrics) -> Result<(), AppendError> {
    let invalid = |e: String| AppendError::Invalid(e);
    for r in Records::heads(batch, h, &m.records_opened_compacted).map_err(|e| invalid(e.to_string()))? {
        if r.map_err(|e| invalid(e.to_string()))?.key.is_none() {
            return Err(invalid("compacted topics take no record without a key".into()));
        }
    }
    Ok(())
}

/// The first record at or after `timestamp` and `from`: its offset and timestamp.
pub(super) fn first_at(
    batch: &[u8],
    h: &Header,
    timestamp: i64,
    from: Offset,
    m: &StorageMetrics,
) -> io::Result<Option<(i64, i64)>> {
    for r in Records::heads(batch, h, &m.records_opened_lookup)? {
        let r = r?;
        let t = h.base_timestamp.saturating_add(r.timestamp_delta);
        let offset = h.base_offset.saturating_add(i64::from(r.offset_delta));
        if t >= timestamp && offset >= from.0 {
            return Ok(Some((offset, t)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::batch::testing::{raw, seal};
    use super::*;
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::records::{
        Compression, Record as KRecord, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
    };
    use proptest::prelude::*;

    fn encode(codec: Compression, keys: &[Option<&str>]) -> Bytes {
        let records: Vec<KRecord> = keys
            .iter()
            .enumerate()
            .map(|(i, k)| KRecord {
                transactional: false,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: 0,
                producer_id: -1,
                producer_epoch: -1,
                timestamp_type: TimestampType::Creation,
                offset: i as i64,
                sequence: i as i32,
                timestamp: 1 + i as i64,
                key: k.map(|k| Bytes::from(k.to_string())),
                value: Some(Bytes::from(vec![b'v'; 100])),
                headers: [("h".into(), Some(Bytes::from_static(b"x")))].into_iter().collect(),
            })
            .collect();
        let mut b = BytesMut::new();
        let options = RecordEncodeOptions { version: 2, compression: codec };
        RecordBatchEncoder::encode(&mut b, &records, &options).unwrap();
        b.freeze()
    }

    const CODECS: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    #[test]
    fn every_codec_opens() {
        for codec in CODECS {
            let opened = Counter::default();
            let b = encode(codec, &[Some("a"), None, Some("c")]);
            let h = Header::parse(&b).unwrap();
            let r: Vec<Record> = Records::open(&b, &h, &opened).unwrap().map(Result::unwrap).collect();
            assert_eq!(opened.get(), 3, "each is counted");
            assert_eq!(r.len(), 3, "{codec:?}");
            assert_eq!((r[0].key.as_deref(), r[1].key.as_deref()), (Some(&b"a"[..]), None));
            assert_eq!(r[2].value.as_deref(), Some(&[b'v'; 100][..]));
            assert_eq!(r[1].headers, [("h".to_string(), Some(b"x".to_vec()))]);
            assert_eq!((r[2].offset_delta, h.base_timestamp + r[2].timestamp_delta), (2, 3));
        }
    }

    #[test]
    fn case_26_keyless_records_are_refused_on_compacted_topics() {
        let m = StorageMetrics::default();
        for codec in CODECS {
            let b = encode(codec, &[Some("a"), None]);
            let h = Header::parse(&b).unwrap();
            assert!(matches!(require_keys(&b, &h, &m), Err(AppendError::Invalid(_))));
            let b = encode(codec, &[Some("a"), Some("")]);
            assert_eq!(require_keys(&b, &Header::parse(&b).unwrap(), &m), Ok(()));
        }
    }

    #[test]
    fn case_38_a_timestamp_inside_a_batch_finds_its_record() {
        let m = StorageMetrics::default();
        let keys = vec![Some("k"); 12];
        for codec in CODECS {
            let b = encode(codec, &keys);
            let h = Header::parse(&b).unwrap();
            assert_eq!(first_at(&b, &h, 5, Offset(0), &m).unwrap(), Some((4, 5)));
            assert_eq!(first_at(&b, &h, 13, Offset(0), &m).unwrap(), None);
            assert_eq!(first_at(&b, &h, 1, Offset(3), &m).unwrap(), Some((3, 4)));
        }
    }

    proptest! {
        /// Garbage under any codec, with any claimed count, ends in an error or in records; it never panics.
        #[test]
        fn garbage_is_an_error(body in prop::collection::vec(any::<u8>(), 0..200), codec in 0u8..8, count in 1i32..i32::MAX) {
            let mut b = BytesMut::from(&raw(1, &body, 0, (-1, -1, -1))[..]);
            b[22] = codec;
            b[57..61].copy_from_slice(&count.to_be_bytes());
            let b = seal(b);
            let h = Header::parse(&b).unwrap();
            let opened = Records::open(&b, &h, &Counter::default());
            let sound = opened.map_or(0, |records| records.take_while(Result::is_ok).count());
            prop_assert!(sound <= body.len() * 1000 + 1);
        }
    }
}
