//! The end of a life: one more end of each broker, an opening with nobody asking, and what is then held open.

use crate::check::{OpenHandle, Opening};
use crate::history::now;
use crate::scenario::draw::stream;
use crate::volume::Tree;
use crate::workload::{self, Ctx};
use crate::world::World;
use bytes::Bytes;
use rand::Rng;
use std::collections::BTreeMap;
use std::time::Duration;

/// For sweeps, deletions and late unlinks to be begun.
const SETTLE: Duration = Duration::from_secs(10);

/// Between two looks at what is there. A file that is needed for a moment only is not seen by both.
const LOOK: Duration = Duration::from_secs(5);

/// How often to look again while things are on their way: a slow volume takes its time for hundreds of unlinks.
const LOOKS: u32 = 24;

/// The files of a tree.
pub fn files(tree: Tree) -> BTreeMap<String, Bytes> {
    tree.files.into_iter().map(|(path, bytes)| (path, bytes.to_bytes())).collect()
}

/// Ends every broker, by one of three ways that the seed draws, starts them again, and tells how much of the log
/// was read before each partition served (P10).
pub async fn once_more(world: &World, ctx: &Ctx, seed: u64) -> Vec<Opening> {
    let clean = match stream(seed, "last end").gen_range(0..3) {
        0 => world.stop().await,
        1 => {
            world.kill().await;
            false
        }
        _ => {
            world.cut_all_power().await;
            false
        }
    };
    let shown = files(world.model().shown());
    let before = world.log_reads();
    let at = now();
    world.start();
    let prover = ctx.clone();
    world.at_desk(async move { workload::all_open(&prover).await }).await;
    let after = world.log_reads();
    let read = after.into_iter().map(|(dir, n)| (n - before.get(&dir).copied().unwrap_or(0), dir));
    let opening = |(log_bytes_read, dir): (u64, String)| Opening {
        at,
        past_checkpoint: past_checkpoint(&shown, &dir),
        dir,
        after_clean_close: clean,
        log_bytes_read,
    };
    // The groups' and producers' own logs are state that is loaded.
    read.filter(|(n, dir)| *n > 0 && !dir.starts_with("__cluster/")).map(opening).collect()
}

/// Bytes of log past the newest checkpoint of the partition in `dir`, as an operator would count them.
fn past_checkpoint(files: &BTreeMap<String, Bytes>, dir: &str) -> u64 {
    let here = |p: &&String| p.strip_prefix(dir).is_some_and(|r| r.starts_with('/') && !r[1..].contains('/'));
    let name = |p: &String| p[dir.len() + 1..].to_owned();
    let names: Vec<String> = files.keys().filter(here).map(name).collect();
    let Some(manifest) = names.iter().filter(|n| n.ends_with("-manifest.json")).max() else { return 0 };
    let epoch = &manifest[..8];
    let checkpoint = files.get(&format!("{dir}/{epoch}-recovery-checkpoint.json"));
    let checkpoint = checkpoint.and_then(|b| serde_json::from_slice::<serde_json::Value>(b).ok());
    let field = |key: &str| checkpoint.as_ref().and_then(|c| c.get("body")?.get(key)?.as_u64());
    let (segment, pos) = (field("segment").unwrap_or(0), field("pos").unwrap_or(0));
    let own = names.iter().filter(|n| n.starts_with(epoch) && n.ends_with(".log"));
    own.map(|n| {
        let len = files.get(&format!("{dir}/{n}")).map_or(0, |b| b.len() as u64);
        match n[9..29].parse::<u64>() {
            Ok(base) if base == segment => len.saturating_sub(pos),
            Ok(base) if base < segment => 0,
            _ => len,
        }
    })
    .sum()
}

/// What is there and what is held open once everything settled: when nothing came, went or was given up from one look to
/// the next, or after two minutes. A file that is being replaced at this very moment is not left behind: temporary files
/// count if they were there at the look before, too.
pub async fn settle(world: &World) -> (BTreeMap<String, Bytes>, Vec<OpenHandle>) {
    tokio::time::sleep(SETTLE).await;
    let (mut before, mut held) = (world.model().shown(), world.model().open_handles());
    let mut looks = 0;
    let shown = loop {
        tokio::time::sleep(LOOK).await;
        let mut now = world.model().shown();
        looks += 1;
        if looks == LOOKS || lasting(&before).eq(lasting(&now)) {
            now.files.retain(|path, _| !path.ends_with(".tmp") || before.files.contains_key(path));
            break files(now);
        }
        (before, held) = (now, world.model().open_handles());
    };
    (shown, still_held(world, &held))
}

/// What is held open now. A file that was unlinked counts as such if it was so at the look before, too.
fn still_held(world: &World, before: &[crate::volume::OpenHandle]) -> Vec<OpenHandle> {
    let leaders = world.processes();
    let handle = |h: crate::volume::OpenHandle| OpenHandle {
        process: format!("process {} on host {}", h.process, h.host),
        is_leader: leaders.contains_key(&h.process),
        is_unlinked: h.is_unlinked && before.contains(&h),
        path: h.path,
    };
    world.model().open_handles().into_iter().map(handle).collect()
}

/// What the brokers hold open that was unlinked while clients used them: the brokers' last end closes it all.
pub async fn held_in_use(world: &World) -> Vec<OpenHandle> {
    let before = world.model().open_handles();
    tokio::time::sleep(LOOK).await;
    let mut handles = still_held(world, &before);
    handles.retain(|h| h.is_leader && h.is_unlinked);
    handles
}

/// The names that are meant to stay, and what the manifests say: of the other files the broker may write more at any time.
fn lasting(tree: &Tree) -> impl Iterator<Item = (&String, Option<Bytes>)> {
    let names = tree.files.iter().filter(|(path, _)| !path.ends_with(".tmp"));
    names.map(|(path, file)| (path, path.ends_with("-manifest.json").then(|| file.to_bytes())))
}
