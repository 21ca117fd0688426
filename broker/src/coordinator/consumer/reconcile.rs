//! One member's next step towards its target.

use super::*;

/// What a step changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub any: bool,
    /// What the member may have.
    pub assigned: bool,
}

/// What a member says that it has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owns<'a> {
    /// It begins anew: nothing, and it knows of nothing that it was told before.
    Anew,
    Said(&'a Partitions),
    /// It says nothing.
    Unsaid,
}

impl ConsumerGroup {
    /// Brings a member as far as it can go now.
    ///
    /// First it must have given up what it was told to. Then it is told what else to give up, at its old epoch,
    /// even if it says that it does not have that: it may be about to take it, as it was told before. Then it comes
    /// to the epoch of the target and gets what of it is free, now and with later heartbeats.
    ///
    /// This leaves one hole, which the protocol has: if the answer that takes a partition away is lost while the
    /// member still works on the answer before, which gave it, then what it says next tells neither.
    pub(super) fn reconcile(&mut self, now: Now, id: &str, owns: Owns<'_>) -> Moved {
        let Some(member) = self.members.get_mut(id) else { return Moved::default() };
        let mut moved = Moved::default();

        if !member.revoking.is_empty() {
            match owns {
                Owns::Anew => {}
                Owns::Said(owned) if owned.is_disjoint(&member.revoking) => {}
                Owns::Said(_) | Owns::Unsaid => return moved,
            }
            for place in std::mem::take(&mut member.revoking) {
                self.held.remove(&place);
            }
            member.revoke_until = None;
            moved.any = true;
        }

        let surplus: Partitions = member.assigned.difference(&member.target).copied().collect();
        if !surplus.is_empty() {
            member.assigned.retain(|place| !surplus.contains(place));
            moved = Moved { any: true, assigned: true };
            if !matches!(owns, Owns::Anew) {
                member.revoking = surplus;
                member.revoke_until = Some(now.boot + member.profile.rebalance);
                return moved;
            }
            for place in surplus {
                self.held.remove(&place);
            }
        }

        let wanted = member.target.difference(&member.assigned);
        let free: Vec<_> = wanted.filter(|place| !self.held.contains(place)).copied().collect();
        if !free.is_empty() {
            self.held.extend(&free);
            member.assigned.extend(free);
            moved = Moved { any: true, assigned: true };
        }
        if member.epoch != self.assignment_epoch {
            member.previous = member.epoch;
            member.epoch = self.assignment_epoch;
            moved.any = true;
        }
        moved
    }
}
