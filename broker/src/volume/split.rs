//! Two volumes that look like one: the control plane's files on a volume of their own (`cluster.dir`), all else on the
//! other.
//!
//! Promises: an operation asks the one volume that its path lies on, and never the other, so that a data volume that is
//! full or hangs delays no heartbeat, no metadata and no group's offsets. Only the root is shared: its listing is of
//! both, and so is what its [`Volume::sync_dir`] makes durable.

use super::{check_path, Class, Entry, Result, Space, Volume, VolumeError, VolumeFile};
use async_trait::async_trait;
use std::io;
use std::sync::Arc;

/// See the module.
pub struct SplitVolume {
    /// The name in the root whose tree lies on `apart`.
    name: &'static str,
    apart: Arc<dyn Volume>,
    rest: Arc<dyn Volume>,
}

impl SplitVolume {
    /// The tree of `name` lies on `apart`, everything else on `rest`. What else `apart` holds is not seen, nor is a
    /// `name` that `rest` holds.
    pub fn new(name: &'static str, apart: Arc<dyn Volume>, rest: Arc<dyn Volume>) -> SplitVolume {
        SplitVolume { name, apart, rest }
    }

    fn is_apart(&self, path: &str) -> bool {
        path.split('/').next() == Some(self.name)
    }

    fn of(&self, path: &str) -> &dyn Volume {
        match self.is_apart(path) {
            true => &*self.apart,
            false => &*self.rest,
        }
    }
}

#[async_trait]
impl Volume for SplitVolume {
    async fn open(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>> {
        self.of(path).open(path, class).await
    }

    async fn open_write(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>> {
        self.of(path).open_write(path, class).await
    }

    async fn create_new(&self, path: &str, class: Class) -> Result<Arc<dyn VolumeFile>> {
        self.of(path).create_new(path, class).await
    }

    async fn rename(&self, from: &str, to: &str, class: Class) -> Result<()> {
        check_path("rename", to)?;
        if self.is_apart(from) != self.is_apart(to) {
            return Err(VolumeError::new("rename", from, io::ErrorKind::CrossesDevices.into()));
        }
        self.of(from).rename(from, to, class).await
    }

    async fn unlink(&self, path: &str) -> Result<()> {
        self.of(path).unlink(path).await
    }

    async fn read_dir(&self, path: &str, class: Class) -> Result<Vec<Entry>> {
        if !path.is_empty() {
            return self.of(path).read_dir(path, class).await;
        }
        let mut entries = self.apart.read_dir(path, class).await?;
        entries.retain(|e| e.name == self.name);
        let rest = self.rest.read_dir(path, class).await?;
        entries.extend(rest.into_iter().filter(|e| e.name != self.name));
        entries.sort();
        Ok(entries)
    }

    async fn mkdir(&self, path: &str, class: Class) -> Result<()> {
        self.of(path).mkdir(path, class).await
    }

    async fn rmdir(&self, path: &str) -> Result<()> {
        self.of(path).rmdir(path).await
    }

    async fn sync_dir(&self, path: &str, class: Class) -> Result<()> {
        if !path.is_empty() {
            return self.of(path).sync_dir(path, class).await;
        }
        self.apart.sync_dir(path, class).await?;
        self.rest.sync_dir(path, class).await
    }

    /// Of the volume that holds the data.
    async fn space(&self) -> Result<Space> {
        self.rest.space().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemVolume, Op};
    use super::*;
    use futures::FutureExt;

    const D: Class = Class::Data;

    fn both() -> (Arc<MemVolume>, Arc<MemVolume>, SplitVolume) {
        let (apart, rest) = (Arc::new(MemVolume::new()), Arc::new(MemVolume::new()));
        let split = SplitVolume::new("a", apart.clone(), rest.clone());
        (apart, rest, split)
    }

    async fn names(v: &dyn Volume, dir: &str) -> Vec<String> {
        v.read_dir(dir, D).await.expect("listed").into_iter().map(|e| e.name).collect()
    }

    #[tokio::test]
    async fn each_path_lies_on_one_of_the_two_and_the_root_shows_both() {
        let (apart, rest, split) = both();
        for dir in ["a", "a/b", "ab", "c"] {
            split.mkdir(dir, D).await.expect("made");
            split.create_new(&format!("{dir}/f"), D).await.expect("made");
        }
        assert_eq!(names(&*apart, "").await, ["a"]);
        assert_eq!(names(&*rest, "").await, ["ab", "c"]);
        assert_eq!(names(&split, "").await, ["a", "ab", "c"]);
        assert_eq!(names(&split, "a").await, ["b", "f"]);
        // What either holds besides is not ours to show.
        apart.mkdir("z", D).await.expect("made");
        rest.mkdir("a", D).await.expect("made");
        assert_eq!(names(&split, "").await, ["a", "ab", "c"]);
    }

    #[tokio::test]
    async fn nothing_is_renamed_from_one_to_the_other() {
        let (_, _, split) = both();
        split.mkdir("a", D).await.expect("made");
        split.create_new("a/f", D).await.expect("made");
        split.rename("a/f", "a/g", D).await.expect("renamed");
        let e = split.rename("a/g", "g", D).await.expect_err("it is another volume");
        assert_eq!(e.kind(), io::ErrorKind::CrossesDevices);
        assert_eq!(names(&split, "a").await, ["g"]);
    }

    #[tokio::test]
    async fn a_volume_that_hangs_holds_up_nothing_of_the_other() {
        let (_, rest, split) = both();
        split.mkdir("a", D).await.expect("made");
        split.create_new("f", D).await.expect("made");
        let _hung = [Op::Open, Op::Create, Op::ReadDir].map(|op| rest.hang(op, ""));
        assert!(split.open("f", D).now_or_never().is_none(), "it hangs");
        split.create_new("a/f", D).await.expect("made");
        split.open("a/f", D).await.expect("opened");
        assert_eq!(names(&split, "a").await, ["f"]);
    }
}
