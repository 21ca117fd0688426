//! How a cluster stands, by what lies on its volume: also when no broker runs, and beside those that do.
//!
//! Promises to write nothing, to wait for no step on the volume without end, and to compare no two clocks: that a broker
//! lives is told by its heartbeat, which changes while we watch. What looks wrong is looked at twice, since a running
//! cluster changes under the reader.
//!
//! Does not promise that who is called silent is dead (unless it was watched for its whole lease), nor that what is shown
//! still holds when it is read. And since it writes nothing, it cannot defeat a mount's cache of names: on NFS a listing
//! may be up to a minute old.
//!
//! - `heartbeats` watches who writes; `facts` gathers all that is on the volume; `judge` decides, without I/O, what it means.

mod facts;
mod heartbeats;
mod judge;
#[cfg(test)]
mod tests;

use super::layout::LeaseKey;
use super::strays::Why;
use crate::rt::Clock;
use crate::storage::verify::Finding;
use crate::types::{BrokerId, Epoch, TopicId};
use crate::volume::Volume;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks at what seemed wrong.
const AGAIN: Duration = Duration::from_millis(500);

/// What to look at, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The directories of the coordinators' slots, in order.
    pub slots: Vec<String>,
    /// How long heartbeats are watched that do not move. `None`: a little more than two beats, which proves nobody dead.
    pub watch: Option<Duration>,
}

/// One lease of one broker id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeaseName {
    pub broker: BrokerId,
    pub lease: u32,
}

impl From<LeaseKey> for LeaseName {
    fn from(key: LeaseKey) -> Self {
        LeaseName { broker: key.broker, lease: key.number }
    }
}

/// How a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Its heartbeat changed while we watched.
    Alive,
    /// Its heartbeat did not change while we watched, for less than the lease.
    Silent,
    /// The holder wrote that it serves nothing under it any more.
    Relinquished,
    /// Another broker recorded that it is dead.
    RecordedDead,
    /// Its heartbeat was still for the whole lease while we watched.
    Dead,
    /// Its heartbeat is there but cannot be read, or is no heartbeat.
    Unreadable,
    /// The same broker has a later lease.
    Superseded,
    /// There is no heartbeat of it.
    Missing,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Standing::Alive => "alive",
            Standing::Silent => "silent",
            Standing::Relinquished => "relinquished",
            Standing::RecordedDead => "recorded dead",
            Standing::Dead => "dead",
            Standing::Unreadable => "of an unreadable heartbeat",
            Standing::Superseded => "superseded by a later one",
            Standing::Missing => "without a heartbeat",
        })
    }
}

/// The last lease of a broker id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broker {
    #[serde(flatten)]
    pub name: LeaseName,
    pub standing: Standing,
    /// By our clock: it was written no longer ago than this, or has been still for at least this while we watched.
    pub heartbeat: Heard,
    pub incarnation: Option<uuid::Uuid>,
    pub address: Option<String>,
    /// Host and boot, as far as a host-local lock tells them.
    pub domain: Option<String>,
    pub lease_ms: Option<u64>,
    /// Its last heartbeat's number under this lease.
    pub sequence: Option<u64>,
    pub assigned: Share,
    /// Of those, what it leads by what their directories say.
    pub led: Share,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub partitions: usize,
    pub slots: usize,
}

/// What watching a heartbeat showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    WrittenWithinMs(u64),
    StillForMs(u64),
    /// It was not watched, or could not be read.
    Nothing(String),
}

/// Who may propose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Controller {
    /// The highest claim.
    pub epoch: Option<Epoch>,
    pub holder: Option<LeaseName>,
    pub standing: Option<Standing>,
    /// Its lease stands and its heartbeat says that it is controller of that epoch.
    pub in_office: bool,
    pub why: Option<String>,
}

/// The newest metadata, and who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MetadataStamp {
    pub epoch: Option<Epoch>,
    pub change: u64,
}

/// A partition or a coordinator's slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum Of {
    Slot { slot: u32 },
    Partition { topic: String, topic_id: TopicId, partition: i32 },
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Of::Slot { slot } => write!(f, "slot {slot}"),
            Of::Partition { topic, partition, .. } => write!(f, "{topic}-{partition}"),
        }
    }
}

/// Whether somebody leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The broker that it is assigned to lives, claimed it last, and opened it.
    Led,
    /// The broker that it is assigned to lives and has not opened it yet.
    Opening,
    /// Another lease than the one that it is assigned to claimed it last.
    Moving,
    /// Nobody who is known to live is to lead it.
    Stalled,
    /// Its directory cannot tell.
    Unreadable,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Led => "led",
            State::Opening => "opening",
            State::Moving => "moving",
            State::Stalled => "stalled",
            State::Unreadable => "unreadable",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    #[serde(flatten)]
    pub of: Of,
    /// Relative to the volume's root.
    pub dir: String,
    pub state: State,
    /// Says nothing about a place that is led.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What the metadata proposes.
    pub assigned: Option<LeaseName>,
    /// The directory's highest claim: its epoch, and whose it is.
    pub claim: Option<Claim>,
    /// The epoch of the directory's highest manifest.
    pub manifest: Option<Epoch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    pub epoch: Epoch,
    /// As the claim has it; `None` if it cannot be read.
    pub holder: Option<String>,
    pub relinquished: bool,
}

/// A directory that no metadata names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Orphan {
    pub dir: String,
    pub why: Why,
}

/// A deleted topic whose files may still be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deletion {
    pub topic: String,
    pub topic_id: TopicId,
    pub files_left: bool,
}

/// How the cluster stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Nothing is stalled, moving, orphaned or unreadable.
    pub well: bool,
    pub cluster_id: Option<String>,
    pub controller: Controller,
    /// `None`: it cannot be read, and nobody can tell who leads what.
    pub metadata: Option<MetadataStamp>,
    pub brokers: Vec<Broker>,
    pub topics: usize,
    pub partitions: usize,
    pub slots: usize,
    /// How many partitions and slots are in each state.
    pub states: BTreeMap<State, usize>,
    pub places: Vec<Place>,
    pub unreadable: Vec<Unreadable>,
    pub orphaned: Vec<Orphan>,
    pub deleting: Vec<Deletion>,
    /// Worth knowing, and nothing wrong.
    pub notes: Vec<String>,
}

/// A file or directory that is not as a broker leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    pub path: String,
    pub why: String,
}

impl From<Finding> for Unreadable {
    fn from(f: Finding) -> Self {
        Unreadable { path: f.path, why: f.what }
    }
}

/// Looks, and says how the cluster stands.
pub async fn status(v: &dyn Volume, clock: &dyn Clock, ask: &Ask) -> Status {
    let mut looker = facts::Looker::new(v, clock, ask);
    let first = looker.look(None).await;
    let told = judge::status(&first, &ask.slots);
    if told.well {
        return told;
    }
    tokio::time::sleep(AGAIN).await;
    let second = looker.look(Some((&first, &told))).await;
    judge::status(&second, &ask.slots)
}
