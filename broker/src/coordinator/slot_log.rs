//! The log under a slot, as the slot sees it.

use crate::storage::{
    Acks, AppendError, AppendRequest, Bound, DeleteRecordsError, LifeName, Partition, ReadError, ReadRequest,
};
use crate::types::{Epoch, Offset};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use std::any::Any;
use std::sync::Arc;
use tokio::sync::Notify;

/// Bytes that one read asks for while a slot loads.
const READ_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    #[error("this broker does not lead the slot now")]
    NotLeader,
    #[error("the volume failed or does not answer: {0}")]
    Storage(String),
    /// Not served until somebody has looked at it: an older offset instead of a lost one would be a lie.
    #[error("the slot's log cannot be read: {0}")]
    Damaged(String),
}

/// What a log holds, under a live lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub epoch: Epoch,
    pub start: Offset,
    pub end: Offset,
}

/// Resolves with the batch's base offset once it is durable.
pub type Pending = BoxFuture<'static, Result<Offset, LogError>>;

#[async_trait]
pub trait SlotLog: Send + Sync + 'static {
    /// Opens the log if need be, and proves the lease.
    async fn open(&self) -> Result<Bounds, LogError>;

    /// Whole batches from `from` on, and the epoch under which they were read.
    async fn read(&self, from: Offset) -> Result<(Epoch, Bytes), LogError>;

    /// Queues a batch. Batches lie in the log in the order in which calls to this return.
    async fn append(&self, batch: Bytes) -> Result<Pending, LogError>;

    /// Gives up what lies before `to`.
    async fn trim(&self, to: Offset) -> Result<(), LogError>;

    /// The epoch under which this broker leads, as far as is known without waiting.
    fn leads(&self) -> Option<Epoch>;

    /// Has `notify` notified when leadership may have changed, until the result is dropped.
    fn watch(&self, notify: &Arc<Notify>) -> Box<dyn Any + Send + Sync>;
}

#[async_trait]
impl SlotLog for Arc<Partition> {
    async fn open(&self) -> Result<Bounds, LogError> {
        let marks = self.marks().await?;
        Ok(Bounds { epoch: marks.epoch, start: marks.log_start, end: marks.hwm })
    }

    async fn read(&self, from: Offset) -> Result<(Epoch, Bytes), LogError> {
        let request =
            ReadRequest { from, max_bytes: READ_BYTES, at_least_one: true, bound: Bound::HighWatermark };
        let read = Partition::read(self, request).await?;
        Ok((read.marks.epoch, read.records))
    }

    async fn append(&self, batch: Bytes) -> Result<Pending, LogError> {
        let ticket = self.start_append(AppendRequest { records: batch, acks: Acks::All }).await?;
        Ok(Box::pin(async move { Ok(ticket.wait().await?.base_offset) }))
    }

    async fn trim(&self, to: Offset) -> Result<(), LogError> {
        self.delete_records(Some(to)).await?;
        Ok(())
    }

    fn leads(&self) -> Option<Epoch> {
        let status = self.status();
        (status.life == LifeName::Leading).then_some(status.epoch)
    }

    fn watch(&self, notify: &Arc<Notify>) -> Box<dyn Any + Send + Sync> {
        Box::new(Partition::watch(self, notify))
    }
}

impl From<AppendError> for LogError {
    fn from(e: AppendError) -> Self {
        match e {
            AppendError::NotLeader => LogError::NotLeader,
            e => LogError::Storage(e.to_string()),
        }
    }
}

impl From<ReadError> for LogError {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::NotLeader => LogError::NotLeader,
            ReadError::Storage(why) => LogError::Storage(why),
            e => LogError::Damaged(e.to_string()),
        }
    }
}

impl From<DeleteRecordsError> for LogError {
    fn from(e: DeleteRecordsError) -> Self {
        match e {
            DeleteRecordsError::NotLeader => LogError::NotLeader,
            e => LogError::Storage(e.to_string()),
        }
    }
}
