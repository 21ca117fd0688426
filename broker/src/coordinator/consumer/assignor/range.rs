//! The range assignor: of each topic, everyone a run of neighbouring partitions.

use super::{Candidate, Candidates};
use crate::coordinator::consumer::{Partitions, Topic};
use std::collections::BTreeMap;

pub(super) fn assign(members: &Candidates<'_>, topics: &BTreeMap<String, Topic>) -> Vec<Partitions> {
    let mut target = vec![Partitions::new(); members.len()];
    // Static members first, by instance: a restart under another member id does not change the order.
    let mut order: Vec<(usize, &&str, &Candidate<'_>)> =
        members.iter().enumerate().map(|(at, (id, m))| (at, id, m)).collect();
    order.sort_by_key(|(_, id, m)| (m.instance.is_none(), m.instance.unwrap_or(id)));
    for (name, topic) in topics {
        let takers: Vec<usize> =
            order.iter().filter(|(_, _, m)| m.subscribed.contains(name)).map(|(at, _, _)| *at).collect();
        let all = usize::try_from(topic.partitions).unwrap_or(0);
        if takers.is_empty() {
            continue;
        }
        let (each, more) = (all / takers.len(), all % takers.len());
        let mut rest = 0..topic.partitions;
        for (nth, taker) in takers.iter().enumerate() {
            let run = rest.by_ref().take(each + usize::from(nth < more));
            if let Some(target) = target.get_mut(*taker) {
                target.extend(run.map(|p| (topic.id, p)));
            }
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TopicId;
    use std::collections::BTreeSet;

    #[test]
    fn neighbours_go_together_and_the_first_members_get_one_more() {
        let id = |n| TopicId(uuid::Uuid::from_u128(n));
        let topics = BTreeMap::from([
            ("a".to_owned(), Topic { id: id(1), partitions: 5 }),
            ("b".to_owned(), Topic { id: id(2), partitions: 3 }),
        ]);
        let (both, only_a) =
            (BTreeSet::from(["a".to_owned(), "b".to_owned()]), BTreeSet::from(["a".to_owned()]));
        let none = Partitions::new();
        let member = |instance, subscribed| Candidate { instance, subscribed, has: &none };
        let members = BTreeMap::from([
            ("1", member(None, &both)),
            ("2", member(None, &only_a)),
            ("3", member(Some("static"), &both)),
        ]);
        let target = assign(&members, &topics);
        let of = |at: usize| target[at].iter().map(|(t, p)| (t.0.as_u128(), *p)).collect::<Vec<_>>();
        assert_eq!(of(2), [(1, 0), (1, 1), (2, 0), (2, 1)]);
        assert_eq!(of(0), [(1, 2), (1, 3), (2, 2)]);
        assert_eq!(of(1), [(1, 4)]);
    }
}
