//! Who uses the broker: producers, consumers, groups, admins; and who looks at everything in the end.
//!
//! Promises: each client runs on a node of its own, draws from a stream of its own (leaving one client out
//! changes no other's choices), records what it sends before it sends it, and what came of it. Clients go on
//! through chaos and heal, and stop when the phase is [`Phase::Prove`]; a request that is under way then is
//! waited for, so a client may need its deadline to end.

mod admin;
mod consumer;
mod directory;
mod ghost;
mod lookup;
mod member;
mod offsets;
mod pipeline;
mod producer;
mod prove;
mod spec;
#[cfg(test)]
mod stand_in;
mod topics;
mod transaction;
mod transactional;

pub use directory::Directory;
pub use prove::{all_open, comes_back, prove, read_all, transactions_end};
pub use spec::{
    Admin, Committer, Consumer, Deed, Fortune, From, Isolation, Lookup, Member, Pipeline, Producer, Range,
    Spec, TopicSpec, Transactional,
};
pub use topics::create_topics;

use crate::client::Client;
use crate::history::{Event, History, Phase, Who};
use futures::future::join_all;
use madsim::runtime::Handle;
use madsim::task::{JoinHandle, NodeId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What every client is given.
#[derive(Clone)]
pub struct Ctx {
    pub history: History,
    /// Where brokers may be found.
    pub bootstrap: Arc<[SocketAddr]>,
    pub seed: u64,
    pub phase: watch::Receiver<Phase>,
    /// The watchdog's: a broker answers within this and a second.
    pub sync_timeout: Duration,
    pub lease: Duration,
    pub directory: Directory,
    /// Wall time when the life begins, in milliseconds: the brokers' clocks begin there, too.
    pub epoch_ms: i64,
}

/// Where wall time begins unless it is said otherwise.
pub const EPOCH_MS: i64 = 1_700_000_000_000;

impl Ctx {
    pub fn new(
        history: History,
        bootstrap: Vec<SocketAddr>,
        seed: u64,
        phase: watch::Receiver<Phase>,
        sync_timeout: Duration,
        lease: Duration,
    ) -> Ctx {
        let directory = Directory::default();
        let (bootstrap, epoch_ms) = (bootstrap.into(), EPOCH_MS);
        Ctx { history, bootstrap, seed, phase, sync_timeout, lease, directory, epoch_ms }
    }

    /// Later than any broker may keep a request: who runs into it has found a broken P11.
    pub fn patience(&self) -> Duration {
        self.sync_timeout + Duration::from_secs(10)
    }

    /// A stream of random numbers for one client.
    fn rng(&self, who: Who) -> SmallRng {
        self.rng_for(who, "")
    }

    /// Another stream of the same client, for a purpose of its own: what it draws changes nothing else.
    fn rng_for(&self, who: Who, purpose: &str) -> SmallRng {
        let name = [&who.0.to_le_bytes(), purpose.as_bytes()].concat();
        SmallRng::seed_from_u64(xxhash_rust::xxh3::xxh3_64_with_seed(&name, self.seed))
    }
}

/// One client: its surroundings, its stream, its connections.
struct User {
    who: Who,
    ctx: Ctx,
    rng: SmallRng,
    client: Client,
}

impl User {
    fn new(ctx: &Ctx, who: Who, deadline: Duration, rng: SmallRng) -> User {
        let mut client = Client::new(&format!("client-{}", who.0), ctx.bootstrap.clone(), deadline);
        let (directory, history) = (ctx.directory.clone(), ctx.history.clone());
        client.on_metadata(Box::new(move |said| directory.said(&history, who, said)));
        User { who, ctx: ctx.clone(), rng, client }
    }

    fn record(&self, event: Event) -> crate::history::Index {
        self.ctx.history.record(event)
    }

    /// Wall time of a clock that is right, in milliseconds.
    fn wall_ms(&self) -> i64 {
        self.ctx.epoch_ms + crate::history::now().as_millis() as i64
    }

    fn phase(&self) -> Phase {
        *self.ctx.phase.borrow()
    }

    fn is_over(&self) -> bool {
        self.phase() >= Phase::Prove
    }

    /// Sleeps, but not past the end of the clients' time.
    async fn pause(&mut self, by: Duration) {
        let over = self.ctx.phase.wait_for(|p| *p >= Phase::Prove);
        let _ = tokio::time::timeout(by, over).await;
    }

    /// The partitions of the named topics that are known by now; of all, if none is named.
    fn partitions(&self, names: &[String]) -> Vec<(Arc<str>, i32)> {
        let topics = self.ctx.directory.topics();
        let mine = topics.into_iter().filter(|(t, _)| names.is_empty() || names.iter().any(|n| **n == **t));
        mine.flat_map(|(t, n)| (0..n).map(move |p| (t.clone(), p))).collect()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let at = self.rng.gen_range(0..from.len());
        from.get(at).cloned()
    }
}

/// The clients of a life.
pub struct Users {
    /// In the order of their numbers.
    pub nodes: Vec<(Who, NodeId, IpAddr)>,
    tasks: Vec<JoinHandle<()>>,
}

impl Users {
    /// Returns once all have stopped.
    pub async fn ended(self) {
        for ended in join_all(self.tasks).await {
            if let Err(e) = ended {
                panic!("a client died: {e}");
            }
        }
    }
}

/// Clients have addresses 10.1.x.y.
fn address(number: u32) -> IpAddr {
    let [_, _, high, low] = (number + 1).to_be_bytes();
    Ipv4Addr::new(10, 1, high, low).into()
}

/// Starts the clients. Topics should be there, but need not be.
pub fn start(ctx: &Ctx, specs: &[Spec]) -> Users {
    let mut users = Users { nodes: Vec::new(), tasks: Vec::new() };
    let mut number = 0;
    for spec in specs {
        for _ in 0..spec.count() {
            let who = Who(number);
            let ip = address(number);
            let node = Handle::current().create_node().name(format!("client-{number}")).ip(ip).build();
            users.nodes.push((who, node.id(), ip));
            users.tasks.push(node.spawn(run(ctx.clone(), who, spec.clone())));
            number += 1;
        }
    }
    users
}

async fn run(ctx: Ctx, who: Who, spec: Spec) {
    let mut rng = ctx.rng(who);
    let deadline = spec.timeout().map_or(ctx.patience(), |range| range.millis(&mut rng));
    ctx.history.record(Event::ClientStarted { who, what: spec.name() });
    let user = User::new(&ctx, who, deadline, rng);
    match spec {
        Spec::Producer(spec) => producer::run(user, spec).await,
        Spec::Consumer(spec) => consumer::run(user, spec).await,
        Spec::Member(spec) => member::run(user, spec).await,
        Spec::Committer(spec) => offsets::run(user, spec).await,
        Spec::Admin(spec) => admin::run(user, spec).await,
        Spec::Lookup(spec) => lookup::run(user, spec).await,
        Spec::Transactional(spec) => transactional::run(user, spec).await,
        Spec::Pipeline(spec) => pipeline::run(user, spec).await,
    }
}
