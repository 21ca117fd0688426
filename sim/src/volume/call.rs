//! One operation on its way: the time it takes, the faults it meets, and that it goes on when nobody
//! waits for it any more.

use super::draw::Draw;
use super::fault::Op;
use super::faults::Verdict;
use super::names::Result;
use super::options::Kind;
use super::server::Write;
use super::state::State;
use super::trace::{Counts, OpEvent, Outcome, Sender};
use super::{now, Shared};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How far a request goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// To the server and back.
    Ask,
    /// To the media and back.
    Durable,
}

/// What is asked, of whom.
pub struct Ask {
    pub host: u32,
    pub client: u32,
    pub process: u32,
    pub generation: u64,
    pub op: Op,
    pub path: String,
    pub to: Option<String>,
    pub pos: u64,
    pub len: u64,
    /// Whether the process still lives.
    pub alive: Arc<AtomicBool>,
    /// The host does it by itself, for whatever process.
    pub by_host: bool,
}

pub struct Call {
    pub shared: Arc<Shared>,
    pub ask: Ask,
    /// What the faults do to the call itself, and to the WRITE requests of a sync.
    pub verdict: Verdict,
    pub writes: Verdict,
    pub draw: Draw,
    started: Duration,
    gave_up: AtomicBool,
    /// Counts the requests, for draws.
    steps: AtomicU64,
    landed: Mutex<Option<(Duration, Sender)>>,
    held: Mutex<Option<(Duration, Duration)>>,
}

impl Call {
    pub fn new(shared: &Arc<Shared>, ask: Ask) -> Arc<Call> {
        let mut state = shared.state.lock();
        let paths: Vec<&str> =
            [Some(&ask.path), ask.to.as_ref()].into_iter().flatten().map(|p| p.as_str()).collect();
        let verdict = state.faults.judge(ask.host, ask.op, &paths);
        let writes = match ask.op {
            Op::Sync | Op::WriteBack | Op::Truncate => state.faults.judge(ask.host, Op::Write, &paths),
            _ => Verdict::default(),
        };
        let draw = state.next_call(ask.process);
        drop(state);
        Arc::new(Call {
            shared: shared.clone(),
            ask,
            verdict,
            writes,
            draw,
            started: now(),
            gave_up: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            landed: Mutex::new(None),
            held: Mutex::new(None),
        })
    }

    /// Runs the operation. If the caller stops waiting, or its node dies, the operation goes on by
    /// itself, on the volume's node.
    pub async fn run<T, F, Fut>(self: Arc<Self>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Call>) -> Fut,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        let (call, work) = (self.clone(), work(self.clone()));
        let whole = Box::pin(async move {
            let done = call.checked(work).await;
            call.end(&done);
            done
        });
        let waits = self.verdict.waits() || self.writes.waits();
        let options = &self.shared.options;
        let limit = options.soft.filter(|_| options.kind == Kind::Nfs).map(super::draw::millis);
        let patient = async {
            if waits {
                // It may last; then it must not stand still with the caller's node.
                let (tx, rx) = tokio::sync::oneshot::channel();
                self.shared.node.spawn(async move {
                    let _ = tx.send(whole.await);
                });
                let _watch = GiveUp(&self);
                return rx.await.unwrap_or(Err(Errno::IO));
            }
            Detach { work: Some(whole), call: self.clone() }.await
        };
        match limit {
            Some(limit) => tokio::time::timeout(limit, patient).await.unwrap_or(Err(Errno::IO)),
            None => patient.await,
        }
    }

    /// The same for what a host does by itself: nobody waits, and nothing is told.
    pub async fn run_by_host<T, F, Fut>(self: Arc<Self>, work: F)
    where
        F: FnOnce(Arc<Call>) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let done = work(self.clone()).await;
        self.end(&done);
    }

    async fn checked<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let errno = self.verdict.errno.or(self.verdict.gone);
        if let Some(errno) = errno.filter(|_| !matches!(self.ask.op, Op::Sync | Op::WriteBack)) {
            sleep(self.draw.of("fail").span(self.shared.options.latency)).await;
            return Err(errno);
        }
        work.await
    }

    pub fn is_alive(&self) -> bool {
        self.ask.alive.load(Relaxed)
    }

    /// A dead process sends nothing more.
    pub fn go_on(&self) -> Result<()> {
        if self.ask.by_host {
            return Ok(());
        }
        if !self.is_alive() || (self.gave_up.load(Relaxed) && self.shared.options.soft.is_some()) {
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Something that the host does in its own memory.
    pub async fn at_home<T>(&self, effect: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        tokio::task::yield_now().await;
        self.go_on()?;
        effect(&mut self.shared.state.lock())
    }

    /// A request to the server, and its reply.
    pub async fn request<T>(&self, cost: Cost, effect: impl FnMut(&mut State) -> Result<T>) -> Result<T> {
        self.request_under(&[&self.verdict], cost, effect).await
    }

    pub async fn request_under<T>(
        &self,
        verdicts: &[&Verdict],
        cost: Cost,
        mut effect: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let options = &self.shared.options;
        let draw = self.next_draw();
        let there = draw.of("there").span(options.latency) / 2;
        let media = if cost == Cost::Durable { draw.of("media").span(options.sync) } else { Duration::ZERO };
        // Somewhere between sending and the reply it takes effect.
        let part = media.mul_f64(draw.of("when").unit());
        sleep(there + part).await;
        for v in verdicts {
            self.pass(v).await;
            v.delay(v.late).await;
        }
        self.still_sent(verdicts, draw)?;
        let mut done = effect(&mut self.shared.state.lock());
        self.mark_landed();
        for v in verdicts {
            if let Some((by, known_again)) = v.lost {
                v.delay(by).await;
                let again = effect(&mut self.shared.state.lock());
                // A server that knows the request again answers as it did, unless the file was unlinked meanwhile: then the
                // request made another one.
                if !(known_again && self.ask.op == Op::Create && again.is_err()) {
                    done = again;
                }
            }
            v.delay(v.slow).await;
        }
        sleep(media - part + draw.of("back").span(options.latency) / 2).await;
        done
    }

    /// Waits until no stall holds it, and remembers how long that was.
    async fn pass(&self, verdict: &Verdict) {
        let from = now();
        verdict.pass().await;
        if now() > from {
            let mut held = self.held.lock();
            *held = Some((held.map_or(from, |(first, _)| first), now()));
        }
    }

    fn next_draw(&self) -> Draw {
        self.draw.at(self.steps.fetch_add(1, Relaxed))
    }

    /// What becomes of a request whose host has lost power meanwhile: a local disk forgets it; if it
    /// was held up, it may have got no further than the host's own queue.
    fn still_sent(&self, verdicts: &[&Verdict], draw: Draw) -> Result<()> {
        let generation = self.shared.state.lock().host(self.ask.client).generation;
        let held = verdicts.iter().any(|v| !v.gates.is_empty()) && draw.of("queued").chance(0.5);
        if generation != self.ask.generation && (held || self.shared.options.kind == Kind::Local) {
            return Err(Errno::IO);
        }
        Ok(())
    }

    fn mark_landed(&self) {
        *self.landed.lock() = Some((now(), self.sender()));
    }

    fn sender(&self) -> Sender {
        match (self.is_alive(), self.gave_up.load(Relaxed)) {
            (false, _) => Sender::Dead,
            (true, true) => Sender::GaveUp,
            (true, false) => Sender::Waiting,
        }
    }

    fn end<T>(&self, done: &Result<T>) {
        let landed = *self.landed.lock();
        let ask = &self.ask;
        let outcome = match done {
            _ if !self.is_alive() && !ask.by_host => Outcome::Orphaned,
            Ok(_) => Outcome::Done,
            Err(errno) => Outcome::Failed(errno.raw_os_error()),
        };
        self.shared.tell(&OpEvent {
            host: ask.host,
            process: ask.process,
            op: ask.op,
            path: ask.path.clone(),
            to: ask.to.clone(),
            pos: ask.pos,
            len: ask.len,
            started: self.started,
            held: *self.held.lock(),
            landed: landed.map(|(at, _)| at),
            ended: now(),
            outcome,
            sender: landed.map_or_else(|| self.sender(), |(_, sender)| sender),
        });
    }

    pub fn count(&self, state: &mut State, more: Counts) {
        let key = (self.ask.process, self.ask.path.clone());
        *state.counts.entry(key).or_default() += more;
    }

    /// Sends what is dirty and makes it durable: what a sync does, a write-back in part, and a close.
    ///
    /// A file with nothing outstanding sends nothing. Of a write-back (`in_part`), some pages go, and
    /// what went before is committed.
    pub async fn flush(&self, ino: u64, in_part: bool) -> Result<()> {
        let _turn = self.turn(ino).await?;
        self.flush_in_turn(ino, in_part).await
    }

    /// Waits until this host has nothing of the file on its way.
    pub async fn turn(&self, ino: u64) -> Result<tokio::sync::OwnedMutexGuard<()>> {
        let gate = self.shared.state.lock().file(self.ask.client, ino)?.gate.clone();
        Ok(gate.lock_owned().await)
    }

    pub async fn flush_in_turn(&self, ino: u64, in_part: bool) -> Result<()> {
        let (client, generation) = (self.ask.client, self.ask.generation);
        loop {
            let Some(round) = self.begin_round(ino, in_part)? else { return Ok(()) };
            if let Some(write) = &round.write {
                self.send(ino, write, &round).await?;
            }
            if round.stable || (in_part && round.write.is_some()) {
                return Ok(());
            }
            self.go_on()?;
            let under: &[&Verdict] = if round.early { &[] } else { &[&self.verdict] };
            let commit = |s: &mut State| s.commit(client, generation, ino);
            if self.request_under(under, Cost::Durable, commit).await? {
                return Ok(());
            }
        }
    }

    /// Takes out what is to be sent; `None` if nothing is outstanding.
    fn begin_round(&self, ino: u64, in_part: bool) -> Result<Option<Round>> {
        self.go_on()?;
        let mut state = self.shared.state.lock();
        let draw = self.next_draw();
        let kind = state.kind();
        if state.host(self.ask.client).generation != self.ask.generation {
            return Ok(None);
        }
        let settled = match state.server.inode(ino) {
            Ok(inode) => kind != Kind::Local || inode.is_settled(),
            Err(errno) if kind == Kind::Local => {
                state.host(self.ask.client).files.remove(&ino);
                return Err(errno);
            }
            Err(_) => true,
        };
        let file = state.file(self.ask.client, ino)?;
        if settled && file.is_clean() {
            return Ok(None);
        }
        // The caches are told first: a sync that fails leaves the pages clean for good.
        let failed = self.verdict.errno.or(self.writes.errno).filter(|_| self.ask.op != Op::Truncate);
        if let Some(errno) = failed {
            file.give_up(errno);
            return Err(errno);
        }
        let write = file.begin_write(|page| !in_part || draw.of("page").at(page).chance(0.75));
        let one = write.ranges.iter().count() <= 1 && file.unstable.is_empty() && !in_part;
        let send = !write.ranges.is_empty() || kind == Kind::Local;
        Ok(Some(Round {
            stable: kind != Kind::Nfs || (one && send),
            write: send.then_some(write),
            early: draw.of("early").chance(0.5),
        }))
    }

    /// The WRITE requests of one round.
    async fn send(&self, ino: u64, write: &Write, round: &Round) -> Result<()> {
        let (client, generation) = (self.ask.client, self.ask.generation);
        let land = |s: &mut State| s.land(client, generation, ino, write, round.stable);
        let mut under = vec![&self.writes];
        if round.stable || round.early {
            under.push(&self.verdict);
        }
        let cost = if round.stable { Cost::Durable } else { Cost::Ask };
        let done = self.request_under(&under, cost, land).await;
        let mut state = self.shared.state.lock();
        state.settle_later(Some(ino), now());
        if state.host(client).generation != generation {
            return Err(Errno::IO);
        }
        let file = state.file(client, ino)?;
        let unstable = done.as_ref().ok().copied().filter(|_| !round.stable);
        file.sent(write, unstable);
        done.map(|_| ()).inspect_err(|errno| file.give_up(*errno))
    }
}

/// One pass over what is outstanding of a file.
struct Round {
    write: Option<Write>,
    /// The WRITE is durable when it is answered, so that no COMMIT follows.
    stable: bool,
    /// A fault of the sync hits its WRITE already, and not only its COMMIT.
    early: bool,
}

struct GiveUp<'a>(&'a Call);

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.0.gave_up.store(true, Relaxed);
    }
}

/// Polls an operation in its caller's task; moves it to the volume's node when that task drops it.
struct Detach<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    call: Arc<Call>,
}

impl<T: Send + 'static> Future for Detach<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("not polled after its end");
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Detach<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        self.call.gave_up.store(true, Relaxed);
        // At the end of the world nothing goes on.
        if madsim::runtime::Handle::try_current().is_ok() && !std::thread::panicking() {
            self.call.shared.node.spawn(async move {
                work.await;
            });
        }
    }
}

/// As madsim's sleep, but finer than a millisecond.
pub async fn sleep(by: Duration) {
    if by.is_zero() {
        return;
    }
    let until = madsim::time::TimeHandle::current().now_instant() + by;
    let mut sleep = madsim::time::sleep(by);
    Pin::new(&mut sleep).reset(until);
    sleep.await;
}
