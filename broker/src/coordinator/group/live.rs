//! What members of a generation do: sync, heartbeat, commit, leave.

use super::*;

impl Group {
    /// Takes a SyncGroup. The answer for `token` comes in `out`, now or later.
    pub fn sync(&mut self, now: Now, input: SyncInput, token: Token, out: &mut Out) {
        if let Err(error) = self.may_sync(&input) {
            return out.refuse_sync(token, error);
        }
        let id = input.member_id.as_str();
        self.unsynced.remove(id);
        if self.state == State::Stable {
            if let Some(member) = self.members.get_mut(id) {
                member.touch(now);
            }
            return out.replies.push((token, Reply::Sync(self.synced(id))));
        }
        if let Some(member) = self.members.get_mut(id) {
            member.deadline = None;
            if let Some(earlier) = member.syncing.replace(token) {
                out.refuse_sync(earlier, ResponseError::RebalanceInProgress);
            }
        }
        if self.leader.as_deref() == Some(id) {
            self.assign(now, &input.assignments, out);
        }
    }

    fn may_sync(&self, input: &SyncInput) -> Result<(), ResponseError> {
        self.identify(&input.member_id, input.instance.as_deref())?;
        if input.generation != self.generation {
            return Err(ResponseError::IllegalGeneration);
        }
        let differs = |said: &Option<String>, is: &Option<String>| said.is_some() && said != is;
        if differs(&input.protocol_type, &self.protocol_type)
            || differs(&input.protocol_name, &self.protocol_name)
        {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        match self.state {
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::PreparingRebalance => Err(ResponseError::RebalanceInProgress),
            State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    /// The leader's word: who got nothing gets an empty assignment, who is no member gets none.
    fn assign(&mut self, now: Now, assignments: &[(String, Bytes)], out: &mut Out) {
        for (id, assignment) in assignments {
            if let Some(member) = self.members.get_mut(id) {
                member.assignment = assignment.clone();
            }
        }
        self.state = State::Stable;
        out.persist = true;
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let reply = self.synced(&id);
            let Some(member) = self.members.get_mut(&id) else { continue };
            if let Some(token) = member.syncing.take() {
                member.touch(now);
                out.replies.push((token, Reply::Sync(reply)));
            }
        }
    }

    fn synced(&self, id: &str) -> SyncReply {
        SyncReply {
            error: None,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            assignment: self.members.get(id).map(|m| m.assignment.clone()).unwrap_or_default(),
        }
    }

    /// A member is alive. 27 tells it to rejoin.
    pub fn heartbeat(&mut self, now: Now, caller: &Caller) -> Result<(), ResponseError> {
        self.check_member(caller)?;
        if let Some(member) = self.members.get_mut(&caller.member_id) {
            member.touch(now);
        }
        match self.state {
            State::PreparingRebalance => Err(ResponseError::RebalanceInProgress),
            State::Empty | State::CompletingRebalance | State::Stable => Ok(()),
        }
    }

    fn check_member(&self, caller: &Caller) -> Result<(), ResponseError> {
        self.identify(&caller.member_id, caller.instance.as_deref())?;
        match caller.generation == self.generation {
            true => Ok(()),
            false => Err(ResponseError::IllegalGeneration),
        }
    }

    /// Whether `caller` may commit offsets now (P8). A negative generation is a client without a group
    /// protocol, which may commit only while nobody else consumes.
    pub fn may_commit(&mut self, now: Now, caller: &Caller) -> Result<(), ResponseError> {
        if caller.generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        if caller.generation < 0 && caller.member_id.is_empty() && caller.instance.is_none() {
            return Err(ResponseError::UnknownMemberId);
        }
        self.check_member(caller)?;
        if let Some(member) = self.members.get_mut(&caller.member_id) {
            member.touch(now);
        }
        match self.state {
            // The new generation's owner of a partition is not decided: nobody speaks for it.
            State::CompletingRebalance => Err(ResponseError::RebalanceInProgress),
            State::Empty | State::PreparingRebalance | State::Stable => Ok(()),
        }
    }

    /// As [`Group::may_commit`], of a member that commits in a transaction (KIP-447): also while a rebalance goes on.
    pub fn may_commit_in_transaction(&mut self, now: Now, caller: &Caller) -> Result<(), ResponseError> {
        if caller.generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        self.check_member(caller)?;
        if let Some(member) = self.members.get_mut(&caller.member_id) {
            member.touch(now);
        }
        Ok(())
    }

    /// A member leaves: by its id, or as the holder of a static instance (KIP-345: administrators remove
    /// static members by instance alone). Gives back the id that left.
    pub fn leave(
        &mut self,
        now: Now,
        limits: &Limits,
        member_id: &str,
        instance: Option<&str>,
        out: &mut Out,
    ) -> Result<String, ResponseError> {
        let id = match instance {
            Some(instance) if member_id.is_empty() => {
                self.statics.get(instance).cloned().ok_or(ResponseError::UnknownMemberId)?
            }
            None if self.pending.remove(member_id).is_some() => {
                self.try_complete(now, out);
                return Ok(member_id.to_owned());
            }
            _ => {
                self.identify(member_id, instance)?;
                member_id.to_owned()
            }
        };
        self.remove(&id, out);
        self.prepare(now, limits, out);
        Ok(id)
    }
}
