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
        let files = checkpoints(world.model().shown());
        let operator = world.model().process(OPERATOR);
        for (path, content) in &files {
            let spoilt = match kind {
                Checkpoint::Older => self.older(path, content),
                Checkpoint::Torn => Some(content.slice(..content.len() / 2)),
                Checkpoint::Ahead => edit(content, ahead),
                Checkpoint::OtherSegment => edit(content, other_segment),
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

fn edit(content: &Bytes, change: impl FnOnce(&mut Value)) -> Option<Bytes> {
    let mut v: Value = serde_json::from_slice(content).ok()?;
    change(&mut v);
    Some(serde_json::to_vec(&v).ok()?.into())
}

/// Points past the end of any file here.
fn ahead(v: &mut Value) {
    shift(v, "pos", 1_000_000);
    shift(v, "offset", 1_000_000);
}

fn other_segment(v: &mut Value) {
    shift(v, "segment", 1);
}

fn shift(v: &mut Value, field: &str, by: u64) {
    if let Some(n) = v.get(field).and_then(Value::as_u64) {
        v[field] = (n + by).into();
    }
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
