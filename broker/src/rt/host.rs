//! The host: what proves that a predecessor process on this machine is dead.
//!
//! A broker holds a lock on one inode for as long as its process lives, and
//! writes the lock's *domain* (boot id, device, inode) into its heartbeat. Who
//! later holds the lock of the very same domain knows that the writer of that
//! heartbeat is gone, in whatever containers the two ran. A lock of another
//! domain proves nothing.

use async_trait::async_trait;
use std::any::Any;

/// A held lock; dropping it, or the death of the process, releases it.
pub struct HostLock {
    /// Equal domains mean: the same lock, on the same boot of the same kernel.
    pub domain: String,
    _held: Box<dyn Any + Send + Sync>,
}

impl HostLock {
    pub fn new(domain: String, held: impl Any + Send + Sync) -> Self {
        HostLock { domain, _held: Box::new(held) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another process on this host holds {0}")]
    Held(String),
    #[error("cannot take the host-local lock {path}: {source}")]
    Io { path: String, source: std::io::Error },
}

#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Takes the lock called `name` without waiting. [`LockError::Held`] if a live process has it.
    async fn lock(&self, name: &str) -> Result<HostLock, LockError>;

    /// The host's name, for people.
    fn name(&self) -> String;
}

/// A host on which a lock is always free: the simulator's default, where a node runs one broker at a
/// time and `incarnation` tells one boot of the node from the next.
#[derive(Clone, Debug)]
pub struct SoloHost {
    pub name: String,
    pub boot: String,
}

#[async_trait]
impl Host for SoloHost {
    async fn lock(&self, name: &str) -> Result<HostLock, LockError> {
        Ok(HostLock::new(format!("{}/{}/{name}", self.name, self.boot), ()))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(not(madsim))]
pub use os::OsHost;

#[cfg(not(madsim))]
mod os {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    /// flock(2) on files in one directory of this host.
    #[derive(Clone, Debug)]
    pub struct OsHost {
        dir: PathBuf,
    }

    impl OsHost {
        /// `dir` must be local to this host: a directory of the volume if the volume is a local file
        /// system, else one that every broker of this host sees alike.
        pub fn new(dir: impl Into<PathBuf>) -> Self {
            OsHost { dir: dir.into() }
        }
    }

    #[async_trait]
    impl Host for OsHost {
        async fn lock(&self, name: &str) -> Result<HostLock, LockError> {
            let path = self.dir.join(name);
            let io = |source| LockError::Io { path: path.display().to_string(), source };
            let file: File =
                OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
            match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(e) if e == rustix::io::Errno::WOULDBLOCK => {
                    return Err(LockError::Held(path.display().to_string()))
                }
                Err(e) => return Err(io(e.into())),
            }
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(io)?;
            let meta = file.metadata().map_err(io)?;
            let domain = format!("{}/{:x}/{:x}", boot.trim(), meta.dev(), meta.ino());
            Ok(HostLock::new(domain, file))
        }

        fn name(&self) -> String {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        }
    }
}
