//! Where settings come from: layers of `key = value`, the later ones the stronger.
//!
//! This module parses text and environment that it is handed; it reads neither.

use super::broker_keys::{BROKER_KEYS, FAMILIES};
use super::error::ConfigError;
use super::key::{find, nearest};
use super::topic_keys::TOPIC_KEYS;
use std::collections::BTreeMap;
use std::fmt;

/// Where a setting was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Derived from the machine, such as its limit of open files: a default, not somebody's choice.
    Host,
    File(String),
    Env(String),
    /// `--set`
    Set,
    /// A flag of its own, such as `--data`.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Host => f.write_str("this machine"),
            Origin::File(path) => f.write_str(path),
            Origin::Env(name) => f.write_str(name),
            Origin::Set => f.write_str("--set"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One setting, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

/// Settings of equal strength.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer(pub Vec<Setting>);

impl Layer {
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<String>, origin: Origin) {
        self.0.push(Setting { key: key.into(), value: value.into(), origin });
    }

    /// A TOML file's settings. Keys may be quoted whole (`"log.segment.bytes" = 1`), dotted, or in
    /// tables; arrays become comma-separated lists.
    pub fn from_toml(path: &str, text: &str) -> Result<Layer, ConfigError> {
        let file = |reason: String| ConfigError::File { path: path.to_owned(), reason };
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().and_then(|s| text.get(..s.start)).map(|t| t.matches('\n').count() + 1);
            let what = e.message().replace('\n', " ");
            file(line.map_or_else(|| what.clone(), |n| format!("line {n}: {what}")))
        })?;
        let mut flat = BTreeMap::new();
        flatten("", table, &mut flat).map_err(file)?;
        let mut layer = Layer::default();
        for (key, value) in flat {
            layer.put(key, value, Origin::File(path.to_owned()));
        }
        Ok(layer)
    }

    /// What the environment's `HIGHWATER_…` variables set: `HIGHWATER_LOG_SEGMENT_BYTES` is
    /// `log.segment.bytes`. `HIGHWATER_CONFIG` names the file and is no setting; nor are the variables by
    /// which container platforms announce a service that is itself called `highwater`.
    pub fn from_env(vars: impl IntoIterator<Item = (String, String)>) -> Result<Layer, ConfigError> {
        let mut layer = Layer::default();
        let mut vars: Vec<(String, String)> = vars.into_iter().collect();
        vars.sort();
        for (name, value) in vars {
            let Some(rest) = name.strip_prefix("HIGHWATER_") else { continue };
            if rest == "CONFIG" || is_service_link(rest) {
                continue;
            }
            let key = BROKER_KEYS.iter().map(|k| k.name).find(|k| env_name(k) == rest);
            let key = key.map_or_else(|| rest.to_lowercase().replace('_', "."), str::to_owned);
            layer.put(key, value, Origin::Env(name));
        }
        Ok(layer)
    }

    /// Adds one `key=value`, as given to `--set`.
    pub fn assign(&mut self, given: &str) -> Result<(), ConfigError> {
        match given.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                self.put(key.trim(), value, Origin::Set);
                Ok(())
            }
            _ => Err(ConfigError::NotAnAssignment { given: given.to_owned() }),
        }
    }
}

fn env_name(key: &str) -> String {
    key.replace('.', "_").to_uppercase()
}

/// Kubernetes and Docker links set these for every pod beside a service of this name.
fn is_service_link(rest: &str) -> bool {
    let port_link = rest == "PORT" || rest.ends_with("_PORT") || rest.contains("PORT_");
    rest.contains("SERVICE_HOST") || rest.contains("SERVICE_PORT") || port_link
}

fn flatten(prefix: &str, table: toml::Table, out: &mut BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        if let toml::Value::Table(inner) = value {
            flatten(&key, inner, out)?;
            continue;
        }
        let text = scalar(&key, value)?;
        if out.insert(key.clone(), text).is_some() {
            return Err(format!("{key} is set twice"));
        }
    }
    Ok(())
}

fn scalar(key: &str, value: toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(s) => Ok(s),
        toml::Value::Integer(n) => Ok(n.to_string()),
        toml::Value::Float(x) => Ok(x.to_string()),
        toml::Value::Boolean(b) => Ok(b.to_string()),
        toml::Value::Array(items) => {
            let words: Result<Vec<String>, String> = items.into_iter().map(|v| scalar(key, v)).collect();
            Ok(words?.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => {
            Err(format!("{key} is neither text, number, truth value nor list of these"))
        }
    }
}

/// What was set, checked: by key, in canonical spelling.
pub type SetValues = BTreeMap<&'static str, SetValue>;

/// A checked setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetValue {
    pub value: String,
    pub origin: Origin,
}

/// Lays the layers over one another, the last the strongest.
pub(super) fn merge(layers: Vec<Layer>) -> Result<SetValues, ConfigError> {
    let mut merged = SetValues::new();
    for layer in layers {
        let mut of_layer = SetValues::new();
        for Setting { key, value, origin } in layer.0 {
            let row = find(BROKER_KEYS, &key).ok_or_else(|| unknown(&key).at(&origin))?;
            let value =
                row.check(&value).map_err(|why| ConfigError::bad(row.name, &value, why).at(&origin))?;
            of_layer.insert(row.name, SetValue { value, origin });
        }
        for name in of_layer.keys() {
            for kin in FAMILIES.iter().filter(|f| f.contains(name)).flat_map(|f| f.iter()) {
                merged.remove(kin);
            }
        }
        merged.extend(of_layer);
    }
    Ok(merged)
}

fn unknown(key: &str) -> ConfigError {
    let broker_default = find(TOPIC_KEYS, key).and_then(|k| k.synonyms.first());
    let hint = match (broker_default, nearest(BROKER_KEYS, key)) {
        (Some((broker, _)), _) => Some(format!("it is a topic's key, whose default is set by {broker}")),
        (None, Some(near)) => Some(format!("did you mean {near}?")),
        (None, None) => Some("`highwater config-docs` lists them all".to_owned()),
    };
    ConfigError::UnknownKey { key: key.to_owned(), origin: None, hint }
}
