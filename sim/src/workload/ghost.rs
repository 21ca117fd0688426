//! What a member once was, and what it still says in that name.
//!
//! A process that slept through its own end (a long pause, a lost network) wakes and commits where it was: under a
//! member id that was expelled or has left, or under a generation that is over. The coordinator must refuse it
//! once it has told anybody of a newer generation (P8).

use super::member::{Line, Stay};
use super::offsets::Membership;
use super::spec::Member;
use super::User;
use rand::rngs::SmallRng;
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A client's former memberships, of which it keeps the last.
pub(super) struct Ghost {
    chance: f64,
    rng: SmallRng,
    past: Option<Past>,
}

struct Past {
    group: Arc<str>,
    member: Arc<str>,
    generation: i32,
    positions: BTreeMap<Line, i64>,
}

impl Ghost {
    pub fn of(user: &User, spec: &Member) -> Ghost {
        let rng = user.ctx.rng_for(user.who, "ghost");
        Ghost { chance: spec.ghost.clamp(0.0, 1.0), rng, past: None }
    }

    /// This is what the member was. One that had nothing to commit is no ghost.
    pub fn remember(&mut self, stay: &Stay) {
        if stay.positions.is_empty() || stay.member.is_empty() {
            return;
        }
        self.past = Some(Past {
            group: stay.group.clone(),
            member: stay.member.clone(),
            generation: stay.generation,
            positions: stay.positions.clone(),
        });
    }

    /// Commits in the old name, now and then.
    pub async fn speak(&mut self, user: &mut User) {
        let Some(past) = self.past.as_ref().filter(|_| self.chance > 0.0) else { return };
        if user.is_over() || !self.rng.gen_bool(self.chance) {
            return;
        }
        let offsets: Vec<(Line, i64)> = past.positions.iter().map(|(l, o)| (l.clone(), *o)).collect();
        let by = Membership { generation: past.generation, member: &past.member };
        // Whatever the answer: the checkers judge it.
        user.commit(&past.group, by, &offsets).await.ok();
    }
}
