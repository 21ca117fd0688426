//! Tells participants how transactions ended, aborts those whose time is up, and forgets ids that nobody uses.
//!
//! One task per slot, which works while this broker coordinates the slot. Everything that it needs to know stands in
//! the slot's log, so the next coordinator goes on where this one stopped: participants that were told already are told
//! again, and take it as said. Nobody is told before the decision is durable, and a transaction is complete
//! when all participants have it durably, not when they were told.

use super::{Marker, Participant, Participants, TransactionSettings};
use crate::coordinator::serving::Outcome;
use crate::coordinator::slot::Slot;
use crate::reached;
use crate::types::Epoch;
use futures::stream::{self, FuturesUnordered, StreamExt};
use kafka_protocol::ResponseError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Participants of one transaction that are told at the same time.
const AT_ONCE: usize = 256;

/// The first pause before a participant is told again; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a participant may take to answer before it is told again: the answer may be lost.
const ANSWER: Duration = Duration::from_secs(5);

/// How often the clock is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A topic that has been unknown for so long is deleted: a picture of the metadata is not so old.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// How often ids are looked through for expired ones.
const EXPIRY_LOOK: Duration = Duration::from_secs(600);

pub(super) struct Driver {
    pub slot: Arc<Slot>,
    pub participants: Arc<dyn Participants>,
    pub settings: TransactionSettings,
}

impl Driver {
    /// For ever.
    pub async fn run(self) {
        loop {
            if let Ok((epoch, ())) = self.slot.with(|_, _| ()) {
                self.run_under(epoch).await;
            }
            tokio::select! {
                biased;
                () = self.slot.news() => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Until the slot is not served under `epoch` any more. What is under way then is dropped.
    async fn run_under(&self, epoch: Epoch) {
        let mut driven = BTreeSet::new();
        let mut drives = FuturesUnordered::new();
        let mut expire_at = self.slot.now().boot + EXPIRY_LOOK;
        loop {
            let looked = self.slot.with(|s, now| {
                if s.epoch != epoch {
                    return None;
                }
                if s.reap_transactions(now) > 0 {
                    reached!("transaction-reaped");
                }
                if now.boot >= expire_at {
                    expire_at = now.boot + EXPIRY_LOOK;
                    s.expire_transactions(now, self.settings.id_expiration);
                }
                Some(s.outcomes(&driven))
            });
            let Ok((_, Some(outcomes))) = looked else { return };
            for outcome in outcomes {
                driven.insert(outcome.id.clone());
                drives.push(self.drive(epoch, outcome));
            }
            tokio::select! {
                biased;
                Some(id) = drives.next() => drop(driven.remove(&id)),
                () = self.slot.news() => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Tells everybody, then says so. Gives back the transactional id; if it is not complete then, the slot is not
    /// served any more.
    async fn drive(&self, epoch: Epoch, outcome: Outcome) -> String {
        let Outcome { id, marker, number, participants, gate, inherited } = outcome;
        if self.slot.pass(gate).await.is_err() {
            return id;
        }
        if inherited {
            reached!("decision-resumed");
        }
        let tells = stream::iter(participants).map(|p| self.tell(epoch, p, marker));
        let told: Vec<bool> = tells.buffer_unordered(AT_ONCE).collect().await;
        if told.into_iter().all(|t| t) {
            if let Ok((_, Some(gate))) =
                self.slot.with(|s, now| (s.epoch == epoch).then(|| s.complete_transaction(&id, now, number)))
            {
                // Until it is durable the next coordinator tells everybody again, which harms nobody.
                let _durable = self.slot.pass(gate).await;
            }
        }
        id
    }

    /// Tells one participant, as often as it takes. False: the slot is not served under `epoch` any more.
    async fn tell(&self, epoch: Epoch, participant: Participant, marker: Marker) -> bool {
        let mut pause = PAUSE;
        let mut missing_since = None;
        loop {
            if !matches!(self.slot.with(|s, _| s.epoch == epoch), Ok((_, true))) {
                return false;
            }
            let told = match &participant {
                Participant::Partition(topic, index) => {
                    self.participants.write_marker(*topic, *index, marker)
                }
                Participant::Group(group) => self.participants.write_group_marker(group, marker),
            };
            let told = timeout(ANSWER, told).await;
            let Err(error) = told.unwrap_or(Err(ResponseError::RequestTimedOut)) else { return true };
            if self.is_gone(&participant, error, &mut missing_since) {
                return true;
            }
            reached!("marker-retried");
            match error {
                // No retry helps, and none harms: for whoever looks after it.
                ResponseError::InvalidProducerEpoch | ResponseError::TransactionCoordinatorFenced => {
                    tracing::warn!(?participant, ?marker, "the end of a transaction is refused: {error}");
                }
                _ => {
                    tracing::debug!(?participant, ?marker, "the end of a transaction is told again: {error}")
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether the participant is a partition of a topic that was deleted.
    fn is_gone(
        &self,
        participant: &Participant,
        error: ResponseError,
        missing_since: &mut Option<Duration>,
    ) -> bool {
        let unknown = matches!(error, ResponseError::UnknownTopicId | ResponseError::UnknownTopicOrPartition);
        let missing = match participant {
            Participant::Partition(topic, _) => unknown && !self.slot.topic_exists(*topic),
            Participant::Group(_) => false,
        };
        let now = self.slot.now().boot;
        *missing_since = missing.then(|| missing_since.unwrap_or(now));
        missing_since.is_some_and(|since| now.saturating_sub(since) >= GONE_AFTER)
    }
}
