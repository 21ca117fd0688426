//! Watches a volume while a life goes on: how the files of every partition changed, and when.
//!
//! It looks after each operation at what the operation touched, and at everything now and then. It has no task
//! of its own, draws no random number and takes no simulated time: a life that is watched is the same life.

use super::data;
use super::strip::Track;
use crate::volume::{Model, Op, OpEvent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long what happens without an operation (a server that writes to its media) may stay unseen.
const REST: Duration = Duration::from_millis(100);

/// A partition's directory: `{topic}/{topic id}/{partition}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Home {
    pub topic: String,
    pub partition: i32,
    pub id: String,
}

impl Home {
    /// Of a file in it, with the file's name; `None`: it belongs to no partition.
    pub fn of(path: &str) -> Option<(Home, &str)> {
        let mut parts = path.split('/');
        let (topic, id, partition, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let partition = partition.parse().ok().filter(|_| is_id && parts.next().is_none())?;
        Some((Home { topic: topic.into(), partition, id: id.into() }, name))
    }
}

/// What was seen of one partition.
#[derive(Default)]
pub struct Seen {
    /// By name.
    pub files: BTreeMap<String, Track>,
    /// From when, and the checkpoint's segment, position and offset.
    pub checkpoints: Vec<(u64, String, u64, i64)>,
    /// From when, and the segment, position and offset where it ends.
    pub seals: Vec<(u64, String, u64, i64)>,
}

/// Clones see the same.
#[derive(Clone)]
pub struct Collector(Arc<Mutex<Inner>>);

struct Inner {
    model: Model,
    homes: BTreeMap<Home, Seen>,
    rested: Duration,
    /// Names that a crash of everything would keep.
    kept: BTreeMap<String, bool>,
}

impl Collector {
    /// Begins to watch, to the end of the volume, which it keeps alive.
    pub fn watch(model: &Model) -> Collector {
        let inner = Inner {
            model: model.clone(),
            homes: BTreeMap::new(),
            rested: Duration::ZERO,
            kept: BTreeMap::new(),
        };
        let collector = Collector(Arc::new(Mutex::new(inner)));
        let watcher = collector.clone();
        model.watch(move |op| watcher.0.lock().saw(op));
        let watcher = collector.clone();
        model.watch_crashes(move || watcher.0.lock().look_at_all(true));
        collector
    }

    /// Looks at everything now.
    pub fn look(&self) {
        self.0.lock().look_at_all(false);
    }

    /// Hands what was seen to `f`.
    pub fn with<T>(&self, f: impl FnOnce(&BTreeMap<Home, Seen>) -> T) -> T {
        f(&self.0.lock().homes)
    }
}

fn micros(t: Duration) -> u64 {
    t.as_micros() as u64
}

fn now() -> Duration {
    madsim::time::TimeHandle::current().elapsed()
}

impl Inner {
    fn saw(&mut self, op: &OpEvent) {
        let changes = matches!(
            op.op,
            Op::Create
                | Op::Write
                | Op::Sync
                | Op::Truncate
                | Op::Rename
                | Op::Unlink
                | Op::WriteBack
                | Op::SyncDir
        );
        if !changes {
            return;
        }
        // The more files, the rarer: a look at everything costs as much as there is.
        let files = self.kept.len() as u32;
        if now() >= self.rested + REST * (1 + files / 200) {
            return self.look_at_all(false);
        }
        if op.op == Op::SyncDir {
            return self.names_kept(&op.path);
        }
        for path in [Some(&op.path), op.to.as_ref()].into_iter().flatten() {
            self.look_at(path, false);
        }
    }

    /// All names in a directory are durable now.
    fn names_kept(&mut self, dir: &str) {
        let prefix = format!("{dir}/");
        let Some((home, _)) = Home::of(&format!("{prefix}x")) else { return };
        let Some(seen) = self.homes.get(&home) else { return };
        let alive = seen.files.iter().filter(|(_, t)| t.gone.is_none());
        let paths: Vec<String> = alive.map(|(name, _)| format!("{prefix}{name}")).collect();
        for path in paths {
            self.kept.insert(path.clone(), true);
            self.look_at(&path, false);
        }
    }

    fn look_at_all(&mut self, crash: bool) {
        self.rested = now();
        self.kept = self.model.names();
        let known = self.homes.iter().flat_map(|(home, seen)| {
            let alive = seen.files.iter().filter(|(_, t)| t.gone.is_none());
            alive.map(move |(name, _)| format!("{}/{}/{}/{name}", home.topic, home.id, home.partition))
        });
        let paths: std::collections::BTreeSet<String> = known.chain(self.kept.keys().cloned()).collect();
        for path in paths {
            self.look_at(&path, crash);
        }
    }

    fn look_at(&mut self, path: &str, crash: bool) {
        let Some((home, name)) = Home::of(path) else { return };
        if name.ends_with(".tmp") {
            return;
        }
        let at = micros(now());
        let kept = self.kept.get(path).copied().unwrap_or(false);
        let seen = self.homes.entry(home).or_default();
        let track =
            seen.files.entry(name.to_owned()).or_insert_with(|| Track::new(name.ends_with(".log"), at));
        let changes = track.snaps.len();
        let exists = track.look(&self.model, path, at, kept, crash);
        if track.snaps.is_empty() {
            // It came and went between two looks.
            seen.files.remove(name);
        } else if exists && track.snaps.len() != changes {
            self.read_marks(path, at);
        }
    }

    /// Where a checkpoint stands, and where a manifest ends older segments.
    fn read_marks(&mut self, path: &str, at: u64) {
        let Some((home, name)) = Home::of(path) else { return };
        let (Some((_, shown)), Some(seen)) = (self.model.versions(path), self.homes.get_mut(&home)) else {
            return;
        };
        let Ok(doc) = serde_json::from_slice::<serde_json::Value>(&shown.to_bytes()) else { return };
        let doc = &doc["body"];
        let number = |v: &serde_json::Value| v.as_i64().unwrap_or(0);
        let log = |epoch: i64, base: i64| format!("{epoch:08x}-{base:020}.log");
        if name.ends_with("-recovery-checkpoint.json") {
            let segment = log(number(&doc["epoch"]), number(&doc["segment"]));
            let mark = (at, segment, number(&doc["pos"]) as u64, number(&doc["offset"]));
            if seen.checkpoints.last().is_none_or(|l| (&l.1, l.2, l.3) != (&mark.1, mark.2, mark.3)) {
                seen.checkpoints.push(mark);
            }
        }
        if name.ends_with("-manifest.json") {
            for s in doc["segments"].as_array().into_iter().flatten() {
                let segment = log(number(&s["epoch"]), number(&s["base"]));
                let (pos, end) = (number(&s["end_pos"]) as u64, number(&s["end"]));
                if !seen.seals.iter().rev().any(|l| (&l.1, l.2) == (&segment, pos)) {
                    seen.seals.push((at, segment, pos, end));
                }
            }
        }
    }
}

/// What a file is, by its name.
fn role(name: &str) -> &'static str {
    let ends = [
        (".log", "log"),
        (".index", "index"),
        (".aborted", "aborted"),
        ("-claim", "claim"),
        ("-manifest.json", "manifest"),
        ("-recovery-checkpoint.json", "checkpoint"),
        (".snapshot", "producers"),
    ];
    ends.iter().find(|(end, _)| name.ends_with(end)).map_or("other", |(_, role)| role)
}

/// Of a checkpoint: when, of which file, at which position, at which offset.
type CheckpointRow = (u64, usize, u64, i64);

/// The files of a partition as the page wants them, and its checkpoints by file number, which starts at `first`.
pub fn rows(home: &Home, seen: &Seen, part: usize, first: usize) -> (Vec<data::File>, Vec<CheckpointRow>) {
    let dir = format!("{}/{}/{}", home.topic, home.id, home.partition);
    let files = seen.files.iter().map(|(name, track)| data::File {
        path: format!("{dir}/{name}"),
        part,
        role: role(name).into(),
        page: None,
        born: track.born,
        gone: track.gone,
        snaps: track.snaps.clone(),
        batches: track.batch_rows(),
        seals: seen.seals.iter().filter(|s| s.1 == *name).map(|s| (s.0, s.2, s.3)).collect(),
    });
    let number = |segment: &str| seen.files.keys().position(|name| name == segment).map(|n| first + n);
    let marks = seen
        .checkpoints
        .iter()
        .filter_map(|(at, segment, pos, offset)| Some((*at, number(segment)?, *pos, *offset)));
    (files.collect(), marks.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_partition_s_own_files_belong_to_it() {
        let id = "0123456789abcdef0123456789abcdef";
        let path = format!("orders/{id}/3/00000001-claim");
        let (home, name) = Home::of(&path).unwrap();
        assert_eq!((home.topic.as_str(), home.partition, name), ("orders", 3, "00000001-claim"));
        for other in [format!("orders/{id}/3"), format!("orders/{id}/x/y"), "__cluster/brokers/1/x".into()] {
            assert_eq!(Home::of(&other), None, "{other}");
        }
    }
}
