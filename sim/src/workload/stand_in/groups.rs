//! Groups: offsets, and one member at a time.

use super::{Broker, Flaw, Line};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Group {
    pub offsets: BTreeMap<Line, Offset>,
    /// By producer id.
    pub pending: BTreeMap<i64, BTreeMap<Line, Offset>>,
    commits: u64,
    pub generation: i32,
    pub member: String,
}

#[derive(Clone, Default)]
pub struct Offset {
    pub offset: i64,
    pub metadata: String,
    /// Later ones have higher ones.
    number: u64,
}

impl Group {
    pub fn offset(&mut self, offset: i64, metadata: String) -> Offset {
        self.commits += 1;
        Offset { offset, metadata, number: self.commits }
    }

    pub fn apply(&mut self, id: i64, commit: bool) {
        let pending = self.pending.remove(&id).unwrap_or_default();
        for (line, offset) in pending.into_iter().filter(|_| commit) {
            // One that was committed later, and not in the transaction, stays.
            if self.offsets.get(&line).is_none_or(|o| o.number < offset.number) {
                self.offsets.insert(line, offset);
            }
        }
    }

    /// Whether `member` of `generation` may commit.
    pub fn admits(&self, member: &str, generation: i32) -> i16 {
        match (member, generation) {
            ("", -1) if self.member.is_empty() => 0,
            (member, _) if member != self.member => 25,
            (_, generation) if generation != self.generation => 22,
            _ => 0,
        }
    }

    pub fn is_unstable(&self, line: &Line) -> bool {
        self.pending.values().any(|p| p.contains_key(line))
    }
}

impl Broker {
    /// Offsets as part of a transaction.
    pub fn commit_in(
        &mut self,
        (txn, producer, adds): (&str, (i64, i16), bool),
        group: &str,
        (member, generation): (&str, i32),
        offsets: Vec<(Line, i64, String)>,
    ) -> i16 {
        let code = match self.groups.entry(group.to_owned()).or_default() {
            // From outside, as clients of old do.
            _ if member.is_empty() || self.flaw == Flaw::AnyMemberCommits => 0,
            g => g.admits(member, generation),
        };
        if code != 0 {
            return code;
        }
        let is_part = match self.txns.get(txn) {
            Some(t) if (t.id, t.epoch) != producer => return 47,
            Some(t) => t.state == super::transactions::State::Ongoing && t.groups.contains(group),
            None => return 49,
        };
        if !is_part {
            let code = if adds { self.add(txn, producer, None, Some(group)) } else { 48 };
            if code != 0 {
                return code;
            }
        }
        let early = self.flaw == Flaw::OffsetsEarly;
        let group = self.groups.entry(group.to_owned()).or_default();
        for (line, offset, metadata) in offsets {
            let offset = group.offset(offset, metadata);
            if early {
                group.offsets.insert(line, offset);
            } else {
                group.pending.entry(producer.0).or_default().insert(line, offset);
            }
        }
        0
    }
}
