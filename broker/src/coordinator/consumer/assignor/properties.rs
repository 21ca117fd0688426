//! What holds of every assignment, whatever members and topics there are.

use super::*;
use crate::coordinator::consumer::assignor::Assignor::{Range, Uniform};
use crate::coordinator::durable::Place;
use crate::types::TopicId;
use proptest::prelude::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
struct World {
    topics: BTreeMap<String, Topic>,
    /// What each member subscribes to and has.
    members: BTreeMap<String, (BTreeSet<String>, Partitions)>,
}

fn id(n: usize) -> TopicId {
    TopicId(uuid::Uuid::from_u128(n as u128 + 1))
}

impl World {
    fn candidates(&self) -> Candidates<'_> {
        self.members
            .iter()
            .map(|(id, (subscribed, has))| (id.as_str(), Candidate { instance: None, subscribed, has }))
            .collect()
    }

    fn assign(&self, assignor: Assignor) -> BTreeMap<String, Partitions> {
        let target = assignor.assign(&self.candidates(), &self.topics);
        self.members.keys().cloned().zip(target).collect()
    }

    /// The same members with what they were given.
    fn settled(&self, assignor: Assignor) -> World {
        let mut next = self.clone();
        for (id, target) in self.assign(assignor) {
            next.members.get_mut(&id).unwrap().1 = target;
        }
        next
    }

    fn takers(&self, topic: TopicId) -> Vec<&String> {
        let name = self.topics.iter().find(|(_, t)| t.id == topic).map(|(name, _)| name);
        let subscribes = |subscribed: &BTreeSet<String>| name.is_some_and(|n| subscribed.contains(n));
        self.members.iter().filter(|(_, (s, _))| subscribes(s)).map(|(id, _)| id).collect()
    }

    fn places(&self) -> Vec<Place> {
        self.topics.values().flat_map(|t| (0..t.partitions).map(|p| (t.id, p))).collect()
    }
}

fn any_topics() -> impl Strategy<Value = BTreeMap<String, Topic>> {
    proptest::collection::vec(0..12i32, NAMES.len()).prop_map(|sizes| {
        let topic = |(n, partitions): (usize, i32)| {
            (partitions > 0).then(|| (NAMES[n].to_owned(), Topic { id: id(n), partitions }))
        };
        sizes.into_iter().enumerate().filter_map(topic).collect()
    })
}

fn any_has() -> impl Strategy<Value = Partitions> {
    proptest::collection::btree_set((0..5usize, 0..14i32), 0..8)
        .prop_map(|set| set.into_iter().map(|(t, p)| (id(t), p)).collect())
}

/// Members may claim anything: the same as others, what is gone, what they do not subscribe to.
fn any_world() -> impl Strategy<Value = World> {
    let subscribed = proptest::collection::btree_set(0..NAMES.len(), 0..=NAMES.len())
        .prop_map(|set| set.into_iter().map(|n| NAMES[n].to_owned()).collect::<BTreeSet<_>>());
    let members = proptest::collection::vec((subscribed, any_has()), 0..7);
    (any_topics(), members).prop_map(|(topics, members)| {
        let named = members.into_iter().enumerate().map(|(n, m)| (format!("m{n}"), m));
        World { topics, members: named.collect() }
    })
}

fn same_for_all() -> impl Strategy<Value = World> {
    any_world().prop_map(|mut world| {
        let all: BTreeSet<String> = NAMES.iter().map(|n| n.to_string()).collect();
        world.members.values_mut().for_each(|m| m.0 = all.clone());
        world
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_partition_goes_to_one_who_subscribes(
        world in any_world(),
        assignor in prop_oneof![Just(Uniform), Just(Range)],
    ) {
        let target = world.assign(assignor);
        for place in world.places() {
            let takers = world.takers(place.0);
            let got: Vec<&String> = target.iter().filter(|(_, t)| t.contains(&place)).map(|(id, _)| id).collect();
            prop_assert_eq!(got.len(), usize::from(!takers.is_empty()), "{:?}", place);
            prop_assert!(got.iter().all(|id| takers.contains(id)));
        }
        let given: usize = target.values().map(BTreeSet::len).sum();
        prop_assert!(given <= world.places().len(), "what does not exist is given to nobody");
    }

    /// No partition could go from one member to another and leave the two more even.
    #[test]
    fn uniform_is_balanced(world in any_world()) {
        let target = world.assign(Uniform);
        for (from, has) in &target {
            for place in has {
                for to in world.takers(place.0) {
                    prop_assert!(has.len() <= target[to].len() + 1, "{place:?} of {from} could go to {to}");
                }
            }
        }
    }

    #[test]
    fn uniform_moves_nothing_without_a_reason(world in any_world()) {
        let settled = world.settled(Uniform);
        prop_assert_eq!(settled.assign(Uniform), settled.settled(Uniform).assign(Uniform));
        for (id, (_, has)) in &settled.members {
            prop_assert_eq!(&settled.assign(Uniform)[id], has);
        }
    }

    /// Of a member that leaves, its partitions move and no others; for one that comes, only what it gets.
    #[test]
    fn uniform_is_sticky_where_all_subscribe_to_the_same(world in same_for_all(), gone in 0..7usize) {
        let before = world.settled(Uniform);
        let mut left = before.clone();
        left.members.remove(&format!("m{gone}"));
        let after = left.assign(Uniform);
        for (id, (_, had)) in &left.members {
            prop_assert!(had.is_subset(&after[id]), "{id} lost something though somebody left");
        }
        let mut joined = before.clone();
        let all = NAMES.iter().map(|n| n.to_string()).collect();
        joined.members.insert("new".to_owned(), (all, Partitions::new()));
        let after = joined.assign(Uniform);
        for (id, (_, had)) in &before.members {
            prop_assert!(after[id].is_subset(had), "{id} got something though somebody came");
        }
        let share = joined.places().len() / joined.members.len();
        prop_assert!((share..=share + 1).contains(&after["new"].len()));
    }

    #[test]
    fn range_gives_runs_whose_lengths_differ_by_one(world in any_world()) {
        let target = world.assign(Range);
        for topic in world.topics.values() {
            let mut lengths = BTreeSet::new();
            for taker in world.takers(topic.id) {
                let run: Vec<i32> = target[taker].iter().filter(|(t, _)| *t == topic.id).map(|(_, p)| *p).collect();
                prop_assert!(run.windows(2).all(|w| w[1] == w[0] + 1), "{run:?}");
                lengths.insert(run.len());
            }
            prop_assert!(lengths.len() <= 2 && lengths.last().zip(lengths.first()).is_none_or(|(a, b)| a - b <= 1));
        }
    }
}
