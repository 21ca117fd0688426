//! How requests are described: fields in order, with the versions that have them.

/// What a field holds. Whether it may be null is left to the decoder; a null is walked as nothing.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A number, boolean or uuid of so many bytes.
    Fixed(usize),
    /// 16-bit length, or compact.
    String,
    /// 32-bit length, or compact.
    Bytes,
    /// An array of numbers or strings: no tagged fields between elements.
    List(&'static Kind),
    /// An array of structs, each with tagged fields in flexible versions.
    Array(&'static [Field], Tags),
    /// A struct, with tagged fields in flexible versions.
    Struct(&'static [Field]),
}

/// The tagged fields of a struct that the decoder knows and decodes, whatever length they announce.
pub(super) type Tags = &'static [(u32, Kind)];

#[derive(Clone, Copy)]
pub(super) struct Field {
    pub kind: Kind,
    pub since: i16,
    pub until: i16,
}

impl Field {
    /// Only versions from `since` have the field.
    pub const fn since(self, since: i16) -> Field {
        Field { since, ..self }
    }

    /// Only versions to `until` have the field.
    pub const fn until(self, until: i16) -> Field {
        Field { until, ..self }
    }

    pub fn is_in(&self, version: i16) -> bool {
        (self.since..=self.until).contains(&version)
    }
}

const fn always(kind: Kind) -> Field {
    Field { kind, since: 0, until: i16::MAX }
}

pub(super) const BOOL: Field = always(Kind::Fixed(1));
pub(super) const INT8: Field = always(Kind::Fixed(1));
pub(super) const INT16: Field = always(Kind::Fixed(2));
pub(super) const INT32: Field = always(Kind::Fixed(4));
pub(super) const INT64: Field = always(Kind::Fixed(8));
pub(super) const UUID: Field = always(Kind::Fixed(16));
pub(super) const STRING: Field = always(Kind::String);
pub(super) const BYTES: Field = always(Kind::Bytes);
pub(super) const INT32S: Field = always(Kind::List(&Kind::Fixed(4)));
pub(super) const INT64S: Field = always(Kind::List(&Kind::Fixed(8)));
pub(super) const STRINGS: Field = always(Kind::List(&Kind::String));

pub(super) const fn array(of: &'static [Field]) -> Field {
    always(Kind::Array(of, &[]))
}

pub(super) const fn tagged_array(of: &'static [Field], tags: Tags) -> Field {
    always(Kind::Array(of, tags))
}

/// One request body.
pub(super) struct Schema {
    pub fields: &'static [Field],
    /// The first version with compact lengths and tagged fields (KIP-482).
    pub flexible_since: i16,
    /// Those of the body itself.
    pub tags: Tags,
}

pub(super) const NEVER: i16 = i16::MAX;

pub(super) const fn request(flexible_since: i16, fields: &'static [Field]) -> Schema {
    Schema { fields, flexible_since, tags: &[] }
}
