//! Transactional ids: what is open, what is decided, and who is told of it when.

use super::{Broker, Flaw, Line, Shared};
use rand::Rng;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Empty,
    Ongoing,
    /// Decided; markers are on their way.
    Prepare(bool),
    Complete(bool),
}

pub struct Txn {
    pub id: i64,
    pub epoch: i16,
    /// The epoch before, whose holder may ask again.
    last: i16,
    pub state: State,
    pub lines: BTreeSet<Line>,
    pub groups: BTreeSet<String>,
    timeout: Duration,
    deadline: Instant,
}

type Producer = (i64, i16);

impl Broker {
    /// InitProducerId. `Err(51)` may come with something to be done.
    pub fn init(&mut self, txn: &str, timeout: Duration, current: Producer) -> (Result<Producer, i16>, bool) {
        let next_id = self.next_id;
        let t = self.txns.entry(txn.to_owned()).or_insert_with(|| Txn {
            id: next_id,
            epoch: -1,
            last: -1,
            state: State::Empty,
            lines: BTreeSet::new(),
            groups: BTreeSet::new(),
            timeout,
            deadline: Instant::now(),
        });
        if t.id == next_id {
            self.next_id += 1;
        }
        let goes_on = current.0 >= 0;
        if goes_on && current != (t.id, t.epoch) && current != (t.id, t.last) {
            return (Err(90), false);
        }
        match t.state {
            State::Prepare(_) => (Err(51), false),
            State::Ongoing if self.flaw != Flaw::SuccessorInherits => {
                t.last = if goes_on { t.epoch } else { -1 };
                t.epoch += 1;
                t.state = State::Prepare(false);
                (Err(51), true)
            }
            _ => {
                if !goes_on || current.1 == t.epoch {
                    t.last = if goes_on { t.epoch } else { -1 };
                    t.epoch += 1;
                }
                if t.state != State::Ongoing {
                    t.state = State::Empty;
                }
                t.timeout = timeout;
                (Ok((t.id, t.epoch)), false)
            }
        }
    }

    /// Adds a partition or a group, beginning the transaction if it has to.
    pub fn add(&mut self, txn: &str, producer: Producer, line: Option<&Line>, group: Option<&str>) -> i16 {
        let Some(t) = self.txns.get_mut(txn) else { return 49 };
        if (t.id, t.epoch) != producer {
            return 47;
        }
        match t.state {
            State::Prepare(_) => return 51,
            State::Ongoing => {}
            State::Empty | State::Complete(_) => {
                t.state = State::Ongoing;
                t.lines.clear();
                t.groups.clear();
                t.deadline = Instant::now() + t.timeout;
            }
        }
        t.lines.extend(line.cloned());
        t.groups.extend(group.map(str::to_owned));
        0
    }

    /// Before the first append of a transaction to a partition.
    pub fn verify(&mut self, txn: &str, producer: Producer, line: &Line, adds: bool) -> Result<(), i16> {
        if adds {
            return match self.add(txn, producer, Some(line), None) {
                0 => Ok(()),
                code => Err(code),
            };
        }
        let t = self.txns.get(txn).ok_or(49i16)?;
        match t.state {
            _ if (t.id, t.epoch) != producer => Err(47),
            State::Ongoing if t.lines.contains(line) => Ok(()),
            _ => Err(48),
        }
    }

    /// EndTxn; whether there is something to be done.
    pub fn end(
        &mut self,
        txn: &str,
        producer: Producer,
        commit: bool,
        v2: bool,
    ) -> (Result<Producer, i16>, bool) {
        let any = self.flaw == Flaw::AnyEndEnds;
        let Some(t) = self.txns.get_mut(txn) else { return (Err(49), false) };
        let is_repeated = v2 && producer == (t.id, t.last);
        if !is_repeated && !any && producer != (t.id, t.epoch) {
            return (Err(47), false);
        }
        match (t.state, commit) {
            (State::Ongoing, _) if !is_repeated || any => {
                if v2 {
                    (t.last, t.epoch) = (t.epoch, t.epoch + 1);
                }
                t.state = State::Prepare(commit);
                (Ok((t.id, t.epoch)), true)
            }
            (State::Prepare(was) | State::Complete(was), is) if was == is && (is_repeated || !v2) => {
                (Ok((t.id, t.epoch)), false)
            }
            (State::Empty | State::Complete(_), false) if v2 && !is_repeated => {
                (t.last, t.epoch, t.state) = (t.epoch, t.epoch + 1, State::Complete(false));
                (Ok((t.id, t.epoch)), false)
            }
            (State::Prepare(_), _) => (Err(51), false),
            _ => (Err(48), false),
        }
    }

    fn reap(&mut self) -> Vec<String> {
        let mut over = Vec::new();
        let forgets = self.flaw == Flaw::NoMarkerAtTimeout;
        for (id, t) in &mut self.txns {
            if t.state == State::Ongoing && t.deadline <= Instant::now() {
                (t.last, t.epoch) = (t.epoch, t.epoch + 1);
                if forgets {
                    t.state = State::Complete(false);
                    continue;
                }
                t.state = State::Prepare(false);
                over.push(id.clone());
            }
        }
        over
    }
}

/// Carries out what was decided: one participant after the other, each in its time.
pub async fn carry_out(broker: Shared, txn: String) {
    let (lines, groups, producer, commit) = {
        let b = broker.lock();
        let t = &b.txns[&txn];
        let State::Prepare(commit) = t.state else { return };
        (t.lines.clone(), t.groups.clone(), (t.id, t.epoch), commit)
    };
    if broker.lock().flaw == Flaw::CompleteFirst {
        let mut b = broker.lock();
        if let Some(t) = b.txns.get_mut(&txn) {
            t.state = State::Complete(commit);
        }
    }
    let torn = lines.iter().last().filter(|_| lines.len() > 1).cloned();
    for line in lines {
        let pause = broker.lock().moment();
        tokio::time::sleep(pause).await;
        let mut b = broker.lock();
        let lies = b.flaw == Flaw::TornMarker && torn.as_ref() == Some(&line) && b.rng.gen_bool(0.3);
        if let Some(log) = b.logs.get_mut(&line) {
            log.mark(producer.0, producer.1, commit != lies);
        }
        if b.flaw == Flaw::MarkerAgain && b.rng.gen_bool(0.2) {
            tokio::spawn(mark_again(broker.clone(), line, producer, commit));
        }
    }
    for group in groups {
        let pause = broker.lock().moment();
        tokio::time::sleep(pause).await;
        let mut b = broker.lock();
        let loses = b.flaw == Flaw::OffsetsLost;
        b.groups.entry(group).or_default().apply(producer.0, commit && !loses);
    }
    let mut b = broker.lock();
    if let Some(t) = b.txns.get_mut(&txn).filter(|t| t.state == State::Prepare(commit)) {
        t.state = State::Complete(commit);
    }
}

async fn mark_again(broker: Shared, line: Line, producer: Producer, commit: bool) {
    let pause = broker.lock().rng.gen_range(20..1000);
    tokio::time::sleep(Duration::from_millis(pause)).await;
    if let Some(log) = broker.lock().logs.get_mut(&line) {
        log.mark(producer.0, producer.1, commit);
    }
}

/// Ends what takes too long.
pub async fn reaper(broker: Shared) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let over = broker.lock().reap();
        for txn in over {
            tokio::spawn(carry_out(broker.clone(), txn));
        }
    }
}
