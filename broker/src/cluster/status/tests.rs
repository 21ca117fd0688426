//! What is said of a cluster, from facts alone.

use super::super::election::Candidate;
use super::super::heartbeat::Heartbeat;
use super::super::layout::LeaseKey;
use super::super::metadata::{Metadata, Stamp, TopicMeta};
use super::super::strays::{Stray, Why};
use super::facts::{Facts, SeatClaim};
use super::heartbeats::Seen;
use super::*;
use crate::storage::glance::{ClaimContent, Glance};
use crate::storage::verify::Finding;

const LEASE: Duration = Duration::from_secs(10);
const TOPIC: TopicId = TopicId(uuid::Uuid::from_u128(0xabc));

fn key(broker: i32, number: u32) -> LeaseKey {
    LeaseKey { broker: BrokerId(broker), number }
}

fn slots() -> Vec<String> {
    vec!["__cluster/groups/0".into()]
}

fn dir(partition: i32) -> String {
    format!("t/{TOPIC}/{partition}")
}

/// A heartbeat that was seen to be written.
fn living(key: LeaseKey, office: Option<u32>) -> Seen {
    let beat = Heartbeat {
        broker: key.broker,
        lease_number: key.number,
        lease: LEASE,
        office: office.map(|e| (Epoch(e), 5)),
        ..Heartbeat::default()
    };
    Seen { beat: Some(beat), moved: true, age: Duration::from_millis(300), ..Seen::default() }
}

fn candidate(key: LeaseKey) -> Candidate {
    Candidate { broker: key.broker, incarnation: uuid::Uuid::from_u128(0), lease: key.number.into() }
}

fn claimed(by: LeaseKey, epoch: u32, manifest: Option<u32>) -> Glance {
    let content =
        ClaimContent::By { holder: format!("{}-{:08x}", by.broker, by.number), relinquished: false };
    Glance { claim: Some((Epoch(epoch), content)), manifest: manifest.map(|m| (Epoch(m), None)) }
}

/// Brokers 1 and 2; 1 is controller of epoch 3, leads the slot and partition 0; 2 leads partition 1.
fn all_well() -> Facts {
    let mut f = Facts { cluster_id: Some("id".into()), ..Facts::default() };
    f.members.insert(key(1, 4), Some(living(key(1, 4), Some(3))));
    f.members.insert(key(2, 1), Some(living(key(2, 1), None)));
    f.claim = Some((Epoch(3), SeatClaim::By(candidate(key(1, 4)))));
    let mut m = Metadata { change: 5, slots: vec![Some(key(1, 4))], ..Metadata::default() };
    m.controller = Some(Stamp { epoch: Epoch(3), by: candidate(key(1, 4)) });
    let leaders = vec![Some(key(1, 4)), Some(key(2, 1))];
    m.topics.insert("t".into(), TopicMeta { id: TOPIC, partitions: 2, leaders, ..TopicMeta::default() });
    f.metadata = Some(m);
    f.glances.insert(slots().remove(0), Ok(Some(claimed(key(1, 4), 2, Some(2)))));
    f.glances.insert(dir(0), Ok(Some(claimed(key(1, 4), 7, Some(7)))));
    f.glances.insert(dir(1), Ok(Some(claimed(key(2, 1), 1, Some(1)))));
    f
}

fn judged(f: &Facts) -> Status {
    judge::status(f, &slots())
}

fn state(s: &Status, of: &str) -> (State, String) {
    let place = s.places.iter().find(|p| p.of.to_string() == of).expect(of);
    (place.state, place.why.clone().unwrap_or_default())
}

fn seen(f: &mut Facts, key: LeaseKey) -> &mut Seen {
    f.members.get_mut(&key).and_then(Option::as_mut).expect("a member")
}

fn beat(f: &mut Facts, key: LeaseKey) -> &mut Heartbeat {
    seen(f, key).beat.as_mut().expect("a heartbeat")
}

fn falls_silent(f: &mut Facts, key: LeaseKey, still: Duration) {
    let s = seen(f, key);
    (s.moved, s.still) = (false, still);
}

#[test]
fn where_all_is_well_each_broker_leads_what_it_is_to_lead() {
    let s = judged(&all_well());
    assert!(s.well, "{s:#?}");
    assert_eq!((s.topics, s.partitions, s.slots), (1, 2, 1));
    assert_eq!(s.states, BTreeMap::from([(State::Led, 3)]));
    assert!(s.controller.in_office && s.controller.epoch == Some(Epoch(3)));
    let [one, two] = s.brokers.as_slice() else { panic!("{s:#?}") };
    assert_eq!((one.led, one.assigned), (Share { partitions: 1, slots: 1 }, one.led));
    assert_eq!((two.led, two.assigned), (Share { partitions: 1, slots: 0 }, two.led));
    assert_eq!(one.heartbeat, Heard::WrittenWithinMs(300));
}

#[test]
fn a_killed_broker_is_silent_then_dead_and_stalls_what_it_led() {
    let mut f = all_well();
    falls_silent(&mut f, key(2, 1), Duration::from_secs(2));
    let s = judged(&f);
    assert!(!s.well);
    assert_eq!(s.brokers[1].standing, Standing::Silent);
    assert_eq!(s.brokers[1].heartbeat, Heard::StillForMs(2000));
    assert_eq!((s.brokers[1].led.partitions, s.brokers[1].assigned.partitions), (0, 1));
    let why = "it is assigned to lease 1 of broker 2, which is silent";
    assert_eq!(state(&s, "t-1"), (State::Stalled, why.into()));
    assert_eq!(state(&s, "t-0").0, State::Led);

    falls_silent(&mut f, key(2, 1), LEASE);
    let s = judged(&f);
    assert_eq!((s.brokers[1].standing, state(&s, "t-1").0), (Standing::Dead, State::Stalled));

    // Somebody recorded it, and another leads: nothing is wrong any more.
    f.recorded_dead.insert(key(2, 1));
    f.metadata.as_mut().unwrap().topics.get_mut("t").unwrap().leaders[1] = Some(key(1, 4));
    let s = judged(&f);
    let why =
        "it is assigned to lease 4 of broker 1; lease 1 of broker 2, which is recorded dead, claimed it last";
    assert_eq!(state(&s, "t-1"), (State::Moving, why.into()));
    f.glances.insert(dir(1), Ok(Some(claimed(key(1, 4), 2, Some(1)))));
    assert_eq!(state(&judged(&f), "t-1").0, State::Opening);
    f.glances.insert(dir(1), Ok(Some(claimed(key(1, 4), 2, Some(2)))));
    let s = judged(&f);
    assert!(s.well && s.brokers[1].standing == Standing::RecordedDead, "{s:#?}");
}

#[test]
fn without_a_controller_that_lives_and_says_so_nothing_is_well() {
    let why = |f: &Facts| {
        let s = judged(f);
        assert!(!s.well && !s.controller.in_office);
        s.controller.why.expect("a reason")
    };
    let mut f = all_well();
    falls_silent(&mut f, key(1, 4), Duration::from_secs(1));
    assert_eq!(why(&f), "its lease is silent");
    let mut f = all_well();
    beat(&mut f, key(1, 4)).relinquished = true;
    assert_eq!(why(&f), "its lease is relinquished");
    let mut f = all_well();
    beat(&mut f, key(1, 4)).office = None;
    assert_eq!(why(&f), "its broker lives and does not say that it is controller");
    let mut f = all_well();
    f.claim = Some((Epoch(4), SeatClaim::By(candidate(key(1, 3)))));
    assert_eq!(why(&f), "its lease is superseded by a later one");
    assert_eq!(
        judged(&f).notes,
        ["lease 4 of broker 1 says that it is controller of epoch 3, and is deposed"]
    );
    for (claim, part) in [(SeatClaim::Empty, "is empty"), (SeatClaim::Unreadable("eof".into()), "(eof)")] {
        f.claim = Some((Epoch(4), claim));
        assert!(why(&f).contains(part) && why(&f).contains("lapses after a lease"), "{}", why(&f));
    }
    f.claim = None;
    assert_eq!(why(&f), "nobody has claimed the seat");
}

#[test]
fn a_partition_of_a_lease_that_is_over_is_stalled() {
    let mut f = all_well();
    let mut assign = |to: Option<LeaseKey>| {
        f.metadata.as_mut().unwrap().topics.get_mut("t").unwrap().leaders[1] = to;
        let s = judged(&f);
        assert!(!s.well);
        state(&s, "t-1")
    };
    let over = |key: &str, is: &str| (State::Stalled, format!("it is assigned to {key}, which is {is}"));
    assert_eq!(assign(Some(key(1, 3))), over("lease 3 of broker 1", "superseded by a later one"));
    assert_eq!(assign(Some(key(3, 1))), over("lease 1 of broker 3", "without a heartbeat"));
    assert_eq!(assign(None), (State::Stalled, "nobody is assigned".into()));
    f.metadata.as_mut().unwrap().topics.get_mut("t").unwrap().leaders.truncate(1);
    assert_eq!(state(&judged(&f), "t-1"), (State::Stalled, "nobody is assigned".into()));
}

#[test]
fn a_stopped_cluster_is_not_well_and_nothing_of_it_is_unreadable() {
    let mut f = all_well();
    for key in [key(1, 4), key(2, 1)] {
        beat(&mut f, key).relinquished = true;
    }
    let s = judged(&f);
    assert_eq!(s.states, BTreeMap::from([(State::Stalled, 3)]));
    assert!(!s.well && s.unreadable.is_empty() && s.orphaned.is_empty());
}

#[test]
fn a_leader_that_has_not_come_to_serve_is_opening() {
    let mut f = all_well();
    let mut shown = |g: Option<Glance>| {
        f.glances.insert(dir(0), Ok(g));
        let s = judged(&f);
        assert!(!s.well && s.brokers[0].led.partitions == 0 && s.unreadable.is_empty());
        state(&s, "t-0").0
    };
    let by = |relinquished| ClaimContent::By { holder: "1-00000004".into(), relinquished };
    let claim = |content| Some(Glance { claim: Some((Epoch(7), content)), manifest: Some((Epoch(7), None)) });
    assert_eq!(shown(None), State::Opening);
    assert_eq!(shown(Some(Glance::default())), State::Opening);
    assert_eq!(shown(Some(claimed(key(1, 4), 7, None))), State::Opening);
    assert_eq!(shown(claim(ClaimContent::Empty)), State::Opening);
    assert_eq!(shown(claim(by(true))), State::Opening);
    assert_eq!(
        shown(Some(claimed(key(1, 3), 7, Some(7)))),
        State::Moving,
        "an earlier lease of the same broker"
    );
    assert_eq!(shown(Some(claimed(key(1, 4), 7, Some(8)))), State::Unreadable);
    assert_eq!(shown(Some(Glance { claim: None, manifest: Some((Epoch(7), None)) })), State::Unreadable);
}

#[test]
fn what_is_damaged_is_named_with_its_file() {
    let mut f = all_well();
    let damaged = ClaimContent::Damaged("cut".into());
    f.glances.insert(dir(0), Ok(Some(Glance { claim: Some((Epoch(0x1f), damaged)), manifest: None })));
    let mut led = claimed(key(2, 1), 1, None);
    led.manifest = Some((Epoch(1), Some("torn".into())));
    f.glances.insert(dir(1), Ok(Some(led)));
    f.glances.insert(slots().remove(0), Err("no answer".into()));
    f.findings.push(Finding { path: "__cluster/x".into(), byte: None, what: "odd".into() });
    let s = judged(&f);
    let at = |path: String, why: &str| Unreadable { path, why: why.into() };
    let want = [
        at("__cluster/x".into(), "odd"),
        at(slots().remove(0), "no answer"),
        at(format!("{}/0000001f-claim", dir(0)), "cut"),
        at(format!("{}/00000001-manifest.json", dir(1)), "torn"),
    ];
    assert_eq!(s.unreadable, want);
    assert!(!s.well);
    assert_eq!(state(&s, "slot 0").0, State::Unreadable);
    assert_eq!(state(&s, "t-0"), (State::Unreadable, "who claimed it last cannot be read (cut)".into()));
    assert_eq!(state(&s, "t-1").0, State::Led, "its leader has what it read before");
}

#[test]
fn damaged_metadata_leaves_brokers_and_controller_to_be_told() {
    let mut f = all_well();
    f.metadata = None;
    let s = judged(&f);
    assert!(!s.well && s.metadata.is_none() && s.places.is_empty());
    assert!(s.controller.in_office && s.brokers.len() == 2);
    assert!(s.notes.iter().any(|n| n.starts_with("without metadata")), "{:?}", s.notes);
}

#[test]
fn an_orphan_is_wrong_and_a_deletion_under_way_is_not() {
    let mut f = all_well();
    let gone = TopicId(uuid::Uuid::from_u128(0xdef));
    f.metadata.as_mut().unwrap().deleting.insert(gone, "gone".into());
    assert_eq!(judged(&f).deleting, [Deletion { topic: "gone".into(), topic_id: gone, files_left: false }]);
    f.strays.push(Stray { dir: format!("gone/{gone}.deleted"), why: Why::BeingDeleted });
    let s = judged(&f);
    assert!(s.well && s.deleting[0].files_left && s.orphaned.is_empty());
    f.strays.push(Stray { dir: "t/9".into(), why: Why::UnknownTopic });
    let s = judged(&f);
    assert_eq!(s.orphaned, [Orphan { dir: "t/9".into(), why: Why::UnknownTopic }]);
    assert!(!s.well);
}

#[test]
fn a_heartbeat_that_cannot_be_read_proves_nothing() {
    let mut f = all_well();
    *seen(&mut f, key(2, 1)) = Seen { wrong: Some("is no whole heartbeat".into()), ..Seen::default() };
    let s = judged(&f);
    assert_eq!(s.brokers[1].standing, Standing::Unreadable);
    assert_eq!(state(&s, "t-1").0, State::Stalled);
    assert!(!s.well);
    // Nor does one that moved and then stopped: it is not alive any more.
    let mut f = all_well();
    seen(&mut f, key(2, 1)).still = LEASE / 2;
    assert_eq!(judged(&f).brokers[1].standing, Standing::Silent);
}
