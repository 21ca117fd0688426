//! Metadata files: how a controller reads its predecessors' and writes its own.
//!
//! Promises: the file of an epoch is written by that epoch's controller only, and always whole: a
//! temporary file of its own name, sync, rename, directory sync. An epoch inherits from the highest
//! earlier epoch that has a file. After a failure before the rename nothing has changed and the controller
//! goes on; after one at or past the rename nobody knows what stands, and a rename may still land: then
//! the epoch is over ([`WriteError::InDoubt`]), and the next one reads what stands and writes it anew.

use super::error::StartError;
use super::files::{self, Patience};
use super::layout;
use super::metadata::Metadata;
use crate::rt::Env;
use crate::types::Epoch;
use crate::volume::{Class, Volume, VolumeError, VolumeFile};
use std::sync::Arc;

/// How many epochs' files stay beside the present one, for people to look at.
const KEEP: u32 = 2;

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// Nothing has changed.
    #[error(transparent)]
    Clean(VolumeError),
    #[error("{0}; what stands now is unknown until read again")]
    InDoubt(VolumeError),
    /// The right ended before the rename was sent: nothing has changed.
    #[error("the lease ended")]
    LeaseEnded,
}

/// Checks that the metadata can be read, before anything is written. Names may be stale here; whoever
/// wins an epoch reads again.
pub(super) async fn check_readable(env: &Env) -> Result<(), StartError> {
    let v = &*env.volume;
    let names = files::patiently(Patience::START, "list", layout::METADATA, || {
        files::names_if_any(v, layout::METADATA)
    });
    let names = names.await.map_err(StartError::Volume)?;
    match names.iter().filter_map(|n| layout::parse_metadata(n)).max() {
        Some(highest) => read_epoch(v, highest).await.map(|_| ()),
        None => Ok(()),
    }
}

async fn read_epoch(v: &dyn Volume, epoch: Epoch) -> Result<Metadata, StartError> {
    let path = layout::metadata(epoch);
    let bytes = files::patiently(Patience::START, "read", &path, || files::read(v, &path)).await;
    Metadata::decode(&path, &bytes.map_err(StartError::Volume)?)
}

/// The files of one controller epoch.
pub(super) struct Store {
    env: Env,
    epoch: Epoch,
    incarnation: uuid::Uuid,
    /// Numbers the temporary files: one that failed is never used again.
    attempt: u64,
}

impl Store {
    pub fn new(env: Env, epoch: Epoch, incarnation: uuid::Uuid) -> Self {
        Store { env, epoch, incarnation, attempt: 0 }
    }

    async fn create_tmp(&mut self) -> Result<(String, Arc<dyn VolumeFile>), VolumeError> {
        self.attempt += 1;
        let tmp = layout::metadata_tmp(self.epoch, self.incarnation, self.attempt);
        let file = self.env.volume.create_new(&tmp, Class::Control).await?;
        Ok((tmp, file))
    }

    /// What the highest earlier epoch wrote; the default if there was none.
    ///
    /// Creates a file first, so that the listing is not a stale one.
    pub async fn inherit(&mut self) -> Result<Metadata, StartError> {
        let (tmp, _) = self.create_tmp().await.map_err(StartError::write)?;
        let read = self.read_highest().await;
        files::tidy_away(&*self.env.volume, &tmp).await;
        read
    }

    async fn read_highest(&self) -> Result<Metadata, StartError> {
        let v = &*self.env.volume;
        let names =
            files::patiently(Patience::START, "list", layout::METADATA, || files::names(v, layout::METADATA))
                .await
                .map_err(StartError::Volume)?;
        let epochs = names.iter().filter_map(|n| layout::parse_metadata(n));
        let Some(highest) = epochs.filter(|e| *e < self.epoch).max() else {
            return Ok(Metadata::default());
        };
        read_epoch(v, highest).await
    }

    /// Replaces this epoch's file. `may` says whether the right stands; the caller asks again after.
    pub async fn write(&mut self, m: &Metadata, may: impl Fn() -> bool) -> Result<(), WriteError> {
        if !may() {
            return Err(WriteError::LeaseEnded);
        }
        let v = self.env.volume.clone();
        let (tmp, file) = self.create_tmp().await.map_err(WriteError::Clean)?;
        let written = file.write_sync(0, vec![m.encode().into()]).await;
        drop(file);
        let clean = match written {
            Err(e) => Err(WriteError::Clean(e)),
            Ok(()) if !may() => Err(WriteError::LeaseEnded),
            Ok(()) => Ok(()),
        };
        if let Err(e) = clean {
            files::tidy_away(&*v, &tmp).await;
            return Err(e);
        }
        let path = layout::metadata(self.epoch);
        v.rename(&tmp, &path, Class::Control).await.map_err(WriteError::InDoubt)?;
        v.sync_dir(layout::METADATA, Class::Control).await.map_err(WriteError::InDoubt)
    }
}

/// Unlinks what epochs before `epoch` left, once its file is durable: nobody reads it any more.
pub(super) async fn tidy(env: Env, epoch: Epoch) {
    let v = &*env.volume;
    let Ok(names) = files::names(v, layout::METADATA).await else { return };
    for name in names {
        let old_tmp = layout::parse_metadata_tmp(&name).is_some_and(|e| e < epoch);
        let old_file = layout::parse_metadata(&name).is_some_and(|e| e.0.saturating_add(KEEP) < epoch.0);
        if old_tmp || old_file {
            files::tidy_away(v, &format!("{}/{name}", layout::METADATA)).await;
        }
    }
}
