//! The uniform assignor: everybody about the same number, and as little moved as that allows.
//!
//! Members keep what they have. What is free goes to whoever has least. Then, as long as one member has at
//! least two more than another that could take one of them, it gives one up: first what it has only just
//! got. So where all subscribe to the same, the numbers differ by one at most and no more moves than
//! must; where they do not, no single move would make it more even.

use super::Candidates;
use crate::coordinator::consumer::{Partitions, Topic};
use crate::coordinator::durable::Place;
use crate::types::TopicId;
use std::collections::{BTreeMap, BTreeSet};

/// Topics with the same subscribers: whatever one of these may take, all of them may.
struct Class {
    takers: Vec<usize>,
    topics: Vec<Topic>,
}

/// A member's number of partitions, and its place among the members.
type Load = (usize, usize);

struct Balance<'a> {
    had: Vec<&'a Partitions>,
    target: Vec<Partitions>,
}

pub(super) fn assign(members: &Candidates<'_>, topics: &BTreeMap<String, Topic>) -> Vec<Partitions> {
    let classes = classes(members, topics);
    let mut balance = Balance {
        had: members.values().map(|m| m.has).collect(),
        target: vec![Partitions::new(); members.len()],
    };
    let taken = balance.keep(&classes);
    for class in &classes {
        balance.hand_out(class, &taken);
    }
    // Each move makes the loads more even, so that this ends.
    while classes.iter().any(|class| balance.level(class)) {}
    balance.target
}

/// Those with the fewest takers first: they have the least choice.
fn classes(members: &Candidates<'_>, topics: &BTreeMap<String, Topic>) -> Vec<Class> {
    let mut by_takers: BTreeMap<Vec<usize>, Vec<Topic>> = BTreeMap::new();
    for (name, topic) in topics {
        let subscribes = members.values().enumerate().filter(|(_, m)| m.subscribed.contains(name));
        let takers: Vec<usize> = subscribes.map(|(at, _)| at).collect();
        if !takers.is_empty() {
            by_takers.entry(takers).or_default().push(*topic);
        }
    }
    let mut classes: Vec<Class> =
        by_takers.into_iter().map(|(takers, topics)| Class { takers, topics }).collect();
    classes.sort_by_key(|class| class.takers.len());
    classes
}

impl Balance<'_> {
    /// Lets everybody keep what there still is of what it had. Gives back what is so taken.
    fn keep(&mut self, classes: &[Class]) -> Partitions {
        let mut taken = Partitions::new();
        for class in classes {
            let sizes: BTreeMap<TopicId, i32> = class.topics.iter().map(|t| (t.id, t.partitions)).collect();
            let exists = |(id, p): &Place| sizes.get(id).is_some_and(|n| p < n);
            for taker in &class.takers {
                let (Some(had), Some(target)) = (self.had.get(*taker), self.target.get_mut(*taker)) else {
                    continue;
                };
                target.extend(had.iter().filter(|p| exists(p) && taken.insert(**p)));
            }
        }
        taken
    }

    fn load(&self, member: usize) -> usize {
        self.target.get(member).map_or(0, BTreeSet::len)
    }

    fn loads(&self, takers: &[usize]) -> BTreeSet<Load> {
        takers.iter().map(|taker| (self.load(*taker), *taker)).collect()
    }

    fn give(&mut self, to: usize, place: Place) {
        if let Some(target) = self.target.get_mut(to) {
            target.insert(place);
        }
    }

    fn hand_out(&mut self, class: &Class, taken: &Partitions) {
        let mut loads = self.loads(&class.takers);
        let all = class.topics.iter().flat_map(|t| (0..t.partitions).map(|p| (t.id, p)));
        for place in all.filter(|place| !taken.contains(place)) {
            let Some((load, least)) = loads.pop_first() else { return };
            self.give(least, place);
            loads.insert((load + 1, least));
        }
    }

    /// What each may give up of this class, what it has longest first.
    fn stock(&self, class: &Class) -> BTreeMap<usize, Vec<Place>> {
        let ids: BTreeSet<TopicId> = class.topics.iter().map(|t| t.id).collect();
        let of = |taker: &usize| {
            let target = self.target.get(*taker)?;
            let had = self.had.get(*taker)?;
            let (old, new): (Vec<Place>, Vec<Place>) =
                target.iter().filter(|(id, _)| ids.contains(id)).partition(|place| had.contains(place));
            Some((*taker, [old, new].concat()))
        };
        class.takers.iter().filter_map(of).collect()
    }

    /// Evens out the class. Whether anything moved.
    fn level(&mut self, class: &Class) -> bool {
        let mut loads = self.loads(&class.takers);
        let uneven = |most: &Load, least: &Load| most.0 > least.0 + 1;
        if !matches!((loads.last(), loads.first()), (Some(most), Some(least)) if uneven(most, least)) {
            return false;
        }
        let mut stock = self.stock(class);
        let mut givers: BTreeSet<Load> = loads.iter().copied().filter(|(_, m)| stocked(&stock, *m)).collect();
        let mut moved = false;
        while let (Some(most), Some(least)) = (givers.last().copied(), loads.first().copied()) {
            if !uneven(&most, &least) {
                break;
            }
            let (from, to) = (most.1, least.1);
            let Some(place) = stock.get_mut(&from).and_then(Vec::pop) else { break };
            self.target.get_mut(from).map(|t| t.remove(&place));
            self.give(to, place);
            stock.entry(to).or_default().push(place);
            for (old, member) in [(most, from), (least, to)] {
                let new = (self.load(member), member);
                loads.remove(&old);
                givers.remove(&old);
                loads.insert(new);
                if stocked(&stock, member) {
                    givers.insert(new);
                }
            }
            moved = true;
        }
        moved
    }
}

fn stocked(stock: &BTreeMap<usize, Vec<Place>>, member: usize) -> bool {
    stock.get(&member).is_some_and(|places| !places.is_empty())
}
