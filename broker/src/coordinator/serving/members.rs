//! What members of either protocol ask for.

use super::super::any::{AnyGroup, Terms};
use super::super::consumer::{ConsumerError, HeartbeatInput, HeartbeatReply};
use super::super::group::{Caller, JoinInput, JoinReply, Now, Out, Reply, SyncInput, SyncReply};
use super::super::record::MAX_GROUP_BYTES;
use super::{Answer, Gate, Serving};
use kafka_protocol::ResponseError;
use tokio::sync::oneshot;

impl Serving {
    // ---- the classic protocol ----

    pub fn join(
        &mut self,
        id: &str,
        now: Now,
        terms: &Terms<'_>,
        input: JoinInput,
    ) -> oneshot::Receiver<Answer> {
        let (token, answer) = self.token();
        self.step(id, |group, out| {
            let refused = |error, member| (token, Reply::Join(JoinReply::refused(error, member)));
            let Some(group) = group.become_classic() else {
                let error = ResponseError::InconsistentGroupProtocol;
                return out.replies.push(refused(error, input.member_id));
            };
            if group.weight_with(&input) > MAX_GROUP_BYTES {
                let error = ResponseError::GroupMaxSizeReached;
                return out.replies.push(refused(error, input.member_id));
            }
            group.join(now, terms.limits, input, token, out)
        });
        answer
    }

    pub fn sync(&mut self, id: &str, now: Now, input: SyncInput) -> oneshot::Receiver<Answer> {
        let (token, answer) = self.token();
        self.step(id, |group, out| match group {
            AnyGroup::Classic(group) => group.sync(now, input, token, out),
            AnyGroup::Consumer(_) => {
                let refused = SyncReply::refused(ResponseError::UnknownMemberId);
                out.replies.push((token, Reply::Sync(refused)));
            }
        });
        answer
    }

    pub fn heartbeat(&mut self, id: &str, now: Now, caller: &Caller) -> (Result<(), ResponseError>, Gate) {
        let result = self.step(id, |group, _| match group {
            AnyGroup::Classic(group) => group.heartbeat(now, caller),
            AnyGroup::Consumer(_) => Err(ResponseError::UnknownMemberId),
        });
        (result, self.gate(self.doc_seq(id)))
    }

    /// Each of `members` is a member id and an instance id.
    #[allow(clippy::type_complexity)]
    pub fn leave(
        &mut self,
        id: &str,
        now: Now,
        terms: &Terms<'_>,
        members: &[(String, Option<String>)],
    ) -> (Vec<Result<String, ResponseError>>, Gate) {
        let results = self.step(id, |group, out| {
            members.iter().map(|(m, i)| leave(group, now, terms, m, i.as_deref(), out)).collect()
        });
        (results, self.gate(self.doc_seq(id)))
    }

    // ---- the consumer protocol ----

    pub fn consumer_heartbeat(
        &mut self,
        id: &str,
        now: Now,
        terms: &Terms<'_>,
        input: &HeartbeatInput,
    ) -> (Result<HeartbeatReply, ConsumerError>, Gate) {
        let result = input.check(terms.consumer).and_then(|()| {
            self.step(id, |group, out| {
                let joins = input.epoch == 0;
                // Who is in no group any more joins again, where GROUP_ID_NOT_FOUND would end the client.
                let empty_classic = group.classic().is_some_and(|g| g.is_deserted());
                if empty_classic && !joins {
                    return Err(ConsumerError::UnknownMember);
                }
                let group = group.become_consumer().ok_or(ConsumerError::Classic)?;
                group.heartbeat(now, terms.consumer, terms.topics, input, out)
            })
        });
        (result, self.gate(self.doc_seq(id)))
    }

    /// Has consumer groups take note of topics that came, grew or went.
    pub fn refresh(&mut self, terms: &Terms<'_>) {
        let outdated = |(id, live): (&String, &super::Live)| {
            live.group.consumer().is_some_and(|g| g.is_outdated(terms.topics)).then(|| id.clone())
        };
        let ids: Vec<String> = self.live.iter().filter_map(outdated).collect();
        for id in ids {
            self.step(&id, |group, out| {
                if let AnyGroup::Consumer(group) = group {
                    group.refresh(terms.consumer, terms.topics, out);
                }
            });
        }
    }
}

/// LeaveGroup, which members of the consumer protocol do not send; an administrator may remove static ones with it.
fn leave(
    group: &mut AnyGroup,
    now: Now,
    terms: &Terms<'_>,
    member_id: &str,
    instance: Option<&str>,
    out: &mut Out,
) -> Result<String, ResponseError> {
    match (group, instance) {
        (AnyGroup::Classic(group), _) => group.leave(now, terms.limits, member_id, instance, out),
        (AnyGroup::Consumer(group), Some(instance)) if member_id.is_empty() => {
            let removed = group.remove_instance(now, terms.consumer, terms.topics, instance, out);
            removed.map_err(|e| e.error())
        }
        (AnyGroup::Consumer(_), _) => Err(ResponseError::UnknownMemberId),
    }
}
