//! The small files of a partition: claim, manifest, recovery checkpoint, producer snapshot.
//!
//! Each is one JSON document with a CRC32C over its body, written to a temporary name, synced and
//! renamed, so that a reader sees an old one or a new one, never a mixture. All of them name the epoch that
//! wrote them and the topic id, and are believed only where both fit their path.
//!
//! Order of writes at an open: claim, (own first segment), producer snapshot, checkpoint, manifest. The
//! manifest comes last because it is what makes an epoch exist for the next open; all it needs is durable before.

use super::aborted::Aborted;
use super::names::SegmentName;
use crate::types::{Epoch, Offset, Pos, TopicId};
use crate::volume::{self, write_all_at, Class, Volume, VolumeError};
use bytes::Bytes;
use serde::{de::DeserializeOwned, Deserialize, Serialize};

/// Newest form of these files that this version reads and writes.
pub const FORMAT: u32 = 1;

/// Who opened an epoch. Its exclusive creation is what claims it; the content is for people and for
/// takeovers, which must prove the claimant's lease dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub format: u32,
    pub epoch: Epoch,
    pub holder: String,
    /// The holder, whose lease may stand, does nothing under this epoch or an earlier one any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relinquished: bool,
}

/// Claims are rewritten in place, so all are of one size: a reader that sees half of two finds it damaged.
const CLAIM_BYTES: usize = 256;

impl Claim {
    pub fn encode(&self) -> Bytes {
        let mut b = encode(self).to_vec();
        b.resize(b.len().max(CLAIM_BYTES), b'\n');
        b.into()
    }
}

/// Where an older segment ends, for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    pub epoch: Epoch,
    pub base: Offset,
    /// The offset after its last batch.
    pub end: Offset,
    /// Bytes past this position do not exist, whatever the file holds there.
    pub end_pos: Pos,
    /// The largest record timestamp (ms), if any batch has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_timestamp: Option<i64>,
    /// Timestamp of the first batch: what `segment.ms` counts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<i64>,
    /// Byte ranges that recovery found damaged and kept: `[from, to)`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<(Pos, Pos)>,
    /// The epoch whose file lists the aborted transactions with a marker in here. `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted: Option<Epoch>,
}

impl Sealed {
    pub fn aborted_name(&self) -> Option<SegmentName> {
        self.aborted.map(|epoch| SegmentName { base: self.base, epoch })
    }

    pub fn name(&self) -> SegmentName {
        SegmentName { base: self.base, epoch: self.epoch }
    }
}

/// What an epoch started from, and every later change of the log start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub topic_id: TopicId,
    pub partition: i32,
    pub epoch: Epoch,
    pub log_start: Offset,
    /// End of the inherited log: the first offset that this epoch gave out, or copied.
    pub start: Offset,
    /// Segments of older epochs, by base offset. One that is not listed does not exist.
    pub segments: Vec<Sealed>,
    /// Own closed segments that retention gave up are below `log_start` and may be gone.
    pub leader_epochs: Vec<(Epoch, Offset)>,
    /// The most bytes this epoch writes between two syncs, one larger batch excepted: what a successor must
    /// copy.
    pub group_bytes: u64,
    /// The dial is above 1: everything past the checkpoint is in doubt, not just the last group.
    pub relaxed: bool,
    /// A producer snapshot was written before this manifest, and what follows relies on it.
    pub has_producers: bool,
}

/// Up to where the log of this epoch is known to be durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub format: u32,
    pub topic_id: TopicId,
    pub epoch: Epoch,
    /// Base offset of the segment, of this epoch, that was the last.
    pub segment: Offset,
    pub pos: Pos,
    /// The offset at `pos`.
    pub offset: Offset,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_timestamp: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_timestamp: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<(Pos, Pos)>,
    /// Aborted transactions with a marker in the segment, before `pos`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aborted: Vec<Aborted>,
    /// Segments that this epoch closed, complete and durable.
    pub closed: Vec<Sealed>,
    /// A snapshot taken at `offset` was durable first.
    pub has_producers: bool,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum DocError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("{path}: {reason}")]
    Damaged { path: String, reason: String },
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    crc32c: u32,
    #[serde(borrow)]
    body: &'a serde_json::value::RawValue,
}

/// The file form of a document.
pub fn encode<T: Serialize>(doc: &T) -> Bytes {
    // Our own types serialize without fail: no maps with odd keys, no foreign Serialize.
    let body = serde_json::to_string(doc).unwrap_or_default();
    let crc = crc32c::crc32c(body.as_bytes());
    Bytes::from(format!("{{\"crc32c\":{crc},\"body\":{body}}}\n"))
}

pub fn decode<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T, DocError> {
    let damaged = |reason: String| DocError::Damaged { path: path.to_string(), reason };
    let e: Envelope<'_> = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let crc = crc32c::crc32c(e.body.get().as_bytes());
    if crc != e.crc32c {
        return Err(damaged(format!("checksum is {crc}, not {}", e.crc32c)));
    }
    serde_json::from_str(e.body.get()).map_err(|e| damaged(e.to_string()))
}

/// Reads a whole file, freshly opened.
pub async fn read_file(v: &dyn Volume, path: &str) -> volume::Result<Bytes> {
    let f = v.open(path, Class::Data).await?;
    let len = f.len().await?;
    f.read_at(0, usize::try_from(len).unwrap_or(usize::MAX)).await
}

pub async fn read<T: DeserializeOwned>(v: &dyn Volume, path: &str) -> Result<T, DocError> {
    decode(path, &read_file(v, path).await?)
}

/// Writes `bytes` under `dir/name` so that a crash leaves the old or the new. The new *name* is durable
/// only after the caller has synced the directory.
///
/// `nonce` makes the temporary name unique: two attempts never share one.
pub async fn replace(v: &dyn Volume, dir: &str, name: &str, nonce: u64, bytes: Bytes) -> volume::Result<()> {
    prepare(v, dir, name, nonce, bytes).await?;
    put(v, dir, name, nonce).await
}

/// The first half of [`replace`]: the content is durable, under the temporary name.
pub async fn prepare(v: &dyn Volume, dir: &str, name: &str, nonce: u64, bytes: Bytes) -> volume::Result<()> {
    let written = write_temp(v, &temp(dir, name, nonce), bytes).await;
    if written.is_err() {
        // On a full volume, what failed attempts leave would be all that is written.
        forget(v, dir, name, nonce).await;
    }
    written
}

/// The second half of [`replace`].
pub async fn put(v: &dyn Volume, dir: &str, name: &str, nonce: u64) -> volume::Result<()> {
    v.rename(&temp(dir, name, nonce), &format!("{dir}/{name}"), Class::Data).await
}

/// Instead of the second half of [`replace`].
pub async fn forget(v: &dyn Volume, dir: &str, name: &str, nonce: u64) {
    let _ = v.unlink(&temp(dir, name, nonce)).await;
}

fn temp(dir: &str, name: &str, nonce: u64) -> String {
    format!("{dir}/{name}.{nonce:x}.tmp")
}

async fn write_temp(v: &dyn Volume, temp: &str, bytes: Bytes) -> volume::Result<()> {
    let f = v.create_new(temp, Class::Data).await?;
    write_all_at(&*f, 0, vec![bytes]).await?;
    f.sync().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_in_a_document_is_seen() {
        let c = Claim { format: FORMAT, epoch: Epoch(3), holder: "1/abc".into(), relinquished: false };
        let b = encode(&c);
        assert_eq!(decode::<Claim>("p", &b).unwrap(), c);
        for i in 0..b.len() - 1 {
            let mut v = b.to_vec();
            v[i] ^= 1;
            assert!(decode::<Claim>("p", &v).map_or(true, |d| d == c), "byte {i}");
        }
        for n in 0..b.len() - 1 {
            assert!(decode::<Claim>("p", &b[..n]).is_err());
        }
    }
}
