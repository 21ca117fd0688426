//! What hosts and server do by themselves: write back, close, clear silly names away, commit.

use super::call::{Ask, Call, Cost};
use super::fault::{FullAt, Op};
use super::model::{now, Shared};
use super::options::Kind;
use super::state::{Handle, Job, State};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Does every job at its time, until nobody has the volume any more.
pub async fn run(shared: Weak<Shared>, new_job: Arc<tokio::sync::Notify>) {
    loop {
        let news = new_job.notified();
        let Some(volume) = shared.upgrade() else { return };
        let next = volume.state.lock().jobs.keys().next().map(|(at, _)| *at);
        match next {
            None => {
                drop(volume);
                news.await;
            }
            Some(at) if at > now() => {
                drop(volume);
                let nap = super::call::sleep(at - now());
                tokio::select! {
                    biased;
                    () = news => {}
                    () = nap => {}
                }
            }
            Some(_) => {
                let job = volume.state.lock().jobs.pop_first();
                if let Some((_, job)) = job {
                    volume.begin(job);
                }
            }
        }
    }
}

impl Shared {
    fn begin(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        match job {
            Job::Journal => {
                state.journal_due = false;
                state.server.commit_names(None);
            }
            Job::Harden { ino } => {
                if let Ok(inode) = state.server.inode_mut(ino) {
                    inode.harden_all();
                }
            }
            Job::Writeback { client, generation, ino } => {
                let held = state.faults.holds_writeback(client) || state.server.capacity.at == FullAt::Close;
                let host = state.host(client);
                let current = host.generation == generation;
                let Some(file) = host.files.get_mut(&ino).filter(|_| current) else { return };
                file.due = false;
                if held || file.is_clean() {
                    state.writeback_later(client, ino, now());
                    return;
                }
                let process = file.last_writer;
                let path = file.last_path.clone();
                drop(state);
                self.write_back(client, generation, ino, process, path, true);
            }
            Job::Closed { client, generation, ino, process, path, flush } => {
                let current = state.host(client).generation == generation;
                let in_use = state.handles.values().any(|h| h.client == client && h.ino == ino);
                let host = state.host(client);
                let silly = if current && !in_use { host.silly.remove(&ino) } else { None };
                let dirty =
                    state.hosts.get(&client).and_then(|h| h.files.get(&ino)).is_some_and(|f| !f.is_clean());
                drop(state);
                if let Some(at) = silly {
                    self.remove_silly(client, generation, process, path, at);
                } else if flush && dirty && current {
                    self.write_back(client, generation, ino, process, path, false);
                }
            }
        }
    }

    fn call(self: &Arc<Self>, client: u32, generation: u64, process: u32, op: Op, path: String) -> Arc<Call> {
        let ask = Ask {
            host: client,
            client,
            process,
            generation,
            op,
            path,
            to: None,
            pos: 0,
            len: 0,
            alive: self.life_of(process),
            by_host: true,
        };
        Call::new(self, ask)
    }

    fn write_back(
        self: &Arc<Self>,
        client: u32,
        generation: u64,
        ino: u64,
        process: u32,
        path: String,
        part: bool,
    ) {
        let call = self.call(client, generation, process, Op::WriteBack, path);
        let shared = self.clone();
        self.node.spawn(call.run_by_host(move |call| async move {
            let done = call.flush(ino, part).await;
            shared.state.lock().writeback_later(client, ino, now());
            done
        }));
    }

    fn remove_silly(
        self: &Arc<Self>,
        client: u32,
        generation: u64,
        process: u32,
        path: String,
        at: (u64, String),
    ) {
        let call = self.call(client, generation, process, Op::Unlink, path);
        self.node.spawn(call.run_by_host(move |call| async move {
            let unlink = |s: &mut State| s.unlink(client, at.0, &at.1);
            call.request(Cost::Durable, unlink).await
        }));
    }
}

impl State {
    /// Ends a handle; what the host then does follows a moment later, if it lives.
    pub fn close(&mut self, id: u64, now: Duration) {
        if let Some(handle) = self.handles.remove(&id) {
            self.closed(handle, true, now);
        }
    }

    fn closed(&mut self, h: Handle, flush: bool, now: Duration) {
        if let Ok(inode) = self.server.inode_mut(h.ino) {
            inode.opens = inode.opens.saturating_sub(1);
            if inode.opens == 0 {
                self.server.maybe_free(h.ino);
            }
        }
        if self.kind() != Kind::Nfs {
            return;
        }
        let host = self.host(h.client);
        let generation = host.generation;
        let silly = host.silly.contains_key(&h.ino);
        let dirty = host.files.get(&h.ino).is_some_and(|f| !f.is_clean());
        if silly || (flush && dirty) {
            let Handle { client, ino, process, path, .. } = h;
            self.later(now, Job::Closed { client, generation, ino, process, path, flush });
        }
    }

    /// A process is gone: its handles are closed, its dirty pages stay.
    pub fn kill(&mut self, process: u32, now: Duration) {
        self.processes.remove(&process);
        let of: Vec<u64> =
            self.handles.iter().filter(|(_, h)| h.process == process).map(|(id, _)| *id).collect();
        for id in of {
            if let Some(handle) = self.handles.remove(&id) {
                self.closed(handle, false, now);
            }
        }
        // A close that was asked for before the death does not happen any more.
        for job in self.jobs.values_mut() {
            if let Job::Closed { process: p, flush, .. } = job {
                *flush &= *p != process;
            }
        }
    }
}
