//! Producer ids, from blocks that are durable before any id of them is given out.
//!
//! Promises: no id is given out twice, by any broker, whatever crashes, loses power, stalls or acts late; and no
//! call waits longer than the sync timeout. Does not promise that ids are dense or rise across brokers: a block
//! that was claimed and not used up is lost.
//!
//! Block `k` holds the ids `1000·k .. 1000·k + 999`. It belongs to the process whose exclusive create made
//!
//! ```text
//! __cluster/producer-ids/{k:016x}.block      {"broker":1,"block":7}, for people; the name alone is the claim
//! ```
//!
//! A claim is, in this order, and each step is why the next is safe:
//!
//! 1. list, and take `k` = 1 + the highest block listed;
//! 2. create `k` exclusively: one winner, also against a listing that was stale or a create that arrives late;
//! 3. list again, and give `k` up if a higher one is there: a block that was claimed and unlinked meanwhile always
//!    leaves a higher one behind (the exclusive create of a fresh name has defeated the client's cache of names);
//! 4. sync the file and the directory: from here no power cut brings `k` back;
//! 5. check that the lease of step 1 still stands; else nothing of `k` is used;
//! 6. unlink lower blocks. The highest durable block is never unlinked, so that step 3 holds for ever, and a late
//!    unlink of a dead broker can only hit what was already superseded.
//!
//! What fails in between leaves at most a name behind that nobody uses.

use crate::rt::Env;
use crate::storage::Fence;
use crate::types::BrokerId;
use crate::volume::{write_all_at, Class, Entry, EntryKind, Volume, VolumeError};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Ids in one block, as in Kafka (`ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`).
const BLOCK_IDS: i64 = 1000;
const ROOT: &str = "__cluster";
pub(super) const DIR: &str = "__cluster/producer-ids";
/// Lost races in a row before a call gives up. A loser goes on above the winner, so that losing needs
/// a winner each time.
const MAX_LOST_RACES: u32 = 64;

/// Why no id was given out. Each is for the client to try again.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProducerIdError {
    #[error("this broker's lease does not stand now")]
    NoLease,
    #[error("no producer id block was durable within {0:?}")]
    TimedOut(Duration),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("other brokers took {MAX_LOST_RACES} producer id blocks in a row")]
    Contended,
    #[error("all producer ids are used up")]
    Exhausted,
}

/// Gives out producer ids: one per broker.
pub struct ProducerIds {
    volume: Arc<dyn Volume>,
    fence: Arc<dyn Fence>,
    broker: BrokerId,
    timeout: Duration,
    /// Held while a block is claimed, so that concurrent callers share one claim.
    current: Mutex<Option<Block>>,
}

/// What is left of a durable block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    /// The lease under which it was claimed; under a later one it is left behind.
    token: u64,
    next: i64,
    end: i64,
}

impl Block {
    fn new(token: u64, number: u64) -> Option<Block> {
        let start = i64::try_from(number).ok()?.checked_mul(BLOCK_IDS)?;
        Some(Block { token, next: start, end: start.checked_add(BLOCK_IDS)? })
    }

    fn take(&mut self) -> Option<i64> {
        (self.next < self.end).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl ProducerIds {
    /// `timeout`: how long a call may wait for the volume. No I/O happens here.
    pub fn new(env: &Env, fence: Arc<dyn Fence>, broker: BrokerId, timeout: Duration) -> Self {
        ProducerIds { volume: env.volume.clone(), fence, broker, timeout, current: Mutex::new(None) }
    }

    /// A producer id that was never given out before.
    pub async fn next(&self) -> Result<i64, ProducerIdError> {
        // The time limit covers the wait for another caller's claim, too. A claim that is cut off here may still
        // reach the volume; its block is then skipped.
        match tokio::time::timeout(self.timeout, self.next_unbounded()).await {
            Ok(result) => result,
            Err(_) => Err(ProducerIdError::TimedOut(self.timeout)),
        }
    }

    async fn next_unbounded(&self) -> Result<i64, ProducerIdError> {
        let mut current = self.current.lock().await;
        let token = self.fence.right().ok_or(ProducerIdError::NoLease)?;
        if let Some(block) = current.as_mut().filter(|b| b.token == token) {
            if let Some(id) = block.take() {
                return Ok(id);
            }
        }
        *current = None;
        let mut block = self.claim(token).await?;
        let id = block.take().ok_or(ProducerIdError::Exhausted)?;
        *current = Some(block);
        Ok(id)
    }

    /// Claims a block as the module's comment says.
    async fn claim(&self, token: u64) -> Result<Block, ProducerIdError> {
        self.make_dirs().await?;
        let mut least = 0;
        for _ in 0..MAX_LOST_RACES {
            let listed = self.list().await?;
            let number = least.max(successor(highest(&listed))?);
            let block = Block::new(token, number).ok_or(ProducerIdError::Exhausted)?;
            least = successor(Some(number))?;
            let path = format!("{DIR}/{}", file_name(number));
            let file = match self.volume.create_new(&path, Class::Control).await {
                Ok(file) => file,
                Err(e) if e.is_already_exists() => continue,
                Err(e) => return Err(e.into()),
            };
            let listed = self.list().await?;
            if highest(&listed).is_some_and(|h| h > number) {
                continue;
            }
            write_all_at(&*file, 0, vec![self.contents(number)]).await?;
            file.sync().await?;
            self.volume.sync_dir(DIR, Class::Control).await?;
            if !self.fence.holds(token) {
                return Err(ProducerIdError::NoLease);
            }
            self.unlink_below(number, &listed).await;
            return Ok(block);
        }
        Err(ProducerIdError::Contended)
    }

    fn contents(&self, number: u64) -> Bytes {
        Bytes::from(format!("{{\"broker\":{},\"block\":{number}}}\n", self.broker))
    }

    /// The directory's own name must be durable before a name in it counts, whoever made it.
    async fn make_dirs(&self) -> Result<(), VolumeError> {
        for (dir, parent) in [(ROOT, ""), (DIR, ROOT)] {
            match self.volume.mkdir(dir, Class::Control).await {
                Err(e) if !e.is_already_exists() => return Err(e),
                _ => self.volume.sync_dir(parent, Class::Control).await?,
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<u64>, VolumeError> {
        Ok(block_numbers(&self.volume.read_dir(DIR, Class::Control).await?))
    }

    /// Tidies up. A failure leaves a small file behind, which the next claim unlinks.
    async fn unlink_below(&self, number: u64, listed: &[u64]) {
        for old in listed.iter().filter(|n| **n < number) {
            if let Err(e) = self.volume.unlink(&format!("{DIR}/{}", file_name(*old))).await {
                tracing::debug!(error = %e, "an old producer id block stays");
            }
        }
    }
}

pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}.block")
}

/// The blocks among directory entries. Names that no claim can have made (`.nfs…`, `x.tmp`) are not ours.
pub(super) fn block_numbers(entries: &[Entry]) -> Vec<u64> {
    entries
        .iter()
        .filter(|e| e.kind == EntryKind::File)
        .filter_map(|e| {
            let number = u64::from_str_radix(e.name.strip_suffix(".block")?, 16).ok()?;
            (file_name(number) == e.name).then_some(number)
        })
        .collect()
}

fn highest(listed: &[u64]) -> Option<u64> {
    listed.iter().copied().max()
}

fn successor(number: Option<u64>) -> Result<u64, ProducerIdError> {
    match number {
        None => Ok(0),
        Some(n) => n.checked_add(1).ok_or(ProducerIdError::Exhausted),
    }
}

#[cfg(test)]
mod tests;
