//! Shows what the controller made durable, on a broker that is not controller.
//!
//! Heartbeats tell of changes ([`super::heartbeat`]); so nothing is read when nothing changed. What is read may be
//! older than what was told of, where a cache stands between: then it is read again, past the cache. A picture never goes
//! back: the highest controller epoch counts, and in it the highest change.
//!
//! What a controller wrote counts only if nobody claimed a higher epoch before it was read. Else it may have been written
//! after its successor had read what it inherits: such a change was never answered, and is nobody's.

use super::controller::Controller;
use super::files;
use super::layout;
use super::metadata::Metadata;
use super::roster::Roster;
use crate::reached;
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
        let read = match self.read(announced.0).await {
            Some(metadata) if stamp(&metadata) >= announced => Some(metadata),
            // An old one of that name, as a cache has it, or one that is being replaced.
            _ => {
                files::defeat_name_cache(&self.env, layout::METADATA).await;
                self.read(announced.0).await
            }
        };
        let Some(metadata) = read else { return };
        if self.is_highest(stamp(&metadata).0).await {
            self.controller.publish(metadata);
            self.roster.look_soon();
        }
    }

    /// Whether `epoch` is the highest that was claimed, uncached.
    async fn is_highest(&self, epoch: Epoch) -> bool {
        let names = files::true_names(&self.env, layout::CONTROLLER);
        match files::within(self.limit, "list", layout::CONTROLLER, names).await {
            Ok(names) => {
                let is_highest = names.iter().filter_map(|n| layout::parse_claim(n)).max() <= Some(epoch);
                if !is_highest {
                    reached!("change-of-a-deposed-controller");
                }
                is_highest
            }
            Err(e) => {
                tracing::warn!("{e}; trying again");
                false
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
