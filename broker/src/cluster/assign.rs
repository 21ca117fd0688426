//! Who leads what: decides only.
//!
//! Promises: whoever leads under a lease that stands keeps what he has, but for what evening out moves; a partition
//! whose leader's lease is over, or who is about to stop, goes to the same broker, if that is back, else to whoever leads least. Evening out
//! moves a few at a time, and nothing while loads differ by no more than one, so that it comes to rest. A broker for which
//! calls hang on the volume gets nothing, if others do better.
//!
//! Each new assignment of a partition has a leader epoch of its own, above all that the one before may have used: brokers
//! that do not lead the partition show it to clients, which take an answer with a lower epoch, or with none, for old or
//! start over (librdkafka, the Java client: KIP-320). A leader that opens again, by itself, goes up by one, for which there is
//! room ([`Epoch::of_next_assignment`]).

use super::layout::LeaseKey;
use super::metadata::Metadata;
use super::roster::View;
use crate::types::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// How the groups' state is cut; the format of the data directory says so for ever.
pub const SLOTS: u32 = 8;

/// Places that are moved in one round to even out the load.
const MOVES: usize = 4;

type Place<'a> = &'a mut Option<LeaseKey>;

/// Slots and partitions are shared out each for themselves: a broker that leads all of the one and none of the other has no
/// fair share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Slot,
    Partition,
}

/// Gives every partition and slot of `m` that has no leader one of the living. Returns whether anything changed.
pub(super) fn fill(m: &mut Metadata, roster: &View) -> bool {
    with_epochs(m, |m| fill_places(m, roster))
}

/// Moves a few places from who leads most to who leads least.
pub(super) fn even_out(m: &mut Metadata, roster: &View) -> bool {
    with_epochs(m, |m| even_places_out(m, roster))
}

/// Whose assignment `change` changes gets its epoch.
fn with_epochs(m: &mut Metadata, change: impl FnOnce(&mut Metadata) -> bool) -> bool {
    let leaders = |m: &Metadata| m.topics.values().map(|t| t.leaders.clone()).collect::<Vec<_>>();
    let before = leaders(m);
    let changed = change(m);
    for (topic, before) in m.topics.values_mut().zip(before) {
        topic.epochs.resize(topic.leaders.len(), Epoch::default());
        let was = before.into_iter().chain(std::iter::repeat(None));
        for ((epoch, now), was) in topic.epochs.iter_mut().zip(&topic.leaders).zip(was) {
            if *now != was {
                *epoch = epoch.of_next_assignment();
            }
        }
    }
    changed
}

fn fill_places(m: &mut Metadata, roster: &View) -> bool {
    let living = roster.fit();
    let mut loads = Loads::new(&living);
    let mut homeless = Vec::new();
    let mut changed = lengthen(m);
    for (kind, place) in places(m) {
        match *place {
            // With nobody to give it to, it stays with who is leaving.
            Some(leader) if !roster.is_over(leader) && (living.is_empty() || !roster.is_leaving(leader)) => {
                loads.add(kind, leader);
            }
            _ => homeless.push((kind, place)),
        }
    }
    for (kind, place) in homeless {
        let same = place.and_then(|old| living.iter().rfind(|k| k.broker == old.broker)).copied();
        let Some(next) = same.or_else(|| loads.least(kind)) else { continue };
        loads.add(kind, next);
        *place = Some(next);
        changed = true;
    }
    changed
}

fn even_places_out(m: &mut Metadata, roster: &View) -> bool {
    let living = roster.fit();
    let mut loads = Loads::new(&living);
    for (kind, place) in places(m) {
        place.iter().for_each(|leader| loads.add(kind, *leader));
    }
    let mut changed = false;
    for _ in 0..MOVES {
        let Some((kind, from, to)) = loads.uneven() else { break };
        // The last one found: old topics stay where they are.
        let found = places(m).filter(|(k, p)| *k == kind && **p == Some(from)).last();
        let Some((_, place)) = found else { break };
        *place = Some(to);
        loads.remove(kind, from);
        loads.add(kind, to);
        changed = true;
    }
    changed
}

/// What each broker leads that something can be given to, by kind.
struct Loads(BTreeMap<LeaseKey, [usize; 2]>);

impl Loads {
    fn new(living: &BTreeSet<LeaseKey>) -> Loads {
        Loads(living.iter().map(|key| (*key, [0, 0])).collect())
    }

    fn add(&mut self, kind: Kind, leader: LeaseKey) {
        if let Some(n) = self.0.get_mut(&leader).and_then(|n| n.get_mut(kind as usize)) {
            *n += 1;
        }
    }

    fn remove(&mut self, kind: Kind, leader: LeaseKey) {
        if let Some(n) = self.0.get_mut(&leader).and_then(|n| n.get_mut(kind as usize)) {
            *n -= 1;
        }
    }

    /// Who leads least of a kind; of several, who leads least of all.
    fn least(&self, kind: Kind) -> Option<LeaseKey> {
        self.by_load(kind).min().map(|(_, key)| key)
    }

    /// A kind of which one broker leads more by two or more than another, who gives, and who takes.
    fn uneven(&self) -> Option<(Kind, LeaseKey, LeaseKey)> {
        [Kind::Slot, Kind::Partition].into_iter().find_map(|kind| {
            let (most, least) = (self.by_load(kind).max()?, self.by_load(kind).min()?);
            (most.0 .0 > least.0 .0 + 1).then_some((kind, most.1, least.1))
        })
    }

    fn by_load(&self, kind: Kind) -> impl Iterator<Item = ((usize, usize), LeaseKey)> + '_ {
        let of = move |n: &[usize; 2]| n.get(kind as usize).copied().unwrap_or(0);
        self.0.iter().map(move |(key, n)| ((of(n), n.iter().sum()), *key))
    }
}

fn lengthen(m: &mut Metadata) -> bool {
    let mut changed = false;
    let mut to = |leaders: &mut Vec<Option<LeaseKey>>, len: usize| {
        changed |= leaders.len() != len;
        leaders.resize(len, None);
    };
    for topic in m.topics.values_mut() {
        to(&mut topic.leaders, usize::try_from(topic.partitions).unwrap_or(0));
    }
    to(&mut m.slots, SLOTS as usize);
    changed
}

fn places(m: &mut Metadata) -> impl Iterator<Item = (Kind, Place<'_>)> {
    let slots = m.slots.iter_mut().map(|p| (Kind::Slot, p));
    slots.chain(m.topics.values_mut().flat_map(|t| t.leaders.iter_mut()).map(|p| (Kind::Partition, p)))
}

#[cfg(test)]
mod tests {
    use super::super::metadata::TopicMeta;
    use super::super::roster::testing::view;
    use super::*;
    use crate::types::{BrokerId, TopicId};
    use proptest::prelude::*;

    fn key(broker: i32, number: u32) -> LeaseKey {
        LeaseKey { broker: BrokerId(broker), number }
    }

    fn metadata(partitions: i32, leaders: Vec<Option<LeaseKey>>) -> Metadata {
        let id = TopicId(uuid::Uuid::from_u128(1));
        let mut m = Metadata::default();
        let topic = TopicMeta { id, partitions, leaders, ..TopicMeta::default() };
        m.topics.insert("t".into(), topic);
        m
    }

    fn leaders(m: &Metadata) -> Vec<Option<LeaseKey>> {
        m.topics.values().flat_map(|t| t.leaders.clone()).collect()
    }

    #[test]
    fn who_is_back_gets_what_he_had_and_who_is_silent_keeps_it() {
        let old = vec![Some(key(1, 1)), Some(key(2, 1)), Some(key(3, 1))];
        let mut m = metadata(3, old);
        // 1 is back under another lease, 2 is silent, 3 is dead.
        assert!(fill(&mut m, &view(&[key(1, 2)], &[key(2, 1)], &[key(3, 1)])));
        assert_eq!(leaders(&m), [Some(key(1, 2)), Some(key(2, 1)), Some(key(1, 2))]);
        assert!(!fill(&mut m, &view(&[key(1, 2)], &[key(2, 1)], &[key(3, 1)])), "then nothing is left to do");
    }

    #[test]
    fn each_assignment_has_an_epoch_above_all_that_the_one_before_used() {
        let mut m = metadata(2, vec![]);
        let epochs = |m: &Metadata| m.topics["t"].epochs.iter().map(|e| e.0).collect::<Vec<_>>();
        fill(&mut m, &view(&[key(1, 1)], &[], &[]));
        assert_eq!(epochs(&m), [256, 256]);
        // One opened again, twice, and told the cluster; somebody else's report is void.
        let id = m.topics["t"].id;
        m.raise_epochs(key(1, 1), &[(id, 0, Epoch(258))]);
        m.raise_epochs(key(2, 1), &[(id, 1, Epoch(300))]);
        assert_eq!(epochs(&m), [258, 256]);
        m.raise_epochs(key(1, 1), &[(id, 0, Epoch(257)), (id, 7, Epoch(300))]);
        assert_eq!(epochs(&m), [258, 256], "they never go back");
        fill(&mut m, &view(&[key(1, 1)], &[], &[]));
        assert_eq!(epochs(&m), [258, 256], "it is the same assignment");
        fill(&mut m, &view(&[key(1, 2)], &[], &[key(1, 1)]));
        assert_eq!(epochs(&m), [512, 512]);
        while even_out(&mut m, &view(&[key(1, 2), key(2, 1)], &[], &[])) {}
        assert!(epochs(&m).contains(&768), "also where nobody died: {:?}", epochs(&m));
    }

    #[test]
    fn with_nobody_there_nothing_is_assigned() {
        let mut m = metadata(2, vec![]);
        fill(&mut m, &view(&[], &[], &[]));
        assert_eq!(leaders(&m), [None, None]);
    }

    proptest! {
        /// Whoever comes and goes: after enough rounds every place has a living leader, loads differ by one at most,
        /// and the next round changes nothing.
        #[test]
        fn it_comes_to_rest_and_is_even(
            partitions in 1i32..40,
            rounds in proptest::collection::vec(proptest::collection::btree_set(1i32..6, 1..5), 1..6),
        ) {
            let mut m = metadata(partitions, vec![]);
            for (living, lease) in rounds.into_iter().zip(2..) {
                let living: Vec<LeaseKey> = living.into_iter().map(|b| key(b, lease)).collect();
                let gone: Vec<LeaseKey> = (1..6).map(|b| key(b, lease - 1)).collect();
                let now = view(&living, &[], &gone);
                fill(&mut m, &now);
                while even_out(&mut m, &now) {}
                prop_assert!(!fill(&mut m, &now));
                for kind in [Kind::Slot, Kind::Partition] {
                    let mut loads: BTreeMap<LeaseKey, usize> = living.iter().map(|k| (*k, 0)).collect();
                    for (_, place) in places(&mut m).filter(|(k, _)| *k == kind) {
                        *loads.get_mut(&place.unwrap()).unwrap() += 1;
                    }
                    prop_assert!(loads.values().max().unwrap() - loads.values().min().unwrap() <= 1);
                }
            }
        }
    }
}
