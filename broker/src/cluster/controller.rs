//! What a broker knows of the cluster's metadata, and how a change of them is asked for while it is the controller.
//!
//! Promises: a change is answered only when it is durable and the lease under which it was asked for
//! still stands; one that failed leaves picture and files as they were, or the controller goes through
//! a new epoch and takes what the files say. Changes that wait together share one write. A hanging
//! write fails its changes when the lease ends or the write limit passes, whichever is first.
//!
//! Does not promise that a change which was answered with an error did not happen: a write in doubt may
//! stand (as with any request whose answer is lost).

use super::admin::AdminError;
use super::image::ClusterImage;
use super::layout::LeaseKey;
use super::lease::Lease;
use super::membership::Identity;
use super::metadata::Metadata;
use super::partitions::Partitions;
use super::roster::View;
use crate::config::TopicConfig;
use crate::storage::{Fence, PartitionSpec};
use crate::types::{Epoch, TopicId};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch, Notify};

/// Changes that share one write at most; more wait for the next.
pub(super) const BATCH: usize = 1024;

pub(super) type Answer = Box<dyn FnOnce(Result<(), AdminError>) + Send>;

/// A change of the metadata that waits for its turn.
pub(super) struct Change {
    /// The lease under which it was asked for.
    pub token: u64,
    pub apply: Box<dyn FnOnce(&mut Metadata) -> Answer + Send>,
}

/// What all tasks see of the controller.
pub(super) struct Controller {
    me: Arc<Identity>,
    pub lease: Arc<Lease>,
    pub partitions: Arc<dyn Partitions>,
    defaults: Arc<TopicConfig>,
    image: ArcSwap<ClusterImage>,
    /// What is durable.
    metadata: ArcSwap<Metadata>,
    epoch: AtomicU32,
    /// The lease under which this broker is in office; 0 is "not".
    office: AtomicU64,
    changes: mpsc::Sender<Change>,
    /// Makes the next heartbeat go out at once.
    hurry: Arc<Notify>,
    /// Held while something is shown, so that pictures follow each other in order.
    showing: Mutex<()>,
    /// Notified when there may be something to delete.
    pub deletions: Notify,
    /// Changes whenever something is shown.
    shown: watch::Sender<()>,
    /// As of which change each topic that is being deleted is shown to be gone.
    gone_as_of: Mutex<BTreeMap<TopicId, (Epoch, u64)>>,
}

impl Controller {
    pub fn new(
        me: Arc<Identity>,
        hurry: Arc<Notify>,
        lease: Arc<Lease>,
        partitions: Arc<dyn Partitions>,
        defaults: Arc<TopicConfig>,
    ) -> (Arc<Self>, mpsc::Receiver<Change>) {
        let (changes, queue) = mpsc::channel(BATCH);
        let controller = Controller {
            me,
            hurry,
            showing: Mutex::new(()),
            lease,
            partitions,
            defaults,
            image: ArcSwap::default(),
            metadata: ArcSwap::default(),
            epoch: AtomicU32::new(0),
            office: AtomicU64::new(0),
            changes,
            deletions: Notify::new(),
            shown: watch::Sender::default(),
            gone_as_of: Mutex::default(),
        };
        (Arc::new(controller), queue)
    }

    pub fn image(&self) -> Arc<ClusterImage> {
        self.image.load_full()
    }

    pub fn metadata(&self) -> Arc<Metadata> {
        self.metadata.load_full()
    }

    pub fn defaults(&self) -> &Arc<TopicConfig> {
        &self.defaults
    }

    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(SeqCst))
    }

    /// The lease under which this broker may change the metadata now.
    pub fn in_office(&self) -> Option<u64> {
        self.lease.right().filter(|token| self.office.load(SeqCst) == *token)
    }

    /// Applies `change`, makes it durable, and returns what it returned.
    pub async fn submit<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Metadata) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, AdminError> {
        let token = self.in_office().ok_or(AdminError::NotController)?;
        let (tell, answered) = oneshot::channel();
        let apply = Box::new(move |m: &mut Metadata| {
            let result = change(m);
            let answer: Answer = Box::new(move |written: Result<(), AdminError>| {
                // Whoever asked may have gone away.
                let _ = tell.send(written.and(result));
            });
            answer
        });
        let asked = async {
            self.changes.send(Change { token, apply }).await.map_err(|_| AdminError::NotController)?;
            answered.await.unwrap_or(Err(AdminError::NotController))
        };
        tokio::select! {
            biased;
            () = self.lease.until_ended(token) => Err(AdminError::NotController),
            answer = asked => answer,
        }
    }

    /// The last change that is shown here, with the epoch of the controller that made it.
    pub fn latest(&self) -> (Epoch, u64) {
        let metadata = self.metadata.load();
        (metadata.controller.map_or(Epoch(0), |stamp| stamp.epoch), metadata.change)
    }

    /// Shows what is durable now, unless something later is shown already.
    ///
    /// New partitions are known to the engine before their topic can be seen, so that whoever sees it finds them.
    pub fn publish(&self, metadata: Metadata) {
        let _showing = self.showing.lock();
        let epoch = metadata.controller.map_or(Epoch(0), |stamp| stamp.epoch);
        if (epoch, metadata.change) < self.latest() {
            return;
        }
        let before = self.image.load_full();
        let after = before.next(&metadata, &self.defaults);
        for (name, topic) in &after.topics {
            let old = before.topics.get(name).filter(|old| old.id == topic.id);
            let had = old.map_or(0, |old| old.partitions);
            for index in had..topic.partitions {
                self.partitions.know(PartitionSpec {
                    topic: name.clone(),
                    topic_id: topic.id,
                    index,
                    dir: format!("{name}/{}/{index}", topic.id),
                    config: topic.config.clone(),
                });
            }
            if old.is_some_and(|old| old.config != topic.config) {
                self.partitions.reconfigure(topic.id, topic.config.clone());
            }
        }
        for gone in before.names.keys().filter(|id| !after.names.contains_key(id)) {
            let (partitions, gone) = (self.partitions.clone(), *gone);
            tokio::spawn(async move { partitions.abandon_topic(gone).await });
        }
        let deleting = !metadata.deleting.is_empty();
        {
            let mut gone = self.gone_as_of.lock();
            gone.retain(|id, _| metadata.deleting.contains_key(id));
            for id in metadata.deleting.keys() {
                gone.entry(*id).or_insert((epoch, metadata.change));
            }
        }
        self.epoch.fetch_max(epoch.0, SeqCst);
        self.metadata.store(Arc::new(metadata));
        self.image.store(Arc::new(after));
        self.assign();
        *self.me.shown.lock() = self.latest();
        self.shown.send_replace(());
        if deleting {
            // The deletion waits for every broker to show it.
            self.hurry();
        }
        if deleting {
            self.deletions.notify_one();
        }
    }

    /// Topics that are being deleted, and that no broker serves any more.
    pub fn served_by_nobody(&self, view: &View) -> BTreeSet<TopicId> {
        let gone = self.gone_as_of.lock();
        gone.iter().filter(|(_, as_of)| view.all_show(self.me.broker, **as_of)).map(|(id, _)| *id).collect()
    }

    /// Changes whenever something is shown.
    pub fn shown(&self) -> watch::Receiver<()> {
        self.shown.subscribe()
    }

    /// Makes the next heartbeat go out at once.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// The lease is another one: what was assigned under the last one is void.
    pub fn lease_changed(&self) {
        let _showing = self.showing.lock();
        self.assign();
    }

    fn assign(&self) {
        let number = self.lease.right().and_then(|token| u32::try_from(token).ok());
        let mine = number.map(|number| LeaseKey { broker: self.me.broker, number });
        let assigned = mine.map_or_else(BTreeMap::new, |mine| self.image.load().assigned(mine));
        self.partitions.assign(assigned);
    }

    /// This broker changes the metadata under the lease `token` from now on.
    pub fn enter_office(&self, token: u64) {
        self.office.store(token, SeqCst);
    }

    pub fn leave_office(&self) {
        self.office.store(0, SeqCst);
    }

    /// Lets the heartbeats say what this broker made durable as controller, or that it is none.
    pub fn announce(&self, office: Option<(Epoch, u64)>) {
        *self.me.office.lock() = office;
        self.hurry.notify_one();
    }
}
