//! How batches, records and bytes look on the screen.

use highwater::storage::batch::Header;
use highwater::storage::marker::Written;
use highwater::storage::records::Record;
use std::fmt::Write;

/// What the checksum of a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    Bad { actual: u32 },
}

/// The line of one batch.
pub fn batch(position: u64, h: &Header, crc: Verdict) -> String {
    let crc = match crc {
        Verdict::Ok => "ok".to_owned(),
        Verdict::Bad { actual } => format!("BAD(expected {:08x}, is {actual:08x})", h.crc),
    };
    let clock = if h.is_log_append_time() { "append" } else { "create" };
    let flags = match (h.is_transactional(), h.is_control()) {
        (false, false) => "none",
        (true, false) => "transactional",
        (false, true) => "control",
        (true, true) => "transactional,control",
    };
    format!(
        "position={position} size={} base={} last={} count={} leader_epoch={} producer={} producer_epoch={} \
         sequence={} codec={} time={clock} base_timestamp={} max_timestamp={} flags={flags} crc={crc}",
        h.size,
        h.base_offset,
        h.last_offset(),
        h.count,
        h.leader_epoch,
        h.producer_id,
        h.producer_epoch,
        h.base_sequence,
        codec(h.codec()),
        h.base_timestamp,
        h.max_timestamp,
    )
}

/// The line of a transaction's marker.
pub fn marker(m: &Written) -> String {
    let known = |n: Option<String>| n.unwrap_or_else(|| "unknown".into());
    format!(
        "  marker={} coordinator_epoch={} transaction={} first={} stable={}",
        if m.commit { "commit" } else { "abort" },
        m.coordinator_epoch,
        known(m.number.map(|n| n.to_string())),
        m.first.map_or("none".into(), |o| o.to_string()),
        m.stable,
    )
}

fn codec(n: u8) -> String {
    match n {
        0 => "none".into(),
        1 => "gzip".into(),
        2 => "snappy".into(),
        3 => "lz4".into(),
        4 => "zstd".into(),
        other => format!("unknown({other})"),
    }
}

/// The line of one record.
pub fn record(h: &Header, r: &Record, max: usize) -> String {
    let offset = h.base_offset.saturating_add(i64::from(r.offset_delta));
    let timestamp = match h.is_log_append_time() {
        true => h.max_timestamp,
        false => h.base_timestamp.saturating_add(r.timestamp_delta),
    };
    let (key, value) = (field(r.key.as_deref(), max), field(r.value.as_deref(), max));
    let mut line = format!("  offset={offset} timestamp={timestamp} key={key} value={value} headers=[");
    for (i, (name, value)) in r.headers.iter().enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(line, "{comma}{}={}", field(Some(name.as_bytes()), max), field(value.as_deref(), max));
    }
    line.push(']');
    line
}

/// Bytes for people: in quotes if they are text, else in hex; `max` of them at most.
pub fn field(bytes: Option<&[u8]>, max: usize) -> String {
    let Some(bytes) = bytes else { return "null".into() };
    let text = std::str::from_utf8(bytes).ok().filter(|t| !t.chars().any(is_control));
    let (shown, rest) = match text {
        Some(text) => {
            let (head, tail) = text.split_at(text.floor_char_boundary(max));
            (format!("\"{}\"", head.escape_debug()), tail.len())
        }
        None => {
            let (head, tail) = bytes.split_at(max.min(bytes.len()));
            let hex = head.iter().fold(String::from("0x"), |mut hex, b| {
                let _ = write!(hex, "{b:02x}");
                hex
            });
            (hex, tail.len())
        }
    };
    match rest {
        0 => shown,
        more => format!("{shown}+{more} bytes"),
    }
}

fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
}

/// The base offset in the name of another broker's segment.
pub fn foreign_base(name: &str) -> Option<i64> {
    let stem = name.strip_suffix(".log")?;
    (stem.len() == 20).then(|| stem.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(attributes: i16) -> Header {
        Header {
            base_offset: 10,
            size: 100,
            leader_epoch: 3,
            magic: 2,
            crc: 0xab,
            attributes,
            last_offset_delta: 1,
            base_timestamp: 1000,
            max_timestamp: 1005,
            producer_id: 7,
            producer_epoch: 0,
            base_sequence: 5,
            count: 2,
        }
    }

    #[test]
    fn a_marker_says_what_it_ended() {
        let m = Written {
            producer_id: 7,
            producer_epoch: 1,
            commit: false,
            coordinator_epoch: 4,
            number: Some(9),
            first: Some(highwater::types::Offset(3)),
            stable: highwater::types::Offset(8),
            at: highwater::types::Offset(7),
        };
        assert_eq!(marker(&m), "  marker=abort coordinator_epoch=4 transaction=9 first=3 stable=8");
        let m = Written { commit: true, number: None, first: None, ..m };
        assert_eq!(marker(&m), "  marker=commit coordinator_epoch=4 transaction=unknown first=none stable=8");
    }

    #[test]
    fn a_batch_is_one_line_with_all_of_its_head() {
        assert_eq!(
            batch(42, &head(0x04), Verdict::Ok),
            "position=42 size=100 base=10 last=11 count=2 leader_epoch=3 producer=7 producer_epoch=0 \
             sequence=5 codec=zstd time=create base_timestamp=1000 max_timestamp=1005 flags=none crc=ok"
        );
        let odd = batch(0, &head(0x3f), Verdict::Bad { actual: 0xcd });
        assert!(odd.contains("codec=unknown(7) time=append"), "{odd}");
        assert!(
            odd.ends_with("flags=transactional,control crc=BAD(expected 000000ab, is 000000cd)"),
            "{odd}"
        );
    }

    #[test]
    fn a_record_is_shown_with_its_own_offset_and_time() {
        let r = Record {
            timestamp_delta: 4,
            offset_delta: 1,
            key: None,
            value: Some(b"v\"\n".to_vec()),
            headers: vec![("h".into(), Some(vec![0, 255])), ("n".into(), None)],
        };
        assert_eq!(
            record(&head(0), &r, 200),
            r#"  offset=11 timestamp=1004 key=null value="v\"\n" headers=["h"=0x00ff, "n"=null]"#
        );
        assert!(record(&head(0x08), &r, 200).contains("timestamp=1005"), "the broker's clock counts for all");
    }

    #[test]
    fn bytes_are_text_where_they_are_and_cut_where_they_are_long() {
        assert_eq!(field(Some(b""), 200), "\"\"");
        assert_eq!(field(Some("grün".as_bytes()), 200), "\"grün\"");
        assert_eq!(field(Some("grün".as_bytes()), 3), "\"gr\"+3 bytes", "never half a character");
        assert_eq!(field(Some(b"\x1b[2J"), 200), "0x1b5b324a", "nothing that a terminal obeys");
        assert_eq!(field(Some("a\u{202e}b".as_bytes()), 200), r#""a\u{202e}b""#);
        assert_eq!(field(Some(&[0xff, 0xfe, 0xfd]), 2), "0xfffe+1 bytes");
        assert_eq!(field(Some(b"abc"), 0), "\"\"+3 bytes");
    }

    #[test]
    fn another_brokers_segment_tells_its_base_by_name() {
        assert_eq!(foreign_base("00000000000000000042.log"), Some(42));
        for odd in ["42.log", "00000000000000000042.index", "0000000000000000004x.log"] {
            assert_eq!(foreign_base(odd), None, "{odd}");
        }
    }
}
