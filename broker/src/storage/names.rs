//! File names in a partition's directory. A name says which leader epoch may write the file.
//!
//! ```text
//! 00000005-claim                       who opened epoch 5
//! 00000005-manifest.json               what epoch 5 inherited, and where everything older ends
//! 00000005-producer-state.snapshot     sequences of idempotent producers
//! 00000005-recovery-checkpoint.json    how far epoch 5's log is known to be durable
//! 00000005-00000000000000001000.log    batches from offset 1000 on
//! 00000005-00000000000000001000.index  sparse offset index of the same
//! 00000005-00000000000000001000.aborted  aborted transactions of the same, or of one that epoch 5 closed for another
//! 00000005-*.tmp                       being written; renamed over its final name
//! ```

use crate::types::{Epoch, Offset};

/// A segment's identity: the epoch that wrote it and its first offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    pub base: Offset,
    pub epoch: Epoch,
}

impl SegmentName {
    pub fn log(self) -> String {
        format!("{}-{:020}.log", self.epoch, self.base.0)
    }

    pub fn index(self) -> String {
        format!("{}-{:020}.index", self.epoch, self.base.0)
    }

    /// The aborted transactions of the segment at this base, in the file that this epoch wrote.
    pub fn aborted(self) -> String {
        format!("{}-{:020}.aborted", self.epoch, self.base.0)
    }
}

/// What a name in a partition's directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileName {
    Claim(Epoch),
    Manifest(Epoch),
    Producers(Epoch),
    Checkpoint(Epoch),
    Log(SegmentName),
    Index(SegmentName),
    /// The epoch is that of whoever wrote the file, not always the segment's.
    Aborted(SegmentName),
    Temp(Epoch),
}

pub fn claim(e: Epoch) -> String {
    format!("{e}-claim")
}

pub fn manifest(e: Epoch) -> String {
    format!("{e}-manifest.json")
}

pub fn producers(e: Epoch) -> String {
    format!("{e}-producer-state.snapshot")
}

pub fn checkpoint(e: Epoch) -> String {
    format!("{e}-recovery-checkpoint.json")
}

impl FileName {
    /// `None` for names that are not ours (`.nfs…`, editors' copies): they are left alone.
    pub fn parse(name: &str) -> Option<FileName> {
        let (epoch, rest) = name.split_once('-')?;
        if epoch.len() != 8 || !epoch.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return None;
        }
        let epoch = Epoch(u32::from_str_radix(epoch, 16).ok()?);
        match rest {
            "claim" => return Some(FileName::Claim(epoch)),
            "manifest.json" => return Some(FileName::Manifest(epoch)),
            "producer-state.snapshot" => return Some(FileName::Producers(epoch)),
            "recovery-checkpoint.json" => return Some(FileName::Checkpoint(epoch)),
            _ => {}
        }
        if rest.ends_with(".tmp") {
            return Some(FileName::Temp(epoch));
        }
        let (base, ext) = rest.split_once('.')?;
        if base.len() != 20 || !base.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let segment = SegmentName { base: Offset(base.parse().ok()?), epoch };
        match ext {
            "log" => Some(FileName::Log(segment)),
            "index" => Some(FileName::Index(segment)),
            "aborted" => Some(FileName::Aborted(segment)),
            _ => None,
        }
    }

    pub fn epoch(self) -> Epoch {
        match self {
            FileName::Claim(e)
            | FileName::Manifest(e)
            | FileName::Producers(e)
            | FileName::Checkpoint(e)
            | FileName::Temp(e) => e,
            FileName::Log(s) | FileName::Index(s) | FileName::Aborted(s) => s.epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_were_written() {
        let e = Epoch(0xab);
        let s = SegmentName { base: Offset(1000), epoch: Epoch(5) };
        assert_eq!(s.log(), "00000005-00000000000000001000.log");
        for (name, want) in [
            (claim(e), FileName::Claim(e)),
            (manifest(e), FileName::Manifest(e)),
            (producers(e), FileName::Producers(e)),
            (checkpoint(e), FileName::Checkpoint(e)),
            (s.log(), FileName::Log(s)),
            (s.index(), FileName::Index(s)),
            (s.aborted(), FileName::Aborted(s)),
            ("00000007-manifest.json.3.tmp".into(), FileName::Temp(Epoch(7))),
        ] {
            assert_eq!(FileName::parse(&name), Some(want), "{name}");
        }
    }

    #[test]
    fn strays_are_nobody_s() {
        for name in
            [".nfs0001", "x.tmp", "manifest.json", "0000000G-claim", "00000001-1.log", "00000001-", "é-claim"]
        {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
    }
}
