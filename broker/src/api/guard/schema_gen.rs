//! Writes requests by their schema, with every field of a version present: what the guard's tests feed to the guard
//! and to the decoder. That the decoder takes them whole shows that schema and decoder agree.

use super::schema::{Field, Kind};
use super::schemas;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;

/// One request frame (without length prefix) whose arrays have `elements` elements, and with `tags` unknown
/// tagged fields in every place that may have some.
pub(super) fn frame(key: ApiKey, version: i16, elements: u32, tags: u32) -> Bytes {
    let schema = schemas::of(key).expect("a schema");
    let mut out = BytesMut::new();
    out.put_i16(key as i16);
    out.put_i16(version);
    out.put_i32(77);
    out.put_i16(6);
    out.put_slice(b"client");
    let is_flexible = version >= schema.flexible_since;
    let mut writer = Writer { out, version, is_flexible, elements, tags };
    if key.request_header_version(version) >= 2 {
        assert!(is_flexible, "{key:?} {version}: only flexible requests have header version 2");
        writer.tags();
    } else {
        assert!(!is_flexible, "{key:?} {version}: flexible requests have header version 2");
    }
    writer.fields(schema.fields);
    writer.tags();
    writer.out.freeze()
}

struct Writer {
    out: BytesMut,
    version: i16,
    is_flexible: bool,
    elements: u32,
    tags: u32,
}

impl Writer {
    fn fields(&mut self, fields: &[Field]) {
        let version = self.version;
        for f in fields.iter().filter(|f| f.is_in(version)) {
            self.kind(&f.kind);
        }
    }

    fn kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Fixed(size) => self.out.put_bytes(1, *size),
            Kind::String => {
                self.length(3, 2);
                self.out.put_slice(b"abc");
            }
            Kind::Bytes => {
                self.length(200, 4);
                self.out.put_bytes(9, 200);
            }
            Kind::List(of) => {
                self.length(self.elements, 4);
                (0..self.elements).for_each(|_| self.kind(of));
            }
            Kind::Struct(fields) => {
                self.fields(fields);
                self.tags();
            }
            Kind::Array(fields, _) => {
                self.length(self.elements, 4);
                for _ in 0..self.elements {
                    self.fields(fields);
                    self.tags();
                }
            }
        }
    }

    fn tags(&mut self) {
        if !self.is_flexible {
            return;
        }
        self.varint(self.tags);
        for tag in 0..self.tags {
            // High numbers: no message uses them.
            self.varint(10_000 + tag);
            self.varint(5);
            self.out.put_slice(b"later");
        }
    }

    fn length(&mut self, n: u32, width: usize) {
        match (self.is_flexible, width) {
            (true, _) => self.varint(n + 1),
            (false, 2) => self.out.put_i16(n as i16),
            (false, _) => self.out.put_i32(n as i32),
        }
    }

    fn varint(&mut self, mut n: u32) {
        while n >= 0x80 {
            self.out.put_u8(n as u8 | 0x80);
            n >>= 7;
        }
        self.out.put_u8(n as u8);
    }
}
