//! Transactions, as the API handlers see them: the coordinator's half of exactly-once.
//!
//! A transactional id lives in a slot, `slot_of(id)`, beside the groups of that slot: in its log, under its epoch,
//! with its fences and takeovers. The coordinator epoch of a transaction is the slot's leader epoch.

mod drive;
mod groups;
mod types;

pub use types::{
    Description, ListFilter, Listed, Marker, Participant, Producer, TransactionSettings, TransactionState,
};

use super::groups::Groups;
use super::producer_ids::ProducerIds;
use super::serving::{Gate, Serving, Step};
use super::slot::Slot;
use super::transaction::Transaction;
use crate::rt::Vital;
use crate::types::{Epoch, TopicId};
use async_trait::async_trait;
use drive::Driver;
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Whom the coordinator has to reach, wherever they are led. Every call may be repeated.
#[async_trait]
pub trait Participants: Send + Sync + 'static {
    /// Returns when the marker is durable in the partition. An answer `UNKNOWN_TOPIC_ID` is believed once the
    /// topic is unknown here, too, for ten seconds; every other error has the marker sent again.
    ///
    /// A leader that does not know the number of its open transaction asks, and is answered, within this call: the
    /// outcome is being told as long as the call is under way, so `marker.number` is the answer. Nobody else may answer
    /// with it: a marker that was delayed would end the next transaction.
    async fn write_marker(&self, topic: TopicId, partition: i32, marker: Marker)
        -> Result<(), ResponseError>;

    /// Returns when the group's coordinator has applied the marker, durably
    /// ([`Transactions::apply_group_marker`] there).
    async fn write_group_marker(&self, group: &str, marker: Marker) -> Result<(), ResponseError>;

    /// Asks the transaction's coordinator whether the group takes part ([`Transactions::verify`] there).
    async fn verify_group(
        &self,
        txn_id: &str,
        producer: Producer,
        group: &str,
        add: bool,
    ) -> Result<u64, ResponseError>;
}

/// How long the first step of a transaction waits for the one before to be told of. Mostly that takes two syncs, and
/// clients pause for longer than that before they try again.
const SHORTLY: Duration = Duration::from_millis(100);

/// All transactional ids of a broker.
///
/// Errors are those of the newest version of each API; where an older one spells them otherwise the handler maps:
/// PRODUCER_FENCED is INVALID_PRODUCER_EPOCH up to InitProducerId 3, AddPartitionsToTxn 1, AddOffsetsToTxn 1 and
/// EndTxn 1. INVALID_TXN_STATE of [`Transactions::verify`] is TRANSACTION_ABORTABLE to clients that know it.
pub struct Transactions {
    groups: Arc<Groups>,
    ids: Arc<ProducerIds>,
    settings: TransactionSettings,
    participants: OnceLock<Arc<dyn Participants>>,
    /// Says when a driver died.
    vital: Arc<Vital>,
    drivers: Mutex<Vec<JoinHandle<()>>>,
}

impl Transactions {
    /// Answers requests; drives nothing before [`Transactions::start`].
    pub fn new(groups: Arc<Groups>, ids: Arc<ProducerIds>, settings: TransactionSettings) -> Arc<Self> {
        Arc::new(Transactions {
            groups,
            ids,
            settings,
            participants: OnceLock::new(),
            vital: Arc::default(),
            drivers: Mutex::default(),
        })
    }

    /// Starts to drive markers, reap and expire, in whichever slots this broker coordinates. Once.
    pub fn start(&self, participants: Arc<dyn Participants>) {
        if self.participants.set(participants.clone()).is_err() {
            return;
        }
        let driver = |slot: &Arc<Slot>| Driver {
            slot: slot.clone(),
            participants: participants.clone(),
            settings: self.settings.clone(),
        };
        let spawn = |(i, slot)| self.vital.spawn(format!("transactions of slot {i}"), driver(slot).run());
        *self.drivers.lock() = self.groups.slots().iter().enumerate().map(spawn).collect();
    }

    /// Stops driving: what is under way is for the next coordinator. Before [`Groups::shutdown`].
    pub async fn shutdown(&self) {
        self.vital.may_end();
        let drivers = std::mem::take(&mut *self.drivers.lock());
        for driver in drivers {
            driver.abort();
            // It was aborted, or has been told of.
            let _ended = driver.await;
        }
    }

    /// Returns when a driver died, and says which and why. Transactions of its slot do not end any more then.
    pub async fn failed(&self) -> String {
        self.vital.failed().await
    }

    pub fn settings(&self) -> &TransactionSettings {
        &self.settings
    }

    /// InitProducerId with a transactional id. `current`: what the client has, if it says so (KIP-360).
    ///
    /// # Errors
    /// INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT; PRODUCER_FENCED; CONCURRENT_TRANSACTIONS until what was open
    /// before has ended everywhere; that the coordinator is not here or not ready.
    pub async fn init_producer_id(
        &self,
        txn_id: &str,
        timeout_ms: i32,
        current: Option<Producer>,
    ) -> Result<Producer, ResponseError> {
        valid_id(txn_id)?;
        let timeout = u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        if timeout.is_none_or(|t| t > self.settings.max_timeout) {
            return Err(ResponseError::InvalidTransactionTimeout);
        }
        self.with_ids(txn_id, |s, now, fresh| s.init_transaction(txn_id, now, timeout_ms, current, fresh))
            .await
    }

    /// AddPartitionsToTxn.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, and as every call.
    pub async fn add_partitions(
        &self,
        txn_id: &str,
        producer: Producer,
        participants: Vec<Participant>,
    ) -> Result<(), ResponseError> {
        self.participate(txn_id, |s, now| s.add_participants(txn_id, now, producer, participants.clone()))
            .await
    }

    /// Whether `participant` takes part in the producer's transaction, and that one's number (KIP-890). `add`: it
    /// does from now on, durably, in a transaction that starts if none is open (transaction.version 2).
    ///
    /// # Errors
    /// As [`Transactions::add_partitions`]; INVALID_TXN_STATE if it takes no part.
    pub async fn verify(
        &self,
        txn_id: &str,
        producer: Producer,
        participant: Participant,
        add: bool,
    ) -> Result<u64, ResponseError> {
        self.participate(txn_id, |s, now| {
            s.verify_participant(txn_id, now, producer, participant.clone(), add)
        })
        .await
    }

    /// A step that waits, for [`SHORTLY`] at most, until the outcome of the transaction before has been told.
    async fn participate<T>(
        &self,
        txn_id: &str,
        step: impl Fn(&mut Serving, super::group::Now) -> (Result<T, ResponseError>, Gate),
    ) -> Result<T, ResponseError> {
        valid_id(txn_id)?;
        let slot = self.groups.slot(txn_id)?;
        let until = slot.now().boot + SHORTLY;
        let mut pause = Duration::from_millis(1);
        loop {
            let (epoch, (result, gate)) = slot.with(&step)?;
            let early = matches!(result, Err(ResponseError::ConcurrentTransactions));
            if !early || slot.now().boot >= until {
                return self.answer(slot, epoch, result, gate).await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(16));
        }
    }

    /// AddOffsetsToTxn.
    ///
    /// # Errors
    /// INVALID_GROUP_ID, and as [`Transactions::add_partitions`].
    pub async fn add_offsets(
        &self,
        txn_id: &str,
        producer: Producer,
        group: &str,
    ) -> Result<(), ResponseError> {
        super::groups::valid_id(group)?;
        self.add_partitions(txn_id, producer, vec![Participant::Group(group.to_owned())]).await
    }

    /// EndTxn. Answered once the decision is durable, with what the producer goes on under: for `version2`
    /// (EndTxn 5) the next epoch or another id, else what it has.
    ///
    /// # Errors
    /// As [`Transactions::add_partitions`]; INVALID_TXN_STATE for what cannot be ended so.
    pub async fn end(
        &self,
        txn_id: &str,
        producer: Producer,
        commit: bool,
        version2: bool,
    ) -> Result<Producer, ResponseError> {
        valid_id(txn_id)?;
        self.with_ids(txn_id, |s, now, fresh| {
            s.end_transaction(txn_id, now, producer, commit, version2, fresh)
        })
        .await
    }

    /// DescribeTransactions.
    ///
    /// # Errors
    /// TRANSACTIONAL_ID_NOT_FOUND, and as every call.
    pub async fn describe(&self, txn_id: &str) -> Result<Description, ResponseError> {
        valid_id(txn_id)?;
        let slot = self.groups.slot(txn_id)?;
        let (epoch, (description, gate)) =
            slot.with(|s, _| (s.transaction(txn_id).map(describe), s.transaction_gate(txn_id)))?;
        let result = description.ok_or(ResponseError::TransactionalIdNotFound);
        self.answer(slot, epoch, result, gate).await
    }

    /// ListTransactions: those of the slots that this broker coordinates, by slot and id, and an error if some slot
    /// could not answer. `is_elsewhere` as in [`Groups::list`].
    pub async fn list(
        &self,
        filter: &ListFilter,
        is_elsewhere: impl Fn(u32) -> bool,
    ) -> (Vec<Listed>, Option<ResponseError>) {
        let mut all = Vec::new();
        let mut missing = None;
        for (index, slot) in (0u32..).zip(self.groups.slots()) {
            match self.list_slot(slot, filter).await {
                Ok(listed) => all.extend(listed),
                Err(ResponseError::NotCoordinator) if is_elsewhere(index) => {}
                Err(error) => missing = Some(error),
            }
        }
        (all, missing)
    }

    async fn list_slot(&self, slot: &Slot, filter: &ListFilter) -> Result<Vec<Listed>, ResponseError> {
        let listed = |(id, txn): (&String, &Transaction)| Listed {
            id: id.clone(),
            producer_id: txn.producer().id,
            state: txn.state(),
        };
        let (epoch, (all, gate)) = slot.with(|s, now| {
            let admitted = s.transactions().filter(|(_, txn)| filter.admits(txn, now.wall_ms));
            let all = admitted.map(listed).collect();
            (all, s.gate_of_all())
        })?;
        self.answer(slot, epoch, Ok(all), gate).await
    }

    /// A step that may need a producer id that nobody had before.
    async fn with_ids(
        &self,
        txn_id: &str,
        step: impl Fn(&mut Serving, super::group::Now, Option<i64>) -> Step<Producer>,
    ) -> Result<Producer, ResponseError> {
        let slot = self.groups.slot(txn_id)?;
        let mut fresh = None;
        loop {
            let (epoch, taken) = slot.with(|s, now| step(s, now, fresh))?;
            match taken {
                Step::Done(result, gate) => return self.answer(slot, epoch, result, gate).await,
                Step::NeedsId => {
                    let id = self.ids.next().await;
                    fresh = Some(id.map_err(|e| {
                        tracing::warn!("no producer id for a transactional id: {e}");
                        ResponseError::CoordinatorNotAvailable
                    })?);
                }
            }
        }
    }

    /// Answers when what the answer, a refusal too, rests on is durable, and under the same epoch still.
    async fn answer<T>(
        &self,
        slot: &Slot,
        epoch: Epoch,
        result: Result<T, ResponseError>,
        gate: Gate,
    ) -> Result<T, ResponseError> {
        slot.pass(gate).await?;
        slot.confirm(epoch).await?;
        result
    }
}

impl ListFilter {
    fn admits(&self, txn: &Transaction, wall_ms: i64) -> bool {
        let state = self.states.is_empty() || self.states.iter().any(|s| s == txn.state().name());
        let producer = self.producer_ids.is_empty() || self.producer_ids.contains(&txn.producer().id);
        let age = txn.started_at().map(|at| wall_ms.saturating_sub(at));
        state && producer && (self.min_duration_ms < 0 || age.is_some_and(|age| age > self.min_duration_ms))
    }
}

/// The longest transactional id, in bytes, as a Kafka string may be.
const MAX_ID: usize = i16::MAX as usize;

/// Kafka takes any transactional id but the empty one.
fn valid_id(txn_id: &str) -> Result<(), ResponseError> {
    match (1..=MAX_ID).contains(&txn_id.len()) {
        true => Ok(()),
        false => Err(ResponseError::InvalidRequest),
    }
}

fn describe(txn: &Transaction) -> Description {
    let mut description = Description {
        state: txn.state(),
        producer: txn.producer(),
        timeout_ms: txn.timeout_ms(),
        started_at: txn.started_at().unwrap_or(-1),
        partitions: Vec::new(),
        groups: Vec::new(),
    };
    for participant in txn.participants() {
        match participant {
            Participant::Partition(topic, index) => description.partitions.push((*topic, *index)),
            Participant::Group(group) => description.groups.push(group.clone()),
        }
    }
    description
}
