//! Threads for blocking calls, so that what hangs hurts nobody else.
//!
//! Every job has a [`Key`]: the file or path that it may hang in. Jobs of one key take a bounded
//! number of threads, however many there are; the rest waits without one. A lane starts a thread
//! when a job could run and none is idle, up to a limit that counts only threads which are not
//! stuck, so that stuck ones are replaced; a thread that was idle for some seconds ends.
//!
//! What this does not do: interrupt a stuck call. Its thread is lost until the call returns. If
//! [`MAX_THREADS`] are lost, the lane as a whole waits: so many different files hang only when the
//! whole volume does.

use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread that runs one job for longer counts as stuck.
const STUCK: Duration = Duration::from_secs(1);
/// An idle thread ends after this time.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 10_000 });
/// How often a lane with waiting jobs looks for stuck threads.
const TICK: Duration = Duration::from_millis(250);
/// Threads of one lane, the stuck ones included.
const MAX_THREADS: usize = 1024;
/// Lane threads only make system calls.
const STACK_BYTES: usize = 256 << 10;
/// How many threads may read one file at a time.
const READERS: usize = 4;

/// What a job may hang in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Reads of an open file: some at a time.
    Reads(u64),
    /// Changes of an open file: one after another, in the order in which they were handed in.
    Changes(u64),
    /// A call by name: one after another.
    Path(String),
}

impl Key {
    fn width(&self) -> usize {
        match self {
            Key::Reads(_) => READERS,
            Key::Changes(_) | Key::Path(_) => 1,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The owner of a lane: dropping it lets the threads finish what is queued, and end.
pub(super) struct Lane(Arc<Shared>);

struct Shared {
    name: &'static str,
    /// Threads at most, stuck ones not counted.
    limit: usize,
    state: Mutex<State>,
    /// Wakes the thread that looks for stuck threads.
    pressed: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs that need nothing but a thread.
    ready: VecDeque<(Key, Job)>,
    keys: HashMap<Key, Slot>,
    /// Idle threads; the last one slept least.
    idle: Vec<Arc<Condvar>>,
    /// Since when each busy thread has been running its job.
    busy: BTreeMap<u64, Instant>,
    threads: usize,
    next_thread: u64,
    watch: Watch,
    closed: bool,
}

/// What the thread that replaces stuck threads is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watch {
    #[default]
    NotStarted,
    Asleep,
    Ticking,
}

/// The jobs of one key.
#[derive(Default)]
struct Slot {
    /// How many are running or ready.
    admitted: usize,
    waiting: VecDeque<Job>,
}

impl Lane {
    /// A lane with `limit` threads at most that are not stuck. No thread starts before there is work.
    pub(super) fn new(name: &'static str, limit: usize) -> Self {
        let (state, pressed) = (Mutex::default(), Condvar::new());
        Lane(Arc::new(Shared { name, limit, state, pressed }))
    }

    /// Runs `job` as soon as its key and a thread allow.
    pub(super) fn submit(&self, key: Key, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        let slot = state.keys.entry(key.clone()).or_default();
        if slot.admitted >= key.width() {
            slot.waiting.push_back(Box::new(job));
            return;
        }
        slot.admitted += 1;
        state.ready.push_back((key, Box::new(job)));
        self.0.staff(&mut state);
    }

    #[cfg(all(test, not(madsim)))]
    pub(super) fn threads(&self) -> usize {
        self.0.state.lock().threads
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        for thread in state.idle.drain(..) {
            thread.notify_one();
        }
        self.0.pressed.notify_one();
    }
}

impl Shared {
    /// Finds a thread for the job that was just made ready.
    fn staff(self: &Arc<Self>, state: &mut State) {
        if let Some(thread) = state.idle.pop() {
            thread.notify_one();
        } else if !self.grow(state) {
            self.call_watch(state);
        }
    }

    /// Starts a thread if the limit allows.
    fn grow(self: &Arc<Self>, state: &mut State) -> bool {
        let moving = state.threads - state.stuck();
        if moving >= self.limit || state.threads >= MAX_THREADS {
            return false;
        }
        let id = state.next_thread;
        if self.start("io", move |lane| lane.work(id)) {
            state.next_thread += 1;
            state.threads += 1;
            return true;
        }
        false
    }

    /// Has somebody look for stuck threads while jobs wait.
    fn call_watch(self: &Arc<Self>, state: &mut State) {
        match state.watch {
            Watch::NotStarted if self.start("watch", |lane| lane.watch()) => state.watch = Watch::Ticking,
            Watch::Asleep => {
                self.pressed.notify_one();
            }
            Watch::NotStarted | Watch::Ticking => {}
        }
    }

    fn start(self: &Arc<Self>, role: &str, run: impl FnOnce(Arc<Shared>) + Send + 'static) -> bool {
        let lane = self.clone();
        let thread = std::thread::Builder::new()
            .name(format!("{}-{role}", self.name))
            .stack_size(STACK_BYTES)
            .spawn(move || run(lane));
        if let Err(e) = &thread {
            tracing::error!(lane = self.name, error = %e, "cannot start a thread for the volume");
        }
        thread.is_ok()
    }

    /// The life of a thread.
    fn work(self: Arc<Self>, id: u64) {
        let wake = Arc::new(Condvar::new());
        let mut state = self.state.lock();
        loop {
            if let Some((key, job)) = state.ready.pop_front() {
                state.busy.insert(id, Instant::now());
                drop(state);
                // A panic ends the job, whose caller sees its channel closed, and not the thread.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                state.busy.remove(&id);
                state.finished(key);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle.push(wake.clone());
            let slept = wake.wait_for(&mut state, IDLE);
            let still_idle = state.idle.iter().position(|w| Arc::ptr_eq(w, &wake));
            if let Some(at) = still_idle {
                state.idle.remove(at);
                if slept.timed_out() {
                    break;
                }
            }
        }
        state.threads -= 1;
    }

    /// The life of the thread that replaces stuck threads while jobs wait.
    fn watch(self: Arc<Self>) {
        let mut state = self.state.lock();
        while !(state.closed && state.ready.is_empty()) {
            if state.ready.is_empty() {
                state.watch = Watch::Asleep;
                self.pressed.wait(&mut state);
                state.watch = Watch::Ticking;
                continue;
            }
            self.pressed.wait_for(&mut state, TICK);
            for _ in 0..state.ready.len() {
                if !self.grow(&mut state) {
                    break;
                }
            }
        }
    }
}

impl State {
    fn stuck(&self) -> usize {
        self.busy.values().filter(|since| since.elapsed() > STUCK).count()
    }

    /// Admits the next job of the key, or forgets the key.
    fn finished(&mut self, key: Key) {
        let Some(slot) = self.keys.get_mut(&key) else { return };
        if let Some(job) = slot.waiting.pop_front() {
            self.ready.push_back((key, job));
            return;
        }
        slot.admitted -= 1;
        if slot.admitted == 0 {
            self.keys.remove(&key);
        }
    }
}
