//! The tables as Markdown: `highwater config-docs`, and the README's part between
//! `<!-- config:begin -->` and `<!-- config:end -->`.

use super::broker_keys::BROKER_KEYS;
use super::key::{Effect, Key};
use super::topic_keys::TOPIC_KEYS;
use std::fmt::Write;

/// Both tables, as they stand in the README.
pub fn markdown() -> String {
    let mut out = String::new();
    out.push_str("### Broker keys\n\n");
    table(&mut out, BROKER_KEYS);
    out.push_str("\n### Topic keys\n\n");
    table(&mut out, TOPIC_KEYS);
    out
}

fn table(out: &mut String, keys: &[Key]) {
    out.push_str("| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n");
    for key in keys {
        let default = match key.default {
            None => "unset".to_owned(),
            Some("") => "empty".to_owned(),
            Some(text) => format!("`{text}`"),
        };
        let inert = if key.effect == Effect::Inert { "*Accepted without effect.* " } else { "" };
        let (name, kind) = (key.name, key.kind.name());
        let allowed = key.kind.range().unwrap_or_else(|| "any".to_owned());
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{name}` | {kind} | {default} | {allowed} | {inert}{} |", key.doc);
    }
}
