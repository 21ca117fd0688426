//! From one generation to the next, and what the passing of time does.

use super::*;

impl Group {
    /// Starts a rebalance, or goes on with the one that is under way.
    pub(super) fn prepare(&mut self, now: Now, limits: &Limits, out: &mut Out) {
        if self.state == State::CompletingRebalance {
            self.drop_assignments(now, out);
        }
        if self.state != State::PreparingRebalance {
            let whole = self.rebalance_timeout();
            let first = self.state == State::Empty && !limits.initial_delay.is_zero();
            self.gathering = Some(match first {
                true => Gathering::First {
                    until: now.boot + limits.initial_delay,
                    remaining: whole.saturating_sub(limits.initial_delay),
                    newcomers: false,
                },
                false => Gathering::Rejoin { until: now.boot + whole },
            });
            self.unsynced.clear();
            self.sync_until = None;
            self.state = State::PreparingRebalance;
        }
        self.try_complete(now, out);
    }

    fn drop_assignments(&mut self, now: Now, out: &mut Out) {
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
            if let Some(token) = member.syncing.take() {
                out.refuse_sync(token, ResponseError::RebalanceInProgress);
                member.touch(now);
            }
        }
    }

    /// The largest rebalance timeout of the members: how long the slowest may take to rejoin.
    fn rebalance_timeout(&self) -> Duration {
        self.members.values().map(|m| m.rebalance).max().unwrap_or_default()
    }

    /// Ends the gathering if everybody is here.
    pub(super) fn try_complete(&mut self, now: Now, out: &mut Out) {
        let rejoining = matches!(self.gathering, Some(Gathering::Rejoin { .. }));
        let all_here = self.pending.is_empty() && self.members.values().all(|m| m.joining.is_some());
        if self.state == State::PreparingRebalance && rejoining && all_here {
            self.complete(now, out);
        }
    }

    /// Ends the gathering with those who are here.
    fn complete(&mut self, now: Now, out: &mut Out) {
        let silent = |m: &Member| m.joining.is_none() && m.instance.is_none();
        let gone: Vec<String> =
            self.members.iter().filter(|(_, m)| silent(m)).map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.remove(&id, out);
        }
        if !self.members.is_empty() && !self.elect() {
            // Silent static members only: their session timeouts decide.
            let until = now.boot + self.rebalance_timeout().max(Duration::from_secs(1));
            self.gathering = Some(Gathering::Rejoin { until });
            return;
        }
        self.gathering = None;
        self.generation = self.generation.saturating_add(1);
        out.persist = true;
        if self.members.is_empty() {
            self.protocol_name = None;
            self.leader = None;
            self.state = State::Empty;
            self.empty_since = Some(now.wall_ms);
            return;
        }
        self.empty_since = None;
        self.protocol_name = self.vote().map(str::to_owned);
        self.state = State::CompletingRebalance;
        self.unsynced = self.members.keys().cloned().collect();
        self.sync_until = Some(now.boot + self.rebalance_timeout().max(Duration::from_secs(1)));
        self.tell_joined(now, out);
    }

    fn tell_joined(&mut self, now: Now, out: &mut Out) {
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let reply = self.joined(&id);
            let Some(member) = self.members.get_mut(&id) else { continue };
            member.assignment = Bytes::new();
            if let Some(token) = member.joining.take() {
                member.new = false;
                member.touch(now);
                out.replies.push((token, Reply::Join(reply)));
            }
        }
    }

    /// Sees to it that the leader is one of those who joined. `false` if nobody did.
    fn elect(&mut self) -> bool {
        let here = |m: &Member| m.joining.is_some();
        if self.leader.as_ref().and_then(|id| self.members.get(id)).is_some_and(here) {
            return true;
        }
        match self.members.iter().find(|(_, m)| here(m)) {
            Some((id, _)) => {
                self.leader = Some(id.clone());
                true
            }
            None => false,
        }
    }

    /// The protocol that all members speak and most of them prefer; among equals, the one that comes first
    /// in the leader's list.
    pub(super) fn vote(&self) -> Option<&str> {
        let voter = self.leader.as_ref().and_then(|id| self.members.get(id));
        let voter = voter.or_else(|| self.members.values().next())?;
        let shared: Vec<&str> = voter
            .protocols
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| self.members.values().all(|m| m.speaks(name)))
            .collect();
        let prefers = |m: &Member, p: &str| {
            m.protocols.iter().find(|(n, _)| shared.contains(&n.as_str())).is_some_and(|(n, _)| n == p)
        };
        let votes = |p: &str| self.members.values().filter(|m| prefers(m, p)).count();
        // max_by_key keeps the last of equals, hence the reversal.
        shared.iter().rev().copied().max_by_key(|p| votes(p))
    }

    /// Takes a member out. The caller sees to the rebalance.
    pub(super) fn remove(&mut self, id: &str, out: &mut Out) {
        let Some(member) = self.members.remove(id) else { return };
        if let Some(token) = member.joining {
            out.refuse_join(token, ResponseError::UnknownMemberId, id);
        }
        if let Some(token) = member.syncing {
            out.refuse_sync(token, ResponseError::UnknownMemberId);
        }
        if let Some(instance) = &member.instance {
            if self.statics.get(instance).map(String::as_str) == Some(id) {
                self.statics.remove(instance);
            }
        }
        self.unsynced.remove(id);
        if self.leader.as_deref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    /// Acts on every deadline that has passed.
    pub fn tick(&mut self, now: Now, limits: &Limits, out: &mut Out) {
        // What one deadline leads to may make another due; each round removes somebody or moves the
        // group on, so the bound is never reached by a group that is in order.
        for _ in 0..8 {
            if self.next_deadline().is_none_or(|at| at > now.boot) {
                return;
            }
            self.lapse_pending(now, out);
            self.lapse_sessions(now, limits, out);
            self.lapse_gathering(now, limits, out);
            self.lapse_sync(now, limits, out);
        }
    }

    fn lapse_pending(&mut self, now: Now, out: &mut Out) {
        let before = self.pending.len();
        self.pending.retain(|_, until| *until > now.boot);
        if self.pending.len() != before {
            self.try_complete(now, out);
        }
    }

    fn lapse_sessions(&mut self, now: Now, limits: &Limits, out: &mut Out) {
        let over = |m: &Member| m.deadline.is_some_and(|at| at <= now.boot);
        let gone: Vec<String> =
            self.members.iter().filter(|(_, m)| over(m)).map(|(id, _)| id.clone()).collect();
        for id in &gone {
            self.remove(id, out);
        }
        if !gone.is_empty() {
            self.prepare(now, limits, out);
        }
    }

    fn lapse_gathering(&mut self, now: Now, limits: &Limits, out: &mut Out) {
        match self.gathering {
            Some(Gathering::First { until, remaining, newcomers }) if until <= now.boot => {
                if newcomers && !remaining.is_zero() {
                    let more = limits.initial_delay.min(remaining);
                    self.gathering = Some(Gathering::First {
                        until: now.boot + more,
                        remaining: remaining - more,
                        newcomers: false,
                    });
                } else {
                    self.complete(now, out);
                }
            }
            Some(Gathering::Rejoin { until }) if until <= now.boot => self.complete(now, out),
            _ => {}
        }
    }

    /// Members that joined and then never asked for their assignment hold up the group: out with them.
    fn lapse_sync(&mut self, now: Now, limits: &Limits, out: &mut Out) {
        if self.sync_until.is_none_or(|until| until > now.boot) {
            return;
        }
        self.sync_until = None;
        let late = std::mem::take(&mut self.unsynced);
        for id in &late {
            self.remove(id, out);
        }
        if !late.is_empty() {
            self.prepare(now, limits, out);
        }
    }
}
