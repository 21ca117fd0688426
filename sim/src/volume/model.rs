//! The volume as the world holds it.

use super::draw::Draw;
use super::fault::{Fault, FaultId};
use super::names::{Node, ROOT};
use super::options::{Kind, Options};
use super::process::Process;
use super::server::Inode;
use super::state::State;
use super::trace::{Counts, OpEvent};
use super::view::Image;
use madsim::runtime::{Handle, NodeHandle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

/// True time since the world began.
pub(super) fn now() -> Duration {
    madsim::time::TimeHandle::current().elapsed()
}

type Watcher = Box<dyn FnMut(&OpEvent) + Send>;
type CrashWatcher = Box<dyn FnMut() + Send>;

pub(super) struct Shared {
    pub state: Mutex<State>,
    pub options: Options,
    /// Where operations go on whose callers are gone, and hosts write back.
    pub node: NodeHandle,
    watchers: Mutex<Vec<Watcher>>,
    crash_watchers: Mutex<Vec<CrashWatcher>>,
    /// The life of each process; all that were ever started.
    lives: Mutex<BTreeMap<u32, Arc<AtomicBool>>>,
}

/// A shared volume: server, media and hosts. Clones are the same volume.
///
/// It lives in a madsim runtime and has a node of its own there, so that killing a node of the world
/// stops neither an operation under way nor a host's write-back.
#[derive(Clone)]
pub struct Model {
    pub(super) shared: Arc<Shared>,
}

impl Model {
    /// An empty volume. To be called inside a madsim runtime.
    pub fn new(options: Options, seed: u64) -> Model {
        let node = Handle::current().create_node().name("volume").build();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(options.clone(), seed)),
            options,
            node,
            watchers: Mutex::default(),
            crash_watchers: Mutex::default(),
            lives: Mutex::default(),
        });
        let new_job = shared.state.lock().new_job.clone();
        shared.node.spawn(super::background::run(Arc::downgrade(&shared), new_job));
        Model { shared }
    }

    /// A volume whose media are what a crash left.
    pub fn from_image(options: Options, seed: u64, image: &Image) -> Model {
        let model = Model::new(options, seed);
        let mut state = model.shared.state.lock();
        let server = &mut state.server;
        for dir in &image.dirs {
            let (parent, name) = server.place(dir);
            server.tree.mkdir(parent, &name).expect("an image's paths are unique");
        }
        for (path, bytes) in &image.files {
            let (parent, name) = server.place(path);
            let ino = server.tree.next();
            server.tree.put(parent, &name, Node::File(ino)).expect("an image's paths are unique");
            let content = bytes.content().clone();
            server.used += content.len;
            let inode =
                Inode { shown: content.clone(), media: content, change: 1, named: true, ..Inode::default() };
            server.inodes.insert(ino, inode);
        }
        server.tree.commit_all();
        drop(state);
        model
    }

    /// A new process on that host. A host appears when it is first used.
    pub fn process(&self, host: u32) -> Process {
        let client = self.client(host);
        let mut state = self.shared.state.lock();
        let id = state.next_process;
        state.next_process += 1;
        state.processes.insert(id, (host, client));
        let generation = state.host(client).generation;
        let alive = Arc::new(AtomicBool::new(true));
        self.shared.lives.lock().insert(id, alive.clone());
        Process { shared: self.shared.clone(), id, host, client, generation, alive }
    }

    /// A local file system has one host.
    pub(super) fn client(&self, host: u32) -> u32 {
        if self.shared.options.kind == Kind::Local {
            return 0;
        }
        host
    }

    /// The host loses its caches and all its processes. Of what it had not sent, a part may have been
    /// written back the moment before.
    pub fn power_cut(&self, host: u32) {
        let client = self.client(host);
        let victims: Vec<u32> = {
            let state = self.shared.state.lock();
            state.processes.iter().filter(|(_, (_, c))| *c == client).map(|(id, _)| *id).collect()
        };
        for id in victims {
            self.shared.kill(id);
        }
        self.shared.state.lock().power_cut(client);
        self.shared.crashed();
    }

    /// The server restarts: it forgets what it had not committed, and answers with another write
    /// verifier, so that its clients send again what they still hold. A local file system has no server;
    /// a coherent one's forgets something only if it lies.
    pub fn restart_server(&self) {
        if self.shared.options.kind != Kind::Local {
            self.shared.state.lock().restart_server();
            self.shared.crashed();
        }
    }

    /// Puts a fault in. Those that happen once ([`Fault::Rot`] and the like) have happened on return.
    pub fn inject(&self, fault: Fault) -> FaultId {
        let mut state = self.shared.state.lock();
        let draw = state.draw;
        let (id, draw) = state.faults.add(fault.clone(), draw);
        state.update_capacity();
        if let Fault::Rot { path, flips, spare } = &fault {
            state.rot(path, (*flips, *spare), draw);
        }
        drop(state);
        match fault {
            Fault::ServerRestart => self.restart_server(),
            Fault::PowerCut { host } => self.power_cut(host),
            Fault::Rot { .. } => self.shared.crashed(),
            _ => {}
        }
        id
    }

    /// Takes a fault off and lets go what it held. A fault that is off already is none.
    pub fn lift(&self, id: FaultId) {
        let mut state = self.shared.state.lock();
        state.faults.lift(id);
        state.update_capacity();
    }

    /// Takes all faults off: what was held is let go, and the space is back.
    pub fn heal(&self) {
        let mut state = self.shared.state.lock();
        state.faults.clear();
        state.update_capacity();
    }

    /// Calls `f` with every operation at its end, also with those that ended after their sender died.
    pub fn watch(&self, f: impl FnMut(&OpEvent) + Send + 'static) {
        self.shared.watchers.lock().push(Box::new(f));
    }

    /// Calls `f` after everything that takes or changes bytes without an operation: a power cut, a restart of
    /// the server, bit rot.
    pub fn watch_crashes(&self, f: impl FnMut() + Send + 'static) {
        self.shared.crash_watchers.lock().push(Box::new(f));
    }

    /// What was asked, of the (process, path) pairs that `filter` lets through. A file counts under
    /// the path by which it was opened.
    pub fn counts(&self, mut filter: impl FnMut(u32, &str) -> bool) -> Counts {
        let mut sum = Counts::default();
        for ((process, path), counts) in &self.shared.state.lock().counts {
            if filter(*process, path) {
                sum += *counts;
            }
        }
        sum
    }

    /// Bytes that the processes read of the files that `filter` lets through.
    pub fn bytes_read(&self, filter: impl FnMut(u32, &str) -> bool) -> u64 {
        self.counts(filter).bytes_read
    }
}

impl Shared {
    fn crashed(&self) {
        for watcher in self.crash_watchers.lock().iter_mut() {
            watcher();
        }
    }

    pub fn tell(&self, event: &OpEvent) {
        for watcher in self.watchers.lock().iter_mut() {
            watcher(event);
        }
    }

    /// Closes a handle, if there still is a world.
    pub fn close(&self, handle: u64) {
        if Handle::try_current().is_err() {
            return;
        }
        self.state.lock().close(handle, now());
    }

    pub fn life_of(&self, process: u32) -> Arc<AtomicBool> {
        self.lives.lock().get(&process).cloned().unwrap_or_default()
    }

    pub fn kill(&self, process: u32) {
        self.life_of(process).store(false, std::sync::atomic::Ordering::Relaxed);
        self.state.lock().kill(process, now());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What does the jobs sees that there will be none.
        self.state.get_mut().new_job.notify_one();
    }
}

impl super::server::Server {
    /// Directory and name of a path whose directory exists.
    fn place(&self, path: &str) -> (u64, String) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        match self.tree.find(parent) {
            Ok(Node::Dir(id)) => (id, name.to_owned()),
            _ => (ROOT, name.to_owned()),
        }
    }
}

impl State {
    /// Bits flip on the media and in the server's memory.
    fn rot(&mut self, path: &str, (flips, spare): (u32, u64), draw: Draw) {
        let named = self.server.tree.walk(false).filter(|(p, _)| p.contains(path));
        let files: Vec<u64> = named
            .filter_map(|(_, n)| match n {
                Node::File(ino) => Some(ino),
                Node::Dir(_) => None,
            })
            .filter(|ino| self.server.inode(*ino).is_ok_and(|i| i.media.len > spare))
            .collect();
        for n in 0..u64::from(flips) {
            let draw = draw.of("flip").at(n);
            let Some(ino) = files.get(draw.below(files.len() as u64) as usize) else { return };
            let Ok(inode) = self.server.inode_mut(*ino) else { continue };
            if inode.media.len <= spare {
                continue;
            }
            let bit = draw.at(1).below((inode.media.len - spare) * 8);
            for version in [&mut inode.media, &mut inode.shown] {
                let (page, at) = super::content::split(bit / 8);
                version.page_mut(page)[at] ^= 1 << (bit % 8);
                version.trim();
            }
            inode.change += 1;
            for file in self.hosts.values_mut().filter_map(|h| h.files.get_mut(ino)) {
                let own = file.own();
                let pages = own.pages();
                file.cache.pages.retain(|p, _| pages.binary_search(p).is_ok());
            }
        }
    }
}
