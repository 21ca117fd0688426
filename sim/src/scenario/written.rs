//! A plan as a file that a person reads: without what is as it is by default.

use super::{LifeSpec, Plan};
use crate::volume::Options;
use crate::workload::Spec;
use serde::Serialize;
use toml::{Table, Value};

pub fn plan(plan: &Plan) -> String {
    let mut t = table(plan);
    without(&mut t, "life", &table(&LifeSpec::default()));
    without(&mut t, "volume", &table(&Options::default()));
    if let Some(Value::Array(clients)) = t.get_mut("client") {
        for client in clients.iter_mut().filter_map(Value::as_table_mut) {
            strip(client, &default_of(client));
        }
    }
    if let Some(Value::Array(topics)) = t.get_mut("topic") {
        for topic in topics.iter_mut().filter_map(Value::as_table_mut) {
            topic.retain(|_, v| !is_empty(v));
        }
    }
    t.retain(|_, v| !is_empty(v));
    toml::to_string(&t).expect("tables can be written")
}

fn table(of: &impl Serialize) -> Table {
    match Value::try_from(of) {
        Ok(Value::Table(t)) => t,
        other => unreachable!("a struct is a table: {other:?}"),
    }
}

/// A client of the same kind that says nothing else.
fn default_of(client: &Table) -> Table {
    let kept = ["kind", "group"].iter().filter_map(|k| Some((k.to_string(), client.get(*k)?.clone())));
    let plain = Value::Table(kept.collect()).try_into::<Spec>();
    plain.map(|spec| table(&spec)).unwrap_or_default()
}

fn without(t: &mut Table, key: &str, default: &Table) {
    if let Some(Value::Table(inner)) = t.get_mut(key) {
        strip(inner, default);
    }
}

/// Takes out what is as in `default`, but for what says which kind it is.
fn strip(t: &mut Table, default: &Table) {
    t.retain(|k, v| k == "kind" || k == "group" || default.get(k) != Some(v));
}

fn is_empty(v: &Value) -> bool {
    match v {
        Value::Table(t) => t.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::String(s) => s.is_empty(),
        _ => false,
    }
}
