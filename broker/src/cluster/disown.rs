//! Gives up partitions for which a call hangs on the volume, so that another broker leads them.
//!
//! A partition whose leader's sync outlasts the watchdog is led by nobody, though the leader lives: the lease is kept by
//! other files, whose server, export or mount may be well. Whoever is to succeed would wait for a word in the
//! claim, which is on the part of the volume that hangs. So the word goes through the controller: it stands in the
//! metadata, with the epoch up to which it counts, and together with the next assignment. So does that of a leader whose
//! partition was assigned to another one, and whose clean end hangs.
//!
//! Promises: what was given up is not opened again by this broker before the cluster assigned it anew, whatever comes
//! back meanwhile; so whoever is told so need not wait. Nothing is given up while no other broker would do better.
//!
//! Slots of groups stay where they are: they have no epochs that tell one assignment from the next.

use super::admin::Changes;
use super::layout::LeaseKey;
use super::lease::Lease;
use super::membership::Identity;
use super::partitions::Partitions;
use super::requests::Ask;
use crate::storage::Fence;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

pub(super) struct Disowner {
    pub me: Arc<Identity>,
    pub lease: Arc<Lease>,
    pub changes: Changes,
    pub partitions: Arc<dyn Partitions>,
}

impl Disowner {
    /// Never returns.
    pub async fn run(self) {
        let mut told = BTreeSet::new();
        loop {
            tokio::time::sleep(self.me.terms.beat()).await;
            let is_stuck = self.partitions.is_stuck();
            self.me.stuck.store(is_stuck, SeqCst);
            let number = self.lease.right().and_then(|token| u32::try_from(token).ok());
            let Some(number) = number else { continue };
            let lease = LeaseKey { broker: self.me.broker, number };
            if is_stuck && self.others_do_better(lease) {
                self.partitions.disown_stuck();
            }
            let given_up = self.partitions.disowned();
            let partitions: Vec<_> =
                given_up.iter().filter(|p| !told.contains(&(lease, **p))).copied().collect();
            told.retain(|(under, p)| *under == lease && given_up.contains(p));
            if partitions.is_empty() {
                continue;
            }
            // Again and again until it was answered: an answer that did not come says nothing.
            match self.changes.make(Ask::Disown { lease, partitions: partitions.clone() }, false).await {
                Ok(()) => told.extend(partitions.into_iter().map(|p| (lease, p))),
                Err(e) => tracing::warn!("the cluster does not know yet which partitions were given up: {e}"),
            }
        }
    }

    fn others_do_better(&self, lease: LeaseKey) -> bool {
        // With this broker among them, nobody does.
        let fit = self.changes.roster.view().fit();
        !fit.is_empty() && !fit.contains(&lease)
    }
}
