//! Looking at the control plane's files offline, also beside running brokers.
//!
//! Promises to write nothing, and to name every file that is not as a broker leaves it, be it stopped, killed or
//! running. A file that is empty was created by somebody who died before filling it, or is about to: its name
//! alone counts, and that is no finding.

use super::election::Candidate;
use super::files;
use super::format;
use super::heartbeat::Heartbeat;
use super::layout::{self, LeaseKey};
use super::metadata::Metadata;
use crate::storage::verify::Finding;
use crate::types::{Epoch, TopicId};
use crate::volume::{Class, EntryKind, SplitVolume, Volume, VolumeError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often a file that is rewritten in place is read before it is called damaged.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(60);
/// How long one step may take: a file that hangs is a finding, and keeps nobody from the rest.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// What the control plane's files say, and what is wrong with them.
#[derive(Debug, Default)]
pub struct Inspection {
    pub findings: Vec<Finding>,
    /// Worth knowing, and no damage.
    pub notes: Vec<String>,
    pub cluster_id: Option<String>,
    /// By name. `None`: the metadata cannot be read.
    pub topics: Option<BTreeMap<String, (TopicId, i32)>>,
    /// Deleted topics, whose files may still be there.
    pub deleting: BTreeSet<TopicId>,
    /// All of the newest metadata; the default if none was written yet.
    pub(super) metadata: Option<Metadata>,
}

/// Whether the volume's root is a data directory of ours.
pub async fn is_data(v: &dyn Volume) -> Result<bool, VolumeError> {
    let root = v.read_dir("", Class::Control).await?;
    Ok(root.iter().any(|e| e.name == layout::ROOT && e.kind == EntryKind::Dir))
}

/// Whether the volume's root is a data directory of ours whose control plane's files lie elsewhere (`cluster.dir`).
pub async fn is_data_apart(v: &dyn Volume) -> Result<bool, VolumeError> {
    let root = v.read_dir("", Class::Control).await?;
    Ok(root.iter().any(|e| e.name == layout::MARKER))
}

/// The one volume that both are to the cluster: the control plane's files on `control`, all else on `data`.
pub fn split(control: Arc<dyn Volume>, data: Arc<dyn Volume>) -> SplitVolume {
    SplitVolume::new(layout::ROOT, control, data)
}

/// Whether a name in the root is the file system's own, or the control plane's.
pub fn is_no_topic(name: &str) -> bool {
    format::is_ours(name) || format::is_ignorable(name)
}

/// Looks at everything but partitions and what the coordinators keep.
pub async fn inspect(v: &dyn Volume) -> Inspection {
    let mut i = Inspection::default();
    i.format(v).await;
    i.heartbeats(v).await;
    i.claims(v).await;
    i.metadata(v).await;
    i
}

impl Inspection {
    fn find(&mut self, path: &str, what: impl Into<String>) {
        self.findings.push(Finding { path: path.into(), byte: None, what: what.into() });
    }

    /// Reads a file until it is sound. `None`: it is gone, or what is wrong is noted.
    async fn look<T>(
        &mut self,
        v: &dyn Volume,
        path: &str,
        sound: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Option<T> {
        for left in (0..LOOKS).rev() {
            let what = match files::within(LIMIT, "read", path, files::read(v, path)).await {
                Ok(bytes) => match sound(&bytes) {
                    Ok(t) => return Some(t),
                    Err(what) => what,
                },
                Err(e) if e.is_not_found() => return None,
                Err(e) => format!("cannot be read: {}", e.source),
            };
            if left == 0 {
                self.find(path, what);
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        None
    }

    async fn names(&mut self, v: &dyn Volume, dir: &str) -> Vec<String> {
        match files::within(LIMIT, "list", dir, files::names_if_any(v, dir)).await {
            Ok(names) => names,
            Err(e) => {
                self.find(dir, format!("cannot be listed: {}", e.source));
                Vec::new()
            }
        }
    }

    async fn format(&mut self, v: &dyn Volume) {
        let sound = |b: &[u8]| format::parse(b).map_err(|e| e.to_string());
        let before = self.findings.len();
        if let Some(format) = self.look(v, layout::FORMAT, sound).await {
            self.cluster_id = Some(format.cluster_id);
            return;
        }
        let used = !matches!(format::in_use(v).await, Ok(false));
        if !used {
            self.findings.truncate(before);
            self.notes.push(format!("{}: a first start that did not finish", layout::FORMAT));
        } else if self.findings.len() == before {
            self.find(layout::FORMAT, "is missing, though other cluster files are there");
        }
    }

    async fn heartbeats(&mut self, v: &dyn Volume) {
        for name in self.names(v, layout::BROKERS).await {
            let Some(key) = LeaseKey::parse_heartbeat(&name) else { continue };
            self.look(v, &key.heartbeat(), |b| heartbeat(key, b)).await;
        }
    }

    async fn claims(&mut self, v: &dyn Volume) {
        for name in self.names(v, layout::CONTROLLER).await {
            let Some(epoch) = layout::parse_claim(&name) else { continue };
            self.look(v, &layout::claim(epoch), claim).await;
        }
    }

    /// The newest metadata. Older files are kept for people only.
    async fn metadata(&mut self, v: &dyn Volume) {
        for _ in 0..LOOKS {
            let names = self.names(v, layout::METADATA).await;
            let Some(epoch) = names.iter().filter_map(|n| layout::parse_metadata(n)).max() else {
                return self.take(Metadata::default());
            };
            let path = layout::metadata(epoch);
            let before = self.findings.len();
            match self.look(v, &path, |b| metadata(&path, epoch, b)).await {
                Some(m) => return self.take(m),
                None if self.findings.len() > before => return,
                // A newer epoch's controller tidied it away.
                None => {}
            }
        }
    }

    fn take(&mut self, m: Metadata) {
        self.topics = Some(m.topics.iter().map(|(n, t)| (n.clone(), (t.id, t.partitions))).collect());
        self.deleting = m.deleting.keys().copied().collect();
        self.metadata = Some(m);
    }
}

fn heartbeat(key: LeaseKey, b: &[u8]) -> Result<(), String> {
    if b.is_empty() {
        return Ok(());
    }
    let h = Heartbeat::decode(b).ok_or("is no whole heartbeat, or its checksum does not match")?;
    match (h.broker, h.lease_number) == (key.broker, key.number) {
        true => Ok(()),
        false => Err(format!("is of lease {:x} of broker {}", h.lease_number, h.broker)),
    }
}

fn claim(b: &[u8]) -> Result<(), String> {
    if b.is_empty() {
        return Ok(());
    }
    serde_json::from_slice::<Candidate>(b).map(|_| ()).map_err(|e| e.to_string())
}

fn metadata(path: &str, epoch: Epoch, b: &[u8]) -> Result<Metadata, String> {
    let m = Metadata::decode(path, b).map_err(|e| e.to_string())?;
    if m.controller.is_none_or(|c| c.epoch != epoch) {
        return Err("was not written by the controller of its epoch".into());
    }
    let mut ids = BTreeSet::new();
    match m.topics.values().map(|t| t.id).chain(m.deleting.keys().copied()).find(|id| !ids.insert(*id)) {
        Some(twice) => Err(format!("has the topic id {twice} twice")),
        None => Ok(m),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::BrokerId;
    use crate::volume::MemVolume;
    use bytes::Bytes;

    async fn put(v: &MemVolume, path: &str, content: &[u8]) {
        let mut at = String::new();
        for part in path.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev() {
            at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
            let _ = v.mkdir(&at, Class::Control).await;
        }
        let f = v.create_new(path, Class::Control).await.unwrap();
        f.write_sync(0, vec![Bytes::copy_from_slice(content)]).await.unwrap();
    }

    fn found(i: &Inspection) -> Vec<&str> {
        i.findings.iter().map(|f| f.path.as_str()).collect()
    }

    #[tokio::test]
    async fn a_first_start_that_died_half_way_is_no_damage() {
        let v = MemVolume::new();
        assert!(!is_data(&v).await.unwrap());
        put(&v, layout::FORMAT, b"{\"for").await;
        assert!(is_data(&v).await.unwrap());
        let i = inspect(&v).await;
        assert_eq!(found(&i), Vec::<&str>::new());
        assert_eq!(i.notes.len(), 1);
        assert_eq!(i.topics, Some(BTreeMap::new()));
    }

    #[tokio::test]
    async fn each_file_that_is_not_whole_is_named() {
        let v = MemVolume::new();
        let key = LeaseKey { broker: BrokerId(3), number: 7 };
        put(&v, layout::FORMAT, b"{}").await;
        put(&v, &key.heartbeat(), &[1; 512]).await;
        put(&v, &layout::claim(Epoch(1)), b"").await;
        put(&v, &layout::claim(Epoch(2)), b"{\"broker\":").await;
        put(&v, &layout::metadata(Epoch(1)), b"old, and read by nobody").await;
        put(&v, &layout::metadata(Epoch(2)), &Metadata::default().encode()).await;
        let i = inspect(&v).await;
        let wrong =
            [layout::FORMAT.to_owned(), key.heartbeat(), layout::claim(Epoch(2)), layout::metadata(Epoch(2))];
        assert_eq!(found(&i), wrong);
        assert_eq!(i.topics, None, "what no controller wrote names no topics");
    }
}
