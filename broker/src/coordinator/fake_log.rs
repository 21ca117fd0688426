//! A slot's log in memory, for tests: it can hold back its syncs, fail, and change its leader.

use super::record;
use super::slot_log::{Bounds, LogError, Pending, SlotLog};
use crate::types::{Epoch, Offset};
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    epoch: Epoch,
    leads: bool,
    /// Base offset, end, bytes.
    batches: Vec<(i64, i64, Bytes)>,
    start: i64,
    durable: i64,
    held: bool,
    failing: bool,
    /// Reads do not return.
    stuck: bool,
    panics: bool,
    trims: Vec<i64>,
}

impl State {
    fn end(&self) -> i64 {
        self.batches.last().map_or(self.start, |(_, end, _)| *end)
    }
}

/// Clones share one log.
#[derive(Clone, Default)]
pub struct FakeLog {
    state: Arc<Mutex<State>>,
    moved: Arc<Notify>,
    watchers: Arc<Mutex<Vec<Arc<Notify>>>>,
}

impl FakeLog {
    pub fn new() -> Self {
        let log = FakeLog::default();
        log.lead(1);
        log
    }

    /// A leader of `epoch` opens the log: what was not durable is gone.
    pub fn lead(&self, epoch: u32) {
        let mut state = self.state.lock();
        let durable = state.durable;
        state.batches.retain(|(_, end, _)| *end <= durable);
        state.epoch = Epoch(epoch);
        state.leads = true;
        state.failing = false;
        state.held = false;
        drop(state);
        self.announce();
    }

    /// The lease ends.
    pub fn depose(&self) {
        self.state.lock().leads = false;
        self.announce();
    }

    /// Syncs do not return until [`FakeLog::release`].
    pub fn hold(&self) {
        self.state.lock().held = true;
    }

    pub fn release(&self) {
        let mut state = self.state.lock();
        state.held = false;
        state.durable = state.end();
        drop(state);
        self.announce();
    }

    /// Appends that are under way, and later ones, fail.
    pub fn fail(&self) {
        self.state.lock().failing = true;
        self.announce();
    }

    /// Reads do not return, or do again.
    pub fn stick(&self, stuck: bool) {
        self.state.lock().stuck = stuck;
    }

    /// The next append panics.
    pub fn panic(&self) {
        self.state.lock().panics = true;
    }

    pub fn batches(&self) -> usize {
        self.state.lock().batches.len()
    }

    pub fn start(&self) -> i64 {
        self.state.lock().start
    }

    fn announce(&self) {
        self.moved.notify_waiters();
        self.watchers.lock().iter().for_each(|w| w.notify_one());
    }
}

/// As storage does: base offset and leader epoch are stamped, and neither is under the checksum.
fn stamp(batch: &Bytes, base: i64, epoch: Epoch) -> Bytes {
    let mut stamped = BytesMut::new();
    stamped.put_i64(base);
    stamped.put_slice(&batch[8..12]);
    stamped.put_i32(epoch.wire());
    stamped.put_slice(&batch[16..]);
    stamped.freeze()
}

#[async_trait]
impl SlotLog for FakeLog {
    async fn open(&self) -> Result<Bounds, LogError> {
        let state = self.state.lock();
        match state.leads {
            true => Ok(Bounds {
                epoch: state.epoch,
                start: Offset(state.start),
                end: Offset(state.durable.max(state.start)),
            }),
            false => Err(LogError::NotLeader),
        }
    }

    async fn read(&self, from: Offset) -> Result<(Epoch, Bytes), LogError> {
        let stuck = self.state.lock().stuck;
        if stuck {
            std::future::pending::<()>().await;
        }
        let state = self.state.lock();
        let mut out = BytesMut::new();
        // One batch at a time, so that loads go round.
        let next = state.batches.iter().find(|(_, end, _)| *end > from.0 && *end <= state.durable);
        next.into_iter().for_each(|(_, _, bytes)| out.put_slice(bytes));
        Ok((state.epoch, out.freeze()))
    }

    async fn append(&self, batch: Bytes) -> Result<Pending, LogError> {
        let (base, end) = {
            let mut state = self.state.lock();
            assert!(!state.panics, "told to panic");
            if !state.leads {
                return Err(LogError::NotLeader);
            }
            let count = record::decode(batch.clone()).unwrap()[0].entries.len() as i64;
            let base = state.end();
            let stamped = stamp(&batch, base, state.epoch);
            state.batches.push((base, base + count, stamped));
            if !state.held && !state.failing {
                state.durable = base + count;
            }
            (base, base + count)
        };
        let log = self.clone();
        Ok(Box::pin(async move {
            loop {
                let moved = log.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                {
                    let state = log.state.lock();
                    if state.failing {
                        return Err(LogError::Storage("told to fail".to_owned()));
                    }
                    if !state.leads {
                        return Err(LogError::NotLeader);
                    }
                    if state.durable >= end {
                        return Ok(Offset(base));
                    }
                }
                moved.await;
            }
        }))
    }

    async fn trim(&self, to: Offset) -> Result<(), LogError> {
        let mut state = self.state.lock();
        state.trims.push(to.0);
        state.start = state.start.max(to.0);
        let start = state.start;
        state.batches.retain(|(_, end, _)| *end > start);
        Ok(())
    }

    fn leads(&self) -> Option<Epoch> {
        let state = self.state.lock();
        state.leads.then_some(state.epoch)
    }

    fn watch(&self, notify: &Arc<Notify>) -> Box<dyn Any + Send + Sync> {
        self.watchers.lock().push(notify.clone());
        Box::new(())
    }
}
