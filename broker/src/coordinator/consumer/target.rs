//! The next group epoch, and who shall have what in it.

use super::assignor::Candidate;
use super::*;
use crate::coordinator::group::Out;

impl ConsumerGroup {
    /// Members or subscriptions changed: the next epoch, with its target.
    pub(super) fn advance(&mut self, limits: &ConsumerLimits, topics: &dyn Lookup) {
        self.epoch = self.epoch.saturating_add(1);
        self.topics = self.seen(topics);
        self.assignor = self.choice(limits);
        let candidates = self.members.iter().map(|(id, m)| (id.as_str(), candidate(m))).collect();
        let target = self.assignor.assign(&candidates, &self.topics);
        for (member, target) in self.members.values_mut().zip(target) {
            member.target = target;
        }
        self.assignment_epoch = self.epoch;
    }

    /// Whether topics came, grew or went that members subscribe to.
    pub fn is_outdated(&self, topics: &dyn Lookup) -> bool {
        !self.members.is_empty() && self.seen(topics) != self.topics
    }

    /// If topics came, grew or went that members subscribe to: the next epoch, with its target.
    pub fn refresh(&mut self, limits: &ConsumerLimits, topics: &dyn Lookup, out: &mut Out) {
        if self.is_outdated(topics) {
            self.advance(limits, topics);
            out.persist = true;
        }
    }

    /// The subscribed topics as they are now. Of more than a group can hold, those that come first by name.
    fn seen(&self, topics: &dyn Lookup) -> BTreeMap<String, Topic> {
        let names: BTreeSet<&String> = self.members.values().flat_map(|m| &m.profile.subscribed).collect();
        let mut left = MAX_PARTITIONS;
        let mut seen = BTreeMap::new();
        for name in names {
            let Some(topic) = topics.topic(name) else { continue };
            let Some(rest) = left.checked_sub(usize::try_from(topic.partitions).unwrap_or(0)) else { break };
            left = rest;
            seen.insert(name.clone(), topic);
        }
        seen
    }

    /// The assignor that most members with a wish wish for; among equals, and without a wish, the one that comes
    /// first in `group.consumer.assignors`.
    pub(super) fn choice(&self, limits: &ConsumerLimits) -> Assignor {
        let votes = |a: &Assignor| self.members.values().filter(|m| m.profile.assignor == Some(*a)).count();
        // max_by_key keeps the last of equals, hence the reversal.
        limits.assignors.iter().rev().copied().max_by_key(votes).unwrap_or_default()
    }
}

fn candidate(m: &Member) -> Candidate<'_> {
    Candidate { instance: m.profile.instance.as_deref(), subscribed: &m.profile.subscribed, has: &m.target }
}
