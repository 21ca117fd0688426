//! The small files beside the segments.

use crate::cli::output::{say, Output};
use highwater::storage::aborted;
use highwater::storage::docs::{self, Checkpoint, Claim, Manifest};
use highwater::storage::index::Index;
use highwater::storage::names::{FileName, SegmentName};
use highwater::storage::recovery::ProducerSnapshot;
use highwater::types::{Offset, Pos};
use highwater::volume::VolumeFile;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// The largest such file that is read.
const MAX: u64 = 256 << 20;

/// Prints a file that is no log. `Ok(false)`: it is damaged.
///
/// # Errors
/// Why it cannot be read.
pub async fn dump<W: Write>(
    file: Arc<dyn VolumeFile>,
    len: u64,
    kind: FileName,
    path: &Path,
    out: &mut Output<W>,
) -> Result<bool, String> {
    if len > MAX {
        return Err(format!("{len} bytes are too many"));
    }
    let b = file.read_at(0, len as usize).await.map_err(|e| e.source.to_string())?;
    let shown = path.display().to_string();
    Ok(match kind {
        FileName::Index(s) => index(&shown, s, &b, out),
        FileName::Aborted(s) => aborted_list(&shown, s, &b, out),
        FileName::Manifest(_) => document::<Manifest, _>(&shown, "manifest", &b, out),
        FileName::Checkpoint(_) => document::<Checkpoint, _>(&shown, "recovery checkpoint", &b, out),
        FileName::Producers(_) => document::<ProducerSnapshot, _>(&shown, "producer snapshot", &b, out),
        FileName::Claim(_) | FileName::Log(_) | FileName::Temp(_) => {
            document::<Claim, _>(&shown, "claim", &b, out)
        }
    })
}

fn document<T, W>(path: &str, what: &str, b: &[u8], out: &mut Output<W>) -> bool
where
    T: DeserializeOwned + Serialize,
    W: Write,
{
    let read = docs::decode::<T>(path, b).map_err(|e| e.to_string());
    match read.and_then(|doc| serde_json::to_string_pretty(&doc).map_err(|e| e.to_string())) {
        Ok(text) => {
            say!(out, "{path}: {what}, checksum ok\n{text}");
            true
        }
        Err(e) => {
            say!(out, "{path}: {what}, DAMAGED\n{e}");
            false
        }
    }
}

fn index<W: Write>(path: &str, s: SegmentName, b: &[u8], out: &mut Output<W>) -> bool {
    let Some(index) = Index::decode(b, Pos(u64::MAX)) else {
        say!(out, "{path}: offset index, DAMAGED (or of another broker)");
        return false;
    };
    let covered = index.covered();
    say!(
        out,
        "{path}: offset index, epoch {}, base offset {}, covers {covered} bytes, checksum ok",
        s.epoch.0,
        s.base
    );
    for (rel, pos) in index.entries() {
        say!(out, "offset={} position={pos}", s.base.plus(rel));
    }
    true
}

fn aborted_list<W: Write>(path: &str, s: SegmentName, b: &[u8], out: &mut Output<W>) -> bool {
    let Some(entries) = aborted::decode(b, s.base, Offset(i64::MAX)) else {
        say!(out, "{path}: aborted transactions, DAMAGED");
        return false;
    };
    say!(
        out,
        "{path}: aborted transactions, written by epoch {}, base offset {}, checksum ok",
        s.epoch.0,
        s.base
    );
    for a in entries {
        say!(out, "producer={} first={} marker={} stable={}", a.producer_id, a.first, a.last, a.stable);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater::storage::Aborted;
    use highwater::types::Epoch;

    #[test]
    fn documents_and_indexes_are_printed_or_called_damaged() {
        let claim = Claim { format: 1, epoch: Epoch(3), holder: "1/abc".into(), relinquished: false };
        let b = docs::encode(&claim);
        let mut out = Vec::new();
        let mut to = Output::new(&mut out);
        assert!(document::<Claim, _>("p", "claim", &b, &mut to));
        assert!(!document::<Claim, _>("p", "claim", &b[1..], &mut to));
        let s = SegmentName { base: Offset(100), epoch: Epoch(3) };
        let mut i = Index::default();
        i.note(0, Pos(0), Pos(50), 1);
        i.note(5, Pos(50), Pos(90), 1);
        assert!(index("i", s, &i.encode(), &mut to));
        assert!(!index("i", s, b"", &mut to));
        let entry = Aborted { producer_id: 7, first: Offset(90), last: Offset(104), stable: Offset(99) };
        let list = aborted::encode(&[entry]);
        assert!(aborted_list("a", s, &list, &mut to));
        assert!(!aborted_list("a", s, &list[..20], &mut to));
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("producer=7 first=90 marker=104 stable=99"), "{text}");
        assert!(text.contains("\"holder\": \"1/abc\""), "{text}");
        assert!(text.contains("covers 90 bytes"), "{text}");
        assert!(text.contains("offset=105 position=50"), "{text}");
        assert_eq!(text.matches("DAMAGED").count(), 3);
    }
}
