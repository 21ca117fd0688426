//! The controller's terms: how a broker takes the office, serves changes in it, and loses it.
//!
//! Promises: nothing is written before the epoch is won and what the last one left was inherited; a write that is in doubt, a
//! claim above its own or the end of the lease ends the term, and what waits then is refused.

use super::admin::AdminError;
use super::assign;
use super::controller::{Answer, Change, Controller, BATCH};
use super::election::{Candidate, Election, ElectionError};
use super::error::StartError;
use super::files;
use super::membership::Identity;
use super::metadata::{Metadata, Stamp};
use super::requests::{self, Request};
use super::roster::{Roster, View};
use super::seat::Seat;
use super::store::{self, Store, WriteError};
use crate::reached;
use crate::rt::Env;
use crate::storage::Fence;
use crate::types::Epoch;
use crate::volume::VolumeError;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// One term as controller.
pub(super) struct Office {
    token: u64,
    epoch: Epoch,
    store: Store,
}

/// The task that holds the office when it can.
pub(super) struct ControllerTask {
    pub env: Env,
    pub me: Arc<Identity>,
    pub controller: Arc<Controller>,
    pub election: Arc<dyn Election>,
    pub roster: Arc<Roster>,
    pub queue: mpsc::Receiver<Change>,
    pub seat: Seat,
    /// How long one write of the metadata may take.
    pub write_limit: Duration,
}

/// A bid for the office. One that was given up anywhere on the way is told like an office that was: its claim may stand, or
/// appear yet, and must not keep others from theirs for as long as this broker lives.
struct Bid<'a> {
    me: &'a Identity,
    epoch: Epoch,
    is_won: bool,
}

impl Drop for Bid<'_> {
    fn drop(&mut self) {
        if !self.is_won {
            self.me.resigned.fetch_max(self.epoch.0, SeqCst);
        }
    }
}

impl ControllerTask {
    /// Never returns. `office` is one that was taken already.
    pub async fn run(mut self, mut office: Option<Office>) {
        let mut pause = RETRY_MIN;
        loop {
            if let Some(office) = office.take() {
                let (token, epoch) = (office.token, office.epoch);
                self.serve(office).await;
                self.controller.leave_office();
                // Others see that it lives, and must not take its claim for a controller's.
                self.me.resigned.fetch_max(epoch.0, SeqCst);
                self.controller.announce(None);
                tracing::info!(
                    "this broker is no longer controller in epoch {} (lease {token})",
                    self.controller.epoch()
                );
            }
            let token = self.controller.lease.until_right().await;
            let after = match self.seat.vacant_after(&self.roster.view(), &self.controller.lease).await {
                Ok(Some(after)) => after,
                Ok(None) => {
                    tokio::time::sleep(self.me.terms.beat() / 2).await;
                    continue;
                }
                Err(e) => {
                    tracing::warn!("cannot see who is controller: {e}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                    continue;
                }
            };
            match self.take_office(token, after).await {
                Ok(taken) => {
                    office = Some(taken);
                    pause = RETRY_MIN;
                }
                Err(e) => {
                    tracing::warn!("cannot become controller: {e}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Wins an epoch, inherits what the last one left, and writes it as its own before it acts.
    /// `after`: the epoch that was found vacant.
    pub async fn take_office(&self, token: u64, after: Epoch) -> Result<Office, StartError> {
        let lease = &self.controller.lease;
        let mut bid = Bid { me: &self.me, epoch: after, is_won: false };
        let (office, metadata) = tokio::select! {
            biased;
            () = lease.until_ended(token) => return Err(lease_ended()),
            // Several steps, each of which may use up the limit.
            r = tokio::time::timeout(self.write_limit * 3, self.found_office(token, &mut bid)) => {
                r.map_err(|_| StartError::NoAnswer("becoming controller took too long".into()))??
            }
        };
        if !lease.holds(token) {
            return Err(lease_ended());
        }
        // It is said of nobody whose bid can still be given up: others would wait for a controller that is none.
        bid.is_won = true;
        let (epoch, change) = (office.epoch, metadata.change);
        self.controller.publish(metadata);
        self.controller.announce(Some((epoch, change)));
        self.controller.enter_office(token);
        self.controller.deletions.notify_one();
        tracing::info!("this broker is controller in epoch {epoch} (lease {token})");
        tokio::spawn(store::tidy(self.env.clone(), epoch));
        Ok(office)
    }

    async fn found_office(&self, token: u64, bid: &mut Bid<'_>) -> Result<(Office, Metadata), StartError> {
        let lease = &self.controller.lease;
        let by = Candidate { broker: self.me.broker, incarnation: self.me.incarnation, lease: token };
        let epoch = loop {
            let after = bid.epoch;
            bid.epoch = after.next();
            let won = self.election.campaign(by, after).await.map_err(|e| match e {
                ElectionError::Volume(e) => StartError::write(e),
                ElectionError::Lost(_) => StartError::NoAnswer(e.to_string()),
            })?;
            // Of an epoch for which a bid was given up everybody was told that it is nobody's: who takes it now would be
            // succeeded while he serves.
            if won.0 > self.me.resigned.load(SeqCst) {
                break won;
            }
        };
        let mut store = Store::new(self.env.clone(), epoch, self.me.incarnation);
        let mut metadata = store.inherit().await?;
        metadata.change += 1;
        metadata.controller = Some(Stamp { epoch, by });
        assign::fill(&mut metadata, &self.roster.view());
        store.write(&metadata, || lease.holds(token)).await.map_err(|e| match e {
            WriteError::Clean(e) | WriteError::InDoubt(e) => StartError::write(e),
            WriteError::LeaseEnded => lease_ended(),
        })?;
        let office = Office { token, epoch, store };
        // After the durable step.
        if !self.is_in_office(&office).await {
            return Err(StartError::NoAnswer("another broker claimed a higher epoch of controller".into()));
        }
        Ok((office, metadata))
    }

    /// Serves changes until the lease ends or a write is in doubt.
    async fn serve(&mut self, mut office: Office) {
        let lease = self.controller.lease.clone();
        let mut rounds = self.roster.changes();
        let mut looked = self.env.clock.boot();
        loop {
            let mut batch = tokio::select! {
                biased;
                () = lease.until_ended(office.token) => return,
                change = self.queue.recv() => match change {
                    Some(change) => vec![change],
                    None => return std::future::pending().await,
                },
                // Somebody came or went, or it is time to even out.
                () = news(&mut rounds, self.me.terms.beat()) => vec![],
            };
            while batch.len() < BATCH {
                match self.queue.try_recv() {
                    Ok(change) => batch.push(change),
                    Err(_) => break,
                }
            }
            if batch.is_empty() && self.env.clock.boot().saturating_sub(looked) >= self.me.terms.lease {
                // Followers heed nobody but who holds the highest claim, and may have nothing to ask for.
                looked = self.env.clock.boot();
                // A full volume, say, is no reason to go: nothing is answered here.
                if matches!(self.is_highest(&office).await, Ok(false)) {
                    self.controller.leave_office();
                    return;
                }
            }
            let (view, metadata) = (self.roster.view(), self.controller.metadata());
            // Somebody with stale names took this one for dead: what it goes on to write is read by nobody.
            if view.announced().is_some_and(|(epoch, _)| epoch > office.epoch) {
                reached!("controller-deposed-alive");
                self.controller.leave_office();
                batch.into_iter().for_each(refuse);
                return;
            }
            let requests = requests::unanswered(&self.env, &view, &metadata, self.me.terms.beat()).await;
            let (goes_on, result, answers) = self.apply(&mut office, batch, requests).await;
            if !goes_on {
                self.controller.leave_office();
            }
            for answer in answers {
                answer(result.clone());
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Applies a batch to a copy, writes the copy once, and shows it. Returns whether the office stands.
    async fn apply(
        &self,
        office: &mut Office,
        batch: Vec<Change>,
        requests: Vec<Request>,
    ) -> (bool, Result<(), AdminError>, Vec<Answer>) {
        let before = self.controller.metadata();
        if self.controller.latest().0 != office.epoch {
            // A successor's is shown here already: nothing may be built upon that in its name.
            batch.into_iter().for_each(refuse);
            return (false, Err(AdminError::NotController), Vec::new());
        }
        let mut draft = Metadata::clone(&before);
        let mut answers = Vec::new();
        let roster = self.roster.view();
        if batch.is_empty() && requests.is_empty() {
            assign::even_out(&mut draft, &roster);
        }
        for change in batch {
            if change.token == office.token {
                answers.push((change.apply)(&mut draft));
            } else {
                refuse(change);
            }
        }
        for request in requests {
            request.apply(&mut draft, self.controller.defaults(), &self.controller.served_by_nobody(&roster));
        }
        draft.forget(|lease| roster.is_over(lease));
        assign::fill(&mut draft, &roster);
        let changed = draft != *before;
        if changed {
            draft.change += 1;
            match self.write(office, &draft).await {
                Ok(()) => {}
                Err(WriteError::Clean(e)) => {
                    tracing::warn!("metadata unchanged: {e}");
                    return (true, Err(AdminError::Storage(e.to_string())), answers);
                }
                Err(WriteError::LeaseEnded) => return (false, Err(AdminError::NotController), answers),
                Err(e @ WriteError::InDoubt(_)) => {
                    tracing::warn!("resigning as controller: {e}");
                    return (false, Err(AdminError::Storage(e.to_string())), answers);
                }
            }
        }
        // After the durable step: a successor may have read what stood before this write.
        if changed && !self.is_in_office(office).await || !self.controller.lease.holds(office.token) {
            return (false, Err(AdminError::NotController), answers);
        }
        if changed {
            let shown = (self.controller.epoch(), draft.change);
            self.controller.publish(draft);
            self.controller.announce(Some(shown));
        }
        (true, Ok(()), answers)
    }

    /// Whether nobody claimed a higher epoch, which is what followers ask as well. The lease alone does not say so: somebody may
    /// have taken this broker's claim for nobody's while its content was on its way.
    async fn is_in_office(&self, office: &Office) -> bool {
        self.is_highest(office).await.unwrap_or_else(|e| {
            tracing::warn!("resigning as controller: {e}");
            false
        })
    }

    async fn is_highest(&self, office: &Office) -> Result<bool, VolumeError> {
        let limit = self.me.terms.lease;
        let asked =
            files::within(limit, "list", super::layout::CONTROLLER, self.election.is_highest(office.epoch));
        let is_highest = asked.await?;
        if !is_highest {
            reached!("controller-outclaimed");
            tracing::warn!("another broker claimed a controller epoch above {}", office.epoch);
        }
        Ok(is_highest)
    }

    async fn write(&self, office: &mut Office, draft: &Metadata) -> Result<(), WriteError> {
        let lease = &self.controller.lease;
        let token = office.token;
        let write = office.store.write(draft, || lease.holds(token));
        tokio::select! {
            biased;
            () = lease.until_ended(token) => Err(WriteError::LeaseEnded),
            r = tokio::time::timeout(self.write_limit, write) => r.unwrap_or_else(|_| {
                // A rename of it may still land: this epoch is over.
                Err(WriteError::InDoubt(files::no_answer("write", super::layout::METADATA, self.write_limit)))
            }),
        }
    }
}

fn refuse(change: Change) {
    (change.apply)(&mut Metadata::default())(Err(AdminError::NotController));
}

async fn news(rounds: &mut watch::Receiver<Arc<View>>, at_last: Duration) {
    // An error means that nobody looks any more, and the broker stops.
    let _ = tokio::time::timeout(at_last, rounds.changed()).await;
}

fn lease_ended() -> StartError {
    StartError::NoAnswer("the lease ended meanwhile".into())
}
