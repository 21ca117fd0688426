//! Frees the disk of deleted topics.
//!
//! Promises: only directories of topic ids that the durable metadata lists as `deleting` are touched;
//! each deletion is driven to its end, over restarts, past what is busy; when an id leaves the list, its
//! files are durably gone.
//!
//! Nothing is touched before every broker that may be there shows that the topic is no more ([`Roster::until_all_show`]):
//! else one that does not know yet would go on writing files where nobody looks for them again.
//!
//! A topic id is never used twice, so a topic that was created anew under the same name meanwhile has
//! another directory and loses nothing.

use super::controller::Controller;
use super::files;
use super::roster::Roster;
use crate::rt::Env;
use crate::storage::Fence;
use crate::types::TopicId;
use crate::volume::{Class, VolumeError};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long a topic's files must have stayed away before they count as gone. An abandoned partition that was
/// just opening begins no further step, but one that was on its way to the volume may land a little later and make
/// a directory. Later than this it leaves an empty one that nobody removes.
const SETTLED: Duration = Duration::from_secs(3);

pub(super) struct Deleter {
    pub env: Env,
    pub controller: Arc<Controller>,
    pub roster: Arc<Roster>,
    /// How long one step on the volume may take.
    pub step_limit: Duration,
}

enum Freed {
    /// There was something; it is gone now.
    Some,
    NothingThere,
    /// The lease ended.
    Stopped,
}

impl Deleter {
    /// Never returns.
    pub async fn run(self) {
        let mut pause = RETRY_MIN;
        let mut gone_since: BTreeMap<TopicId, Duration> = BTreeMap::new();
        loop {
            let metadata = self.controller.metadata();
            let Some(token) = self.controller.in_office().filter(|_| !metadata.deleting.is_empty()) else {
                self.controller.deletions.notified().await;
                continue;
            };
            let told = self.roster.until_all_show(self.controller.latest());
            if tokio::time::timeout(pause, told).await.is_err() {
                continue;
            }
            let (mut left, mut settling) = (0, false);
            for (id, name) in &metadata.deleting {
                match self.free(token, *id, name).await {
                    Ok(Freed::NothingThere) => {
                        let since = *gone_since.entry(*id).or_insert_with(|| self.env.clock.boot());
                        if self.env.clock.boot().saturating_sub(since) < SETTLED {
                            settling = true;
                        } else if self.forget(*id, name).await {
                            gone_since.remove(id);
                            continue;
                        }
                    }
                    Ok(Freed::Some) => {
                        gone_since.remove(id);
                        settling = true;
                    }
                    Ok(Freed::Stopped) => {}
                    Err(e) => tracing::info!("topic {name} ({id}) is not fully deleted yet: {e}"),
                }
                left += 1;
            }
            if left == 0 || settling {
                pause = RETRY_MIN;
            }
            if left == 0 {
                continue;
            }
            // A further deletion, or a new office, need not wait for the slow ones.
            let _ = tokio::time::timeout(pause, self.controller.deletions.notified()).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Removes what there is of the topic, durably.
    async fn free(&self, token: u64, id: TopicId, name: &str) -> Result<Freed, VolumeError> {
        let lease = self.controller.lease.clone();
        let may = move || lease.holds(token);
        let abandon = self.controller.partitions.abandon_topic(id);
        // A handle stuck in the volume must not keep the rest from being freed.
        let _ = tokio::time::timeout(self.step_limit, abandon).await;
        if !may() {
            return Ok(Freed::Stopped);
        }
        let was_there = self.set_aside(id, name).await?;
        for dir in [format!("{name}/{id}.deleted"), format!("{name}/{id}")] {
            if !files::remove_tree(&*self.env.volume, &dir, self.step_limit, &may).await? {
                return Ok(Freed::Stopped);
            }
        }
        self.settle(name).await?;
        Ok(if was_there { Freed::Some } else { Freed::NothingThere })
    }

    /// Takes a topic whose files are gone off the list. Returns whether it is off.
    async fn forget(&self, id: TopicId, name: &str) -> bool {
        let done = self.controller.submit(move |m| {
            m.deletion_done(id);
            Ok(())
        });
        match done.await {
            Ok(()) => tracing::info!("topic {name} ({id}) is deleted from the volume"),
            Err(e) => tracing::info!("topic {name} ({id}) stays listed as being deleted: {e}"),
        }
        !self.controller.metadata().deleting.contains_key(&id)
    }

    /// One rename takes the whole topic out of reach of every path that a stale writer knows. Returns
    /// whether there was anything under the topic's path.
    ///
    /// Other brokers made those directories, and this host may remember for a minute that they are not there: so it
    /// tries to make them, which the volume itself has to answer. What is made that way is removed below.
    async fn set_aside(&self, id: TopicId, name: &str) -> Result<bool, VolumeError> {
        let (from, to) = (format!("{name}/{id}"), format!("{name}/{id}.deleted"));
        self.is_there(name).await?;
        let is_aside = self.is_there(&to).await?;
        if !self.is_there(&from).await? {
            return Ok(is_aside);
        }
        let rename = self.env.volume.rename(&from, &to, Class::Data);
        match files::within(self.step_limit, "rename", &from, rename).await {
            Err(e) if e.is_not_found() => Ok(true),
            // Already aside and made again by somebody late: both are removed below.
            Err(e) if e.kind() != ErrorKind::DirectoryNotEmpty => Err(e),
            _ => Ok(true),
        }
    }

    /// Whether a directory was there. It is now.
    async fn is_there(&self, path: &str) -> Result<bool, VolumeError> {
        match files::within(self.step_limit, "mkdir", path, self.env.volume.mkdir(path, Class::Data)).await {
            Err(e) if e.is_already_exists() => Ok(true),
            made => made.map(|()| false),
        }
    }

    /// Removes the topic's directory if nothing is in it, and makes the removals durable.
    async fn settle(&self, name: &str) -> Result<(), VolumeError> {
        let v = &self.env.volume;
        if self.controller.image().topic(name).is_none() {
            let gone = files::within(self.step_limit, "rmdir", name, v.rmdir(name)).await;
            match gone {
                // Another incarnation's files are in it; its own deletion takes the directory along.
                Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {}
                Err(e) if !e.is_not_found() => return Err(e),
                _ => return files::within(self.step_limit, "syncdir", "", v.sync_dir("", Class::Data)).await,
            }
        }
        match files::within(self.step_limit, "syncdir", name, v.sync_dir(name, Class::Data)).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}
