//! Transactions, as the API handlers see them: the coordinator's half of exactly-once.
//!
//! A transactional id lives in a slot, `slot_of(id)`, beside the groups of that slot: in its log, under its epoch,
//! with its fences and takeovers. The coordinator epoch of a transaction is the slot's leader epoch.

use super::groups::Groups;
use super::producer_ids::ProducerIds;
use super::serving::CommitInput;
use crate::types::TopicId;
use async_trait::async_trait;
use kafka_protocol::ResponseError;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A producer id with the epoch that its holder writes under (KIP-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Producer {
    pub id: i64,
    pub epoch: i16,
}

/// Who takes part in a transaction and is told how it ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Participant {
    Partition(TopicId, i32),
    Group(String),
}

/// How a transaction ended, as each participant is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    pub producer_id: i64,
    /// That of the transaction's records, or a later one that fences them.
    pub producer_epoch: i16,
    pub commit: bool,
    pub coordinator_epoch: i32,
    /// Which transaction of the producer's. `None`: said by WriteTxnMarkers of a stock admin tool.
    pub number: Option<u64>,
}

/// Where a transactional id stands (KIP-98), as DescribeTransactions spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransactionState {
    Empty,
    Ongoing,
    PrepareCommit,
    PrepareAbort,
    CompleteCommit,
    CompleteAbort,
}

impl TransactionState {
    pub fn name(self) -> &'static str {
        match self {
            TransactionState::Empty => "Empty",
            TransactionState::Ongoing => "Ongoing",
            TransactionState::PrepareCommit => "PrepareCommit",
            TransactionState::PrepareAbort => "PrepareAbort",
            TransactionState::CompleteCommit => "CompleteCommit",
            TransactionState::CompleteAbort => "CompleteAbort",
        }
    }
}

/// What DescribeTransactions shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub state: TransactionState,
    pub producer: Producer,
    pub timeout_ms: i32,
    /// Milliseconds since the epoch; -1 while no transaction is open.
    pub started_at: i64,
    pub partitions: Vec<(TopicId, i32)>,
    pub groups: Vec<String>,
}

/// What ListTransactions shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    pub producer_id: i64,
    pub state: TransactionState,
}

/// What ListTransactions asks for. An empty list admits all.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// As [`TransactionState::name`] spells them; names of no state admit nothing.
    pub states: Vec<String>,
    pub producer_ids: Vec<i64>,
    /// Only those open for longer than so many milliseconds; negative: all (version 1).
    pub min_duration_ms: i64,
}

/// What the broker's configuration says of transactions, under Kafka's names.
#[derive(Clone, Debug)]
pub struct TransactionSettings {
    /// `transaction.max.timeout.ms`
    pub max_timeout: Duration,
    /// `transactional.id.expiration.ms`
    pub id_expiration: Duration,
}

impl Default for TransactionSettings {
    fn default() -> Self {
        TransactionSettings {
            max_timeout: Duration::from_secs(15 * 60),
            id_expiration: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// Whom the coordinator has to reach, wherever they are led. Every call may be repeated.
#[async_trait]
pub trait Participants: Send + Sync + 'static {
    /// Returns when the marker is durable in the partition. An answer `UNKNOWN_TOPIC_ID` is believed once the
    /// topic is unknown here, too; every other error has the marker sent again.
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

/// All transactional ids of a broker.
///
/// Errors are those of the newest version of each API; where an older one spells them otherwise the handler maps:
/// PRODUCER_FENCED is INVALID_PRODUCER_EPOCH up to InitProducerId 3, AddPartitionsToTxn 1, AddOffsetsToTxn 1 and
/// EndTxn 1. INVALID_TXN_STATE of [`Transactions::verify`] is TRANSACTION_ABORTABLE to clients that know it.
pub struct Transactions {
    #[allow(dead_code)]
    groups: Arc<Groups>,
    #[allow(dead_code)]
    ids: Arc<ProducerIds>,
    settings: TransactionSettings,
    participants: OnceLock<Arc<dyn Participants>>,
}

impl Transactions {
    /// Answers requests; drives nothing before [`Transactions::start`].
    pub fn new(groups: Arc<Groups>, ids: Arc<ProducerIds>, settings: TransactionSettings) -> Arc<Self> {
        Arc::new(Transactions { groups, ids, settings, participants: OnceLock::new() })
    }

    /// Starts to drive markers, reap and expire, in whichever slots this broker coordinates. Once.
    pub fn start(self: &Arc<Self>, participants: Arc<dyn Participants>) {
        let _first = self.participants.set(participants);
    }

    /// Stops driving. Before [`Groups::shutdown`].
    pub async fn shutdown(&self) {}

    /// Returns when a task died that must not, and says which and why.
    pub async fn failed(&self) -> String {
        std::future::pending().await
    }

    pub fn settings(&self) -> &TransactionSettings {
        &self.settings
    }

    /// InitProducerId with a transactional id. `current`: what the client has, if it says so (KIP-360).
    pub async fn init_producer_id(
        &self,
        _txn_id: &str,
        _timeout_ms: i32,
        _current: Option<Producer>,
    ) -> Result<Producer, ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// AddPartitionsToTxn.
    pub async fn add_partitions(
        &self,
        _txn_id: &str,
        _producer: Producer,
        _participants: Vec<Participant>,
    ) -> Result<(), ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// Whether `participant` takes part in the producer's transaction, and that one's number (KIP-890). `add`: it
    /// does from now on, durably, if the transaction is open or none is (transaction.version 2).
    pub async fn verify(
        &self,
        _txn_id: &str,
        _producer: Producer,
        _participant: Participant,
        _add: bool,
    ) -> Result<u64, ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// AddOffsetsToTxn.
    pub async fn add_offsets(
        &self,
        _txn_id: &str,
        _producer: Producer,
        _group: &str,
    ) -> Result<(), ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// EndTxn. Answered once the decision is durable, with what the producer goes on under: for `version2`
    /// (EndTxn 5) the next epoch or another id, else what it has.
    pub async fn end(
        &self,
        _txn_id: &str,
        _producer: Producer,
        _commit: bool,
        _version2: bool,
    ) -> Result<Producer, ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// DescribeTransactions: TRANSACTIONAL_ID_NOT_FOUND if nobody knows it.
    pub async fn describe(&self, _txn_id: &str) -> Result<Description, ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// ListTransactions: those of the slots that this broker coordinates, by slot and id, and an error if some slot
    /// could not answer. `is_elsewhere` as in [`Groups::list`].
    pub async fn list(
        &self,
        _filter: &ListFilter,
        _is_elsewhere: impl Fn(u32) -> bool,
    ) -> (Vec<Listed>, Option<ResponseError>) {
        (Vec::new(), Some(ResponseError::CoordinatorNotAvailable))
    }

    /// TxnOffsetCommit, on the group's coordinator. `add`: version 5 on, which adds the group to the transaction.
    pub async fn commit_offsets(
        &self,
        _group: &str,
        _txn_id: &str,
        _producer: Producer,
        _input: CommitInput,
        _add: bool,
    ) -> Result<(), ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }

    /// The marker for a group, on the group's coordinator: its pending offsets become visible together, or go.
    pub async fn apply_group_marker(&self, _group: &str, _marker: Marker) -> Result<(), ResponseError> {
        Err(ResponseError::CoordinatorNotAvailable)
    }
}
