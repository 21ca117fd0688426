//! What can be wrong with a configuration: always one line, naming the key, the value and where it was set.

use super::layer::Origin;
use std::fmt;

/// A configuration that is refused. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("unknown configuration key {key}{}{}", from(.origin), clause(.hint))]
    UnknownKey { key: String, origin: Option<Origin>, hint: Option<String> },
    #[error("{key} = {value:?}{}: {reason}", from(.origin))]
    BadValue { key: String, value: String, reason: String, origin: Option<Origin> },
    /// Values that are each allowed and do not go together.
    #[error("{0}")]
    Conflict(String),
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
    #[error("{given:?} is not of the form key=value")]
    NotAnAssignment { given: String },
}

impl ConfigError {
    pub(super) fn bad(key: &str, value: &str, reason: impl Into<String>) -> Self {
        ConfigError::BadValue {
            key: key.to_owned(),
            value: value.to_owned(),
            reason: reason.into(),
            origin: None,
        }
    }

    /// The same error, saying where the setting came from.
    pub(super) fn at(mut self, at: &Origin) -> Self {
        if let ConfigError::UnknownKey { origin, .. } | ConfigError::BadValue { origin, .. } = &mut self {
            origin.get_or_insert_with(|| at.clone());
        }
        self
    }
}

fn from(origin: &Option<Origin>) -> impl fmt::Display {
    match origin {
        Some(o) => format!(" (from {o})"),
        None => String::new(),
    }
}

fn clause(hint: &Option<String>) -> impl fmt::Display {
    match hint {
        Some(h) => format!("; {h}"),
        None => String::new(),
    }
}
