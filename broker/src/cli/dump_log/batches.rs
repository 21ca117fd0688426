//! The batches of one segment.

use super::format::{self, Verdict};
use super::Flags;
use crate::cli::output::{say, Output};
use highwater::storage::batch::{Header, HEADER_LEN};
use highwater::storage::marker::Written;
use highwater::storage::records::Records;
use highwater::storage::scan::Window;
use highwater::types::{Offset, Pos};
use highwater::volume::{self, VolumeFile};
use prometheus_client::metrics::counter::Counter;
use std::io::Write;
use std::sync::Arc;

const CHUNK: usize = 1 << 20;
/// The checksum covers a batch from here on.
const CRC_START: u64 = 21;

/// Prints all batches. `dense`: the first offset, of a log whose offsets have no gaps.
pub async fn dump<W: Write>(
    file: Arc<dyn VolumeFile>,
    len: u64,
    dense: Option<Offset>,
    flags: &Flags,
    out: &mut Output<W>,
) -> volume::Result<bool> {
    let window = Window::new(file.clone(), Pos(len), CHUNK);
    let lowest = dense.unwrap_or(Offset::ZERO);
    let mut dump =
        Dump { file, len, window, at: 0, lowest, expected: dense, dense: dense.is_some(), sound: true };
    while dump.at < len && out.open {
        dump.step(flags, out).await?;
    }
    Ok(dump.sound)
}

struct Dump {
    file: Arc<dyn VolumeFile>,
    len: u64,
    window: Window,
    at: u64,
    /// No batch from here on begins at a lower offset.
    lowest: Offset,
    /// The only offset with which the next batch can begin, if that is known.
    expected: Option<Offset>,
    dense: bool,
    sound: bool,
}

impl Dump {
    /// One batch, or one place that is none.
    async fn step<W: Write>(&mut self, flags: &Flags, out: &mut Output<W>) -> volume::Result<()> {
        let Some(h) = self.head(self.at).await? else { return self.skip(None, out).await };
        let actual = self.checksum(&h).await?;
        if actual != h.crc {
            say!(out, "{}", format::batch(self.at, &h, Verdict::Bad { actual }));
            self.sound = false;
            let after = self.at + h.size;
            // Its length may be as wrong as the rest. If a batch or the end follows, it was not.
            let followed = after == self.len
                || self.head(after).await?.is_some_and(|n| n.base_offset == h.next_offset().0);
            if !followed {
                return self.skip(Some(&h), out).await;
            }
            self.go_on(&h);
            return Ok(());
        }
        say!(out, "{}", format::batch(self.at, &h, Verdict::Ok));
        self.judge_offset(&h, out);
        if h.is_control() {
            self.marker(&h, out).await?;
        }
        if flags.records {
            self.records(&h, flags.max_bytes, out).await?;
        }
        self.go_on(&h);
        Ok(())
    }

    /// The head at `at`, if it can be one of a batch that ends within the file.
    async fn head(&mut self, at: u64) -> volume::Result<Option<Header>> {
        let b = self.window.get(at, HEADER_LEN).await?;
        let fits = |h: &Header| at.checked_add(h.size).is_some_and(|end| end <= self.len);
        Ok(Header::parse(&b).filter(|h| h.plausible_from(Offset::ZERO) && fits(h)))
    }

    async fn checksum(&mut self, h: &Header) -> volume::Result<u32> {
        let (mut at, end) = (self.at + CRC_START, self.at + h.size);
        let mut crc = 0;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let b = self.window.get(at, want).await?;
            if b.is_empty() {
                break;
            }
            crc = crc32c::crc32c_append(crc, &b);
            at += b.len() as u64;
        }
        Ok(crc)
    }

    /// The checksum does not cover the base offset.
    fn judge_offset<W: Write>(&mut self, h: &Header, out: &mut Output<W>) {
        let base = Offset(h.base_offset);
        let wrong = match self.expected {
            Some(e) if base != e => Some(format!("begins at offset {base}, expected is {e}")),
            None if base < self.lowest => Some(format!("begins at offset {base}, after {}", self.lowest)),
            _ => None,
        };
        if let Some(what) = wrong {
            self.sound = false;
            say!(out, "  WRONG at byte {}: the batch {what}", self.at);
        }
    }

    fn go_on(&mut self, h: &Header) {
        let base = Offset(h.base_offset);
        self.at += h.size;
        // After a wrong offset it is open which of the two is the right one.
        let right = self.expected.is_none_or(|e| e == base);
        self.expected = (right && self.dense).then(|| h.next_offset());
        if right && base >= self.lowest {
            self.lowest = h.next_offset();
        }
    }

    /// Looks for the next valid batch behind a place that holds none. `bad`: a batch was printed for it.
    async fn skip<W: Write>(&mut self, bad: Option<&Header>, out: &mut Output<W>) -> volume::Result<()> {
        let from = self.at;
        match self.window.search(from + 1, self.lowest).await? {
            Some((next, _)) => {
                self.sound = false;
                say!(out, "DAMAGED bytes {from}..{next}: no valid batch{}", self.old_magic(from).await?);
                self.at = next.0;
                // What is missing had offsets, too.
                self.expected = None;
            }
            None => {
                let n = self.len - from;
                // A whole one whose checksum is wrong was judged already.
                let what = if bad.is_some() { "no valid batch" } else { "torn tail" };
                say!(out, "{what} from byte {from} to the end, {n} bytes{}", self.old_magic(from).await?);
                self.at = self.len;
            }
        }
        Ok(())
    }

    /// Messages of before Kafka 0.11 have another form.
    async fn old_magic(&mut self, at: u64) -> volume::Result<String> {
        let magic = self.window.get(at.saturating_add(16), 1).await?.first().copied();
        Ok(magic.filter(|m| *m < 2).map_or(String::new(), |m| format!(" (magic {m} where 2 is read)")))
    }

    /// What a control batch says, in words.
    async fn marker<W: Write>(&mut self, h: &Header, out: &mut Output<W>) -> volume::Result<()> {
        let batch = self.file.read_at(self.at, usize::try_from(h.size).unwrap_or(usize::MAX)).await?;
        match Written::parse(&batch, h) {
            Some(marker) => say!(out, "{}", format::marker(&marker)),
            None => say!(out, "  a control batch of another kind"),
        }
        Ok(())
    }

    async fn records<W: Write>(&mut self, h: &Header, max: usize, out: &mut Output<W>) -> volume::Result<()> {
        let batch = self.file.read_at(self.at, usize::try_from(h.size).unwrap_or(usize::MAX)).await?;
        let opened = Counter::default();
        match Records::open(&batch, h, &opened) {
            Ok(records) => self.print(records, h, max, out),
            Err(e) => self.unopened(&e, out),
        }
        Ok(())
    }

    fn print<W: Write>(&mut self, records: Records<'_>, h: &Header, max: usize, out: &mut Output<W>) {
        for r in records {
            match r {
                Ok(r) => say!(out, "{}", format::record(h, &r, max)),
                Err(e) => self.unopened(&e, out),
            }
            if !out.open {
                break;
            }
        }
    }

    fn unopened<W: Write>(&mut self, why: &std::io::Error, out: &mut Output<W>) {
        self.sound = false;
        say!(out, "  WRONG at byte {}: the batch's records cannot be read: {why}", self.at);
    }
}
