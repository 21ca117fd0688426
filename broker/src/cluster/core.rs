//! The control plane of one broker, put together: who may start, and what runs then.

use super::admin::Changes;
use super::controller::Controller;
use super::deleter::Deleter;
use super::disown::Disowner;
use super::election::ClaimFiles;
use super::error::StartError;
use super::files;
use super::follower::Follower;
use super::format::{self, Found};
use super::keeper::{stopped, Keeper};
use super::layout::{self, LeaseKey};
use super::lease::{Lease, LeaseTerms};
use super::membership::{self, Held, Identity};
use super::office::{ControllerTask, Office};
use super::partitions::Partitions;
use super::raised::Raised;
use super::requests::Asker;
use super::roster::Roster;
use super::seat::Seat;
use super::store;
use super::watch::Watch;
use crate::config::BrokerConfig;
use crate::rt::{Env, LockError, Vital};
use crate::storage::Fence;
use crate::volume::VolumeError;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch, Notify};
use tokio::task::JoinHandle;

/// How often a start tries to become controller: a lease may end on the way.
const OFFICE_ATTEMPTS: u32 = 3;
/// Changes that wait to be asked of the controller; more wait to wait.
const ASKS: usize = 256;

pub(super) struct Core {
    pub me: Arc<Identity>,
    pub cluster_id: String,
    pub lease: Arc<Lease>,
    pub controller: Arc<Controller>,
    pub roster: Arc<Roster>,
    /// Ends background work that would reopen partitions or begin deletions.
    rest: watch::Sender<bool>,
    /// Ends the lease and the office.
    stop: watch::Sender<bool>,
    /// Says when one of the tasks died.
    vital: Arc<Vital>,
    pub(super) changes: Changes,
    keeper: Mutex<Option<JoinHandle<()>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// How long the partitions may take to close.
    close_limit: Duration,
}

impl Core {
    /// Starts the control plane, or says why not; then nothing was touched, unless the volume failed.
    ///
    /// `make` builds the engine upon the fence.
    pub async fn start<P: Partitions>(
        env: Env,
        config: &BrokerConfig,
        make: impl FnOnce(Arc<dyn Fence>) -> Arc<P>,
    ) -> Result<(Core, Arc<P>), StartError> {
        let terms = LeaseTerms::new(config.lease);
        let found = format::look(&env, config.cluster_dir.is_some()).await?;
        // Everything that can refuse the start comes before the first write.
        store::check_readable(&env).await?;
        let me = Arc::new(identify(&env, config, terms).await?);
        let watch = Watch::default();
        let lease = Lease::new(env.clock.clone(), config.broker_id, terms);
        let roster = Roster::new(env.clone(), me.clone(), lease.clone());
        let mut seat = Seat { env: env.clone(), me: me.clone(), unreadable: None };
        if !matches!(found, Found::Fresh) {
            tokio::select! {
                biased;
                r = membership::refuse_the_living(&env, &me, &watch) => r?,
                () = look_meanwhile(&roster, &mut seat, terms) => {}
            }
        }
        let cluster_id = format::make(&env, found, terms, config.cluster_dir.is_some()).await?.cluster_id;

        let held = first_lease(&env, &me, &watch, &lease).await?;
        let engine = make(Arc::new(ClusterFence { lease: lease.clone(), roster: roster.clone() }));
        let hurry = Arc::new(Notify::new());
        let (rest, resting) = watch::channel(false);
        let (stop, stopping) = watch::channel(false);
        let (controller, queue) = Controller::new(
            me.clone(),
            hurry.clone(),
            lease.clone(),
            engine.clone(),
            Arc::new(config.topic_defaults.clone()),
        );
        let keeper = Keeper {
            env: env.clone(),
            me: me.clone(),
            lease: lease.clone(),
            on_end: Box::new({
                let engine = engine.clone();
                move || engine.drop_all()
            }),
            hurry,
            stop: stopping.clone(),
        };
        let vital = Arc::new(Vital::default());
        let (asks, asked) = mpsc::channel(ASKS);
        let changes = Changes { controller: controller.clone(), roster: roster.clone(), asks };
        let core = Core {
            changes: changes.clone(),
            me: me.clone(),
            cluster_id,
            lease: lease.clone(),
            controller: controller.clone(),
            roster: roster.clone(),
            rest,
            stop,
            vital: vital.clone(),
            keeper: Mutex::new(Some(vital.spawn("the keeper of the lease", keeper.run(held)))),
            tasks: Mutex::default(),
            // A flush and a checkpoint, each under the watchdog.
            close_limit: config.storage.sync_timeout * 2 + Duration::from_secs(1),
        };
        roster.round().await;
        let follower = Follower {
            env: env.clone(),
            controller: controller.clone(),
            roster: roster.clone(),
            limit: terms.lease,
        };
        follower.catch_up().await;
        let asker = Asker {
            env: env.clone(),
            me: me.clone(),
            lease: lease.clone(),
            controller: controller.clone(),
            queue: asked,
            limit: config.storage.sync_timeout,
        };
        let raised = Raised {
            me: me.clone(),
            lease: lease.clone(),
            changes: changes.clone(),
            partitions: engine.clone(),
        };
        let disowner = Disowner { me: me.clone(), lease: lease.clone(), changes, partitions: engine.clone() };
        let mut task = ControllerTask {
            env: env.clone(),
            seat,
            roster: roster.clone(),
            me,
            controller: controller.clone(),
            election: Arc::new(ClaimFiles { env: env.clone() }),
            queue,
            write_limit: config.storage.sync_timeout,
        };
        let office = match first_office(&mut task, &lease).await {
            Ok(office) => office,
            Err(e) => {
                core.shutdown(engine.as_ref()).await;
                return Err(e);
            }
        };
        let deleter =
            Deleter { env, controller, roster: roster.clone(), step_limit: config.storage.sync_timeout };
        *core.tasks.lock() = vec![
            vital.spawn("the controller", until_stopped(stopping.clone(), task.run(office))),
            vital.spawn("the look at the other brokers", until_stopped(stopping.clone(), roster.run())),
            vital.spawn("the following of the controller", until_stopped(stopping.clone(), follower.run())),
            vital.spawn("the asking of the controller", until_stopped(stopping.clone(), asker.run())),
            vital.spawn("the telling of leader epochs", until_stopped(stopping.clone(), raised.run())),
            vital.spawn("the giving up of what hangs", until_stopped(resting.clone(), disowner.run())),
            vital.spawn("the deleter of topics", until_stopped(resting.clone(), deleter.run())),
            vital.spawn("the care for partitions", until_stopped(resting, engine.clone().run())),
        ];
        Ok((core, engine))
    }

    /// Whether requests can be served: the lease stands, and there is a controller, of which this broker knows.
    pub fn ready(&self) -> bool {
        let is_follower = || self.lease.right().is_some() && self.roster.view().controller().is_some();
        self.controller.in_office().is_some() || is_follower() && self.controller.latest().1 > 0
    }

    /// Returns when a task died without which this broker cannot go on, and says which.
    pub async fn failed(&self) -> String {
        self.vital.failed().await
    }

    /// Clean stop: what is led goes to other brokers, one by one, if there are any; the rest is flushed and closed while the
    /// lease still stands; that it is given up is said last.
    pub async fn shutdown(&self, partitions: &dyn Partitions) {
        self.vital.may_end();
        self.hand_over().await;
        self.rest.send_replace(true);
        if tokio::time::timeout(self.close_limit, partitions.shutdown()).await.is_err() {
            tracing::warn!("not all partitions closed in time; the next start scans them");
        }
        self.stop.send_replace(true);
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            // It bounds its own last write by the lease.
            let _ = keeper.await;
        }
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.await;
        }
    }
}

impl Core {
    /// Has the controller give others what this broker leads, for as long as a lease at most.
    async fn hand_over(&self) {
        self.me.leaving.store(true, SeqCst);
        let Some(token) = self.lease.right() else { return };
        let mine = LeaseKey { broker: self.me.broker, number: token as u32 };
        if self.roster.view().living().all(|key| key == mine) {
            return;
        }
        self.controller.hurry();
        let mut shown = self.controller.shown();
        let given_away = async {
            while !self.controller.image().assigned(mine).is_empty() {
                if shown.changed().await.is_err() {
                    return;
                }
            }
            // They know: the stop of a controller tells them of nothing more.
            self.roster.until_all_show(self.controller.latest()).await;
        };
        tokio::select! {
            biased;
            () = self.lease.until_ended(token) => {}
            r = tokio::time::timeout(self.lease.terms().lease, given_away) => if r.is_err() {
                tracing::warn!("the controller did not give others all that this broker leads");
            }
        }
    }
}

/// Without [`Core::shutdown`] before, as if the process was killed: nothing more is done or written.
impl Drop for Core {
    fn drop(&mut self) {
        for task in self.tasks.lock().drain(..).chain(self.keeper.lock().take()) {
            task.abort();
        }
    }
}

/// Takes the host-local lock and gives this process its identity.
async fn identify(env: &Env, config: &BrokerConfig, terms: LeaseTerms) -> Result<Identity, StartError> {
    let broker = config.broker_id;
    let lock = env.host.lock(&layout::host_lock(broker)).await.map_err(|e| match e {
        LockError::Held(path) => {
            StartError::BrokerAlive { id: broker, why: format!("a process on this host holds {path}") }
        }
        // The lock lies in the data directory where that is local.
        LockError::Io { path, source } if path.contains(layout::ROOT) => {
            StartError::write(VolumeError::new("lock", path, source))
        }
        LockError::Io { .. } => StartError::HostLock(e.to_string()),
    })?;
    let address = match &config.advertised {
        Some((host, port)) => format!("{host}:{port}"),
        None => config.listen.clone(),
    };
    let (office, shown, requests) = Default::default();
    Ok(Identity {
        broker,
        incarnation: env.entropy.uuid(),
        address,
        lock,
        terms,
        office,
        shown,
        requests,
        resigned: AtomicU32::new(0),
        leaving: AtomicBool::new(false),
        stuck: AtomicBool::new(false),
    })
}

/// What a start waits for anyway is time in which others can be seen to be dead as well. Never returns.
async fn look_meanwhile(roster: &Roster, seat: &mut Seat, terms: LeaseTerms) {
    loop {
        tokio::time::sleep(terms.beat()).await;
        roster.round().await;
        seat.look(terms.lease).await;
    }
}

async fn first_lease(env: &Env, me: &Identity, watch: &Watch, lease: &Lease) -> Result<Held, StartError> {
    // A start is never given up by its caller.
    let never = AtomicBool::new(false);
    loop {
        let held = membership::take_lease(env, me, watch, &never).await?;
        if lease.begin(u64::from(held.number), held.started) {
            return Ok(held);
        }
        tracing::warn!("lease {} took too long to take; taking another", held.number);
    }
}

/// Becomes controller if nobody is; `None` if somebody is, or may be.
async fn first_office(task: &mut ControllerTask, lease: &Lease) -> Result<Option<Office>, StartError> {
    let mut left = OFFICE_ATTEMPTS;
    loop {
        let token = files::or_no_answer(lease.terms().lease * 3, "take a lease", lease.until_right()).await?;
        let roster = task.roster.view();
        let attempt = match task.seat.vacant_after(&roster, lease).await {
            Ok(None) => return Ok(None),
            Ok(Some(after)) => task.take_office(token, after).await,
            Err(e) => Err(StartError::Volume(e)),
        };
        match attempt {
            Err(StartError::Volume(e)) if left > 1 && files::is_transient(&e) => {
                tracing::warn!("cannot become controller: {e}; trying again");
            }
            Err(StartError::NoAnswer(why)) if left > 1 => {
                tracing::warn!("cannot become controller: {why}; trying again");
            }
            done => return done.map(Some),
        }
        left -= 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The lease as the storage engine sees it, with what is known of others' leases.
struct ClusterFence {
    lease: Arc<Lease>,
    roster: Arc<Roster>,
}

impl Fence for ClusterFence {
    fn right(&self) -> Option<u64> {
        self.lease.right()
    }

    fn holder(&self, token: u64) -> String {
        self.lease.holder(token)
    }

    fn is_over(&self, holder: &str) -> bool {
        // Who claimed before claims named leases is long gone.
        let Some(key) = LeaseKey::parse(holder) else { return true };
        let earlier = key.broker == self.lease.broker() && u64::from(key.number) < self.lease.number();
        let over = earlier || self.roster.view().is_over(key);
        if !over {
            self.roster.look_soon();
        }
        over
    }
}

async fn until_stopped(mut stop: watch::Receiver<bool>, work: impl std::future::Future<Output = ()>) {
    tokio::select! {
        biased;
        () = stopped(&mut stop) => {}
        () = work => {}
    }
}
