//! A glance at a partition's directory: who claimed it last, and which manifest stands.
//!
//! Promises to write nothing and to read two small files at most, so that thousands of partitions can be looked at
//! beside running brokers. Does not look at logs: that is for [`super::verify`]. The listing may be as old as this host's
//! cache of names (on NFS up to a minute): what would defeat that is a write.

use super::docs::{self, Claim, DocError, Manifest};
use super::names::{self, FileName};
use crate::types::{Epoch, TopicId};
use crate::volume::{Class, Volume, VolumeError};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How often a document is read before it is called damaged: a claim is rewritten in place.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(30);

/// What a directory shows of who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    /// The highest claim.
    pub claim: Option<(Epoch, ClaimContent)>,
    /// The highest manifest, and what is wrong with it.
    pub manifest: Option<(Epoch, Option<String>)>,
}

/// What a claim says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimContent {
    By {
        /// As [`super::Fence::holder`] names him.
        holder: String,
        /// He says that he does nothing under it any more.
        relinquished: bool,
    },
    /// Its claimant has yet to fill it, or died before.
    Empty,
    Damaged(String),
}

/// What reading a document gave.
enum Doc<T> {
    Sound(T),
    Empty,
    Damaged(String),
    Gone,
}

/// Looks at the directory of the partition `identity`.
///
/// # Errors
/// What the volume says. Not found with the path `dir`: the directory does not exist.
pub async fn glance(v: &dyn Volume, dir: &str, identity: (TopicId, i32)) -> Result<Glance, VolumeError> {
    let mut left = LOOKS;
    loop {
        left -= 1;
        match attempt(v, dir, identity).await? {
            Some(glance) => return Ok(glance),
            // A claim or manifest that a newer opening tidied away between listing and reading.
            None if left == 0 => return Ok(Glance::default()),
            None => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// `None`: a file that was listed is gone.
async fn attempt(v: &dyn Volume, dir: &str, identity: (TopicId, i32)) -> Result<Option<Glance>, VolumeError> {
    let names = v.read_dir(dir, Class::Data).await?;
    let files = || names.iter().filter_map(|e| FileName::parse(&e.name));
    let claim = files().filter(|f| matches!(f, FileName::Claim(_))).map(FileName::epoch).max();
    let manifest = files().filter(|f| matches!(f, FileName::Manifest(_))).map(FileName::epoch).max();
    let mut glance = Glance::default();
    if let Some(epoch) = claim {
        let content = match document::<Claim>(v, &format!("{dir}/{}", names::claim(epoch))).await? {
            Doc::Sound(c) if c.epoch != epoch => {
                ClaimContent::Damaged(format!("says that it is of epoch {}", c.epoch))
            }
            Doc::Sound(c) => ClaimContent::By { holder: c.holder, relinquished: c.relinquished },
            Doc::Empty => ClaimContent::Empty,
            Doc::Damaged(why) => ClaimContent::Damaged(why),
            Doc::Gone => return Ok(None),
        };
        glance.claim = Some((epoch, content));
    }
    if let Some(epoch) = manifest {
        let wrong = match document::<Manifest>(v, &format!("{dir}/{}", names::manifest(epoch))).await? {
            Doc::Sound(m) if m.epoch != epoch || (m.topic_id, m.partition) != identity => {
                Some("is of another epoch or partition".into())
            }
            Doc::Sound(_) => None,
            Doc::Empty => Some("is empty".into()),
            Doc::Damaged(why) => Some(why),
            Doc::Gone => return Ok(None),
        };
        glance.manifest = Some((epoch, wrong));
    }
    Ok(Some(glance))
}

async fn document<T: DeserializeOwned>(v: &dyn Volume, path: &str) -> Result<Doc<T>, VolumeError> {
    let mut left = LOOKS;
    loop {
        left -= 1;
        let bytes = match docs::read_file(v, path).await {
            Err(e) if e.is_not_found() => return Ok(Doc::Gone),
            r => r?,
        };
        let doc = match docs::decode(path, &bytes) {
            Ok(doc) => Doc::Sound(doc),
            Err(_) if bytes.is_empty() => Doc::Empty,
            Err(DocError::Damaged { reason, .. }) => Doc::Damaged(reason),
            Err(DocError::Volume(e)) => return Err(e),
        };
        if left == 0 || matches!(doc, Doc::Sound(_)) {
            return Ok(doc);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::docs::FORMAT;
    use crate::types::Offset;
    use crate::volume::MemVolume;
    use bytes::Bytes;

    const ME: (TopicId, i32) = (TopicId(uuid::Uuid::from_u128(7)), 0);

    async fn put(v: &MemVolume, name: &str, content: Bytes) {
        let f = v.create_new(&format!("p/{name}"), Class::Data).await.unwrap();
        f.write_sync(0, vec![content]).await.unwrap();
    }

    fn claim(epoch: u32, relinquished: bool) -> Bytes {
        Claim { format: FORMAT, epoch: Epoch(epoch), holder: format!("1-0000000{epoch}"), relinquished }
            .encode()
    }

    fn manifest(epoch: u32, partition: i32) -> Bytes {
        docs::encode(&Manifest {
            format: FORMAT,
            topic_id: ME.0,
            partition,
            epoch: Epoch(epoch),
            log_start: Offset(0),
            start: Offset(0),
            segments: vec![],
            leader_epochs: vec![],
            group_bytes: 0,
            relaxed: false,
            has_producers: false,
        })
    }

    #[tokio::test]
    async fn the_highest_claim_and_the_highest_manifest_count() {
        let v = MemVolume::new();
        let missing = glance(&v, "p", ME).await.unwrap_err();
        assert!(missing.is_not_found() && missing.path == "p");
        v.mkdir("p", Class::Data).await.unwrap();
        assert_eq!(glance(&v, "p", ME).await.unwrap(), Glance::default());
        for epoch in [1, 2] {
            put(&v, &names::claim(Epoch(epoch)), claim(epoch, epoch == 2)).await;
        }
        put(&v, &names::manifest(Epoch(1)), manifest(1, 0)).await;
        let content = ClaimContent::By { holder: "1-00000002".into(), relinquished: true };
        let want = Glance { claim: Some((Epoch(2), content)), manifest: Some((Epoch(1), None)) };
        assert_eq!(glance(&v, "p", ME).await.unwrap(), want);
    }

    #[tokio::test]
    async fn what_is_not_as_it_was_written_is_told() {
        let v = MemVolume::new();
        v.mkdir("p", Class::Data).await.unwrap();
        put(&v, &names::claim(Epoch(3)), Bytes::new()).await;
        put(&v, &names::manifest(Epoch(3)), manifest(3, 1)).await;
        let g = glance(&v, "p", ME).await.unwrap();
        assert_eq!(g.claim, Some((Epoch(3), ClaimContent::Empty)));
        assert_eq!(g.manifest, Some((Epoch(3), Some("is of another epoch or partition".into()))));

        put(&v, &names::claim(Epoch(4)), claim(4, false).slice(..40)).await;
        put(&v, &names::manifest(Epoch(4)), manifest(4, 0).slice(..40)).await;
        let g = glance(&v, "p", ME).await.unwrap();
        assert!(matches!(g.claim, Some((Epoch(4), ClaimContent::Damaged(_)))), "{g:?}");
        assert!(matches!(g.manifest, Some((Epoch(4), Some(_)))), "{g:?}");
        put(&v, &names::claim(Epoch(5)), claim(4, false)).await;
        let g = glance(&v, "p", ME).await.unwrap();
        assert!(matches!(g.claim, Some((Epoch(5), ClaimContent::Damaged(_)))), "{g:?}");
    }
}
