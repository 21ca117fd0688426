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
    use crate::rt::{fs_kind, FsKind};
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};

    /// Where programs of one host keep their locks (FHS 3.0, 5.9).
    const LOCKS: &str = "/run/lock";
    const OURS: &str = "highwater";

    /// flock(2) on files in one directory of this host.
    ///
    /// The kernel ties such a lock to the open file: it ends with the process, however that ends.
    /// A lock file is never removed, since whoever held a removed one and whoever made the name
    /// anew would both hold "the" lock.
    #[derive(Clone, Debug)]
    pub struct OsHost {
        dir: PathBuf,
        prefix: String,
        /// Whether `dir` is made when the first lock is taken.
        make: bool,
    }

    impl OsHost {
        /// `dir` must be local to this host: a directory of the volume if the volume is a local file
        /// system, else one that every broker of this host sees alike. It must exist.
        pub fn new(dir: impl Into<PathBuf>) -> Self {
            OsHost { dir: dir.into(), prefix: String::new(), make: false }
        }

        /// The locks for a broker whose data lies in `data`, which must exist. Asks the file system
        /// and blocks for it: for the start of a program.
        ///
        /// On a local file system the lock files lie in `data/__cluster/`, which is made if it is
        /// missing when the first lock is taken, and not before: `data` may turn out to be somebody
        /// else's. On a network one flock(2) would ask the server, so they lie in a
        /// directory of the host, and their names tell by device and inode which data they guard.
        /// (After a remount the device may differ: then the lock proves nothing, and the lease
        /// decides.)
        pub fn for_data_dir(data: &Path) -> Result<Self, LockError> {
            let fail = |source| LockError::Io { path: data.display().to_string(), source };
            match fs_kind(data).map_err(fail)? {
                FsKind::Local => Ok(OsHost { make: true, ..OsHost::new(data.join("__cluster")) }),
                FsKind::Network(_) => {
                    let meta = std::fs::metadata(data).map_err(fail)?;
                    let dir = host_dir(Path::new(LOCKS), &std::env::temp_dir())?;
                    Ok(OsHost { dir, prefix: format!("{:x}-{:x}-", meta.dev(), meta.ino()), make: false })
                }
            }
        }
    }

    /// A directory of this user for locks: below `first`, or else below `second`, which others may
    /// write, too.
    pub(super) fn host_dir(first: &Path, second: &Path) -> Result<PathBuf, LockError> {
        let uid = rustix::process::geteuid().as_raw();
        private_dir(first.join(OURS), uid).or_else(|_| private_dir(second.join(format!("{OURS}-{uid}")), uid))
    }

    /// Makes the directory if it is missing; refuses one that is a link or another user's, or that
    /// others may write.
    fn private_dir(dir: PathBuf, uid: u32) -> Result<PathBuf, LockError> {
        let fail = |source| LockError::Io { path: dir.display().to_string(), source };
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(e)),
            _ => {}
        }
        let meta = std::fs::symlink_metadata(&dir).map_err(fail)?;
        if meta.is_dir() && meta.uid() == uid && meta.mode() & 0o022 == 0 {
            return Ok(dir);
        }
        let e = io::Error::new(io::ErrorKind::PermissionDenied, "not a directory of this user alone");
        Err(fail(e))
    }

    #[async_trait]
    impl Host for OsHost {
        async fn lock(&self, name: &str) -> Result<HostLock, LockError> {
            let path = self.dir.join(format!("{}{name}", self.prefix));
            let io = |source| LockError::Io { path: path.display().to_string(), source };
            if name.is_empty() || name.contains(['/', '\0']) || name == ".." {
                return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "not a plain name")));
            }
            if self.make {
                match std::fs::create_dir(&self.dir) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io(e)),
                    _ => {}
                }
            }
            // Makes the file but, else, not its directory: that there is none may mean a wrong path.
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true);
            // Neither a link that another user left, nor a wait for what is no file.
            options.custom_flags((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32);
            let file: File = options.open(&path).map_err(io)?;
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

#[cfg(all(test, not(madsim)))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    const CHILD: &str = "HIGHWATER_TEST_LOCK_DIR";

    /// What a further process gets when it asks for the lock in `dir`: the domain, or "held".
    fn ask_in_another_process(dir: &Path) -> String {
        let me = std::env::current_exe().unwrap();
        let name = "rt::host::tests::a_lock_is_held_against_other_processes_until_dropped";
        let out = Command::new(me).args(["--exact", name, "--nocapture"]).env(CHILD, dir).output().unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        let answer = out.lines().find_map(|l| l.split_once("answer=")).expect(&out);
        answer.1.to_owned()
    }

    #[tokio::test]
    async fn a_lock_is_held_against_other_processes_until_dropped() {
        if let Some(dir) = std::env::var_os(CHILD) {
            return match OsHost::new(dir).lock("broker-1").await {
                Ok(lock) => println!("answer={}", lock.domain),
                Err(LockError::Held(_)) => println!("answer=held"),
                Err(e) => println!("answer={e}"),
            };
        }
        let dir = tempfile::tempdir().unwrap();
        let lock = OsHost::new(dir.path()).lock("broker-1").await.unwrap();
        assert_eq!(ask_in_another_process(dir.path()), "held");
        let domain = lock.domain.clone();
        drop(lock);
        assert_eq!(ask_in_another_process(dir.path()), domain);
        // The other process has ended, and its lock with it.
        assert_eq!(OsHost::new(dir.path()).lock("broker-1").await.unwrap().domain, domain);
    }

    #[tokio::test]
    async fn a_second_lock_in_one_process_is_refused_and_another_name_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let host = OsHost::new(dir.path());
        let one = host.lock("broker-1").await.unwrap();
        assert!(matches!(host.lock("broker-1").await, Err(LockError::Held(p)) if p.ends_with("broker-1")));
        let two = host.lock("broker-2").await.unwrap();
        assert_ne!(one.domain, two.domain);
    }

    #[tokio::test]
    async fn without_its_directory_there_is_no_lock_and_none_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no");
        assert!(matches!(OsHost::new(&missing).lock("x").await, Err(LockError::Io { .. })));
        assert!(!missing.exists());
        assert!(OsHost::for_data_dir(&missing).is_err());
        assert!(!missing.exists());
        for name in ["", "..", "../x", "a/b"] {
            assert!(OsHost::new(dir.path()).lock(name).await.is_err(), "{name:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn local_data_is_locked_where_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        if crate::rt::fs_kind(dir.path()).unwrap() != crate::rt::FsKind::Local {
            panic!("the temporary directory must be local");
        }
        let lock = OsHost::for_data_dir(dir.path()).unwrap().lock("broker-1").await.unwrap();
        assert!(dir.path().join("__cluster/broker-1").exists());
        let again = OsHost::for_data_dir(dir.path()).unwrap();
        assert!(matches!(again.lock("broker-1").await, Err(LockError::Held(_))));
        drop(lock);
        again.lock("broker-1").await.unwrap();
    }

    #[test]
    fn a_directory_for_locks_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::fs::create_dir(&second).unwrap();
        let found = os::host_dir(&first, &second).unwrap();
        assert!(found.starts_with(&second), "the first place does not exist");
        assert_eq!(std::fs::metadata(&found).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::create_dir(&first).unwrap();
        assert_eq!(os::host_dir(&first, &second).unwrap(), first.join("highwater"));
        std::fs::set_permissions(first.join("highwater"), PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(os::host_dir(&first, &second).unwrap(), found, "others may write the first");
        std::fs::remove_dir(&found).unwrap();
        std::os::unix::fs::symlink(&first, &found).unwrap();
        assert!(os::host_dir(&first, &second).is_err(), "a link is no directory of ours");
    }
}
