//! Who shall have what: the assignors that run in the coordinator (KIP-848).
//!
//! Both give every partition of every subscribed topic to exactly one member that subscribes to it, and the same
//! input always gives the same answer.

mod range;
mod uniform;

#[cfg(test)]
mod properties;

use super::{Partitions, Topic};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assignor {
    /// Balanced, and moves as little as it can.
    #[default]
    Uniform,
    /// Of each topic, neighbouring partitions, in the order of the members: partitions with the same number of
    /// topics with the same subscribers go to the same member.
    Range,
}

/// A member as an assignor sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub instance: Option<&'a str>,
    pub subscribed: &'a BTreeSet<String>,
    /// Its part of the target so far.
    pub has: &'a Partitions,
}

pub type Candidates<'a> = BTreeMap<&'a str, Candidate<'a>>;

impl Assignor {
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    pub fn from_name(name: &str) -> Option<Assignor> {
        [Assignor::Uniform, Assignor::Range].into_iter().find(|a| a.name() == name)
    }

    /// The target, in the order of `members`.
    pub fn assign(self, members: &Candidates<'_>, topics: &BTreeMap<String, Topic>) -> Vec<Partitions> {
        match self {
            Assignor::Uniform => uniform::assign(members, topics),
            Assignor::Range => range::assign(members, topics),
        }
    }
}
