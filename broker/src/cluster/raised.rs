//! Tells the cluster of leader epochs that rose since the assignment.
//!
//! A leader that opens a partition again by itself (a failed sync, a stall) uses a higher epoch than the other brokers show.
//! A client that saw the higher one, in a batch or with a committed offset, takes the others' answers for old ones until
//! they show it as well (the Java client: `Metadata.updateLastSeenEpochIfNewer`). So the controller is told, who writes it
//! down. A few heartbeats late does no harm: whoever is assigned next opens far above ([`super::assign`]).

use super::admin::Changes;
use super::layout::LeaseKey;
use super::lease::Lease;
use super::membership::Identity;
use super::partitions::Partitions;
use super::requests::Ask;
use crate::storage::Fence;
use crate::types::{Epoch, TopicId};
use std::sync::Arc;

/// Partitions that one change is about at most: a request is a file, and is read as a whole.
const AT_ONCE: usize = 4096;

pub(super) struct Raised {
    pub me: Arc<Identity>,
    pub lease: Arc<Lease>,
    pub changes: Changes,
    pub partitions: Arc<dyn Partitions>,
}

impl Raised {
    /// Never returns.
    pub async fn run(self) {
        loop {
            tokio::time::sleep(self.me.terms.beat()).await;
            let number = self.lease.right().and_then(|token| u32::try_from(token).ok());
            let Some(number) = number else { continue };
            let lease = LeaseKey { broker: self.me.broker, number };
            let epochs = self.raised(lease);
            if epochs.is_empty() {
                continue;
            }
            if let Err(e) = self.changes.make(Ask::RaiseEpochs { lease, epochs }, false).await {
                tracing::debug!("the cluster does not know yet which leader epochs rose: {e}");
            }
        }
    }

    fn raised(&self, lease: LeaseKey) -> Vec<(TopicId, i32, Epoch)> {
        let assigned = self.changes.controller.image().assigned(lease);
        let led = assigned.into_iter().filter(|((topic, _), _)| *topic != TopicId::default());
        let now =
            led.map(|((topic, index), a)| (topic, index, self.partitions.led_in(topic, index), a.epoch));
        let raised =
            now.filter_map(|(topic, index, now, shown)| Some((topic, index, now.filter(|e| *e > shown)?)));
        raised.take(AT_ONCE).collect()
    }
}
