//! Opening a partition: claim an epoch, find where the log ends, seal it there, make the new epoch exist.
//!
//! Steps, in this order (design: *Assignments only propose*, *Old epochs are sealed*):
//!
//! 1. list the directory; claim `epoch = highest seen + 1` by exclusive create; list again, give up if
//!    somebody claimed a higher one; wait until everybody who claimed a lower one is gone ([`claims`]);
//! 2. read the highest manifest. Segments exist only if it lists them or its own epoch wrote them;
//! 3. scan that epoch's last segment from its checkpoint to its end ([`scan::recover`]);
//! 4. copy what may not be durable (the last group) into a first segment of the new epoch, and sync that: a
//!    sync of the old file would prove nothing about pages that another process wrote;
//! 5. write producer snapshot, checkpoint, lists of aborted transactions and, last, the manifest that seals all older segments;
//!    sync the directory. From here on the epoch exists.
//!
//! Everything read is checked; what is wrong is left out where a scan can replace it (checkpoint, snapshot,
//! index) and is an error where it can't (manifest). Nothing old is deleted here: the caller does that, after
//! step 5, from [`Opened::garbage`].

mod claims;
mod log;

pub(super) use claims::relinquish;

use crate::config::StorageConfig;
use crate::reached;
use crate::storage::aborted::{self, Aborted};
use crate::storage::docs::{self, Checkpoint, DocError, Manifest, Sealed, FORMAT};
use crate::storage::index::Index;
use crate::storage::names::{self, FileName, SegmentName};
use crate::storage::producers::{Producer, Producers};
use crate::storage::{Fence, PartitionSpec};
use crate::types::{Epoch, Offset, Pos, TopicId};
use crate::volume::{self, Class, Volume, VolumeError, VolumeFile};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// The file form of the producers of a partition at one offset.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProducerSnapshot {
    pub format: u32,
    pub topic_id: TopicId,
    pub epoch: Epoch,
    /// Batches before this offset are accounted for, none from it on.
    pub offset: Offset,
    pub producers: Vec<Producer>,
}

impl ProducerSnapshot {
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }
}

/// A first segment of the new epoch, holding a copy of the doubtful tail.
#[derive(Debug)]
pub struct Copied {
    pub name: SegmentName,
    pub index: Index,
    /// Aborted transactions with a marker in here.
    pub aborted: Vec<Aborted>,
    pub end_pos: Pos,
    pub max_timestamp: Option<i64>,
    pub first_timestamp: Option<i64>,
}

/// A partition that may lead.
#[derive(Debug)]
pub struct Opened {
    pub manifest: Manifest,
    pub copied: Option<Copied>,
    /// Log end offset; all before it is durable.
    pub end: Offset,
    pub producers: Producers,
    /// Names of older epochs' files that the manifest gave up.
    pub garbage: Vec<String>,
    pub scanned: u64,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Doc(#[from] DocError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("{dir}: epoch {epoch} was claimed by another")]
    Outbid { dir: String, epoch: Epoch },
    #[error("{dir}: a broker that was assigned later has claimed epoch {epoch}")]
    Superseded { dir: String, epoch: Epoch },
    #[error("{dir}: the opening is no longer wanted")]
    Unwanted { dir: String },
    #[error("{dir}: {reason}")]
    Inconsistent { dir: String, reason: String },
}

/// What an open needs to know.
pub struct OpenArgs {
    pub volume: Arc<dyn Volume>,
    pub spec: PartitionSpec,
    pub config: StorageConfig,
    /// Epochs up to this one were used already, whatever a stale listing says.
    pub floor: Epoch,
    /// The leader epoch of the assignment, where the cluster assigns.
    pub assigned: Option<Epoch>,
    /// Makes names of temporary files unique.
    pub nonce: u64,
    /// Who claims: the holder of the lease under which the opening began, whatever lease stands when the claim is made. A
    /// claim in the name of a later lease would stand for as long as that one, and nobody would take it back.
    pub holder: String,
    /// [`crate::storage::Assignment::disowned`], as it is known now: the word may come while the opening waits for it.
    pub disowned: Arc<dyn Fn() -> Vec<(String, Epoch)> + Send + Sync>,
    /// Who of those that claimed earlier is known to be gone.
    pub fence: Arc<dyn Fence>,
    /// Told of the epoch that was claimed.
    pub on_claim: Arc<dyn Fn(Epoch) + Send + Sync>,
    /// Wall time, ms.
    pub now: i64,
    /// Whether the durability dial is above 1.
    pub relaxed: bool,
    /// Whether this opening is still wanted: its lease stands, and nothing else was decided meanwhile.
    pub wanted: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Rises with every read that returned: tells a long recovery from a stuck one.
    pub progress: Arc<AtomicU64>,
}

impl OpenArgs {
    /// Asked before every step that others could see. After the claim it is what orders openings: whoever
    /// begins later claims a higher epoch, so an opening that is late stops here and seals nobody off.
    fn still_wanted(&self) -> Result<(), OpenError> {
        if (self.wanted)() {
            Ok(())
        } else {
            Err(OpenError::Unwanted { dir: self.spec.dir.clone() })
        }
    }

    pub(super) fn inconsistent(&self, reason: String) -> OpenError {
        OpenError::Inconsistent { dir: self.spec.dir.clone(), reason }
    }

    pub(super) async fn open_log(&self, name: SegmentName) -> Result<Arc<dyn VolumeFile>, VolumeError> {
        let path = format!("{}/{}", self.spec.dir, name.log());
        let file = self.volume.open(&path, Class::Data).await?;
        Ok(Arc::new(Noted { file, progress: self.progress.clone() }))
    }
}

/// A file whose reads count as progress.
struct Noted {
    file: Arc<dyn VolumeFile>,
    progress: Arc<AtomicU64>,
}

#[async_trait::async_trait]
impl VolumeFile for Noted {
    async fn read_at(&self, pos: u64, len: usize) -> volume::Result<Bytes> {
        let r = self.file.read_at(pos, len).await;
        self.progress.fetch_add(1, Relaxed);
        r
    }

    async fn write_at(&self, pos: u64, bufs: Vec<Bytes>) -> volume::Result<usize> {
        self.file.write_at(pos, bufs).await
    }

    async fn sync(&self) -> volume::Result<()> {
        self.file.sync().await
    }

    async fn len(&self) -> volume::Result<u64> {
        self.file.len().await
    }

    async fn truncate(&self, len: u64) -> volume::Result<()> {
        self.file.truncate(len).await
    }
}

struct Listing(BTreeSet<String>);

impl Listing {
    fn files(&self) -> impl Iterator<Item = FileName> + '_ {
        self.0.iter().filter_map(|n| FileName::parse(n))
    }

    fn highest(&self, pick: impl Fn(FileName) -> Option<Epoch>) -> Option<Epoch> {
        self.files().filter_map(pick).max()
    }
}

async fn list(v: &dyn Volume, dir: &str) -> Result<Listing, VolumeError> {
    Ok(Listing(v.read_dir(dir, Class::Data).await?.into_iter().map(|e| e.name).collect()))
}

/// Makes `dir` and its parents, and makes their names durable before anything is put into them.
pub async fn make_dirs(v: &dyn Volume, dir: &str) -> Result<(), VolumeError> {
    let mut parent = String::new();
    for part in dir.split('/') {
        let path = if parent.is_empty() { part.to_string() } else { format!("{parent}/{part}") };
        match v.mkdir(&path, Class::Data).await {
            Err(e) if !e.is_already_exists() => return Err(e),
            _ => v.sync_dir(&parent, Class::Data).await?,
        }
        parent = path;
    }
    Ok(())
}

/// What the predecessor left: the sealed segments, and its own that are still to be judged.
pub(super) struct Inherited {
    pub manifest: Option<Manifest>,
    pub checkpoint: Option<Checkpoint>,
    pub snapshot: Option<ProducerSnapshot>,
    pub own: Vec<SegmentName>,
}

pub async fn open(a: &OpenArgs) -> Result<Opened, OpenError> {
    let v = &*a.volume;
    let dir = &a.spec.dir;
    let listing = match list(v, dir).await {
        Err(e) if e.is_not_found() => Listing(BTreeSet::new()),
        r => r?,
    };
    a.still_wanted()?;
    if !listing.files().any(|f| matches!(f, FileName::Manifest(_))) {
        // Also if the directory is there: who made it may not have come to make its name durable.
        make_dirs(v, dir).await?;
        // That may have taken long: what is claimed in a directory whose topic was deleted meanwhile, nobody removes.
        a.still_wanted()?;
    }
    let seen = listing.highest(|f| Some(f.epoch())).unwrap_or(Epoch(0));
    claims::refuse_the_superseded(a, &listing).await?;
    let epoch = seen.max(a.floor).next();
    claims::claim(a, epoch).await?;
    a.still_wanted()?;
    let listing = claims::await_earlier(a, epoch).await?;
    let inherited = inherit(a, &listing, epoch).await?;
    let log = log::recover(a, &inherited).await?;
    let producers = log::replay_producers(a, &inherited, &log).await?;
    let (mut segments, copied) = log::copy_doubtful(a, epoch, &inherited, &log).await?;
    let lists = log::list_aborted(epoch, &mut segments, &log.aborted);
    let manifest = make_manifest(a, epoch, &inherited, segments, &log, &producers, copied.as_ref())?;
    a.still_wanted()?;
    if copied.is_some() {
        reached!("doubtful-tail-copied");
    }
    write_epoch(a, &manifest, (copied.as_ref(), &lists), log.end, &producers).await?;
    let garbage = garbage(&listing, &manifest);
    Ok(Opened { manifest, copied, end: log.end, producers, garbage, scanned: log.scanned })
}

async fn inherit(a: &OpenArgs, listing: &Listing, epoch: Epoch) -> Result<Inherited, OpenError> {
    let (v, dir) = (&*a.volume, &a.spec.dir);
    let manifests = |f| matches!(f, FileName::Manifest(_)).then_some(f.epoch()).filter(|e| *e < epoch);
    let Some(previous) = listing.highest(manifests) else {
        return Ok(Inherited { manifest: None, checkpoint: None, snapshot: None, own: Vec::new() });
    };
    let inconsistent = |reason: String| OpenError::Inconsistent { dir: dir.clone(), reason };
    let m: Manifest = docs::read(v, &format!("{dir}/{}", names::manifest(previous))).await?;
    if m.format > FORMAT {
        return Err(inconsistent(format!("manifest format {} is newer than this version reads", m.format)));
    }
    if m.epoch != previous || m.topic_id != a.spec.topic_id || m.partition != a.spec.index {
        return Err(inconsistent(format!("manifest {previous} is of another partition or epoch")));
    }
    let mut own: Vec<SegmentName> = listing
        .files()
        .filter_map(|f| if let FileName::Log(s) = f { Some(s) } else { None })
        .filter(|s| s.epoch == previous)
        .collect();
    own.sort();
    let checkpoint = optional::<Checkpoint>(v, &format!("{dir}/{}", names::checkpoint(previous))).await?;
    let checkpoint = checkpoint.filter(|c| c.epoch == previous && c.topic_id == a.spec.topic_id);
    let checkpoint = match checkpoint {
        Some(c) if names_what_is_gone(a, m.log_start, &own, &c).await? => {
            reached!("checkpoint-disbelieved");
            tracing::error!(%dir, segment = %c.segment, offset = %c.offset, "the recovery checkpoint names a segment that is not there; scanning without it");
            None
        }
        c => c,
    };
    let snapshot = optional::<ProducerSnapshot>(v, &format!("{dir}/{}", names::producers(previous))).await?;
    let snapshot = snapshot.filter(|s| s.epoch == previous && s.topic_id == a.spec.topic_id);
    Ok(Inherited { manifest: Some(m), checkpoint, snapshot, own })
}

/// Whether the checkpoint names a segment that should be there and is not. The listing alone does not say so: it was
/// taken after a name of our own was made there, which a cache of names does not survive, but where a cache did, it must
/// not cost a record. So the name is asked for by itself. Found: the listing is stale, and this opening an
/// error that a later one under a fresh claim gets over. Not found: the checkpoint is of something else (restored,
/// or from before the file server lost its last second), and a hint that is wrong may not keep a partition closed.
async fn names_what_is_gone(
    a: &OpenArgs,
    log_start: Offset,
    own: &[SegmentName],
    c: &Checkpoint,
) -> Result<bool, OpenError> {
    let name = SegmentName { epoch: c.epoch, base: c.segment };
    // Retention may give up the segment that the last checkpoint was of.
    if own.contains(&name) || c.offset <= log_start {
        return Ok(false);
    }
    match a.open_log(name).await {
        Ok(_) => Err(a.inconsistent(format!("the listing lacks the segment at {}", c.segment))),
        Err(e) if e.is_not_found() => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// A file that a scan can replace: missing or damaged is `None`.
async fn optional<T: serde::de::DeserializeOwned>(
    v: &dyn Volume,
    path: &str,
) -> Result<Option<T>, OpenError> {
    match docs::read(v, path).await {
        Ok(d) => Ok(Some(d)),
        Err(DocError::Damaged { path, reason }) => {
            tracing::warn!(%path, %reason, "damaged file, rebuilding it from the log");
            Ok(None)
        }
        Err(DocError::Volume(e)) if e.is_not_found() => Ok(None),
        Err(DocError::Volume(e)) => Err(e.into()),
    }
}

fn make_manifest(
    a: &OpenArgs,
    epoch: Epoch,
    i: &Inherited,
    segments: Vec<Sealed>,
    log: &log::Log,
    producers: &Producers,
    copied: Option<&Copied>,
) -> Result<Manifest, OpenError> {
    let mut leader_epochs = i.manifest.as_ref().map_or_else(Vec::new, |m| m.leader_epochs.clone());
    // An epoch that wrote nothing leaves no trace in the list.
    leader_epochs.retain(|(_, start)| *start < log.end);
    leader_epochs.push((epoch, log.end));
    let log_start = i.manifest.as_ref().map_or(Offset::ZERO, |m| m.log_start);
    prune_epochs(&mut leader_epochs, log_start);
    let first = segments.first().map(|s| s.base).or(copied.map(|c| c.name.base)).unwrap_or(log.end);
    if first > log_start {
        // Never to be passed over: what is missing was acknowledged.
        return Err(
            a.inconsistent(format!("the log begins at {log_start}, but its first segment at {first}"))
        );
    }
    Ok(Manifest {
        format: FORMAT,
        topic_id: a.spec.topic_id,
        partition: a.spec.index,
        epoch,
        log_start,
        start: copied.map_or(log.end, |c| c.name.base),
        segments,
        leader_epochs,
        group_bytes: a.config.group_bytes,
        relaxed: a.relaxed,
        has_producers: !producers.is_empty(),
    })
}

/// Forgets epochs that have no record from `log_start` on.
pub(in crate::storage) fn prune_epochs(epochs: &mut Vec<(Epoch, Offset)>, log_start: Offset) {
    let gone = epochs.iter().skip(1).take_while(|(_, start)| *start <= log_start).count();
    epochs.drain(..gone.min(epochs.len().saturating_sub(1)));
}

async fn write_epoch(
    a: &OpenArgs,
    m: &Manifest,
    (copied, lists): (Option<&Copied>, &[(SegmentName, Vec<Aborted>)]),
    end: Offset,
    producers: &Producers,
) -> Result<(), OpenError> {
    let (v, dir) = (&*a.volume, &a.spec.dir);
    let manifest = names::manifest(m.epoch);
    // Side by side: on a network volume each sync is a round trip, and a takeover waits for all of them.
    let written = futures::join!(
        write_snapshot(a, m, end, producers),
        write_checkpoint(a, m, copied, end),
        docs::prepare(v, dir, &manifest, a.nonce, docs::encode(m)),
        write_lists(a, lists),
    );
    let relied_on = async {
        written.0?;
        written.1?;
        written.3?;
        // The manifest's temporary name was made when our claim had its content: now the listing is a true one.
        claims::still_highest(a, m.epoch).await?;
        if m.has_producers || copied.is_some() || !lists.is_empty() {
            // What the manifest relies on has durable names before the manifest can have one.
            v.sync_dir(dir, Class::Data).await?;
        }
        Ok::<_, OpenError>(())
    };
    if let Err(e) = relied_on.await {
        docs::forget(v, dir, &manifest, a.nonce).await;
        return Err(e);
    }
    written.2?;
    docs::put(v, dir, &manifest, a.nonce).await?;
    v.sync_dir(dir, Class::Data).await?;
    Ok(())
}

/// Lists the aborted transactions of segments that nobody has listed them of.
async fn write_lists(a: &OpenArgs, lists: &[(SegmentName, Vec<Aborted>)]) -> Result<(), OpenError> {
    for (name, entries) in lists {
        let bytes = aborted::encode(entries);
        docs::replace(&*a.volume, &a.spec.dir, &name.aborted(), a.nonce, bytes).await?;
    }
    Ok(())
}

async fn write_snapshot(
    a: &OpenArgs,
    m: &Manifest,
    end: Offset,
    producers: &Producers,
) -> Result<(), OpenError> {
    if !m.has_producers {
        return Ok(());
    }
    let s = ProducerSnapshot {
        format: FORMAT,
        topic_id: m.topic_id,
        epoch: m.epoch,
        offset: end,
        producers: producers.durable(end),
    };
    let name = names::producers(m.epoch);
    Ok(docs::replace(&*a.volume, &a.spec.dir, &name, a.nonce, docs::encode(&s)).await?)
}

async fn write_checkpoint(
    a: &OpenArgs,
    m: &Manifest,
    copied: Option<&Copied>,
    end: Offset,
) -> Result<(), OpenError> {
    let Some(c) = copied else { return Ok(()) };
    let c = Checkpoint {
        format: FORMAT,
        topic_id: m.topic_id,
        epoch: m.epoch,
        segment: c.name.base,
        pos: c.end_pos,
        offset: end,
        max_timestamp: c.max_timestamp,
        first_timestamp: c.first_timestamp,
        damage: Vec::new(),
        aborted: c.aborted.clone(),
        closed: Vec::new(),
        has_producers: m.has_producers,
    };
    let name = names::checkpoint(m.epoch);
    Ok(docs::replace(&*a.volume, &a.spec.dir, &name, a.nonce, docs::encode(&c)).await?)
}

/// Files that belong to older epochs and that the manifest does not list.
fn garbage(listing: &Listing, m: &Manifest) -> Vec<String> {
    let kept: BTreeSet<SegmentName> = m.segments.iter().map(Sealed::name).collect();
    let lists: BTreeSet<SegmentName> = m.segments.iter().filter_map(Sealed::aborted_name).collect();
    let given_up = |name: &&String| match FileName::parse(name) {
        Some(FileName::Log(s) | FileName::Index(s)) => s.epoch < m.epoch && !kept.contains(&s),
        Some(FileName::Aborted(s)) => s.epoch < m.epoch && !lists.contains(&s),
        Some(f) => f.epoch() < m.epoch,
        None => false,
    };
    listing.0.iter().filter(given_up).cloned().collect()
}
