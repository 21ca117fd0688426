//! JoinGroup.

use super::*;

impl Group {
    /// Takes a JoinGroup. The answer for `token` comes in `out`, now or later.
    pub fn join(&mut self, now: Now, limits: &Limits, input: JoinInput, token: Token, out: &mut Out) {
        let id = input.member_id.clone();
        match self.admit(limits, &input) {
            Err(error) => {
                if error == ResponseError::GroupMaxSizeReached {
                    self.pending.remove(&id);
                    self.try_complete(now, out);
                }
                out.refuse_join(token, error, &id)
            }
            Ok(()) if id.is_empty() => self.join_unknown(now, limits, input, token, out),
            Ok(()) if self.pending.contains_key(&id) => self.add(now, limits, id, input, token, out),
            Ok(()) => self.rejoin(now, limits, id, input, token, out),
        }
    }

    /// Whether the request may be taken at all.
    fn admit(&self, limits: &Limits, input: &JoinInput) -> Result<(), ResponseError> {
        let id = input.member_id.as_str();
        let holder = input.instance.as_ref().and_then(|i| self.statics.get(i)).map(String::as_str);
        if !id.is_empty() && (input.instance.is_some() || !self.pending.contains_key(id)) {
            self.identify(id, input.instance.as_deref())?;
        }
        if !self.has_room(limits, id, holder) {
            return Err(ResponseError::GroupMaxSizeReached);
        }
        match self.agrees(input, if id.is_empty() { holder } else { Some(id) }) {
            true => Ok(()),
            false => Err(ResponseError::InconsistentGroupProtocol),
        }
    }

    fn has_room(&self, limits: &Limits, id: &str, holder: Option<&str>) -> bool {
        let known = holder.is_some() || self.members.contains_key(id);
        match self.state {
            State::Empty => true,
            State::PreparingRebalance => {
                let waits = |m: &Member| m.joining.is_some();
                known && self.members.get(id).is_some_and(waits)
                    || self.members.values().filter(|m| waits(m)).count() < limits.max_size
            }
            State::CompletingRebalance | State::Stable => known || self.members.len() < limits.max_size,
        }
    }

    /// Whether some protocol of the request is spoken by every member but `this`, whose own protocols the
    /// request replaces.
    fn agrees(&self, input: &JoinInput, this: Option<&str>) -> bool {
        let mut others = self.members.iter().filter(|(id, _)| Some(id.as_str()) != this).peekable();
        if input.protocol_type.is_empty() || input.protocols.is_empty() {
            return false;
        }
        if others.peek().is_none() {
            return true;
        }
        let others: Vec<&Member> = others.map(|(_, m)| m).collect();
        self.protocol_type.as_ref() == Some(&input.protocol_type)
            && input.protocols.iter().any(|(name, _)| others.iter().all(|m| m.speaks(name)))
    }

    fn join_unknown(&mut self, now: Now, limits: &Limits, input: JoinInput, token: Token, out: &mut Out) {
        let fresh = input.fresh_id.clone();
        match &input.instance {
            Some(instance) if self.statics.contains_key(instance) => {
                self.replace_static(now, limits, instance.clone(), input, token, out)
            }
            None if input.require_known_id => {
                self.pending.insert(fresh.clone(), now.boot + input.session);
                out.refuse_join(token, ResponseError::MemberIdRequired, &fresh);
            }
            _ => self.add(now, limits, fresh, input, token, out),
        }
    }

    fn rejoin(
        &mut self,
        now: Now,
        limits: &Limits,
        id: String,
        input: JoinInput,
        token: Token,
        out: &mut Out,
    ) {
        let leads = self.leader.as_ref() == Some(&id);
        let same = self.members.get(&id).is_some_and(|m| m.protocols == input.protocols);
        match self.state {
            // A member that lost our answer asks again: the generation stands.
            State::CompletingRebalance if same => self.answer_again(now, &id, token, out),
            // A follower that asks again changes nothing; the leader may ask for a rebalance.
            State::Stable if same && !leads => self.answer_again(now, &id, token, out),
            State::Empty => out.refuse_join(token, ResponseError::UnknownMemberId, &id),
            State::PreparingRebalance | State::CompletingRebalance | State::Stable => {
                self.update(now, &id, &input, token, out);
                self.prepare(now, limits, out);
            }
        }
    }

    fn answer_again(&mut self, now: Now, id: &str, token: Token, out: &mut Out) {
        if let Some(member) = self.members.get_mut(id) {
            member.touch(now);
        }
        out.replies.push((token, Reply::Join(self.joined(id))));
    }

    /// The answer that tells member `id` of the present generation.
    pub(super) fn joined(&self, id: &str) -> JoinReply {
        let leads = self.leader.as_deref() == Some(id);
        JoinReply {
            error: None,
            member_id: id.to_owned(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            members: if leads { self.roster() } else { Vec::new() },
        }
    }

    fn roster(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol_name.as_deref().unwrap_or_default();
        let entry = |(id, m): (&String, &Member)| JoinedMember {
            id: id.clone(),
            instance: m.instance.clone(),
            metadata: m.metadata(protocol),
        };
        self.members.iter().map(entry).collect()
    }

    fn add(&mut self, now: Now, limits: &Limits, id: String, input: JoinInput, token: Token, out: &mut Out) {
        self.pending.remove(&id);
        if self.members.is_empty() {
            self.protocol_type = Some(input.protocol_type);
        }
        if self.leader.is_none() {
            self.leader = Some(id.clone());
        }
        if let Some(instance) = &input.instance {
            self.statics.insert(instance.clone(), id.clone());
        }
        let member = Member {
            instance: input.instance,
            client_id: input.client_id,
            client_host: input.client_host,
            session: input.session,
            rebalance: input.rebalance,
            protocols: input.protocols,
            assignment: Bytes::new(),
            joining: Some(token),
            syncing: None,
            new: true,
            deadline: Some(now.boot + NEW_MEMBER_JOIN_TIMEOUT),
        };
        self.members.insert(id, member);
        if self.generation == 0 {
            if let Some(Gathering::First { newcomers, .. }) = &mut self.gathering {
                *newcomers = true;
            }
        }
        self.prepare(now, limits, out);
    }

    /// Takes over what a known member now says of itself, and has it wait for the next generation.
    fn update(&mut self, now: Now, id: &str, input: &JoinInput, token: Token, out: &mut Out) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.client_id.clone_from(&input.client_id);
        member.client_host.clone_from(&input.client_host);
        member.session = input.session;
        member.rebalance = input.rebalance;
        member.protocols.clone_from(&input.protocols);
        member.deadline = member.new.then_some(now.boot + NEW_MEMBER_JOIN_TIMEOUT);
        let alone = self.members.len() == 1;
        if alone {
            self.protocol_type = Some(input.protocol_type.clone());
        }
        // An earlier request of the same member, on a connection that it gave up or will read in order.
        if let Some(earlier) = self.members.get_mut(id).and_then(|m| m.joining.replace(token)) {
            out.refuse_join(earlier, ResponseError::RebalanceInProgress, id);
        }
    }

    /// KIP-345: a restarted static member takes its predecessor's place, and its assignment.
    fn replace_static(
        &mut self,
        now: Now,
        limits: &Limits,
        instance: String,
        input: JoinInput,
        token: Token,
        out: &mut Out,
    ) {
        let id = input.fresh_id.clone();
        let Some(old) = self.statics.insert(instance, id.clone()) else { return };
        let Some(mut member) = self.members.remove(&old) else { return };
        if let Some(waiting) = member.joining.take() {
            out.refuse_join(waiting, ResponseError::FencedInstanceId, &old);
        }
        if let Some(waiting) = member.syncing.take() {
            out.refuse_sync(waiting, ResponseError::FencedInstanceId);
        }
        let led = self.leader.as_deref() == Some(old.as_str());
        if led {
            self.leader = Some(id.clone());
        }
        if self.unsynced.remove(&old) {
            self.unsynced.insert(id.clone());
        }
        self.members.insert(id.clone(), member);
        self.update(now, &id, &input, token, out);

        if self.state == State::Stable && self.protocol_name.as_deref() == self.vote() {
            self.settle_static(now, &id, led.then_some(old), &input, token, out);
        } else {
            // Others already joined or synced on the strength of the old id.
            self.prepare(now, limits, out);
        }
    }

    /// Answers a replaced static member within the generation that stands.
    fn settle_static(
        &mut self,
        now: Now,
        id: &str,
        led_as: Option<String>,
        input: &JoinInput,
        token: Token,
        out: &mut Out,
    ) {
        if let Some(member) = self.members.get_mut(id) {
            member.joining = None;
            member.new = false;
            member.touch(now);
        }
        let mut reply = self.joined(id);
        if led_as.is_some() && input.may_skip_assignment {
            reply.skip_assignment = true;
        } else if let Some(old) = led_as {
            // The client must not take itself for the leader, or it would compute an assignment that
            // nobody asked for.
            reply.leader = old;
            reply.members = Vec::new();
        }
        out.persist = true;
        out.replies.push((token, Reply::Join(reply)));
    }
}
