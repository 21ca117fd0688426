use super::schema_gen::frame;
use super::*;
use crate::api::dispatch::{probe, TABLE};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ReplicaState};
use kafka_protocol::messages::{FetchRequest, ProduceRequest, RequestHeader};
use kafka_protocol::protocol::{Encodable, StrBytes};
use proptest::prelude::*;
use uuid::Uuid;

fn served() -> impl Iterator<Item = (ApiKey, i16)> {
    TABLE.iter().flat_map(|s| (s.min..=s.max).map(|v| (s.key, v)))
}

/// Splits a frame from [`frame`] into its header and body.
fn body(key: ApiKey, version: i16, frame: &Bytes) -> Bytes {
    let mut rest = frame.clone();
    let header_version = key.request_header_version(version);
    check_header(&rest, header_version).unwrap();
    <RequestHeader as kafka_protocol::protocol::Decodable>::decode(&mut rest, header_version).unwrap();
    rest
}

#[test]
fn guard_and_decoder_take_every_served_request_whole() {
    for (key, version) in served() {
        for (elements, tags) in [(0, 0), (1, 0), (3, 2)] {
            let frame = frame(key, version, elements, tags);
            let weight = check_body(key, version, &body(key, version, &frame))
                .unwrap_or_else(|e| panic!("{key:?} {version}: the guard refuses: {e}"));
            assert_eq!(weight.left_over, 0, "{key:?} {version}: the guard's end");
            let left = probe(frame).unwrap_or_else(|e| panic!("{key:?} {version}: the decoder refuses: {e}"));
            assert_eq!(left, 0, "{key:?} {version}: the decoder's end");
        }
    }
}

#[test]
fn a_request_that_ends_early_is_refused_wherever_it_ends() {
    for (key, version) in served() {
        let whole = frame(key, version, 2, 1);
        for end in 0..whole.len() {
            assert!(probe(whole.slice(..end)).is_err(), "{key:?} {version} cut at {end} of {}", whole.len());
        }
    }
}

#[test]
fn bytes_behind_a_request_are_ignored() {
    for (key, version) in served() {
        let mut long = BytesMut::from(&frame(key, version, 1, 1)[..]);
        long.put_slice(b"more");
        assert_eq!(probe(long.freeze()).unwrap(), 4, "{key:?} {version}");
    }
}

#[test]
fn an_array_is_believed_only_as_far_as_bytes_follow() {
    // Metadata 1: [STRING]; each takes two bytes at least.
    let announce = |count: i32, follow: usize| {
        let mut b = BytesMut::new();
        b.put_i32(count);
        b.put_bytes(0, follow);
        check_body(ApiKey::Metadata, 1, &b)
    };
    assert!(announce(5, 10).is_ok());
    assert_eq!(announce(6, 10), Err(Malformed::TooLong { announced: 6, left: 10 }));
    assert!(matches!(announce(i32::MAX, 1000), Err(Malformed::TooLong { .. })));
    assert_eq!(announce(-2, 10), Err(Malformed::Negative(-2)));
    assert!(announce(-1, 0).is_ok(), "null is for the decoder to judge");
    assert!(announce(MAX_ELEMENTS as i32, 2 * MAX_ELEMENTS).is_ok());
    let more = MAX_ELEMENTS + 1;
    assert_eq!(announce(more as i32, 2 * more), Err(Malformed::TooMany));
}

#[test]
fn a_known_tagged_field_must_be_as_long_as_it_says() {
    // The decoder reads the cluster id and does not look at the announced length, so that guard and decoder
    // would part ways.
    let request = FetchRequest::default().with_cluster_id(Some(StrBytes::from_static_str("me")));
    let mut b = BytesMut::new();
    request.encode(&mut b, 12).unwrap();
    assert!(check_body(ApiKey::Fetch, 12, &b).is_ok());
    let size_at = b.len() - 4;
    assert_eq!(&b[size_at..], [3, 3, b'm', b'e']);
    b[size_at] = 2;
    assert_eq!(check_body(ApiKey::Fetch, 12, &b), Err(Malformed::TagLength));
}

#[test]
fn the_tagged_fields_of_followers_are_walked_as_they_are_decoded() {
    let partition = FetchPartition::default().with_replica_directory_id(Uuid::from_u128(7));
    let topic = FetchTopic::default().with_partitions(vec![partition]);
    let state = ReplicaState::default().with_replica_id(3.into()).with_replica_epoch(4);
    let request = FetchRequest::default().with_replica_state(state).with_topics(vec![topic]);
    let mut b = BytesMut::new();
    request.encode(&mut b, 17).unwrap();
    assert_eq!(check_body(ApiKey::Fetch, 17, &b).map(|w| w.left_over), Ok(0));
    // Each says how long it is: a directory id 16 bytes, id and epoch of a replica 12 and their own tagged fields.
    let directory = b.windows(2).position(|w| w == [0, 16]).unwrap() + 1;
    let replica = b.windows(2).rposition(|w| w == [1, 13]).unwrap() + 1;
    for at in [directory, replica] {
        let mut short = b.clone();
        short[at] -= 1;
        assert_eq!(check_body(ApiKey::Fetch, 17, &short), Err(Malformed::TagLength));
    }
}

#[test]
fn the_library_encodes_what_the_guard_expects() {
    // The other tests take the schema's word for the encoding; here a client speaks.
    let mut b = BytesMut::new();
    ProduceRequest::default().with_transactional_id(None).encode(&mut b, 9).unwrap();
    assert_eq!(check_body(ApiKey::Produce, 9, &b), Ok(Weight::default()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_guard_or_decoder_panic(
        at in any::<prop::sample::Index>(),
        junk in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let all: Vec<_> = served().collect();
        let (key, version) = *at.get(&all);
        let mut b = BytesMut::new();
        b.put_i16(key as i16);
        b.put_i16(version);
        b.put_slice(&junk);
        let _ = probe(b.freeze());
    }

    #[test]
    fn no_damage_to_a_good_request_makes_them_panic(
        at in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let all: Vec<_> = served().collect();
        let (key, version) = *at.get(&all);
        let mut b = frame(key, version, 2, 1).to_vec();
        for (place, byte) in damage {
            let i = 4 + place.index(b.len() - 4);
            b[i] = byte;
        }
        let _ = probe(b.into());
    }
}
