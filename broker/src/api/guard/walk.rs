//! Walks a request by its schema. No recursion beyond the schema's own depth; time in proportion to the bytes.

use super::schema::{Field, Kind, Schema};

/// Array elements and tagged fields that one request may have. A fetch of every partition of a large broker has some
/// ten thousand.
pub const MAX_ELEMENTS: usize = 1 << 18;

/// What an element takes in memory once decoded, at most.
const ELEMENT_BYTES: usize = 128;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it ends early")]
    EndsEarly,
    #[error("a length of {announced} where {left} bytes are left")]
    TooLong { announced: u64, left: usize },
    #[error("a length of {0}")]
    Negative(i32),
    #[error("a varint of more than 32 bits")]
    Varint,
    #[error("more than {MAX_ELEMENTS} elements")]
    TooMany,
    #[error("a tagged field whose length is not that of its content")]
    TagLength,
    #[error("this API has no schema")]
    NoSchema,
}

/// What decoding a request will allocate beside the frame itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    pub elements: usize,
    /// Bytes behind the body. They are ignored, as Kafka ignores them.
    pub left_over: usize,
}

impl Weight {
    pub fn bytes(&self) -> usize {
        self.elements * ELEMENT_BYTES
    }
}

pub(super) fn body(schema: &Schema, version: i16, body: &[u8]) -> Result<Weight, Malformed> {
    let mut walk = Walk { left: body, version, is_flexible: version >= schema.flexible_since, elements: 0 };
    walk.fields(schema.fields)?;
    walk.tags(schema.tags)?;
    Ok(Weight { elements: walk.elements, left_over: walk.left.len() })
}

/// Key, version, correlation id and client id; then tagged fields from header version 2. (The client id is
/// never compact, KIP-511.)
pub(super) fn header(frame: &[u8], header_version: i16) -> Result<(), Malformed> {
    let mut walk = Walk { left: frame, version: header_version, is_flexible: false, elements: 0 };
    walk.skip(8)?;
    walk.kind(&Kind::String)?;
    walk.is_flexible = header_version >= 2;
    walk.tags(&[])
}

struct Walk<'a> {
    left: &'a [u8],
    version: i16,
    is_flexible: bool,
    elements: usize,
}

impl Walk<'_> {
    fn fields(&mut self, fields: &[Field]) -> Result<(), Malformed> {
        let version = self.version;
        fields.iter().filter(|f| f.is_in(version)).try_for_each(|f| self.kind(&f.kind))
    }

    fn kind(&mut self, kind: &Kind) -> Result<(), Malformed> {
        match kind {
            Kind::Fixed(size) => self.skip(*size),
            Kind::String => {
                let length = self.length(2)?;
                self.skip_announced(length)
            }
            Kind::Bytes => {
                let length = self.length(4)?;
                self.skip_announced(length)
            }
            Kind::List(of) => self.repeat(self.least(of), |walk| walk.kind(of)),
            Kind::Array(fields, tags) => self.repeat(self.least_of_struct(fields), |walk| {
                walk.fields(fields)?;
                walk.tags(tags)
            }),
            Kind::Struct(fields) => {
                self.fields(fields)?;
                self.tags(&[])
            }
        }
    }

    fn repeat(
        &mut self,
        least: usize,
        mut one: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let count = self.length(4)?;
        let room = self.left.len() / least.max(1);
        if count > room as u64 {
            return Err(Malformed::TooLong { announced: count, left: self.left.len() });
        }
        self.count(count)?;
        (0..count).try_for_each(|_| one(self))
    }

    fn count(&mut self, more: u64) -> Result<(), Malformed> {
        self.elements = usize::try_from(more).map_or(usize::MAX, |n| self.elements.saturating_add(n));
        if self.elements > MAX_ELEMENTS {
            return Err(Malformed::TooMany);
        }
        Ok(())
    }

    /// Tagged fields. Those in `known` are decoded as what they are; of the others the decoder believes the length.
    fn tags(&mut self, known: &[(u32, Kind)]) -> Result<(), Malformed> {
        if !self.is_flexible {
            return Ok(());
        }
        let count = self.varint()?;
        if u64::from(count) > self.left.len() as u64 / 2 {
            return Err(Malformed::TooLong { announced: count.into(), left: self.left.len() });
        }
        self.count(count.into())?;
        for _ in 0..count {
            let tag = self.varint()?;
            let size = self.varint()?;
            match known.iter().find(|(t, _)| *t == tag) {
                None => self.skip_announced(size.into())?,
                Some((_, kind)) => {
                    let before = self.left.len();
                    self.kind(kind)?;
                    if before - self.left.len() != size as usize {
                        return Err(Malformed::TagLength);
                    }
                }
            }
        }
        Ok(())
    }

    /// The length of a string (`width` 2), byte string or array (4); null counts as nothing.
    fn length(&mut self, width: usize) -> Result<u64, Malformed> {
        if self.is_flexible {
            return Ok(u64::from(self.varint()?.saturating_sub(1)));
        }
        let length = match width {
            2 => i32::from(i16::from_be_bytes(self.take()?)),
            _ => i32::from_be_bytes(self.take()?),
        };
        match length {
            -1 => Ok(0),
            n => u64::try_from(n).map_err(|_| Malformed::Negative(n)),
        }
    }

    fn varint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.take()?;
            if shift == 28 && byte > 0x0f {
                return Err(Malformed::Varint);
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// The fewest bytes that one element takes.
    fn least(&self, kind: &Kind) -> usize {
        match kind {
            Kind::Fixed(size) => *size,
            Kind::Struct(fields) => self.least_of_struct(fields),
            _ if self.is_flexible => 1,
            Kind::String => 2,
            Kind::Bytes | Kind::List(_) | Kind::Array(..) => 4,
        }
    }

    fn least_of_struct(&self, fields: &[Field]) -> usize {
        let fields = fields.iter().filter(|f| f.is_in(self.version)).map(|f| self.least(&f.kind));
        fields.sum::<usize>() + usize::from(self.is_flexible)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, left) = self.left.split_first_chunk::<N>().ok_or(Malformed::EndsEarly)?;
        self.left = left;
        Ok(*taken)
    }

    fn skip(&mut self, size: usize) -> Result<(), Malformed> {
        self.left = self.left.get(size..).ok_or(Malformed::EndsEarly)?;
        Ok(())
    }

    fn skip_announced(&mut self, length: u64) -> Result<(), Malformed> {
        let too_long = Malformed::TooLong { announced: length, left: self.left.len() };
        let left = usize::try_from(length).ok().and_then(|n| self.left.get(n..));
        self.left = left.ok_or(too_long)?;
        Ok(())
    }
}
