//! Simplifications that are not leaving an item out: each is kept if the promise still breaks.

use super::Trial;
use crate::scenario::{Act, Action, LifeSpec, Plan};
use crate::volume::Options;

/// Ends the chaos soon after the failure, and drops the faults that came later.
pub fn shorter(mut plan: Plan, trial: &mut Trial) -> Plan {
    for keep in [0.25, 0.5, 0.75] {
        let seconds = (plan.life.seconds * keep * 10.0).ceil() / 10.0;
        if seconds < 0.5 || seconds >= plan.life.seconds {
            continue;
        }
        let mut next = plan.clone();
        next.life.seconds = seconds;
        next.faults.retain(|f| f.at < seconds);
        if trial.breaks(&next) {
            return shorter(next, trial);
        }
    }
    // What struck after the end of the chaos never struck.
    plan.faults.retain(|f| f.at < plan.life.seconds);
    plan
}

/// Goes back to defaults: the volume's options, the network, the brokers' settings, the topics.
pub fn plainer(mut plan: Plan, trial: &mut Trial) -> Plan {
    let calm = Options { kind: plan.volume.kind, ..Options::default() };
    let tries: [&dyn Fn(&mut Plan); 7] = [
        &|p| p.volume = calm.clone(),
        &|p| p.life.network = LifeSpec::default().network,
        &|p| p.life.drift_ppm = 0.0,
        &|p| p.life.hosts = p.life.brokers,
        &|p| p.topics.truncate(1),
        &|p| p.topics.iter_mut().for_each(|t| t.partitions = 1),
        &|p| p.broker.clear(),
    ];
    for change in tries {
        let mut next = plan.clone();
        change(&mut next);
        if next != plan && trial.breaks(&next) {
            plan = next;
        }
    }
    for key in plan.broker.keys().cloned().collect::<Vec<_>>() {
        let mut next = plan.clone();
        next.broker.remove(&key);
        if trial.breaks(&next) {
            plan = next;
        }
    }
    plan
}

/// Makes each fault as plain and as brief as it can be.
pub fn briefer(mut plan: Plan, trial: &mut Trial) -> Plan {
    for i in 0..plan.faults.len() {
        for change in [halved, at_home, untampered] {
            let mut next = plan.clone();
            change(&mut next.faults[i]);
            if next != plan && trial.breaks(&next) {
                plan = next;
            }
        }
    }
    plan
}

type Fault = crate::scenario::FaultAt;

fn halved(f: &mut Fault) {
    if let Some(lasts) = &mut f.lasts {
        *lasts = (*lasts * 500.0).round() / 1000.0;
    }
}

fn at_home(f: &mut Fault) {
    if let Action::World(
        Act::Kill { elsewhere, .. } | Act::PowerCut { elsewhere, .. } | Act::Term { elsewhere, .. },
    ) = &mut f.what
    {
        *elsewhere = false;
    }
}

fn untampered(f: &mut Fault) {
    if let Action::World(
        Act::Kill { checkpoint, .. } | Act::PowerCut { checkpoint, .. } | Act::Term { checkpoint, .. },
    ) = &mut f.what
    {
        *checkpoint = None;
    }
}
