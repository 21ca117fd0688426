//! Why a broker does not start.

use super::layout;
use crate::types::BrokerId;
use crate::volume::VolumeError;
use std::io::ErrorKind;

/// Each is one clear line for the person who started the broker. None leaves anything changed on the
/// volume unless the volume itself failed half-way.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    #[error("the data directory is missing or is not a directory: {0}")]
    NotADirectory(VolumeError),
    #[error("the data directory cannot be written: {0}")]
    NotWritable(VolumeError),
    #[error(
        "the data directory is not empty and holds no Highwater data (it has {0:?}); \
         give an empty directory, or one that Highwater made"
    )]
    Foreign(String),
    #[error(
        "the data belongs to a cluster whose control-plane files lie elsewhere ({} says so): \
         set cluster.dir to the directory that holds them",
        layout::MARKER
    )]
    Apart,
    #[error(
        "the control-plane files in cluster.dir are of a cluster that has used its data directory, and {} is not in \
         this one: it is another one, or its volume is not mounted", layout::MARKER
    )]
    Unmarked,
    #[error("cluster.dir is a directory in which a cluster keeps its data, too: give it as the data directory alone")]
    Together,
    #[error("the data directory is of the cluster {data}, and cluster.dir of the cluster {control}")]
    Mismatch { data: String, control: String },
    #[error("{path} has format {found}; this version knows formats up to {known}, use a newer one")]
    FormatNewer { path: String, found: u32, known: u32 },
    #[error("{path} cannot be read: {why}")]
    Unreadable { path: String, why: String },
    #[error("broker id {id} is already running on this data directory ({why})")]
    BrokerAlive { id: BrokerId, why: String },
    #[error("cannot take the host-local lock: {0}")]
    HostLock(String),
    #[error("the volume failed: {0}")]
    Volume(VolumeError),
    #[error("the volume does not answer: {0}")]
    NoAnswer(String),
}

impl StartError {
    /// A failed step that changes the volume.
    pub(super) fn write(e: VolumeError) -> Self {
        match e.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StartError::NotWritable(e),
            _ => StartError::Volume(e),
        }
    }
}
