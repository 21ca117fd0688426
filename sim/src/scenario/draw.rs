//! What a scenario file leaves open, and how a seed settles it.
//!
//! Any value may be a range, a choice or a chance:
//!
//! ```toml
//! rate = { from = 5, to = 40 }          # whole numbers give a whole number, both ends included
//! kind = { any = ["local", "nfs"] }     # one of them
//! idempotent = { chance = 0.5 }         # true or false
//! ```
//!
//! Each draw has a stream of its own, made from the seed and from where the value stands: a change in
//! one place of the file leaves every other draw as it was.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use toml::{Table, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The stream of the draws at `place`.
pub fn stream(seed: u64, place: &str) -> SmallRng {
    SmallRng::seed_from_u64(xxh3_64_with_seed(place.as_bytes(), seed))
}

/// Settles everything in `value`.
pub fn settle(value: Value, seed: u64, place: &str) -> Result<Value, String> {
    match value {
        Value::Table(t) => table(t, seed, place),
        Value::Array(items) => {
            let each = |(i, v)| settle(v, seed, &format!("{place}[{i}]"));
            Ok(Value::Array(items.into_iter().enumerate().map(each).collect::<Result<_, _>>()?))
        }
        plain => Ok(plain),
    }
}

fn table(t: Table, seed: u64, place: &str) -> Result<Value, String> {
    let keys: Vec<&str> = t.keys().map(String::as_str).collect();
    match keys[..] {
        ["from", "to"] => range(&t["from"], &t["to"], seed, place),
        ["any"] => {
            let Value::Array(choices) = &t["any"] else { return Err(format!("{place}.any: not a list")) };
            if choices.is_empty() {
                return Err(format!("{place}.any: nothing to choose from"));
            }
            let n = stream(seed, place).gen_range(0..choices.len());
            settle(choices[n].clone(), seed, &format!("{place}.any[{n}]"))
        }
        ["chance"] => Ok(Value::Boolean(happens(&t["chance"], seed, place)?)),
        _ => {
            let each = |(k, v): (String, Value)| {
                let v = settle(v, seed, &format!("{place}.{k}"))?;
                Ok::<_, String>((k, v))
            };
            Ok(Value::Table(t.into_iter().map(each).collect::<Result<_, _>>()?))
        }
    }
}

fn range(from: &Value, to: &Value, seed: u64, place: &str) -> Result<Value, String> {
    let mut rng = stream(seed, place);
    match (from, to) {
        (Value::Integer(a), Value::Integer(b)) if a <= b => Ok(Value::Integer(rng.gen_range(*a..=*b))),
        _ => match (number(from), number(to)) {
            // A thousandth is enough, and keeps what is written back short.
            (Some(a), Some(b)) if a <= b => {
                Ok(Value::Float((rng.gen_range(a..=b) * 1000.0).round() / 1000.0))
            }
            _ => Err(format!("{place}: not a range of numbers, the smaller one first")),
        },
    }
}

/// Whether something with the chance `p` (0 to 1) exists.
pub fn happens(p: &Value, seed: u64, place: &str) -> Result<bool, String> {
    let p = number(p).filter(|p| (0.0..=1.0).contains(p)).ok_or(format!("{place}: a chance is 0 to 1"))?;
    Ok(stream(seed, &format!("{place}?")).gen_bool(p))
}

pub fn number(v: &Value) -> Option<f64> {
    match v {
        Value::Integer(n) => Some(*n as f64),
        Value::Float(n) => Some(*n),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str, seed: u64) -> Value {
        settle(Value::Table(text.parse().expect("TOML")), seed, "").expect("settles")
    }

    #[test]
    fn a_range_gives_all_of_its_whole_numbers_and_no_other() {
        let draw = |seed| drawn("n = { from = 2, to = 4 }", seed)["n"].as_integer().expect("a whole number");
        let all: std::collections::BTreeSet<i64> = (0..200).map(draw).collect();
        assert_eq!(all, [2, 3, 4].into());
    }

    #[test]
    fn what_stands_elsewhere_changes_no_draw() {
        let a = drawn("x = { from = 0, to = 1000000 }", 7);
        let b = drawn("y = { from = 0, to = 5 }\nx = { from = 0, to = 1000000 }", 7);
        assert_eq!(a["x"], b["x"]);
        assert_ne!(a["x"], drawn("x = { from = 0, to = 1000000 }", 8)["x"]);
    }

    #[test]
    fn choices_may_hold_ranges_and_chances_are_met() {
        let kinds = (0..300).map(|s| drawn("v = { any = [{ from = 1, to = 2 }, 'x'] }", s)["v"].clone());
        let kinds: Vec<Value> = kinds.collect();
        assert!([1.into(), 2.into(), Value::from("x")].iter().all(|k| kinds.contains(k)));
        let yes = (0..1000).filter(|s| drawn("b = { chance = 0.25 }", *s)["b"] == true.into()).count();
        assert!((200..300).contains(&yes), "{yes} of 1000");
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        for text in [
            "a = { from = 3, to = 1 }",
            "a = { any = [] }",
            "a = { chance = 2 }",
            "a = { from = 'x', to = 2 }",
        ] {
            let e = settle(Value::Table(text.parse().expect("TOML")), 0, "").expect_err(text);
            assert!(e.starts_with(".a"), "{e}");
        }
    }
}
