//! Transactional batches on their way to a partition (KIP-890): before the first of a transaction is appended, the transaction's
//! coordinator is asked. With Produce 12 that adds the partition to the transaction, too (transaction.version 2).
//!
//! Promises: nothing is appended for a transaction that its coordinator did not confirm; a producer's batches for a partition
//! keep their order, while those of others go past. Who is asked may be another broker, and may not answer: nobody waits
//! for that longer than [`ANSWER`], and the producer is told to try again.
//!
//! A batch that could not be confirmed keeps later ones of its producer out: the partition knows nothing of the producer yet,
//! would take any sequence for the first, and refuse what came before it when that is sent again.

use super::produce::Refusal;
use super::{partitions, RequestContext};
use crate::coordinator::transactions::{Participant, Producer};
use crate::reached;
use crate::storage::{AppendError, AppendRequest, Partition, Question, Ticket};
use crate::types::{Epoch, TopicId};
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the coordinator may take.
const ANSWER: Duration = Duration::from_secs(5);

/// How often a question is asked anew, because a marker came by or the partition was opened again.
const QUESTIONS: usize = 4;

/// How long a batch that could not be confirmed keeps others out: longer than clients try again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Producers remembered because of such batches; more are forgotten early.
const MOST: usize = 10_000;

/// From this version on, clients know TRANSACTION_ABORTABLE.
const ABORTABLE: i16 = 11;
/// From this version on, the partition is added, and CONCURRENT_TRANSACTIONS is tried again.
const ADDS: i16 = 12;

/// A transactional batch, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub producer: Producer,
    pub first_sequence: i32,
}

/// Which line a batch stands in: of its partition and producer.
type Key = (TopicId, i32, i64);

/// Who waits for a coordinator's answer.
#[derive(Default)]
pub struct Lines(Mutex<BTreeMap<Key, Arc<Line>>>);

type Line = tokio::sync::Mutex<Option<Unconfirmed>>;

/// The first batch that could not be confirmed.
#[derive(Clone, Copy, Debug)]
struct Unconfirmed {
    epoch: i16,
    sequence: i32,
    /// Elsewhere, or since, it may have been confirmed.
    leader_epoch: Epoch,
    at: Duration,
}

impl Unconfirmed {
    /// Whether it was sent after `first`, which the partition has yet to get.
    fn comes_too_early(&self, first: &Unconfirmed) -> bool {
        let same = (self.epoch, self.leader_epoch) == (first.epoch, first.leader_epoch);
        same && first.sequence < self.sequence && self.at.saturating_sub(first.at) < REMEMBERED
    }

    /// Which batch keeps others out after the coordinator has answered this one, with an error or none; `before`: which one did.
    fn after(self, before: Option<Unconfirmed>, error: Option<ResponseError>) -> Option<Unconfirmed> {
        match error {
            None => None,
            // Nor are others of its epoch sent again, or of an older one.
            Some(e) if is_final(e) => before.filter(|first| first.epoch > self.epoch),
            Some(_) => Some(self),
        }
    }
}

impl Lines {
    fn line(&self, key: Key) -> Arc<Line> {
        let mut lines = self.0.lock();
        if lines.len() >= MOST {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        lines.entry(key).or_default().clone()
    }

    /// Forgets a line that nobody stands in and that keeps nobody out.
    fn leave(&self, key: &Key, line: Arc<Line>) {
        let mut lines = self.0.lock();
        // Ours and the map's. Nobody gets another while the map is locked.
        if Arc::strong_count(&line) == 2 && line.try_lock().is_ok_and(|unconfirmed| unconfirmed.is_none()) {
            lines.remove(key);
        }
    }
}

/// Appends a transactional batch when its coordinator has confirmed the transaction. In the order of calls, for one producer
/// and partition.
pub(super) async fn append(
    cx: &RequestContext,
    partition: &Arc<Partition>,
    txn_id: &str,
    batch: Batch,
    req: AppendRequest,
    opening: Duration,
) -> Result<Ticket, Refusal> {
    let spec = partition.spec();
    let key = (spec.topic_id, spec.index, batch.producer.id);
    let line = cx.broker.lines.line(key);
    let result = {
        let mut unconfirmed = line.lock().await;
        let verification = Verification { cx, partition, txn_id, batch, opening };
        verification.append(&mut unconfirmed, req).await
    };
    cx.broker.lines.leave(&key, line);
    result
}

struct Verification<'a> {
    cx: &'a RequestContext,
    partition: &'a Arc<Partition>,
    txn_id: &'a str,
    batch: Batch,
    opening: Duration,
}

impl Verification<'_> {
    async fn append(
        &self,
        unconfirmed: &mut Option<Unconfirmed>,
        req: AppendRequest,
    ) -> Result<Ticket, Refusal> {
        let stale = "the transaction's end came by, again and again";
        let mut result = Err(Refusal::new(ResponseError::NotEnoughReplicas, stale));
        for _ in 0..QUESTIONS {
            if let Some(question) = self.question().await? {
                let number = self.ask(unconfirmed).await?;
                if !self.partition.verified(question, number) {
                    continue;
                }
            }
            match self.partition.start_append_soon(req.clone(), self.opening).await {
                // A marker came by, or the partition was opened anew.
                Err(e @ AppendError::InvalidTxnState) => result = Err(self.refusal(&e)),
                appended => return appended.map_err(|e| self.refusal(&e)),
            }
        }
        result
    }

    async fn question(&self) -> Result<Option<Question>, Refusal> {
        let Producer { id, epoch } = self.batch.producer;
        let asked = self.partition.needs_verification(id, epoch);
        let asked = tokio::time::timeout(self.opening, asked).await.unwrap_or(Err(AppendError::NotLeader));
        asked.map_err(|e| self.refusal(&e))
    }

    /// The transaction's number, as its coordinator says it.
    async fn ask(&self, unconfirmed: &mut Option<Unconfirmed>) -> Result<u64, Refusal> {
        let this = self.as_unconfirmed();
        let Producer { id, epoch } = self.batch.producer;
        // A late copy of an old batch, which is not confirmed either, keeps nobody out.
        if self.partition.remembers(id, epoch) {
            *unconfirmed = None;
        }
        if unconfirmed.is_some_and(|first| this.comes_too_early(&first)) {
            reached!("unconfirmed-batch-keeps-later-ones-out");
            let why = "an earlier batch of the producer waits for its transaction to be confirmed";
            return Err(Refusal::new(ResponseError::OutOfOrderSequenceNumber, why));
        }
        let spec = self.partition.spec();
        let participant = Participant::Partition(spec.topic_id, spec.index);
        let version = self.cx.api_version;
        let peers = &self.cx.broker.peers;
        let said = peers.verify(self.txn_id, self.batch.producer, participant, version >= ADDS);
        let said = tokio::time::timeout(ANSWER, said).await;
        let said = said.unwrap_or(Err(ResponseError::NetworkException));
        *unconfirmed = this.after(*unconfirmed, said.err());
        said.map_err(|e| {
            let why = format!("the transaction's coordinator does not confirm it: {e}");
            Refusal::new(spell(e, version), why)
        })
    }

    fn as_unconfirmed(&self) -> Unconfirmed {
        Unconfirmed {
            epoch: self.batch.producer.epoch,
            sequence: self.batch.first_sequence,
            leader_epoch: self.partition.status().epoch,
            at: self.cx.broker.env.clock.boot(),
        }
    }

    fn refusal(&self, error: &AppendError) -> Refusal {
        let code = match error {
            AppendError::InvalidTxnState => abortable(self.cx.api_version),
            error => partitions::append_error(error),
        };
        Refusal::new(code, error.to_string())
    }
}

/// Whether the batch is refused for good, as are all others of its epoch: there is nothing to wait for, and who comes later is to
/// hear why.
fn is_final(error: ResponseError) -> bool {
    use ResponseError::*;
    matches!(error, InvalidProducerEpoch | ProducerFenced | InvalidProducerIdMapping)
}

/// What the coordinator's errors are to producers (Kafka: `ReplicaManager.handleProduceAppend`). NOT_ENOUGH_REPLICAS is one that
/// all of them try again on, without asking for metadata first.
fn spell(error: ResponseError, version: i16) -> ResponseError {
    match error {
        ResponseError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        ResponseError::InvalidTxnState | ResponseError::TransactionAbortable => abortable(version),
        ResponseError::ConcurrentTransactions if version >= ADDS => error,
        ResponseError::UnknownTopicId => ResponseError::UnknownTopicOrPartition,
        ResponseError::InvalidProducerEpoch
        | ResponseError::InvalidProducerIdMapping
        | ResponseError::InvalidRequest
        | ResponseError::UnknownTopicOrPartition => error,
        // That it is elsewhere, not ready, or does not answer.
        _ => ResponseError::NotEnoughReplicas,
    }
}

/// What a transaction that is not confirmed, or not open, is called.
fn abortable(version: i16) -> ResponseError {
    match version >= ABORTABLE {
        true => ResponseError::TransactionAbortable,
        false => ResponseError::InvalidTxnState,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_spelled_as_the_versions_producers_take_them() {
        use ResponseError::*;
        let rows = [
            (ProducerFenced, [InvalidProducerEpoch, InvalidProducerEpoch, InvalidProducerEpoch]),
            (InvalidTxnState, [InvalidTxnState, TransactionAbortable, TransactionAbortable]),
            (ConcurrentTransactions, [NotEnoughReplicas, NotEnoughReplicas, ConcurrentTransactions]),
            (NotCoordinator, [NotEnoughReplicas; 3]),
            (CoordinatorNotAvailable, [NotEnoughReplicas; 3]),
            (CoordinatorLoadInProgress, [NotEnoughReplicas; 3]),
            (NetworkException, [NotEnoughReplicas; 3]),
            (InvalidProducerIdMapping, [InvalidProducerIdMapping; 3]),
            (KafkaStorageError, [NotEnoughReplicas; 3]),
            (UnknownTopicId, [UnknownTopicOrPartition; 3]),
        ];
        for (error, expected) in rows {
            assert_eq!([10, 11, 12].map(|version| spell(error, version)), expected, "{error}");
        }
    }

    fn unconfirmed(sequence: i32, secs: u64) -> Unconfirmed {
        Unconfirmed { epoch: 0, sequence, leader_epoch: Epoch(3), at: Duration::from_secs(secs) }
    }

    #[test]
    fn what_comes_before_the_first_unconfirmed_batch_or_long_after_it_is_let_through() {
        let first = unconfirmed(5, 100);
        assert!(unconfirmed(6, 101).comes_too_early(&first));
        assert!(!unconfirmed(5, 101).comes_too_early(&first), "it comes again");
        assert!(!unconfirmed(4, 101).comes_too_early(&first));
        assert!(!unconfirmed(6, 400).comes_too_early(&first));
        let bumped = Unconfirmed { epoch: 1, ..unconfirmed(6, 101) };
        assert!(!bumped.comes_too_early(&first));
        let elsewhere = Unconfirmed { leader_epoch: Epoch(4), ..unconfirmed(6, 101) };
        assert!(!elsewhere.comes_too_early(&first));
    }

    #[test]
    fn a_batch_that_is_refused_for_good_keeps_nobody_out() {
        let this = unconfirmed(5, 100);
        let kept = |before, error| this.after(before, error).map(|first| (first.epoch, first.sequence));
        assert_eq!(
            kept(None, Some(ResponseError::CoordinatorLoadInProgress)),
            Some((0, 5)),
            "it comes again"
        );
        assert_eq!(kept(Some(unconfirmed(3, 90)), None), None, "it was confirmed");
        for error in [ResponseError::InvalidProducerEpoch, ResponseError::ProducerFenced] {
            assert_eq!(kept(None, Some(error)), None);
            assert_eq!(kept(Some(unconfirmed(3, 90)), Some(error)), None, "its whole epoch is over");
            let newer = Unconfirmed { epoch: 1, ..unconfirmed(0, 90) };
            assert_eq!(kept(Some(newer), Some(error)), Some((1, 0)), "a later epoch's waits on");
        }
    }

    #[tokio::test]
    async fn a_line_is_forgotten_when_nobody_stands_in_it_and_it_keeps_nobody_out() {
        let lines = Lines::default();
        let key = (TopicId::default(), 0, 7);
        let (first, second) = (lines.line(key), lines.line(key));
        lines.leave(&key, first);
        assert_eq!(lines.0.lock().len(), 1, "one stands in it still");
        *second.lock().await = Some(unconfirmed(5, 0));
        lines.leave(&key, second);
        assert_eq!(lines.0.lock().len(), 1, "it keeps others out");
        let third = lines.line(key);
        *third.lock().await = None;
        lines.leave(&key, third);
        assert_eq!(lines.0.lock().len(), 0);
    }
}
