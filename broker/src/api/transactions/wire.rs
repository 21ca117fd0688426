//! What brokers say to each other beyond Kafka's protocol: one tagged field (KIP-482), which all others pass over.
//!
//! It begins with a version, 0 so far. What follows depends on where it stands; numbers are big-endian:
//!
//! ```text
//! AddPartitionsToTxn  transaction        group (UTF-8, to the end): it is the group that is asked about
//!                     topic              topic id (16)
//!   answer            transaction        error i16, number u64: what is said of the group
//!                     partition          number u64
//! WriteTxnMarkers     marker             number u64, group (UTF-8, to the end; none if empty)
//!                     topic              topic id (16), first offset of the open transaction i64 (-1: not known)
//!   answer            marker             error i16: what became of the group's marker
//!                     partition          first offset of the open transaction i64: send again with it
//! ```

use crate::api::group_terms::text;
use crate::types::{Offset, TopicId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::GroupId;
use std::collections::BTreeMap;

/// "HW".
pub const TAG: i32 = 0x4857;
const VERSION: u8 = 0;

/// The tagged field is not what this version understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tagged field of another broker's cannot be read")]
pub struct Unreadable;

type Read<T> = Result<T, Unreadable>;

/// What stands in the tagged field; `None`: a stock client speaks.
fn payload(fields: &BTreeMap<i32, Bytes>) -> Read<Option<Bytes>> {
    let Some(field) = fields.get(&TAG) else { return Ok(None) };
    let mut field = field.clone();
    match field.try_get_u8() {
        Ok(VERSION) => Ok(Some(field)),
        _ => Err(Unreadable),
    }
}

fn field(write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut b = BytesMut::new();
    b.put_u8(VERSION);
    write(&mut b);
    b.freeze()
}

fn whole<T>(rest: &Bytes, value: T) -> Read<Option<T>> {
    match rest.is_empty() {
        true => Ok(Some(value)),
        false => Err(Unreadable),
    }
}

fn utf8(rest: Bytes) -> Read<String> {
    String::from_utf8(rest.to_vec()).map_err(|_| Unreadable)
}

fn topic_id(rest: &mut Bytes) -> Read<TopicId> {
    let id = rest.try_get_u128().map_err(|_| Unreadable)?;
    Ok(TopicId(uuid::Uuid::from_u128(id)))
}

/// A group, as the participant that is asked about.
pub fn group(name: &str) -> Bytes {
    field(|b| b.put_slice(name.as_bytes()))
}

pub fn read_group(fields: &BTreeMap<i32, Bytes>) -> Read<Option<GroupId>> {
    let Some(rest) = payload(fields)? else { return Ok(None) };
    Ok(Some(GroupId(text(utf8(rest)?))))
}

pub fn topic(id: TopicId) -> Bytes {
    field(|b| b.put_u128(id.0.as_u128()))
}

pub fn read_topic(fields: &BTreeMap<i32, Bytes>) -> Read<Option<TopicId>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let id = topic_id(&mut rest)?;
    whole(&rest, id)
}

pub fn number(number: u64) -> Bytes {
    field(|b| b.put_u64(number))
}

pub fn read_number(fields: &BTreeMap<i32, Bytes>) -> Read<Option<u64>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let number = rest.try_get_u64().map_err(|_| Unreadable)?;
    whole(&rest, number)
}

/// What the coordinator says of a group: an error code, or 0 and the transaction's number.
pub fn group_answer(code: i16, number: u64) -> Bytes {
    field(|b| {
        b.put_i16(code);
        b.put_u64(number);
    })
}

pub fn read_group_answer(fields: &BTreeMap<i32, Bytes>) -> Read<Option<(i16, u64)>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let code = rest.try_get_i16().map_err(|_| Unreadable)?;
    let number = rest.try_get_u64().map_err(|_| Unreadable)?;
    whole(&rest, (code, number))
}

/// A marker's number, and the group that it is for, if it is for one.
pub fn marker(number: u64, group: Option<&str>) -> Bytes {
    field(|b| {
        b.put_u64(number);
        b.put_slice(group.unwrap_or_default().as_bytes());
    })
}

pub fn read_marker(fields: &BTreeMap<i32, Bytes>) -> Read<Option<(u64, Option<String>)>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let number = rest.try_get_u64().map_err(|_| Unreadable)?;
    let group = Some(utf8(rest)?).filter(|g| !g.is_empty());
    Ok(Some((number, group)))
}

/// Where a marker goes, and with what it was sent back before.
pub fn marker_topic(id: TopicId, first: Option<Offset>) -> Bytes {
    field(|b| {
        b.put_u128(id.0.as_u128());
        b.put_i64(first.map_or(-1, |o| o.0));
    })
}

pub fn read_marker_topic(fields: &BTreeMap<i32, Bytes>) -> Read<Option<(TopicId, Option<Offset>)>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let id = topic_id(&mut rest)?;
    let first = rest.try_get_i64().map_err(|_| Unreadable)?;
    whole(&rest, (id, Some(Offset(first)).filter(|o| o.0 >= 0)))
}

pub fn first(offset: Offset) -> Bytes {
    field(|b| b.put_i64(offset.0))
}

pub fn read_first(fields: &BTreeMap<i32, Bytes>) -> Read<Option<Offset>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let first = rest.try_get_i64().map_err(|_| Unreadable)?;
    whole(&rest, Offset(first))
}

pub fn outcome(code: i16) -> Bytes {
    field(|b| b.put_i16(code))
}

pub fn read_outcome(fields: &BTreeMap<i32, Bytes>) -> Read<Option<i16>> {
    let Some(mut rest) = payload(fields)? else { return Ok(None) };
    let code = rest.try_get_i16().map_err(|_| Unreadable)?;
    whole(&rest, code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(b: Bytes) -> BTreeMap<i32, Bytes> {
        BTreeMap::from([(TAG, b)])
    }

    #[test]
    fn what_is_written_reads_back() {
        let id = TopicId(uuid::Uuid::from_u128(7 << 100 | 5));
        assert_eq!(read_topic(&fields(topic(id))), Ok(Some(id)));
        assert_eq!(read_number(&fields(number(u64::MAX))), Ok(Some(u64::MAX)));
        assert_eq!(read_group(&fields(group("gä"))).unwrap().unwrap().as_str(), "gä");
        assert_eq!(read_group_answer(&fields(group_answer(51, 9))), Ok(Some((51, 9))));
        assert_eq!(read_marker(&fields(marker(3, None))), Ok(Some((3, None))));
        assert_eq!(read_marker(&fields(marker(3, Some("g")))), Ok(Some((3, Some("g".into())))));
        for first in [None, Some(Offset(0)), Some(Offset(12))] {
            assert_eq!(read_marker_topic(&fields(marker_topic(id, first))), Ok(Some((id, first))));
        }
        assert_eq!(read_first(&fields(first(Offset(0)))), Ok(Some(Offset(0))));
        assert_eq!(read_outcome(&fields(outcome(-1))), Ok(Some(-1)));
    }

    #[test]
    fn a_stock_client_says_nothing_of_it_and_a_later_version_is_not_taken_for_a_stock_client() {
        assert_eq!(read_marker(&BTreeMap::new()), Ok(None));
        let mut later = number(5).to_vec();
        later[0] = 1;
        assert_eq!(read_number(&fields(later.into())), Err(Unreadable));
        assert_eq!(read_number(&fields(Bytes::new())), Err(Unreadable));
        assert_eq!(read_number(&fields(outcome(5))), Err(Unreadable), "too short");
        assert_eq!(read_outcome(&fields(number(5))), Err(Unreadable), "too long");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(b in prop::collection::vec(any::<u8>(), 0..40)) {
            let f = fields(b.into());
            let _ = (read_topic(&f), read_number(&f), read_group(&f), read_group_answer(&f), read_marker(&f));
            let _ = (read_marker_topic(&f), read_first(&f), read_outcome(&f));
        }
    }
}
