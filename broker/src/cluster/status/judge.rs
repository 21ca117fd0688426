//! What the facts mean: decides only.

use super::super::layout::LeaseKey;
use super::super::metadata::Metadata;
use super::super::strays::Why;
use super::facts::{Facts, SeatClaim};
use super::heartbeats::Seen;
use super::{
    Broker, Claim, Controller, Deletion, Heard, LeaseName, MetadataStamp, Of, Orphan, Place, Share, Standing,
    State, Status, Unreadable,
};
use crate::storage::glance::{ClaimContent, Glance};
use crate::storage::names;
use crate::types::{Epoch, TopicId};
use std::collections::BTreeMap;
use std::time::Duration;

/// A partition or slot, and what the metadata says of it.
pub(super) struct Proposed {
    pub of: Of,
    pub dir: String,
    pub identity: (TopicId, i32),
    pub assigned: Option<LeaseKey>,
}

/// Everything that is to have a leader.
pub(super) fn places(m: &Metadata, slots: &[String]) -> Vec<Proposed> {
    let at = |leaders: &[Option<LeaseKey>], n: usize| leaders.get(n).copied().flatten();
    let slots = (0u32..).zip(slots).map(|(n, dir)| Proposed {
        of: Of::Slot { slot: n },
        dir: dir.clone(),
        identity: (TopicId::default(), n as i32),
        assigned: at(&m.slots, n as usize),
    });
    let partitions = m.topics.iter().flat_map(|(topic, t)| {
        (0..t.partitions).map(move |n| Proposed {
            of: Of::Partition { topic: topic.clone(), topic_id: t.id, partition: n },
            dir: format!("{topic}/{}/{n}", t.id),
            identity: (t.id, n),
            assigned: at(&t.leaders, n as usize),
        })
    });
    slots.chain(partitions).collect()
}

pub(super) fn status(f: &Facts, slots: &[String]) -> Status {
    let proposed = f.metadata.as_ref().map_or_else(Vec::new, |m| places(m, slots));
    let mut unreadable: Vec<Unreadable> = f.findings.iter().cloned().map(Into::into).collect();
    unreadable.extend(proposed.iter().filter_map(|p| f.damaged(p)));
    let places: Vec<Place> = proposed.into_iter().map(|p| f.place(p)).collect();
    let brokers: Vec<Broker> = f.members.keys().map(|k| f.broker(*k, &places)).collect();
    let controller = f.controller();
    let mut states = BTreeMap::new();
    for p in &places {
        *states.entry(p.state).or_default() += 1;
    }
    let orphaned: Vec<Orphan> = f
        .strays
        .iter()
        .filter(|s| s.why != Why::BeingDeleted)
        .map(|s| Orphan { dir: s.dir.clone(), why: s.why })
        .collect();
    // Who is dead and leads nothing harms nobody; who is silent may still be the one that leads.
    let is_odd = |b: &Broker| matches!(b.standing, Standing::Silent | Standing::Unreadable);
    let well = controller.in_office
        && f.metadata.is_some()
        && unreadable.is_empty()
        && orphaned.is_empty()
        && places.iter().all(|p| p.state == State::Led)
        && !brokers.iter().any(is_odd);
    let topics = f.metadata.as_ref().map_or(0, |m| m.topics.len());
    let is_slot = |p: &&Place| matches!(p.of, Of::Slot { .. });
    let slots = places.iter().filter(is_slot).count();
    Status {
        well,
        cluster_id: f.cluster_id.clone(),
        controller,
        metadata: f
            .metadata
            .as_ref()
            .map(|m| MetadataStamp { epoch: m.controller.map(|c| c.epoch), change: m.change }),
        brokers,
        topics,
        partitions: places.len() - slots,
        slots,
        states,
        places,
        unreadable,
        orphaned,
        deleting: f.deleting(),
        notes: f.notes(),
    }
}

impl Facts {
    fn standing(&self, key: LeaseKey) -> Standing {
        let Some(seen) = self.members.get(&key) else {
            let later = |k: &LeaseKey| k.broker == key.broker && k.number > key.number;
            return if self.members.keys().any(later) { Standing::Superseded } else { Standing::Missing };
        };
        if self.recorded_dead.contains(&key) {
            return Standing::RecordedDead;
        }
        let Some(seen) = seen else { return Standing::Missing };
        match &seen.beat {
            Some(beat) if beat.relinquished => Standing::Relinquished,
            _ if seen.still >= seen.lease() => Standing::Dead,
            _ if seen.wrong.is_some() => Standing::Unreadable,
            Some(_) if seen.moved && seen.still < seen.lease() / 2 => Standing::Alive,
            Some(_) => Standing::Silent,
            None => Standing::Unreadable,
        }
    }

    fn broker(&self, key: LeaseKey, places: &[Place]) -> Broker {
        let name = LeaseName::from(key);
        let standing = self.standing(key);
        let nothing = Seen::default();
        let seen = self.members.get(&key).and_then(Option::as_ref).unwrap_or(&nothing);
        let beat = seen.beat.as_ref();
        let (mut assigned, mut led) = (Share::default(), Share::default());
        for p in places.iter().filter(|p| p.assigned == Some(name)) {
            assigned.add(p);
            if p.state == State::Led {
                led.add(p);
            }
        }
        let heartbeat = match (&seen.wrong, standing) {
            (Some(wrong), _) => Heard::Nothing(wrong.clone()),
            (None, Standing::Alive) => Heard::WrittenWithinMs(ms(seen.age)),
            (None, Standing::Relinquished | Standing::RecordedDead) => Heard::Nothing("not watched".into()),
            _ => Heard::StillForMs(ms(seen.still)),
        };
        Broker {
            name,
            standing,
            heartbeat,
            incarnation: beat.map(|b| b.incarnation),
            address: beat.map(|b| b.address.clone()),
            domain: beat.map(|b| b.domain.clone()),
            lease_ms: beat.map(|b| ms(b.lease)),
            sequence: beat.map(|b| b.sequence),
            assigned,
            led,
        }
    }

    /// The epoch that a broker says it is controller in.
    fn office(&self, key: LeaseKey) -> Option<Epoch> {
        self.members.get(&key)?.as_ref()?.beat.as_ref()?.office.map(|(epoch, _)| epoch)
    }

    fn controller(&self) -> Controller {
        let Some((epoch, claim)) = &self.claim else {
            return Controller { why: Some("nobody has claimed the seat".into()), ..Controller::default() };
        };
        let told = Controller { epoch: Some(*epoch), ..Controller::default() };
        let lapses = "it lapses after a lease, by the clock of whoever waits for it";
        let by = match claim {
            SeatClaim::By(by) => by,
            SeatClaim::Empty => {
                let why =
                    format!("the claim is empty, its claimant has yet to fill it or died before: {lapses}");
                return Controller { why: Some(why), ..told };
            }
            SeatClaim::Unreadable(what) => {
                return Controller {
                    why: Some(format!("the claim cannot be read ({what}): {lapses}")),
                    ..told
                };
            }
        };
        let key = LeaseKey { broker: by.broker, number: u32::try_from(by.lease).unwrap_or(u32::MAX) };
        let standing = self.standing(key);
        let in_office = standing == Standing::Alive && self.office(key) == Some(*epoch);
        let why = match standing {
            _ if in_office => None,
            Standing::Alive => Some("its broker lives and does not say that it is controller".into()),
            other => Some(format!("its lease is {other}")),
        };
        Controller { holder: Some(key.into()), standing: Some(standing), in_office, why, ..told }
    }

    fn place(&self, p: Proposed) -> Place {
        let glance = self.glances.get(&p.dir);
        let (state, why) = match p.assigned {
            None => (State::Stalled, "nobody is assigned".into()),
            Some(key) => match self.standing(key) {
                Standing::Alive => self.opened(key, glance),
                other => (State::Stalled, format!("it is assigned to {key}, which is {other}")),
            },
        };
        let shown = glance.and_then(|g| g.as_ref().ok()?.as_ref());
        let claim = shown.and_then(|g| g.claim.as_ref()).map(|(epoch, content)| match content {
            ClaimContent::By { holder, relinquished } => {
                Claim { epoch: *epoch, holder: Some(holder.clone()), relinquished: *relinquished }
            }
            _ => Claim { epoch: *epoch, holder: None, relinquished: false },
        });
        Place {
            of: p.of,
            dir: p.dir,
            state,
            why: (state != State::Led).then_some(why),
            assigned: p.assigned.map(Into::into),
            claim,
            manifest: shown.and_then(|g| Some(g.manifest.as_ref()?.0)),
        }
    }

    /// Whether the living holder of `key`, to whom a place is assigned, leads it by what its directory says.
    fn opened(&self, key: LeaseKey, glance: Option<&Result<Option<Glance>, String>>) -> (State, String) {
        let glance = match glance {
            Some(Ok(Some(glance))) => glance,
            Some(Err(what)) => return (State::Unreadable, what.clone()),
            Some(Ok(None)) | None => return (State::Opening, "it has no directory yet".into()),
        };
        let manifest = glance.manifest.as_ref().map(|(epoch, _)| *epoch);
        let Some((epoch, content)) = &glance.claim else {
            return match manifest {
                None => (State::Opening, "nobody has claimed it yet".into()),
                Some(_) => (State::Unreadable, "it has a manifest and no claim".into()),
            };
        };
        match content {
            ClaimContent::Damaged(what) => {
                (State::Unreadable, format!("who claimed it last cannot be read ({what})"))
            }
            ClaimContent::Empty => {
                let why = "its last claim is empty: the claimant has yet to fill it, or died before";
                (State::Opening, why.into())
            }
            ClaimContent::By { holder, relinquished } => match LeaseKey::parse(holder) {
                Some(by) if by == key && *relinquished => {
                    (State::Opening, format!("{key} gave it up and has not claimed it anew"))
                }
                Some(by) if by == key => in_time(*epoch, manifest, key),
                Some(by) => {
                    let gave =
                        if *relinquished { "gave it up".into() } else { format!("is {}", self.standing(by)) };
                    (State::Moving, format!("it is assigned to {key}; {by}, which {gave}, claimed it last"))
                }
                None => (State::Moving, format!("it is assigned to {key}; {holder:?} claimed it last")),
            },
        }
    }

    /// What is not as it was written in the directory of a place.
    fn damaged(&self, p: &Proposed) -> Option<Unreadable> {
        let at =
            |name: String, why: &str| Some(Unreadable { path: format!("{}/{name}", p.dir), why: why.into() });
        match self.glances.get(&p.dir)? {
            Err(what) => Some(Unreadable { path: p.dir.clone(), why: what.clone() }),
            Ok(None) => None,
            Ok(Some(g)) => match (&g.manifest, &g.claim) {
                (Some((epoch, Some(wrong))), _) => at(names::manifest(*epoch), wrong),
                (_, Some((epoch, ClaimContent::Damaged(wrong)))) => at(names::claim(*epoch), wrong),
                _ => None,
            },
        }
    }

    fn deleting(&self) -> Vec<Deletion> {
        let listed = self.metadata.iter().flat_map(|m| &m.deleting);
        listed
            .map(|(id, topic)| {
                let dir = format!("{topic}/{id}");
                let files_left = self.strays.iter().any(|s| s.dir.starts_with(&dir));
                Deletion { topic: topic.clone(), topic_id: *id, files_left }
            })
            .collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        if self.metadata.is_none() {
            notes.push(
                "without metadata nobody can tell who is to lead what, and which directories are orphans"
                    .into(),
            );
        }
        let highest = self.claim.as_ref().map(|(epoch, _)| *epoch);
        for key in self.members.keys().filter(|k| self.standing(**k) == Standing::Alive) {
            if let Some(epoch) = self.office(*key).filter(|e| Some(*e) < highest) {
                notes.push(format!("{key} says that it is controller of epoch {}, and is deposed", epoch.0));
            }
        }
        notes
    }
}

impl Share {
    fn add(&mut self, p: &Place) {
        match p.of {
            Of::Slot { .. } => self.slots += 1,
            Of::Partition { .. } => self.partitions += 1,
        }
    }
}

/// A place that its leader claimed last under `epoch`: whether it came to serve.
fn in_time(epoch: Epoch, manifest: Option<Epoch>, key: LeaseKey) -> (State, String) {
    match manifest {
        Some(m) if m == epoch => (State::Led, String::new()),
        Some(m) if m > epoch => (State::Unreadable, "the claim of its manifest's epoch is missing".into()),
        _ => (State::Opening, format!("{key} claimed it and has not written its manifest yet")),
    }
}

fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
