//! Which faults are on, and what they do to one operation.

use super::call::sleep;
use super::draw::Draw;
use super::fault::{Fault, FaultId, Op};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// What the faults do to one operation.
#[derive(Clone, Default)]
pub struct Verdict {
    pub gates: Vec<watch::Receiver<()>>,
    pub late: Duration,
    /// Cuts short whatever takes longer: everything was healed.
    healed: Option<watch::Receiver<()>>,
    pub slow: Duration,
    /// The reply is lost, and the request sent again after that; whether a CREATE is known again.
    pub lost: Option<(Duration, bool)>,
    pub errno: Option<Errno>,
    pub gone: Option<Errno>,
    pub short: Option<u64>,
}

impl Verdict {
    /// Whether the operation lasts longer than usual, so that its caller may well be gone.
    pub fn waits(&self) -> bool {
        !self.gates.is_empty() || !self.late.is_zero() || !self.slow.is_zero() || self.lost.is_some()
    }

    /// Takes that much longer, unless everything is healed meanwhile.
    pub async fn delay(&self, by: Duration) {
        if by.is_zero() {
            return;
        }
        let Some(mut healed) = self.healed.clone() else { return sleep(by).await };
        tokio::select! {
            biased;
            _ = healed.changed() => {}
            () = sleep(by) => {}
        }
    }

    /// Waits until every stall that caught the operation was lifted.
    pub async fn pass(&self) {
        for gate in &self.gates {
            // The sender is never used: it is dropped when the fault is lifted.
            let _ = gate.clone().changed().await;
        }
    }
}

struct Active {
    fault: Fault,
    draw: Draw,
    /// Operations that matched, for draws.
    matched: u64,
    _lifted: watch::Sender<()>,
    gate: watch::Receiver<()>,
}

#[derive(Default)]
pub struct Faults {
    active: BTreeMap<FaultId, Active>,
    next: u64,
    /// How often a fault of exactly that description was put in: it draws as its description and
    /// that number say, whatever other faults there are.
    seen: BTreeMap<String, u64>,
    healed: watch::Sender<()>,
}

impl Faults {
    pub fn add(&mut self, fault: Fault, draw: Draw) -> (FaultId, Draw) {
        let name = format!("{fault:?}");
        let nth = self.seen.entry(name.clone()).or_default();
        *nth += 1;
        let draw = draw.of("fault").of(&name).at(*nth);
        let id = FaultId(self.next);
        self.next += 1;
        let (lifted, gate) = watch::channel(());
        self.active.insert(id, Active { fault, draw, matched: 0, _lifted: lifted, gate });
        (id, draw)
    }

    /// Takes a fault off and lets go what it held.
    pub fn lift(&mut self, id: FaultId) -> Option<Fault> {
        self.active.remove(&id).map(|a| a.fault)
    }

    /// Takes all faults off, and lets go what they held or delayed.
    pub fn clear(&mut self) {
        self.active.clear();
        self.healed.send_replace(());
    }

    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.active.values().map(|a| &a.fault)
    }

    pub fn holds_writeback(&self, host: u32) -> bool {
        self.iter().any(|f| f.matches(host, Op::WriteBack, &[""]) && matches!(f, Fault::HoldWriteback { .. }))
    }

    pub fn judge(&mut self, host: u32, op: Op, paths: &[&str]) -> Verdict {
        let mut v = Verdict::default();
        for a in self.active.values_mut() {
            if !a.fault.matches(host, op, paths) {
                continue;
            }
            a.matched += 1;
            let draw = a.draw.at(a.matched);
            if draw.of("p").chance(a.fault.p()) {
                v.add(&a.fault, &a.gate, draw.of("by"));
            }
        }
        if v.waits() {
            v.healed = Some(self.healed.subscribe());
        }
        v
    }
}

impl Verdict {
    fn add(&mut self, fault: &Fault, gate: &watch::Receiver<()>, draw: Draw) {
        match fault {
            Fault::Stall { .. } => self.gates.push(gate.clone()),
            Fault::Late { by, .. } => self.late += draw.span(*by),
            Fault::Slow { by, .. } => self.slow += draw.span(*by),
            Fault::LostReply { by, verifier, .. } => self.lost = Some((draw.span(*by), *verifier)),
            Fault::Fail { errno, .. } => self.errno = Some((*errno).into()),
            Fault::Gone { errno, .. } => self.gone = Some((*errno).into()),
            Fault::Short { bytes: [from, to], .. } => {
                self.short = Some(from + draw.below((to - from.min(to)) + 1));
            }
            Fault::Capacity { .. }
            | Fault::HoldWriteback { .. }
            | Fault::Rot { .. }
            | Fault::ServerRestart
            | Fault::PowerCut { .. } => {}
        }
    }
}
