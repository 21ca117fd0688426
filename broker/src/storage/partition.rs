//! A partition.

use super::api::*;
use crate::config::TopicConfig;
use crate::types::{Epoch, Offset};
use std::sync::Arc;
use tokio::sync::Notify;

pub struct Partition {
    spec: PartitionSpec,
}

/// A promise that [`Partition::start_append`] gave: the batch has its place in the queue.
pub struct Ticket;

impl Ticket {
    /// Waits until the batch is as durable as its `acks` asked.
    pub async fn wait(self) -> Result<Appended, AppendError> {
        unimplemented!()
    }
}

/// Keeps a long poll registered; dropping it unregisters.
pub struct WatchGuard;

impl Partition {
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    pub fn config(&self) -> Arc<TopicConfig> {
        self.spec.config.clone()
    }

    /// Validates and queues one batch. Waits while the partition opens or its queue is full. Batches
    /// get their offsets in the order in which calls to this return.
    pub async fn start_append(&self, _req: AppendRequest) -> Result<Ticket, AppendError> {
        unimplemented!()
    }

    pub async fn read(&self, _req: ReadRequest) -> Result<ReadOk, ReadError> {
        unimplemented!()
    }

    /// The marks under a live lease; opens the partition if need be.
    pub async fn marks(&self) -> Result<Marks, ReadError> {
        unimplemented!()
    }

    /// What is known without waiting or opening.
    pub fn status(&self) -> PartitionStatus {
        unimplemented!()
    }

    /// A counter of bytes that became visible since the open; differences say how much arrived.
    pub fn visible_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// `notify` is notified (`notify_one`) whenever more becomes visible, the epoch changes or the
    /// partition stops leading, until the guard is dropped.
    pub fn watch(&self, _notify: &Arc<Notify>) -> WatchGuard {
        unimplemented!()
    }

    /// The first record at or after `timestamp` (ms). The batch that holds it is opened.
    pub async fn find_timestamp(&self, _timestamp: i64) -> Result<Option<TimestampHit>, ReadError> {
        unimplemented!()
    }

    /// The record with the largest timestamp (KIP-734).
    pub async fn max_timestamp(&self) -> Result<Option<TimestampHit>, ReadError> {
        unimplemented!()
    }

    /// The largest epoch ≤ `epoch` that has records, and its end offset (KIP-320). `None` if unknown.
    pub async fn epoch_end(&self, _epoch: Epoch) -> Result<Option<(Epoch, Offset)>, ReadError> {
        unimplemented!()
    }

    /// Moves the log start to `to` (`None`: the high watermark), durably, and returns it.
    pub async fn delete_records(&self, _to: Option<Offset>) -> Result<Offset, DeleteRecordsError> {
        unimplemented!()
    }
}
