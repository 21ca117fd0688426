//! What happens to a partition beside appends: checkpoints, index files, the log start, retention.
//!
//! Order, and why: a snapshot's name is durable before the checkpoint that relies on it; a manifest is
//! durable before the log start in it is shown, and shown before the first file that it gave up is unlinked. The
//! lease is asked before and after each.

use super::aborted::Aborted;
use super::api::DeleteRecordsError;
use super::committer::{self, LogWriter};
use super::docs::{self, Checkpoint, Manifest, FORMAT};
use super::guarded::{contained, guarded, Failure};
use super::index::Index;
use super::lifecycle::unlink;
use super::names::{self, SegmentName};
use super::partition::{Incarnation, Life, MetaWriter, Partition, Unavailable, View};
use super::recovery::{prune_epochs, ProducerSnapshot};
use super::segment::Segment;
use crate::reached;
use crate::types::{Offset, Pos};
use crate::volume::{self, Class, Volume};
use bytes::Bytes;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// A checkpoint with the producers that belong to it, taken at one moment.
struct Prepared {
    checkpoint: Checkpoint,
    snapshot: ProducerSnapshot,
    index: Option<(SegmentName, Index)>,
}

impl Partition {
    /// Takes the state at the end of what is written, which the caller knows to be durable.
    fn prepare_checkpoint(&self, inc: &Incarnation, log: &LogWriter) -> Option<Prepared> {
        let (name, pos, max_timestamp, first_timestamp) = match (&log.active, log.closed.last()) {
            (Some(a), _) => (a.name, log.pos, a.max_timestamp(), a.first_timestamp()),
            (None, Some(s)) => (s.name(), s.end_pos, s.max_timestamp, s.first_timestamp),
            (None, None) => return None,
        };
        let index = log.active.as_ref().map(|a| (a.name, a.index.read().clone()));
        let aborted = match &log.active {
            Some(a) => a.aborted.read().clone(),
            None => self.aborted_in(name)?,
        };
        let producers = {
            let mut state = self.state.lock();
            let Life::Leading(leader) = &mut state.life else { return None };
            let expiry = i64::try_from(self.shared.config.producer_expiry.as_millis()).unwrap_or(i64::MAX);
            leader.producers.expire(self.shared.clock.wall_ms().saturating_sub(expiry), log.end);
            leader.producers.durable(log.end)
        };
        let snapshot = ProducerSnapshot {
            format: FORMAT,
            topic_id: self.spec.topic_id,
            epoch: inc.epoch,
            offset: log.end,
            producers,
        };
        let checkpoint = Checkpoint {
            format: FORMAT,
            topic_id: self.spec.topic_id,
            epoch: inc.epoch,
            segment: name.base,
            pos,
            offset: log.end,
            max_timestamp,
            first_timestamp,
            damage: Vec::new(),
            aborted,
            closed: log.closed.clone(),
            has_producers: !snapshot.is_empty(),
        };
        inc.newest_checkpoint.fetch_max(checkpoint.offset.0, Relaxed);
        Some(Prepared { checkpoint, snapshot, index })
    }

    /// The aborted transactions of a segment that this epoch closed.
    fn aborted_in(&self, name: SegmentName) -> Option<Vec<Aborted>> {
        let view = self.view.load_full()?;
        let known = view.segments.iter().rev().find(|s| s.sealed.name() == name);
        Some(known.and_then(|s| s.known_aborted()).map(|a| (*a).clone()).unwrap_or_default())
    }

    /// Writes a checkpoint in the background; appends go on meanwhile.
    pub(super) fn start_checkpoint(self: &Arc<Self>, inc: &Arc<Incarnation>, log: &mut LogWriter) {
        let Some(prepared) = self.prepare_checkpoint(inc, log) else { return };
        log.checkpointed = log.pos;
        let (p, inc) = (self.clone(), inc.clone());
        tokio::spawn(async move {
            let mut meta = inc.meta.lock().await;
            let outcome = p.write_checkpoint(&inc, &mut meta, prepared).await;
            drop(meta);
            p.settle(&inc, outcome.err(), "checkpoint");
        });
    }

    /// The checkpoint of a clean stop.
    pub(super) async fn final_checkpoint(&self, inc: &Incarnation, log: &LogWriter) -> Result<(), Failure> {
        let Some(prepared) = self.prepare_checkpoint(inc, log) else { return Ok(()) };
        let mut meta = inc.meta.lock().await;
        self.write_checkpoint(inc, &mut meta, prepared).await
    }

    async fn write_checkpoint(
        &self,
        inc: &Incarnation,
        meta: &mut MetaWriter,
        prepared: Prepared,
    ) -> Result<(), Failure> {
        self.check_fence(inc)?;
        // Tasks that were started in order may get here out of order: a later one has said more.
        if prepared.checkpoint.offset < meta.checkpointed.max(meta.snapshot) {
            return Ok(());
        }
        // On a slow volume they are wanted faster than they are written: then only the newest is, or a clean stop would
        // have to wait for all of them.
        if prepared.checkpoint.offset.0 < inc.newest_checkpoint.load(Relaxed) {
            reached!("checkpoint-overtaken");
            return Ok(());
        }
        meta.checkpointed = prepared.checkpoint.offset;
        // An older snapshot would be believed, so one that says "none" takes its place.
        let has_snapshot = meta.has_snapshot || !prepared.snapshot.is_empty();
        meta.has_snapshot = has_snapshot;
        let Prepared { mut checkpoint, snapshot, index } = prepared;
        checkpoint.has_producers = has_snapshot;
        let (v, dir, nonce) = (self.shared.volume.clone(), self.spec.dir.clone(), self.shared.entropy.u64());
        let epoch = inc.epoch;
        guarded(self.shared.config.sync_timeout, async move {
            if let Some((name, index)) = index {
                docs::replace(&*v, &dir, &name.index(), nonce, index.encode()).await?;
            }
            if has_snapshot {
                docs::replace(&*v, &dir, &names::producers(epoch), nonce, docs::encode(&snapshot)).await?;
                v.sync_dir(&dir, Class::Data).await?;
            }
            docs::replace(&*v, &dir, &names::checkpoint(epoch), nonce, docs::encode(&checkpoint)).await?;
            v.sync_dir(&dir, Class::Data).await
        })
        .await?;
        meta.snapshot = meta.snapshot.max(meta.checkpointed);
        Ok(())
    }

    /// Writes a closed segment's index in the background.
    pub(super) fn start_index_write(
        self: &Arc<Self>,
        inc: &Arc<Incarnation>,
        name: SegmentName,
        index: Index,
    ) {
        let (p, inc) = (self.clone(), inc.clone());
        tokio::spawn(async move {
            if p.check_fence(&inc).is_err() {
                return;
            }
            let nonce = p.shared.entropy.u64();
            // It can be rebuilt from the log, so whatever becomes of it concerns nobody else.
            if let Err(e) =
                docs::replace(&*p.shared.volume, &p.spec.dir, &name.index(), nonce, index.encode()).await
            {
                tracing::warn!(partition = %p.spec.dir, error = %e, "could not write the index");
            }
        });
    }

    /// Judges a failed write of a small file: before its rename it harmed nothing and is tried again at the
    /// next occasion; from the rename on it may still take effect later, over a newer one, so this epoch
    /// may write no more.
    fn settle(self: &Arc<Self>, inc: &Arc<Incarnation>, failure: Option<Failure>, what: &str) {
        match failure {
            None | Some(Failure::Fenced) => {}
            Some(Failure::Failed(e)) if e.op != "rename" => {
                tracing::warn!(partition = %self.spec.dir, error = %e, "could not write the {what}");
            }
            Some(f) => self.fail(inc, f),
        }
    }

    async fn write_manifest(&self, inc: &Incarnation, manifest: &Manifest) -> Result<(), Failure> {
        self.check_fence(inc)?;
        let (v, dir, nonce) = (self.shared.volume.clone(), self.spec.dir.clone(), self.shared.entropy.u64());
        let (name, bytes) = (names::manifest(inc.epoch), docs::encode(manifest));
        guarded(self.shared.config.sync_timeout, async move {
            replace_durably(&*v, &dir, &name, nonce, bytes).await
        })
        .await?;
        self.check_fence(inc)
    }

    /// Before the first append under a dial above 1: says so in the manifest, since from then on more than the
    /// last group may be in doubt.
    pub(super) async fn declare_relaxed(&self, inc: &Incarnation) -> Result<(), Failure> {
        let mut meta = inc.meta.lock().await;
        if !meta.manifest.relaxed {
            self.relaxed_once.store(true, Relaxed);
            let manifest = Manifest { relaxed: true, ..meta.manifest.clone() };
            self.write_manifest(inc, &manifest).await?;
            meta.manifest = manifest;
        }
        Ok(())
    }

    /// Moves the log start to `to`, durably, and deletes the segments that lie before it.
    async fn trim(self: &Arc<Self>, inc: &Arc<Incarnation>, to: Offset) -> Result<(), Failure> {
        let gone: Vec<Arc<Segment>> = {
            let mut meta = inc.meta.lock().await;
            let Some(view) = self.view.load_full() else { return Err(Failure::Fenced) };
            if to <= view.log_start {
                return Ok(());
            }
            if meta.snapshot < to {
                // What the manifest gives up is all that tells of its producers, unless a snapshot does (P4).
                self.snapshot_producers(inc, &mut meta).await?;
            }
            let mut manifest = meta.manifest.clone();
            manifest.log_start = to;
            manifest.segments.retain(|s| s.end > to);
            prune_epochs(&mut manifest.leader_epochs, to);
            self.write_manifest(inc, &manifest).await?;
            meta.manifest = manifest;
            let mut gone = Vec::new();
            let shown = self.publish(inc, 0, true, |v| {
                let (drop, keep): (Vec<_>, Vec<_>) =
                    v.segments.iter().cloned().partition(|s| s.sealed.end <= to);
                gone = drop;
                View { log_start: to.max(v.log_start), segments: Arc::new(keep), ..v.clone() }
            });
            if !shown {
                return Err(Failure::Fenced);
            }
            gone
        };
        for s in gone {
            let name = s.sealed.name();
            let aborted = s.sealed.aborted_name().map(SegmentName::aborted);
            for file in [name.log(), name.index()].into_iter().chain(aborted) {
                self.check_fence(inc)?;
                let path = self.path(&file);
                self.shared.handles.forget(&path);
                reached!("segment-unlinked");
                unlink(&*self.shared.volume, &path).await;
                // A reader with the old view may have opened it again.
                self.shared.handles.forget(&path);
            }
        }
        Ok(())
    }

    /// Writes what is known of producers at the high watermark.
    async fn snapshot_producers(&self, inc: &Incarnation, meta: &mut MetaWriter) -> Result<(), Failure> {
        let (offset, producers) = {
            let state = self.state.lock();
            let (Life::Leading(leader), Some(view)) = (&state.life, self.view.load_full()) else {
                return Err(Failure::Fenced);
            };
            (view.hwm, leader.producers.durable(view.hwm))
        };
        let snapshot = ProducerSnapshot {
            format: FORMAT,
            topic_id: self.spec.topic_id,
            epoch: inc.epoch,
            offset,
            producers,
        };
        if meta.has_snapshot || !snapshot.is_empty() {
            let (v, dir, nonce) =
                (self.shared.volume.clone(), self.spec.dir.clone(), self.shared.entropy.u64());
            let (name, bytes) = (names::producers(inc.epoch), docs::encode(&snapshot));
            guarded(self.shared.config.sync_timeout, async move {
                replace_durably(&*v, &dir, &name, nonce, bytes).await
            })
            .await?;
            (meta.has_snapshot, meta.manifest.has_producers) = (true, true);
        }
        meta.snapshot = offset;
        Ok(())
    }

    /// Moves the log start to `to` (`None`: the high watermark), durably, and returns it. Segments that lie
    /// wholly before it are deleted; when that is all of the log, the last one too.
    pub async fn delete_records(self: &Arc<Self>, to: Option<Offset>) -> Result<Offset, DeleteRecordsError> {
        let inc = self.lead().await.map_err(|e| match e {
            Unavailable::NotLeader => DeleteRecordsError::NotLeader,
            Unavailable::Storage(why) => DeleteRecordsError::Storage(why),
        })?;
        let Some(view) = self.view.load_full() else { return Err(DeleteRecordsError::NotLeader) };
        let to = to.unwrap_or(view.hwm);
        if to > view.hwm || to < Offset::ZERO {
            return Err(DeleteRecordsError::OutOfRange(to));
        }
        if to <= view.log_start {
            return if self.shared.fence.holds(inc.token) {
                Ok(view.log_start)
            } else {
                Err(DeleteRecordsError::NotLeader)
            };
        }
        let (p, i, all) = (self.clone(), inc.clone(), to == view.hwm);
        let work = async move {
            if all {
                let mut log = i.log.lock().await;
                log.begin(p.shared.config.sync_timeout);
                committer::roll(&p, &i, &mut log).await?;
            }
            p.trim(&i, to).await
        };
        match self.in_time(&inc, work, "log start").await {
            Ok(()) => Ok(to),
            Err(Failure::Fenced) => Err(DeleteRecordsError::NotLeader),
            Err(other) => Err(DeleteRecordsError::Storage(other.to_string())),
        }
    }

    /// Bounds the wait for locks that a stuck write may hold, and judges the failure. The work goes on in a
    /// task of its own whoever gives up waiting: a manifest write that is cut off in the middle could land
    /// over a later one.
    async fn in_time(
        self: &Arc<Self>,
        inc: &Arc<Incarnation>,
        work: impl std::future::Future<Output = Result<(), Failure>> + Send + 'static,
        what: &'static str,
    ) -> Result<(), Failure> {
        let (p, i) = (self.clone(), inc.clone());
        let mut task = tokio::spawn(async move {
            match contained(work).await {
                Ok(()) => Ok(()),
                Err(Failure::Fenced) => Err(Failure::Fenced),
                Err(Failure::Failed(e)) => {
                    p.settle(&i, Some(Failure::Failed(e.clone())), what);
                    Err(Failure::Failed(e))
                }
                Err(stuck @ Failure::Stuck(_)) => {
                    p.settle(&i, Some(stuck), what);
                    Err(Failure::stuck())
                }
            }
        });
        match tokio::time::timeout(self.shared.config.sync_timeout, &mut task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Failure::Fenced),
            Err(_) => {
                self.fail(inc, Failure::Stuck(Box::pin(async move { drop(task.await) })));
                Err(Failure::stuck())
            }
        }
    }

    /// One retention pass (Kafka: `log.retention.check.interval.ms`): rolls a segment that is due by age,
    /// so that a quiet topic's data goes too, then gives up the oldest segments that `retention.ms` or
    /// `retention.bytes` no longer keep.
    pub(super) async fn sweep(self: &Arc<Self>) {
        let inc = match &self.state.lock().life {
            Life::Leading(l) if !l.draining => l.inc.clone(),
            _ => return,
        };
        if !self.active_is_due() && self.retention_start().is_none() {
            return;
        }
        let (p, i) = (self.clone(), inc.clone());
        let work = async move {
            if p.active_is_due() {
                let mut log = i.log.lock().await;
                log.begin(p.shared.config.sync_timeout);
                committer::roll(&p, &i, &mut log).await?;
                p.start_checkpoint(&i, &mut log);
            }
            match p.retention_start() {
                Some(to) => p.trim(&i, to).await,
                None => Ok(()),
            }
        };
        if let Err(e) = self.in_time(&inc, work, "log start").await {
            tracing::warn!(partition = %self.spec.dir, why = %e, "retention did not finish");
        }
    }

    fn active_is_due(&self) -> bool {
        let (config, now) = (self.config(), self.shared.clock.wall_ms());
        let Some(view) = self.view.load_full() else { return false };
        let Some(active) = view.active.as_ref().filter(|_| view.active_end > Pos::ZERO) else { return false };
        let millis = |d: std::time::Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let first = active.first_timestamp().unwrap_or(active.created);
        let newest = active.max_timestamp().unwrap_or(active.created);
        let expired = config.cleanup_policy.delete
            && config.retention_ms.is_some_and(|r| newest < now.saturating_sub(millis(r)));
        expired || now.saturating_sub(first) > millis(config.segment_ms)
    }

    /// Up to where retention gives the log up, if anywhere.
    fn retention_start(&self) -> Option<Offset> {
        let (config, now) = (self.config(), self.shared.clock.wall_ms());
        let view = self.view.load_full()?;
        if !config.cleanup_policy.delete {
            return None;
        }
        let millis = |d: std::time::Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let oldest_kept = config.retention_ms.map(|r| now.saturating_sub(millis(r)));
        let mut excess = config.retention_bytes.map_or(0, |max| view.bytes().saturating_sub(max));
        let mut start = None;
        for s in view.segments.iter() {
            let s = &s.sealed;
            let expired = oldest_kept.is_some_and(|t| s.max_timestamp.unwrap_or(now) < t);
            let oversize = excess > 0 && s.end_pos.0 <= excess;
            if !expired && !oversize && s.end > view.log_start {
                break;
            }
            excess = excess.saturating_sub(s.end_pos.0);
            start = Some(s.end);
        }
        start.filter(|s| *s > view.log_start)
    }
}

async fn replace_durably(
    v: &dyn Volume,
    dir: &str,
    name: &str,
    nonce: u64,
    bytes: Bytes,
) -> volume::Result<()> {
    docs::replace(v, dir, name, nonce, bytes).await?;
    v.sync_dir(dir, Class::Data).await
}
