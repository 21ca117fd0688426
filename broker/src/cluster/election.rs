//! Who may propose: the controller's election, behind a seam.
//!
//! An election hands out controller epochs. It promises that no epoch is won twice and that epochs rise;
//! it need not promise that a former winner knows that it lost. So what a controller writes stands under
//! its epoch's name, readers take the highest, and the lease is checked around every durable step: a
//! deposed controller can delay, never harm. Another service's lease may stand here one day.

use super::files;
use super::layout;
use crate::rt::Env;
use crate::types::{BrokerId, Epoch};
use crate::volume::{Class, VolumeError};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Who stands for election, and under which lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub broker: BrokerId,
    pub incarnation: uuid::Uuid,
    pub lease: u64,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ElectionError {
    #[error("another broker won controller epoch {0}")]
    Lost(Epoch),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

#[async_trait]
pub trait Election: Send + Sync + 'static {
    /// Wins an epoch higher than `after`, if none higher was won meanwhile. Each success is another epoch.
    ///
    /// May be asked only when whoever won `after` is proven dead, resigned, or is the candidate.
    async fn campaign(&self, candidate: Candidate, after: Epoch) -> Result<Epoch, ElectionError>;

    /// Whether nobody won a higher epoch so far.
    async fn is_highest(&self, epoch: Epoch) -> Result<bool, VolumeError>;
}

/// Epochs by exclusive create of claim files on the volume.
pub struct ClaimFiles {
    pub env: Env,
}

/// How many old claims stay for people to look at.
const KEEP: u32 = 16;

impl ClaimFiles {
    /// The epochs claimed so far, in order.
    async fn claims(&self) -> Result<Vec<Epoch>, VolumeError> {
        let names = files::true_names(&self.env, layout::CONTROLLER).await?;
        let mut epochs: Vec<_> = names.iter().filter_map(|n| layout::parse_claim(n)).collect();
        epochs.sort_unstable();
        Ok(epochs)
    }

    /// In a task of its own: an unlink that hangs holds no election up.
    fn tidy(&self, epochs: &[Epoch], mine: Epoch) {
        let old: Vec<Epoch> = epochs.iter().copied().filter(|e| e.0.saturating_add(KEEP) < mine.0).collect();
        let volume = self.env.volume.clone();
        tokio::spawn(async move {
            for epoch in old {
                files::tidy_away(&*volume, &layout::claim(epoch)).await;
            }
        });
    }
}

#[async_trait]
impl Election for ClaimFiles {
    async fn campaign(&self, candidate: Candidate, after: Epoch) -> Result<Epoch, ElectionError> {
        let content = serde_json::to_vec(&candidate).unwrap_or_default();
        // That very one: of two who found the seat vacant one wins.
        let epoch = after.next();
        let path = layout::claim(epoch);
        let file = match self.env.volume.create_new(&path, Class::Control).await {
            // Another candidate was quicker: whether the seat is vacant must be asked again.
            Err(e) if e.is_already_exists() => return Err(ElectionError::Lost(epoch)),
            r => r?,
        };
        file.write_sync(0, vec![content.into()]).await?;
        self.env.volume.sync_dir(layout::CONTROLLER, Class::Control).await?;
        let claims = self.claims().await?;
        if let Some(higher) = claims.last().filter(|e| **e > epoch) {
            return Err(ElectionError::Lost(*higher));
        }
        self.tidy(&claims, epoch);
        Ok(epoch)
    }

    async fn is_highest(&self, epoch: Epoch) -> Result<bool, VolumeError> {
        Ok(self.claims().await?.last().is_none_or(|highest| *highest <= epoch))
    }
}
