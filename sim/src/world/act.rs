//! Carries the plan's faults out, each at its time.

use super::{Awaited, Slot, World};
use crate::history::{Event, FaultKind, Life};
use crate::scenario::{Act, Action, Checkpoint, FaultAt, Step};
use crate::volume::{Fault, FaultId, Op, Ops, Scope};
use highwater::reached;
use madsim::net::NetSim;
use madsim::runtime::Handle;
use std::time::Duration;

impl World {
    /// Sets all faults going; the chaos begins now. What still lasts when the world is healed has no effect from then
    /// on, but that a broker which is down or about to stop is brought back first.
    pub fn unleash(&self) {
        for (n, fault) in self.plan().faults.iter().enumerate() {
            let (world, fault) = (self.clone(), fault.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs_f64(fault.at)).await;
                world.carry_out(n as u32, &fault).await;
            });
        }
    }

    /// If some fault is to bring older checkpoints back, they must have been seen: looks at them now and then.
    pub fn remember(&self) {
        let older = |f: &FaultAt| match &f.what {
            Action::World(a) => a.checkpoint() == Some(Checkpoint::Older),
            Action::Volume(_) => false,
        };
        if !self.plan().faults.iter().any(older) {
            return;
        }
        let world = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                world.0.tamper.remember(&world);
            }
        });
    }

    async fn carry_out(&self, n: u32, fault: &FaultAt) {
        self.history().record(Event::FaultIn {
            id: u64::from(n),
            kind: kind(&fault.what),
            what: fault.to_string(),
        });
        let lasts = Duration::from_secs_f64(fault.lasts.unwrap_or(0.0));
        match &fault.what {
            Action::Volume(v) => {
                if matches!(v, Fault::Rot { .. }) {
                    reached!("bit-rot");
                }
                let id = self.model().inject(v.clone());
                // What happens at once, as a server's restart does, has no duration.
                if fault.lasts.is_some() {
                    tokio::time::sleep(lasts).await;
                    self.model().lift(id);
                }
            }
            Action::World(act) => self.act(act, fault).await,
        }
        self.history().record(Event::FaultOut { id: u64::from(n) });
    }

    async fn act(&self, act: &Act, fault: &FaultAt) {
        let lasts = Duration::from_secs_f64(fault.lasts.unwrap_or(0.0));
        let chosen = match act.step() {
            Some((step, broker)) => {
                let left = Duration::from_secs_f64((self.plan().life.seconds - fault.at).max(0.0));
                match tokio::time::timeout(left, self.whoever_takes(step, broker)).await {
                    Ok(Some(broker)) => Some(broker),
                    _ => return,
                }
            }
            None => None,
        };
        match *act {
            Act::Kill { broker, back, elsewhere, checkpoint, .. } => {
                let broker = chosen.unwrap_or(broker);
                self.down(broker, back, elsewhere, checkpoint, Down::Kill).await;
            }
            Act::PowerCut { broker, back, elsewhere, checkpoint, .. } => {
                let broker = chosen.unwrap_or(broker);
                self.down(broker, back, elsewhere, checkpoint, Down::Power).await;
            }
            Act::Term { broker, back, elsewhere, checkpoint } => {
                self.down(broker, back, elsewhere, checkpoint, Down::Term).await;
            }
            Act::Pause { broker, elsewhere, hangs, clock, .. } => {
                self.pause(chosen.unwrap_or(broker), Sleep { elsewhere, hangs, clock, lasts }).await
            }
            Act::ClockStep { broker, seconds } => {
                let host = self.slot(broker).state.lock().host;
                self.0.machines[host as usize].clock.step(seconds);
            }
            Act::Partition { broker } => {
                let host = self.slot(broker).state.lock().host;
                let node = self.0.machines[host as usize].node;
                NetSim::current().clog_node(node);
                tokio::time::sleep(lasts).await;
                NetSim::current().unclog_node(node);
            }
        }
    }

    /// Waits for the step. Returns the broker that took it, if it still runs then.
    async fn whoever_takes(&self, step: &Step, broker: u32) -> Option<u32> {
        let (tell, told) = tokio::sync::oneshot::channel();
        self.0.watched.lock().awaited.push(Awaited { step: step.clone(), broker, left: step.skip, tell });
        let process = told.await.ok()?;
        reached!("struck-at-a-step");
        tokio::time::sleep(Duration::from_secs_f64(step.after)).await;
        self.processes().get(&process).copied()
    }

    /// Takes a broker down and brings it back; does nothing if it is down already.
    async fn down(&self, broker: u32, back: f64, elsewhere: bool, tamper: Option<Checkpoint>, how: Down) {
        let slot = self.slot(broker);
        let Ok(_turn) = slot.turn.try_lock() else { return };
        let host = slot.state.lock().host;
        match how {
            Down::Kill => drop(self.kill_process(slot)),
            Down::Term => drop(self.stop_process(slot).await),
            Down::Power => self.cut_power(slot, host),
        }
        if let Some(kind) = tamper {
            self.0.tamper.checkpoints(self, kind).await;
        }
        tokio::time::sleep(Duration::from_secs_f64(back)).await;
        if elsewhere {
            let next = self.next_host(host);
            slot.state.lock().host = next;
        }
        self.start_broker(slot);
    }

    pub(super) fn cut_power(&self, slot: &Slot, host: u32) {
        self.kill_process(slot);
        self.bury_zombies(host);
        self.model().power_cut(host);
        self.0.machines[host as usize].reboot();
        self.life_on(slot.broker, host, Life::PowerCut);
    }

    async fn pause(&self, broker: u32, sleep: Sleep) {
        let Sleep { elsewhere, hangs, clock, lasts } = sleep;
        let slot = self.slot(broker);
        let Ok(turn) = slot.turn.try_lock() else { return };
        let hung = if hangs > 0.0 {
            let host = slot.state.lock().host;
            let id = self.model().inject(hung_mount(host));
            tokio::time::sleep(Duration::from_secs_f64(hangs)).await;
            Some(Hung { world: self, id })
        } else {
            None
        };
        let host = {
            let mut state = slot.state.lock();
            if state.running.is_none() || (elsewhere && state.zombie.is_some()) {
                return;
            }
            state.paused = true;
            state.host
        };
        let node = self.0.machines[host as usize].node;
        Handle::current().pause(node);
        self.life_on(slot.broker, host, Life::Paused);
        self.0.machines[host as usize].clock.step(clock);
        let next = self.next_host(host);
        if elsewhere && next != host {
            {
                let mut state = slot.state.lock();
                state.zombie = state.running.take();
                state.paused = false;
                state.host = next;
            }
            self.start_broker(slot);
        }
        drop(turn);
        let landing = if hung.is_some() { LANDING } else { Duration::ZERO };
        tokio::time::sleep(lasts.saturating_sub(landing)).await;
        if let Some(hung) = hung {
            drop(hung);
            tokio::time::sleep(landing).await;
        }
        self.wake(slot, host);
    }

    /// SIGCONT, unless the process died meanwhile.
    fn wake(&self, slot: &Slot, host: u32) {
        let mut state = slot.state.lock();
        let is_zombie = state.zombie.as_ref().is_some_and(|z| z.host == host);
        let is_present = state.paused && state.host == host;
        if is_zombie || is_present {
            state.paused &= !is_present;
            Handle::current().resume(self.0.machines[host as usize].node);
            if is_zombie {
                reached!("zombie-woke");
            }
            drop(state);
            self.life_on(slot.broker, host, Life::Resumed);
        }
    }
}

/// How a broker stands still.
struct Sleep {
    elsewhere: bool,
    hangs: f64,
    clock: f64,
    lasts: Duration,
}

/// What a mount that answers again needs until all that waited is done.
const LANDING: Duration = Duration::from_millis(300);

/// What is written to logs from a host waits. Its heartbeats do not: its lease ends by the standstill, and not before.
fn hung_mount(host: u32) -> Fault {
    let ops = Ops { suffix: ".log".into(), ..Ops::of(&[Op::Write, Op::Sync]) };
    Fault::Stall { scope: Scope::Host(host), ops }
}

/// A mount that hangs until this is dropped.
struct Hung<'a> {
    world: &'a World,
    id: FaultId,
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.world.model().lift(self.id);
    }
}

enum Down {
    Kill,
    Term,
    Power,
}

/// What a fault bears on: the checkers excuse by it, and by nothing else.
fn kind(what: &Action) -> FaultKind {
    match what {
        Action::World(Act::Partition { .. }) => FaultKind::Network,
        Action::World(Act::ClockStep { .. }) => FaultKind::Clock,
        Action::World(_) => FaultKind::Other,
        Action::Volume(v) => match v {
            Fault::Stall { .. } | Fault::Late { .. } | Fault::Slow { .. } | Fault::LostReply { .. } => {
                FaultKind::Stall
            }
            Fault::Rot { .. } => FaultKind::Damage,
            Fault::ServerRestart => FaultKind::ServerRestart,
            _ => FaultKind::Error,
        },
    }
}
