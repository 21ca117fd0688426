//! What a row of the configuration tables says, and how a value is checked against it.

/// The type of a value and its range, with Kafka's type names (DescribeConfigs, KIP-569).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Bool,
    /// A 32-bit number from `min` to `max`.
    Int(i64, i64),
    /// A 64-bit number from `min` to `max`.
    Long(i64, i64),
    /// A number from 0 to 1.
    Ratio,
    Text,
    /// A comma-separated list. Empty `choices`: any words.
    List(&'static [&'static str]),
    Choice(&'static [&'static str]),
}

/// Whether a key does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Served,
    /// Accepted and shown, because clients and tools set it; it changes nothing here.
    Inert,
}

/// A row of a configuration table.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// `None` is unset (Kafka: null).
    pub default: Option<&'static str>,
    pub doc: &'static str,
    pub effect: Effect,
    /// Values that are well formed and not served, with the reason.
    pub refused: &'static [(&'static str, &'static str)],
    /// For a topic key: the broker keys that give its default, the strongest first, and what one of
    /// their units is in this key's unit.
    pub synonyms: &'static [(&'static str, i64)],
}

impl Key {
    pub const fn served(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
        Key { name, kind, default: Some(default), doc, effect: Effect::Served, refused: &[], synonyms: &[] }
    }

    pub const fn unset(name: &'static str, kind: Kind, doc: &'static str) -> Key {
        Key { name, kind, default: None, doc, effect: Effect::Served, refused: &[], synonyms: &[] }
    }

    pub const fn inert(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
        Key { name, kind, default: Some(default), doc, effect: Effect::Inert, refused: &[], synonyms: &[] }
    }

    pub const fn refusing(mut self, refused: &'static [(&'static str, &'static str)]) -> Key {
        self.refused = refused;
        self
    }

    pub const fn defaulting_to(mut self, synonyms: &'static [(&'static str, i64)]) -> Key {
        self.synonyms = synonyms;
        self
    }

    /// The value in its canonical spelling, or the reason why it is refused.
    pub fn check(&self, value: &str) -> Result<String, String> {
        let value = self.kind.check(value)?;
        let parts = value.split(',').map(str::trim);
        for part in parts {
            if let Some((_, why)) = self.refused.iter().find(|(v, _)| *v == part) {
                return Err((*why).to_owned());
            }
        }
        Ok(value)
    }
}

impl Kind {
    fn check(self, value: &str) -> Result<String, String> {
        let value = value.trim();
        match self {
            Kind::Bool => match value.to_ascii_lowercase().as_str() {
                b @ ("true" | "false") => Ok(b.to_owned()),
                _ => Err("neither true nor false".to_owned()),
            },
            Kind::Int(min, max) | Kind::Long(min, max) => {
                let n: i64 = value.parse().map_err(|_| "not a whole number".to_owned())?;
                if n < min || n > max {
                    return Err(self.range().map_or_else(String::new, |r| format!("out of range ({r})")));
                }
                Ok(n.to_string())
            }
            Kind::Ratio => match value.parse::<f64>() {
                Ok(f) if (0.0..=1.0).contains(&f) => Ok(f.to_string()),
                _ => Err("not a number from 0 to 1".to_owned()),
            },
            Kind::Text => Ok(value.to_owned()),
            Kind::List(choices) => {
                let words: Vec<&str> = value.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
                if !choices.is_empty() {
                    if words.is_empty() {
                        return Err(format!("empty; one or more of {}", choices.join(", ")));
                    }
                    if let Some(w) = words.iter().find(|w| !choices.contains(w)) {
                        return Err(format!("{w} is none of {}", choices.join(", ")));
                    }
                }
                Ok(words.join(","))
            }
            Kind::Choice(choices) => choices
                .iter()
                .find(|c| c.eq_ignore_ascii_case(value))
                .map(|c| (*c).to_owned())
                .ok_or_else(|| format!("none of {}", choices.join(", "))),
        }
    }

    /// The allowed values in words, if they are limited.
    pub fn range(self) -> Option<String> {
        match self {
            Kind::Bool => Some("true, false".to_owned()),
            Kind::Int(min, i) if i == i64::from(i32::MAX) => Some(format!("at least {min}")),
            Kind::Long(min, i64::MAX) => Some(format!("at least {min}")),
            Kind::Int(min, max) | Kind::Long(min, max) => Some(format!("{min} to {max}")),
            Kind::Ratio => Some("0 to 1".to_owned()),
            Kind::Text => None,
            Kind::List(c) | Kind::Choice(c) if c.is_empty() => None,
            Kind::List(c) | Kind::Choice(c) => Some(c.join(", ")),
        }
    }

    /// Kafka's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bool => "boolean",
            Kind::Int(..) => "int",
            Kind::Long(..) => "long",
            Kind::Ratio => "double",
            Kind::Text | Kind::Choice(_) => "string",
            Kind::List(_) => "list",
        }
    }
}

/// The row called `name`.
pub(super) fn find(table: &'static [Key], name: &str) -> Option<&'static Key> {
    table.iter().find(|k| k.name == name)
}

/// The name in `table` that is most like `name`, if any is like it at all.
pub(super) fn nearest(table: &'static [Key], name: &str) -> Option<&'static str> {
    table
        .iter()
        .map(|k| (strsim::jaro_winkler(k.name, name), k.name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
