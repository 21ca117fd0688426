//! Transactions in groups, on the groups' coordinator: offsets before the end, and the end.

use super::{Marker, Participants, Producer, Transactions};
use crate::coordinator::groups::{commit_bytes, valid_id, MAX_COMMIT_BYTES};
use crate::coordinator::serving::{Admission, CommitInput, QUESTION};
use kafka_protocol::ResponseError;
use std::sync::Arc;

/// How often the transaction's coordinator is asked for one commit, if markers keep coming in between.
const QUESTIONS: usize = 4;

impl Transactions {
    /// TxnOffsetCommit, on the group's coordinator: when it returns the offsets are durable, and nobody sees them
    /// before the transaction has committed. `add`: version 5 on, which adds the group to the transaction.
    ///
    /// # Errors
    /// As OffsetCommit; INVALID_PRODUCER_EPOCH here is PRODUCER_FENCED of the transaction's coordinator; and as
    /// [`Transactions::verify`].
    pub async fn commit_offsets(
        &self,
        group: &str,
        txn_id: &str,
        producer: Producer,
        input: CommitInput,
        add: bool,
    ) -> Result<(), ResponseError> {
        valid_id(group)?;
        super::valid_id(txn_id)?;
        if commit_bytes(group, &input.offsets) > MAX_COMMIT_BYTES {
            return Err(ResponseError::InvalidCommitOffsetSize);
        }
        let slot = self.groups.slot(group)?;
        for _ in 0..QUESTIONS {
            let admit = |s: &mut super::Serving, now| s.admit_to_transaction(group, now, producer, &input);
            let (asked_under, admission) = slot.with(admit)?;
            let (number, asked_at) = match admission? {
                Admission::Known(number) => (number, 0),
                Admission::Ask(asked_at) => (self.ask(txn_id, producer, group, add).await?, asked_at),
            };
            let (epoch, gate) = slot.with(|s, now| {
                // What the answer is held against went with the serving that the question was asked under.
                if s.epoch != asked_under {
                    return Err(ResponseError::NotCoordinator);
                }
                s.admit_to_transaction(group, now, producer, &input)?;
                Ok(s.commit_in_transaction(group, producer, number, asked_at, input.offsets.clone()))
            })?;
            if let Some(gate) = gate? {
                return self.answer(slot, epoch, Ok(()), gate).await;
            }
        }
        Err(ResponseError::ConcurrentTransactions)
    }

    async fn ask(
        &self,
        txn_id: &str,
        producer: Producer,
        group: &str,
        add: bool,
    ) -> Result<u64, ResponseError> {
        let participants: &Arc<dyn Participants> =
            self.participants.get().ok_or(ResponseError::CoordinatorNotAvailable)?;
        let asked = participants.verify_group(txn_id, producer, group, add);
        match tokio::time::timeout(QUESTION, asked).await {
            Ok(Err(ResponseError::ProducerFenced)) => Err(ResponseError::InvalidProducerEpoch),
            Ok(answer) => answer,
            Err(_) => Err(ResponseError::CoordinatorNotAvailable),
        }
    }

    /// The marker for a group, on the group's coordinator: its pending offsets become visible together, or go. When
    /// it returns that is durable; it may come any number of times.
    ///
    /// # Errors
    /// TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH, and that the group's coordinator is not here or not ready.
    pub async fn apply_group_marker(&self, group: &str, marker: Marker) -> Result<(), ResponseError> {
        let slot = self.groups.slot(group)?;
        let (epoch, gate) = slot.with(|s, now| s.end_in_group(group, now, &marker))?;
        self.answer(slot, epoch, Ok(()), gate?).await
    }
}
