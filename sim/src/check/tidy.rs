//! P12: after everything settled only the leader holds files open, none that was unlinked, and nothing lies about.
//!
//! Files are looked at in what a process sees: no temporary file, no deleted topic's directory, no file of an epoch that was
//! given up, no segment that the manifest does not list or that lies below the log start.

use super::media::{self, Manifest, Name};
use super::{ledger::Ledger, Verdict};
use crate::history::Event;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

pub(super) fn check(ledger: &Ledger, verdict: &mut Verdict) {
    let at = ledger.events.last().map_or(std::time::Duration::ZERO, |s| s.at);
    let mut broken = |what: String| verdict.broken("P12", at, what, Vec::new());
    for handle in ledger.evidence.handles.iter().filter(|h| !h.is_leader) {
        broken(format!("{} holds {} open and leads nothing", handle.process, handle.path));
    }
    for handle in ledger.evidence.handles.iter().filter(|h| h.is_leader && h.is_unlinked) {
        broken(format!("{} holds {} open, which was unlinked", handle.process, handle.path));
    }
    let files = &ledger.evidence.shown;
    let gone = gone_for_good(ledger);
    let mut dirs: BTreeSet<&str> = BTreeSet::new();
    for path in files.keys() {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        // A `.nfs…` is what a file system leaves of a client that died; no broker may touch it.
        if name.ends_with(".tmp") {
            broken(format!("{path} was left behind"));
        }
        if dir.split('/').any(|part| part.ends_with(".deleted")) {
            broken(format!("{path} is a tombstone"));
        }
        let id = dir.split('/').nth(1).and_then(|id| Uuid::try_parse(id).ok());
        if let Some(id) = id.filter(|id| gone.contains(id)) {
            broken(format!("{path} belongs to the deleted topic {id}"));
        } else if id.is_some() || dir.starts_with("__cluster/groups/") {
            dirs.insert(dir);
        }
    }
    for dir in dirs {
        match media::manifest(files, dir) {
            Ok(Some(manifest)) => {
                for what in leftovers(files, dir, &manifest) {
                    broken(format!("{dir}/{what}"));
                }
            }
            Ok(None) => broken(format!("{dir} has files and no manifest")),
            Err(why) => broken(why),
        }
    }
}

/// Topics whose deletion was acknowledged.
fn gone_for_good(ledger: &Ledger) -> BTreeSet<Uuid> {
    let mut gone = BTreeSet::new();
    for stamped in ledger.events {
        let Event::DeleteTopicDone { sent, answer: Ok(0), .. } = &stamped.event else { continue };
        if let Some(Event::DeleteTopicSent { id, .. }) = ledger.events.get(*sent).map(|s| &s.event) {
            gone.insert(*id);
        }
    }
    gone
}

/// Files of a partition that nobody needs.
fn leftovers(files: &BTreeMap<String, Bytes>, dir: &str, manifest: &Manifest) -> Vec<String> {
    let mut left = Vec::new();
    let listed: BTreeSet<(u32, i64)> = manifest.segments.iter().map(|s| (s.epoch, s.base)).collect();
    let lists: BTreeSet<(u32, i64)> =
        manifest.segments.iter().filter_map(|s| Some((s.aborted?, s.base))).collect();
    let own: Vec<i64> = media::directory(files, dir)
        .filter_map(|(n, _)| match media::name(n) {
            Some(Name::Log { epoch, base }) if epoch == manifest.epoch => Some(base),
            _ => None,
        })
        .collect();
    for (n, _) in media::directory(files, dir) {
        let Some(name) = media::name(n) else { continue };
        let why = match name {
            Name::Claim(e) | Name::Manifest(e) | Name::Producers(e) | Name::Checkpoint(e)
                if e < manifest.epoch =>
            {
                "is of an epoch that was given up"
            }
            Name::Log { epoch, base } | Name::Index { epoch, base } => {
                let next = own.iter().find(|b| **b > base).copied().unwrap_or(i64::MAX);
                match epoch == manifest.epoch {
                    true if next <= manifest.log_start => "lies below the log start",
                    false if !listed.contains(&(epoch, base)) => "is not in the manifest",
                    _ => continue,
                }
            }
            Name::Aborted { epoch, base } if !lists.contains(&(epoch, base)) => {
                let next = own.iter().find(|b| **b > base).copied().unwrap_or(i64::MAX);
                match epoch == manifest.epoch {
                    true if next <= manifest.log_start => "lies below the log start",
                    false => "is not in the manifest",
                    _ => continue,
                }
            }
            _ => continue,
        };
        left.push(format!("{n} {why}"));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::super::bed::{manifest, Story, DIR, ID};
    use super::super::OpenHandle;
    use crate::history::*;
    use bytes::Bytes;
    use serde_json::json;

    fn story() -> Story {
        let mut story = Story::new();
        let sealed = json!([{"epoch": 1, "base": 4, "end": 8, "end_pos": 100}]);
        put(&mut story, "00000002-manifest.json", manifest(2, 8, 4, sealed));
        for name in
            ["00000002-claim", "00000001-00000000000000000004.log", "00000002-00000000000000000008.log"]
        {
            put(&mut story, name, Bytes::new());
        }
        story.evidence.shown.insert("__cluster/format.json".into(), Bytes::new());
        story
    }

    fn put(story: &mut Story, name: &str, bytes: Bytes) {
        story.evidence.shown.insert(format!("{DIR}/{name}"), bytes);
    }

    #[test]
    fn a_tidy_volume_is_fine() {
        let mut with_stray = story();
        put(&mut with_stray, ".nfs0001", Bytes::new());
        assert_eq!(with_stray.verdict().violations, []);
        assert_eq!(story().verdict().violations, []);
    }

    #[test]
    fn what_lies_about_is_p12() {
        for name in [
            "00000002-manifest.json.3.tmp",
            "00000001-manifest.json",
            "00000001-claim",
            "00000001-00000000000000000000.log",
            "00000001-00000000000000000000.index",
            "00000002-00000000000000000000.index",
            "00000002-00000000000000000000.aborted",
            "00000001-00000000000000000004.aborted",
        ] {
            let mut story = story();
            if name.starts_with("00000002-0") {
                // A segment of its own that was given up: the next begins at the log start.
                put(&mut story, "00000002-00000000000000000004.log", Bytes::new());
            }
            put(&mut story, name, Bytes::new());
            assert_eq!(story.broken(), ["P12"], "{name}");
        }
    }

    #[test]
    fn a_deleted_topic_leaves_nothing() {
        let mut story = story();
        let sent = story.record(Event::DeleteTopicSent { who: Who(0), topic: "t".into(), id: ID });
        assert!(story.broken().is_empty(), "it may still be there: nobody said that it is deleted");
        story.record(Event::DeleteTopicDone { who: Who(0), sent, answer: Ok(0) });
        assert_eq!(story.broken(), ["P12"]);
        let mut story = Story::new();
        story.evidence.shown.insert(format!("t/{}.deleted/0/x", ID.simple()), Bytes::new());
        assert_eq!(story.broken(), ["P12"]);
    }

    #[test]
    fn only_the_leader_holds_files_open() {
        let mut story = story();
        let handle =
            |is_leader| OpenHandle { process: "p".into(), is_leader, path: "x".into(), is_unlinked: false };
        story.evidence.handles = vec![handle(true)];
        assert!(story.broken().is_empty());
        story.evidence.handles.push(handle(false));
        assert_eq!(story.broken(), ["P12"]);
    }
    #[test]
    fn nobody_holds_what_was_unlinked() {
        let mut story = story();
        let (process, path) = ("p".into(), "x".into());
        story.evidence.handles = vec![OpenHandle { process, is_leader: true, path, is_unlinked: true }];
        assert_eq!(story.broken(), ["P12"]);
    }
}
