//! ConsumerGroupHeartbeat: a member joins, says that it is alive and what it has, or leaves.

use super::reconcile::Owns;
use super::*;
use crate::coordinator::group::Out;

/// Who joins.
enum Joins {
    /// A member that is there already: its answer was lost, or it gave up everything to begin anew.
    Known(String),
    New(String),
    /// A static member under another id than before.
    Returns {
        was: String,
        is: String,
    },
}

/// What a request changed of what a member says of itself.
#[derive(Clone, Copy)]
struct Change {
    any: bool,
    /// Something that the target depends on.
    target: bool,
}

impl HeartbeatInput {
    /// What is wrong with the request, whatever group it is for.
    ///
    /// # Errors
    /// INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.
    pub fn check(&self, limits: &ConsumerLimits) -> Result<(), ConsumerError> {
        let invalid = |wrong: bool, why: &'static str| match wrong {
            true => Err(ConsumerError::Invalid(why)),
            false => Ok(()),
        };
        let joins = self.epoch == 0;
        invalid(self.epoch < LEAVE_STATIC, "there is no such member epoch")?;
        invalid(self.instance.as_deref() == Some(""), "the instance id is empty")?;
        invalid(self.rack.as_deref() == Some(""), "the rack id is empty")?;
        invalid(!joins && self.member_id.is_empty(), "the member id is empty")?;
        invalid(joins && self.rebalance.is_none(), "a member that joins says its rebalance timeout")?;
        invalid(joins && self.subscribed.is_none(), "a member that joins says what it subscribes to")?;
        let empty_handed = self.owned.as_ref().is_some_and(Partitions::is_empty);
        invalid(joins && !empty_handed, "a member that joins has given up all partitions, and says so")?;
        let nameless = self.epoch == LEAVE_STATIC && self.instance.is_none();
        invalid(nameless, "only a static member, which says its instance id, leaves to come back")?;
        self.wish(limits).map(|_| ())
    }

    fn wish(&self, limits: &ConsumerLimits) -> Result<Option<Assignor>, ConsumerError> {
        let Some(wanted) = &self.assignor else { return Ok(None) };
        let served = Assignor::from_name(wanted).filter(|a| limits.assignors.contains(a));
        let names = || limits.assignors.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ");
        let refused = || ConsumerError::UnsupportedAssignor { wanted: wanted.clone(), served: names() };
        served.map(Some).ok_or_else(refused)
    }
}

impl ConsumerGroup {
    /// Takes one heartbeat.
    ///
    /// # Errors
    /// As ConsumerGroupHeartbeat has them; then nothing was changed.
    pub fn heartbeat(
        &mut self,
        now: Now,
        limits: &ConsumerLimits,
        topics: &dyn Lookup,
        input: &HeartbeatInput,
        out: &mut Out,
    ) -> Result<HeartbeatReply, ConsumerError> {
        input.check(limits)?;
        let wish = input.wish(limits)?;
        match input.epoch {
            0 => self.join(now, limits, topics, input, wish, out),
            LEAVE | LEAVE_STATIC => self.leave(now, limits, topics, input, out),
            _ => self.stay(now, limits, topics, input, wish, out),
        }
    }

    // ---- join ----

    fn admit(&self, limits: &ConsumerLimits, input: &HeartbeatInput) -> Result<Joins, ConsumerError> {
        let id = if input.member_id.is_empty() { &input.fresh_id } else { &input.member_id };
        let holder = input.instance.as_ref().and_then(|i| self.statics.get(i));
        match holder {
            Some(holder) if holder != id => match self.members.get(holder).map(|m| m.epoch) {
                Some(LEAVE_STATIC) => Ok(Joins::Returns { was: holder.clone(), is: id.clone() }),
                _ => Err(ConsumerError::UnreleasedInstance(holder.clone())),
            },
            _ if self.members.contains_key(id) => Ok(Joins::Known(id.clone())),
            _ if self.members.len() >= limits.max_size => Err(ConsumerError::Full),
            _ => Ok(Joins::New(id.clone())),
        }
    }

    fn join(
        &mut self,
        now: Now,
        limits: &ConsumerLimits,
        topics: &dyn Lookup,
        input: &HeartbeatInput,
        wish: Option<Assignor>,
        out: &mut Out,
    ) -> Result<HeartbeatReply, ConsumerError> {
        let joins = self.admit(limits, input)?;
        self.check_weight(input)?;
        let (id, new) = match joins {
            Joins::Known(id) => (id, false),
            Joins::New(id) => (id, true),
            Joins::Returns { was, is } => {
                self.rename(&was, &is);
                (is, false)
            }
        };
        let fresh = || Member {
            profile: Profile::default(),
            epoch: 0,
            previous: 0,
            assigned: Partitions::new(),
            revoking: Partitions::new(),
            target: Partitions::new(),
            session_until: now.boot + limits.session,
            revoke_until: None,
        };
        let member = self.members.entry(id.clone()).or_insert_with(fresh);
        // What an earlier life said and this one does not holds no longer.
        member.profile.assignor = None;
        member.profile.rack = None;
        let change = self.describe(limits, &id, input, wish);
        self.empty_since = None;
        if new || change.target {
            self.advance(limits, topics);
        }
        self.reconcile(now, &id, Owns::Anew);
        self.touch(now, limits, &id);
        out.persist = true;
        self.reply(&id, true)
    }

    /// A static member goes on under another id, with what it had.
    fn rename(&mut self, was: &str, is: &str) {
        self.remove(is);
        if let Some(member) = self.members.remove(was) {
            if let Some(instance) = &member.profile.instance {
                self.statics.insert(instance.clone(), is.to_owned());
            }
            self.members.insert(is.to_owned(), member);
        }
    }

    /// Takes over what the member now says of itself.
    fn describe(
        &mut self,
        limits: &ConsumerLimits,
        id: &str,
        input: &HeartbeatInput,
        wish: Option<Assignor>,
    ) -> Change {
        let Some(member) = self.members.get_mut(id) else { return Change { any: false, target: false } };
        let before = member.profile.clone();
        let profile = &mut member.profile;
        profile.client_id.clone_from(&input.client_id);
        profile.client_host.clone_from(&input.client_host);
        profile.assignor = wish.or(profile.assignor);
        profile.rebalance = input.rebalance.unwrap_or(profile.rebalance);
        if let Some(subscribed) = &input.subscribed {
            profile.subscribed.clone_from(subscribed);
        }
        if input.rack.is_some() {
            profile.rack.clone_from(&input.rack);
        }
        if input.instance.is_some() {
            profile.instance.clone_from(&input.instance);
        }
        let after = profile.clone();
        if before.instance != after.instance {
            before.instance.as_ref().map(|i| self.statics.remove(i));
            after.instance.as_ref().map(|i| self.statics.insert(i.clone(), id.to_owned()));
        }
        let target = before.subscribed != after.subscribed || self.choice(limits) != self.assignor;
        Change { any: before != after, target }
    }

    // ---- stay ----

    /// Whether the caller is a member of this group.
    fn identify(&self, id: &str, instance: Option<&str>) -> Result<&Member, ConsumerError> {
        match instance.map(|i| self.statics.get(i)) {
            Some(None) => return Err(ConsumerError::UnknownMember),
            Some(Some(holder)) if holder != id => return Err(ConsumerError::FencedInstance),
            _ => {}
        }
        self.members.get(id).ok_or(ConsumerError::UnknownMember)
    }

    fn stay(
        &mut self,
        now: Now,
        limits: &ConsumerLimits,
        topics: &dyn Lookup,
        input: &HeartbeatInput,
        wish: Option<Assignor>,
        out: &mut Out,
    ) -> Result<HeartbeatReply, ConsumerError> {
        let id = input.member_id.as_str();
        let member = self.identify(id, input.instance.as_deref())?;
        // A member in the epoch before did not hear of the new one. That it has nothing beyond what it was
        // given there shows that it is the one whom the lost answer was for.
        let subset = || input.owned.as_ref().is_some_and(|owned| owned.is_subset(&member.assigned));
        let late = input.epoch == member.previous && input.epoch < member.epoch && subset();
        if input.epoch != member.epoch && !late {
            return Err(ConsumerError::FencedEpoch { said: input.epoch, is: member.epoch });
        }
        self.check_weight(input)?;
        let change = self.describe(limits, id, input, wish);
        if change.target {
            self.advance(limits, topics);
        }
        let moved = self.reconcile(now, id, input.owned.as_ref().map_or(Owns::Unsaid, Owns::Said));
        self.touch(now, limits, id);
        out.persist |= change.any || change.target || moved.any;
        let full = input.rebalance.is_some() && input.subscribed.is_some() && input.owned.is_some();
        self.reply(id, full || moved.assigned)
    }

    fn touch(&mut self, now: Now, limits: &ConsumerLimits, id: &str) {
        if let Some(member) = self.members.get_mut(id) {
            member.session_until = now.boot + limits.session;
        }
    }

    fn reply(&self, id: &str, with_assignment: bool) -> Result<HeartbeatReply, ConsumerError> {
        let member = self.members.get(id).ok_or(ConsumerError::UnknownMember)?;
        Ok(HeartbeatReply {
            member_id: id.to_owned(),
            epoch: member.epoch,
            assignment: with_assignment.then(|| member.assigned.clone()),
        })
    }

    // ---- leave ----

    fn leave(
        &mut self,
        now: Now,
        limits: &ConsumerLimits,
        topics: &dyn Lookup,
        input: &HeartbeatInput,
        out: &mut Out,
    ) -> Result<HeartbeatReply, ConsumerError> {
        let id = input.member_id.as_str();
        self.identify(id, input.instance.as_deref())?;
        match input.epoch {
            LEAVE_STATIC => self.step_out(now, limits, id),
            _ => self.remove_all(now, limits, topics, &[id.to_owned()]),
        }
        out.persist = true;
        Ok(HeartbeatReply { member_id: id.to_owned(), epoch: input.epoch, assignment: None })
    }

    /// A static member is away: what it has waits for it, for as long as a session lasts.
    fn step_out(&mut self, now: Now, limits: &ConsumerLimits, id: &str) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.epoch = LEAVE_STATIC;
        member.revoke_until = None;
        for place in std::mem::take(&mut member.revoking) {
            self.held.remove(&place);
        }
        self.touch(now, limits, id);
    }

    /// Takes out the static member of this instance, as an administrator asks for (KIP-345). Gives back its id.
    ///
    /// # Errors
    /// UNKNOWN_MEMBER_ID.
    pub fn remove_instance(
        &mut self,
        now: Now,
        limits: &ConsumerLimits,
        topics: &dyn Lookup,
        instance: &str,
        out: &mut Out,
    ) -> Result<String, ConsumerError> {
        let id = self.statics.get(instance).cloned().ok_or(ConsumerError::UnknownMember)?;
        self.remove_all(now, limits, topics, std::slice::from_ref(&id));
        out.persist = true;
        Ok(id)
    }

    fn remove_all(&mut self, now: Now, limits: &ConsumerLimits, topics: &dyn Lookup, ids: &[String]) {
        for id in ids {
            self.remove(id);
        }
        self.advance(limits, topics);
        if self.members.is_empty() {
            self.empty_since = Some(now.wall_ms);
        }
    }

    fn remove(&mut self, id: &str) {
        let Some(member) = self.members.remove(id) else { return };
        for place in member.assigned.iter().chain(&member.revoking) {
            self.held.remove(place);
        }
        if let Some(instance) = &member.profile.instance {
            if self.statics.get(instance).map(String::as_str) == Some(id) {
                self.statics.remove(instance);
            }
        }
    }

    // ---- time ----

    /// Takes out members that are silent, or that did not give up in time what others wait for.
    pub fn tick(&mut self, now: Now, limits: &ConsumerLimits, topics: &dyn Lookup, out: &mut Out) {
        let over =
            |m: &Member| m.session_until <= now.boot || m.revoke_until.is_some_and(|until| until <= now.boot);
        let gone: Vec<String> =
            self.members.iter().filter(|(_, m)| over(m)).map(|(id, _)| id.clone()).collect();
        if !gone.is_empty() {
            self.remove_all(now, limits, topics, &gone);
            out.persist = true;
        }
    }
}
