//! Shows what the controller made durable, on a broker that is not controller.
//!
//! Heartbeats tell of changes ([`super::heartbeat`]); so nothing is read when nothing changed. What is read may be
//! older than what was told of, where a cache stands between: then it is read again, past the cache. A picture never goes
//! back: the highest controller epoch counts, and in it the highest change.

use super::controller::Controller;
use super::files;
use super::layout;
use super::metadata::Metadata;
use super::roster::Roster;
use crate::rt::Env;
use crate::types::Epoch;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Follower {
    pub env: Env,
    pub controller: Arc<Controller>,
    pub roster: Arc<Roster>,
    /// How long a read may take, and how often it is tried again.
    pub limit: Duration,
}

impl Follower {
    /// Never returns.
    pub async fn run(self) {
        let mut rounds = self.roster.changes();
        let mut leases = self.controller.lease.began();
        loop {
            tokio::select! {
                biased;
                changed = leases.changed() => match changed {
                    Ok(()) => self.controller.lease_changed(),
                    Err(_) => return std::future::pending().await,
                },
                changed = rounds.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = tokio::time::sleep(self.limit / 10) => {}
            }
            self.catch_up().await;
        }
    }

    /// Shows what a heartbeat told of, if that is news.
    pub async fn catch_up(&self) {
        let Some(announced) = self.roster.view().announced() else { return };
        if announced <= self.controller.latest() {
            return;
        }
        match self.read(announced.0).await {
            Some(metadata) if stamp(&metadata) >= announced => self.controller.publish(metadata),
            // An old one of that name, as a cache has it, or one that is being replaced.
            _ => {
                files::defeat_name_cache(&self.env, layout::METADATA).await;
                if let Some(metadata) = self.read(announced.0).await {
                    self.controller.publish(metadata);
                }
            }
        }
    }

    async fn read(&self, epoch: Epoch) -> Option<Metadata> {
        let path = layout::metadata(epoch);
        let read = files::within(self.limit, "read", &path, files::read(&*self.env.volume, &path)).await;
        match read.map(|bytes| Metadata::decode(&path, &bytes)) {
            Ok(Ok(metadata)) => Some(metadata),
            Ok(Err(e)) => {
                tracing::warn!("{e}; trying again");
                None
            }
            Err(e) => {
                tracing::warn!("{e}; trying again");
                None
            }
        }
    }
}

fn stamp(m: &Metadata) -> (Epoch, u64) {
    (m.controller.map_or(Epoch(0), |stamp| stamp.epoch), m.change)
}
