//! Open segment files, shared and bounded in number.
//!
//! Ten thousand partitions must work with a thousand file descriptors, so a file is opened when it is first
//! needed and closed when others need the room. Only files that nobody uses at the moment are closed, and a
//! writer keeps hold of its file for as long as it has unsynced bytes: a file that is closed here is clean.

use crate::metrics::StorageMetrics;
use crate::volume::{self, Class, Volume, VolumeFile};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

type File = Arc<dyn VolumeFile>;

pub struct Handles {
    volume: Arc<dyn Volume>,
    metrics: Arc<StorageMetrics>,
    max: usize,
    open: Mutex<Open>,
}

struct Entry {
    file: File,
    used: u64,
    writable: bool,
}

#[derive(Default)]
struct Open {
    files: BTreeMap<String, Entry>,
    /// Last use → path; ticks are unique.
    by_use: BTreeMap<u64, String>,
    tick: u64,
}

impl Open {
    fn touch(&mut self, path: &str, to_write: bool) -> Option<File> {
        self.tick += 1;
        let e = self.files.get_mut(path).filter(|e| e.writable || !to_write)?;
        if let Some(name) = self.by_use.remove(&e.used) {
            self.by_use.insert(self.tick, name);
        }
        e.used = self.tick;
        Some(e.file.clone())
    }

    fn remove(&mut self, path: &str) -> Option<File> {
        let e = self.files.remove(path)?;
        self.by_use.remove(&e.used);
        Some(e.file)
    }

    fn insert(&mut self, path: &str, file: File, writable: bool) -> Option<File> {
        let old = self.remove(path);
        self.tick += 1;
        self.files.insert(path.to_string(), Entry { file, used: self.tick, writable });
        self.by_use.insert(self.tick, path.to_string());
        old
    }

    /// Takes out the longest unused files that nobody holds, until at most `max` are left.
    fn shrink(&mut self, max: usize) -> Vec<File> {
        let excess = self.files.len().saturating_sub(max);
        if excess == 0 {
            return Vec::new();
        }
        let free = |name: &&String| self.files.get(*name).is_some_and(|e| Arc::strong_count(&e.file) == 1);
        let names: Vec<String> = self.by_use.values().filter(free).take(excess).cloned().collect();
        names.iter().filter_map(|n| self.remove(n)).collect()
    }
}

impl Handles {
    pub fn new(volume: Arc<dyn Volume>, metrics: Arc<StorageMetrics>, max: usize) -> Handles {
        Handles { volume, metrics, max: max.max(1), open: Mutex::default() }
    }

    /// The file for reading. A handle that a writer opened serves, too.
    ///
    /// Whoever wants it closed may have come by while it was being opened, and found nothing to close: if it is not
    /// `needed` any more once it is here, it is not kept, and closes with its last user (P12).
    pub async fn read(&self, path: &str, needed: impl FnOnce() -> bool) -> volume::Result<File> {
        if let Some(f) = self.open.lock().touch(path, false) {
            return Ok(f);
        }
        let f = self.volume.open(path, Class::Data).await?;
        self.keep(path, f.clone(), false);
        if !needed() {
            self.forget(path);
        }
        Ok(f)
    }

    /// The file for writing, if it is open for that.
    pub fn writer(&self, path: &str) -> Option<File> {
        self.open.lock().touch(path, true)
    }

    /// Puts a file that the caller opened for writing, or created, under `path`, if it is still `needed`: see
    /// [`Handles::read`].
    pub fn keep_writer(&self, path: &str, file: File, needed: impl FnOnce() -> bool) {
        self.keep(path, file, true);
        if !needed() {
            self.forget(path);
        }
    }

    fn keep(&self, path: &str, file: File, writable: bool) {
        let closed = {
            let mut open = self.open.lock();
            // Two readers may have opened it at once; a writer's handle is the better one.
            if !writable && open.files.get(path).is_some_and(|e| e.writable) {
                return;
            }
            let old = open.insert(path, file, writable);
            let mut closed = open.shrink(self.max);
            closed.extend(old);
            self.metrics.open_files.set(open.files.len() as i64);
            closed
        };
        // Dropped outside the lock: closing a file may do work.
        drop(closed);
    }

    /// Closes `path` if it is open.
    pub fn forget(&self, path: &str) {
        let closed = {
            let mut open = self.open.lock();
            let closed = open.remove(path);
            self.metrics.open_files.set(open.files.len() as i64);
            closed
        };
        drop(closed);
    }

    /// Closes everything below a directory.
    pub fn forget_dir(&self, dir: &str) {
        let prefix = format!("{dir}/");
        let closed: Vec<File> = {
            let mut open = self.open.lock();
            let below = open.files.range(prefix.clone()..).take_while(|(k, _)| k.starts_with(&prefix));
            let names: Vec<String> = below.map(|(k, _)| k.clone()).collect();
            let closed = names.iter().filter_map(|n| open.remove(n)).collect();
            self.metrics.open_files.set(open.files.len() as i64);
            closed
        };
        drop(closed);
    }
}
