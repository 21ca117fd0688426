//! What transactions are spoken of in.

pub use crate::storage::Marker;
use crate::types::TopicId;
use serde::{Deserialize, Serialize};
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
