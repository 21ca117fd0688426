//! P5 in what clients are told: leader epochs never go back, and one of them has one leader.
//!
//! Clients order metadata by leader epochs: an answer with a lower one, or with none after one was known, makes them follow
//! whoever they were told of last, or start over. So no process shows a lower one than it did, none shows "unknown" where
//! any showed a number before, and no two leaders are shown with the same one.

use super::ledger::Ledger;
use super::Verdict;
use crate::history::{Event, Index, Place};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use uuid::Uuid;

const NOBODY: i32 = -1;
const UNKNOWN: i32 = -1;

#[derive(Default)]
struct Known {
    /// The first who showed a number, and when.
    numbered: Option<(Duration, Index)>,
    /// Who leads in each epoch, as the first one said.
    leaders: BTreeMap<i32, (i32, Index)>,
    /// The highest epoch that each host's process showed, and when: by which of its lives.
    shown: BTreeMap<IpAddr, (usize, Shown)>,
}

#[derive(Clone, Copy)]
struct Shown {
    by: IpAddr,
    asked: Duration,
    at: Duration,
    leader: i32,
    epoch: i32,
    index: Index,
}

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    // Damaged metadata may be replaced by older.
    if ledger.had_damage() {
        return;
    }
    let mut known: BTreeMap<(Uuid, i32), Known> = BTreeMap::new();
    for (index, stamped) in ledger.events.iter().enumerate() {
        let Event::LeaderShown { by, asked, at, leader, epoch, .. } = &stamped.event else { continue };
        let Some(id) = at.id else { continue };
        let starts = ledger.starts.get(by).map_or(&[][..], Vec::as_slice);
        let life = starts.partition_point(|s| *s <= *asked);
        let shown = Shown { by: *by, asked: *asked, at: stamped.at, leader: *leader, epoch: *epoch, index };
        let known = known.entry((id, at.partition)).or_default();
        if let Err((what, with)) = known.take(life, shown) {
            verdict.broken("P5", stamped.at, format!("{}: {what}", name(at)), vec![with, index]);
        }
    }
}

fn name(at: &Place) -> String {
    format!("{}-{}", at.topic, at.partition)
}

impl Known {
    /// Takes what a broker shows, or says what is wrong with it, and what shown before it contradicts.
    fn take(&mut self, life: usize, shown: Shown) -> Result<(), (String, Index)> {
        let Shown { by, asked, at, leader, epoch, index } = shown;
        if epoch == UNKNOWN {
            return match self.numbered.filter(|(when, _)| *when <= asked) {
                Some((_, with)) => Err((format!("{by} shows no leader epoch, though one was known"), with)),
                None => Ok(()),
            };
        }
        self.numbered.get_or_insert((at, index));
        match self.shown.get(&by).filter(|(of, _)| *of == life) {
            Some((_, before)) if before.epoch > epoch && before.at <= asked => {
                return Err((
                    format!("{by} shows leader epoch {epoch} after {}", before.epoch),
                    before.index,
                ));
            }
            Some((_, before)) if before.epoch >= epoch => {}
            _ => drop(self.shown.insert(by, (life, shown))),
        }
        if leader == NOBODY {
            return Ok(());
        }
        let (first, with) = *self.leaders.entry(epoch).or_insert((leader, index));
        if first != leader {
            return Err((
                format!("in leader epoch {epoch} both {first} and {leader} are said to lead"),
                with,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::{place, Story};
    use crate::history::*;

    /// Says these one after another: by the first broker or by another, who leads, and in which epoch.
    fn told(all: &[(u8, i32, i32)]) -> Vec<&'static str> {
        let mut story = Story::new();
        for &(by, leader, epoch) in all {
            let by = std::net::IpAddr::from([10, 0, 1, by]);
            let asked = story.now;
            story.record(Event::LeaderShown { who: Who(0), by, asked, at: place(), leader, epoch });
        }
        story.broken()
    }

    #[test]
    fn epochs_rise_with_their_leaders() {
        assert!(told(&[(1, 1, 256), (2, 1, 256), (1, 2, 512), (2, 2, 512)]).is_empty());
        assert!(told(&[(1, 2, 512), (2, 1, 256), (2, 2, 512)]).is_empty(), "one is told later");
        assert!(told(&[(1, 1, 256), (1, -1, 256), (1, 1, 257)]).is_empty(), "nobody for a while, then again");
        assert!(told(&[(1, 1, -1), (2, 1, -1), (1, 1, 5)]).is_empty(), "not known yet");
    }

    #[test]
    fn an_epoch_that_goes_back_or_is_forgotten_is_p5() {
        assert_eq!(told(&[(1, 1, 512), (1, 1, 511)]), ["P5"]);
        assert_eq!(told(&[(1, 1, 512), (2, 1, -1)]), ["P5"]);
    }

    #[test]
    fn two_leaders_in_one_epoch_are_p5() {
        assert_eq!(told(&[(1, 1, 512), (2, 2, 512)]), ["P5"]);
    }

    #[test]
    fn an_answer_that_was_overtaken_says_nothing() {
        let mut story = Story::new();
        for epoch in [512, 256] {
            let (by, asked) = (FIRST_HOST, std::time::Duration::ZERO);
            story.record(Event::LeaderShown { who: Who(0), by, asked, at: place(), leader: 1, epoch });
        }
        assert!(story.broken().is_empty());
    }

    #[test]
    fn another_process_may_know_less_at_first() {
        let mut story = Story::new();
        for epoch in [300, 256] {
            story.record(Event::Broker { broker: 0, host: FIRST_HOST, life: Life::Starting });
            let (by, asked) = (FIRST_HOST, story.now);
            story.record(Event::LeaderShown { who: Who(0), by, asked, at: place(), leader: 1, epoch });
        }
        assert!(story.broken().is_empty());
    }
}
