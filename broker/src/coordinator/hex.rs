//! Opaque bytes as hex digits in JSON documents (serde `with`).

use bytes::Bytes;
use serde::{de::Error, Deserialize, Deserializer, Serializer};
use std::borrow::Cow;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    let text: String = bytes.iter().flat_map(|b| [digit(b >> 4), digit(*b)]).collect();
    serializer.serialize_str(&text)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    decode(&text).ok_or_else(|| D::Error::custom("not a string of hex digits"))
}

fn decode(text: &str) -> Option<Bytes> {
    let value = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => Some(value(high)? << 4 | value(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, Deserialize)]
    struct Doc(#[serde(with = "super")] Bytes);

    #[test]
    fn every_byte_comes_back() {
        let all: Bytes = (0..=255).collect();
        let text = serde_json::to_string(&Doc(all.clone())).unwrap();
        assert!(text.starts_with("\"000102"));
        assert_eq!(serde_json::from_str::<Doc>(&text).unwrap().0, all);
    }

    #[test]
    fn what_is_not_hex_is_refused() {
        for bad in ["\"0\"", "\"zz\"", "\"é\"", "7"] {
            assert!(serde_json::from_str::<Doc>(bad).is_err(), "{bad}");
        }
    }
}
