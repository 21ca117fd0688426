//! Gathers what lies on the volume.

use super::super::election::Candidate;
use super::super::files;
use super::super::inspect::{self, Inspection, LIMIT};
use super::super::layout::{self, LeaseKey};
use super::super::membership::Roll;
use super::super::metadata::Metadata;
use super::super::strays::{self, Stray};
use super::heartbeats::{Heartbeats, Seen};
use super::{judge, Ask, State, Status};
use crate::rt::Clock;
use crate::storage::glance::{self, Glance};
use crate::storage::verify::Finding;
use crate::types::{Epoch, TopicId};
use crate::volume::{Volume, VolumeError};
use futures::StreamExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Directories that are looked at side by side: a shared volume answers slowly, and many at a time.
const AT_ONCE: usize = 16;
/// How often the list of brokers is read anew because one took a lease while we watched.
const ROUNDS: u32 = 3;

/// All that decides how the cluster stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub cluster_id: Option<String>,
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
    /// The last lease of each broker id, and what was seen of its heartbeat if that was watched.
    pub members: BTreeMap<LeaseKey, Option<Seen>>,
    pub recorded_dead: BTreeSet<LeaseKey>,
    /// The highest controller epoch claimed.
    pub claim: Option<(Epoch, SeatClaim)>,
    /// `None`: it cannot be read.
    pub metadata: Option<Metadata>,
    /// What the directories of partitions and slots show; `None` if there is none.
    pub glances: BTreeMap<String, Result<Option<Glance>, String>>,
    pub strays: Vec<Stray>,
}

/// What a claim of the controller's seat says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SeatClaim {
    By(Candidate),
    Empty,
    Unreadable(String),
}

pub(super) struct Looker<'a> {
    v: &'a dyn Volume,
    clock: &'a dyn Clock,
    ask: &'a Ask,
    heartbeats: Heartbeats,
}

impl<'a> Looker<'a> {
    pub fn new(v: &'a dyn Volume, clock: &'a dyn Clock, ask: &'a Ask) -> Self {
        Looker { v, clock, ask, heartbeats: Heartbeats::default() }
    }

    /// Looks at everything; the second time, in detail only at what did not look well the first time.
    pub async fn look(&mut self, before: Option<(&Facts, &Status)>) -> Facts {
        let mut facts = Facts::default();
        self.members(&mut facts).await;
        let seen = inspect::inspect(self.v).await;
        self.claim(&mut facts).await;
        self.places(&mut facts, seen.metadata.as_ref(), before).await;
        self.strays(&mut facts, &seen, before.map(|(facts, _)| facts)).await;
        let Inspection { findings, notes, cluster_id, metadata, .. } = seen;
        facts.findings.splice(0..0, findings);
        facts.notes = notes;
        (facts.cluster_id, facts.metadata) = (cluster_id, metadata);
        facts
    }

    async fn members(&mut self, facts: &mut Facts) {
        for _ in 0..ROUNDS {
            let Ok(roll) = self.roll().await else { return };
            let last: Vec<LeaseKey> = roll.last().collect();
            facts.recorded_dead = last.iter().filter(|k| roll.is_recorded_dead(**k)).copied().collect();
            let (dead, open): (Vec<_>, Vec<_>) = last.into_iter().partition(|k| roll.is_recorded_dead(*k));
            let seen = self.heartbeats.watch(self.v, self.clock, &open, self.ask.watch).await;
            let dead = self.heartbeats.watch(self.v, self.clock, &dead, Some(Duration::ZERO)).await;
            facts.members = dead.into_iter().chain(seen).map(|(k, s)| (k, Some(s))).collect();
            let is_same = |now: Roll| now.last().all(|k| facts.members.contains_key(&k));
            if self.roll().await.is_ok_and(is_same) {
                return;
            }
        }
    }

    /// An unlistable directory is what [`inspect::inspect`] finds.
    async fn roll(&self) -> Result<Roll, VolumeError> {
        let names = files::names_if_any(self.v, layout::BROKERS);
        Ok(Roll::of(files::within(LIMIT, "list", layout::BROKERS, names).await?))
    }

    async fn claim(&self, facts: &mut Facts) {
        let names = files::names_if_any(self.v, layout::CONTROLLER);
        let Ok(names) = files::within(LIMIT, "list", layout::CONTROLLER, names).await else { return };
        let Some(epoch) = names.iter().filter_map(|n| layout::parse_claim(n)).max() else { return };
        let path = layout::claim(epoch);
        let claim = match files::within(LIMIT, "read", &path, files::read(self.v, &path)).await {
            Ok(bytes) if bytes.is_empty() => SeatClaim::Empty,
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(by) => SeatClaim::By(by),
                Err(e) => SeatClaim::Unreadable(e.to_string()),
            },
            Err(e) => SeatClaim::Unreadable(e.source.to_string()),
        };
        facts.claim = Some((epoch, claim));
    }

    async fn places(
        &self,
        facts: &mut Facts,
        metadata: Option<&Metadata>,
        before: Option<(&Facts, &Status)>,
    ) {
        let Some(metadata) = metadata else { return };
        if let Some((first, told)) = before {
            let same = |p: &&super::Place| p.state == State::Led;
            let led = told.places.iter().filter(same).map(|p| (p.dir.as_str(), p.assigned));
            let led: BTreeMap<&str, _> = led.collect();
            for p in judge::places(metadata, &self.ask.slots) {
                let is_same = led.get(p.dir.as_str()) == Some(&p.assigned.map(Into::into));
                if let Some(g) = first.glances.get(&p.dir).filter(|_| is_same) {
                    facts.glances.insert(p.dir, g.clone());
                }
            }
        }
        let open = judge::places(metadata, &self.ask.slots).into_iter();
        let open: Vec<_> = open.filter(|p| !facts.glances.contains_key(&p.dir)).collect();
        let mut glances = futures::stream::iter(open)
            .map(|p| async move { (self.glance(&p.dir, p.identity).await, p.dir) })
            .buffer_unordered(AT_ONCE);
        while let Some((glance, dir)) = glances.next().await {
            facts.glances.insert(dir, glance);
        }
    }

    async fn glance(&self, dir: &str, identity: (TopicId, i32)) -> Result<Option<Glance>, String> {
        match files::within(LIMIT, "look", dir, glance::glance(self.v, dir, identity)).await {
            Ok(glance) => Ok(Some(glance)),
            Err(e) if e.is_not_found() && e.path == dir => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Those that are there each time.
    async fn strays(&self, facts: &mut Facts, seen: &Inspection, before: Option<&Facts>) {
        let found = strays::strays(self.v, seen).await;
        facts.findings.extend(found.findings);
        facts.strays = found.strays;
        if let Some(before) = before {
            facts.strays.retain(|s| before.strays.contains(s));
        }
    }
}
