//! Recovery checkpoints that are not what they should be: older, ahead, torn, of something else.
//!
//! A checkpoint is a hint that recovery must be able to do without. Restores from backups, file servers
//! that lost their last second, and bugs make wrong ones; none may cost a record.

use super::World;
use crate::scenario::Checkpoint;
use crate::volume::{Process, Tree};
use bytes::Bytes;
use highwater::reached;
use highwater::volume::{Class, Volume};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;

const SUFFIX: &str = "-recovery-checkpoint.json";

/// A host that no broker runs on: an operator's machine.
const OPERATOR: u32 = 1000;

/// Remembers what checkpoints were.
#[derive(Default)]
pub struct Tamper {
    seen: Mutex<BTreeMap<String, Vec<Bytes>>>,
}

impl Tamper {
    /// Spoils every partition's present checkpoints. The broker is down.
    pub async fn checkpoints(&self, world: &World, kind: Checkpoint) {
        let shown = world.model().shown();
        let logs: Vec<String> = shown.files.keys().filter(|p| p.ends_with(".log")).cloned().collect();
        let files = checkpoints(shown);
        let operator = world.model().process(OPERATOR);
        for (path, content) in &files {
            let spoilt = match kind {
                Checkpoint::Older => self.older(path, content),
                Checkpoint::Torn => Some(content.slice(..content.len() / 2)),
                Checkpoint::Ahead => edit(content, ahead),
                Checkpoint::OtherSegment => {
                    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
                    edit(content, |v| other_segment(v, dir, &logs))
                }
                Checkpoint::OtherEpoch => other_epoch(path, &files),
            };
            if let Some(spoilt) = spoilt {
                // Best effort: the volume may refuse, as it may refuse an operator.
                if replace(&operator, path, spoilt).await.is_ok() {
                    reached!("checkpoint-spoilt");
                }
            }
        }
        operator.kill();
    }

    /// What the checkpoint was when this was last asked; so the first time changes nothing.
    fn older(&self, path: &str, now: &Bytes) -> Option<Bytes> {
        let mut seen = self.seen.lock();
        let list = seen.entry(path.to_owned()).or_default();
        let old = list.first().cloned();
        list.push(now.clone());
        old
    }

    /// Looks at the checkpoints, so that there are older ones to go back to.
    pub fn remember(&self, world: &World) {
        for (path, content) in checkpoints(world.model().shown()) {
            self.older(&path, &content);
        }
    }
}

fn checkpoints(shown: Tree) -> Vec<(String, Bytes)> {
    shown.files.into_iter().filter(|(p, _)| p.ends_with(SUFFIX)).map(|(p, b)| (p, b.to_bytes())).collect()
}

/// Changes a document and gives it the checksum of what it now says: the broker must see through more than damage.
fn edit(content: &Bytes, change: impl FnOnce(&mut Value) -> Option<()>) -> Option<Bytes> {
    let mut envelope: Value = serde_json::from_slice(content).ok()?;
    let body = envelope.get_mut("body")?;
    change(body)?;
    let body = serde_json::to_string(body).ok()?;
    let crc = crc32c::crc32c(body.as_bytes());
    Some(format!("{{\"crc32c\":{crc},\"body\":{body}}}\n").into())
}

/// Points past the end of any file here.
fn ahead(v: &mut Value) -> Option<()> {
    for field in ["pos", "offset"] {
        v[field] = (v.get(field)?.as_u64()? + 1_000_000).into();
    }
    Some(())
}

/// Names an older segment of the same epoch; its own position and offset stay. (Naming the last segment with another's
/// position would be a forgery, which no accident makes.)
fn other_segment(v: &mut Value, dir: &str, logs: &[String]) -> Option<()> {
    let (epoch, segment) = (v.get("epoch")?.as_u64()?, v.get("segment")?.as_u64()?);
    let base = |path: &String| -> Option<u64> {
        let name = path.strip_prefix(dir)?.strip_prefix(&format!("/{epoch:08x}-"))?;
        name.strip_suffix(".log")?.parse().ok()
    };
    let other = logs.iter().filter_map(base).rfind(|b| *b < segment)?;
    v["segment"] = other.into();
    Some(())
}

/// The content of the same partition's checkpoint of another epoch.
fn other_epoch(path: &str, files: &[(String, Bytes)]) -> Option<Bytes> {
    let dir = path.rsplit_once('/')?.0;
    let other = files.iter().find(|(p, _)| p != path && p.rsplit_once('/').is_some_and(|(d, _)| d == dir));
    other.map(|(_, content)| content.clone())
}

async fn replace(operator: &Process, path: &str, content: Bytes) -> highwater::volume::Result<()> {
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let tmp = format!("{dir}/operator.restore");
    let file = operator.create_new(&tmp, Class::Data).await?;
    file.write_sync(0, vec![content]).await?;
    operator.rename(&tmp, path, Class::Data).await?;
    operator.sync_dir(dir, Class::Data).await
}
