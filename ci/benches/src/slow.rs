//! A volume whose every sync takes longer, for one child process, which knows nothing of it.
//!
//! The kernel holds the child's fsync and fdatasync calls back and tells us (seccomp_unotify(2)); when the
//! delay is over we let them go on. So the broker needs no knob, and it does not matter how it makes the
//! call. Delays run side by side, as on a slow server. Nothing else of the child is touched.

use anyhow::{bail, ensure, Context, Result};
use libc::{c_int, c_ulong, c_void, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Holds syncs back until it is dropped; a child that still lives then gets an error from its next sync.
pub struct SlowSyncs {
    ending: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

/// Spawns `command` with every fsync and fdatasync delayed.
pub fn spawn(mut command: Command, delay: Duration) -> Result<(Child, SlowSyncs)> {
    // The filter holds for the thread that installs it and for what that thread spawns: so a thread of its own.
    let worker = thread::spawn(move || -> Result<(Child, OwnedFd)> {
        let listener = install_filter()?;
        Ok((command.spawn().context("cannot start the broker")?, listener))
    });
    let Ok(spawned) = worker.join() else { bail!("the spawning thread panicked") };
    let (child, listener) = spawned?;
    Ok((child, SlowSyncs::start(listener, delay)))
}

fn install_filter() -> Result<OwnedFd> {
    let notify = libc::SECCOMP_RET_USER_NOTIF;
    let code = |c: u32| c as u16;
    let load = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let jump_if_equal = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let give = code(libc::BPF_RET | libc::BPF_K);
    let mut program = [
        // The call's number is the first field of seccomp_data.
        sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        sock_filter { code: jump_if_equal, jt: 2, jf: 0, k: libc::SYS_fsync as u32 },
        sock_filter { code: jump_if_equal, jt: 1, jf: 0, k: libc::SYS_fdatasync as u32 },
        sock_filter { code: give, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
        sock_filter { code: give, jt: 0, jf: 0, k: notify },
    ];
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain system calls; `program` and what it points to outlive them.
    let fd = unsafe {
        ensure!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "prctl: {}", Error::last_os_error());
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER as c_ulong,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &program as *const sock_fprog as *const c_void,
        )
    };
    ensure!(fd >= 0, "this kernel or container refuses a seccomp filter: {}", Error::last_os_error());
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

impl SlowSyncs {
    fn start(listener: OwnedFd, delay: Duration) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let listener = Arc::new(listener);
        let (held, due) = mpsc::channel::<(u64, Instant)>();
        let receiver = {
            let (listener, ending) = (listener.clone(), ending.clone());
            thread::spawn(move || {
                while !ending.load(Ordering::Relaxed) {
                    match receive(&listener) {
                        Received::Call(id) if held.send((id, Instant::now() + delay)).is_ok() => {}
                        Received::Nothing => {}
                        Received::Call(_) | Received::NobodyLeft => return,
                    }
                }
            })
        };
        // All delays are equal: the calls come due in the order in which they came.
        let releaser = thread::spawn(move || {
            for (id, at) in due {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                release(&listener, id);
            }
        });
        SlowSyncs { ending, workers: vec![receiver, releaser] }
    }
}

impl Drop for SlowSyncs {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        for w in self.workers.drain(..) {
            let _ = w.join();
        }
    }
}

enum Received {
    Call(u64),
    Nothing,
    NobodyLeft,
}

fn receive(listener: &OwnedFd) -> Received {
    let mut fd = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `fd` is one pollfd, and `call` is what the kernel asks for: zeroed, and of its own size.
    unsafe {
        if libc::poll(&mut fd, 1, 100) <= 0 {
            return Received::Nothing;
        }
        if fd.revents & libc::POLLIN == 0 {
            return Received::NobodyLeft;
        }
        let mut call: seccomp_notif = std::mem::zeroed();
        match libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) {
            0 => Received::Call(call.id),
            // The caller was killed meanwhile.
            _ => Received::Nothing,
        }
    }
}

fn release(listener: &OwnedFd, id: u64) {
    let mut answer =
        seccomp_notif_resp { id, val: 0, error: 0, flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 };
    // SAFETY: `answer` is what the kernel asks for. That the caller is gone is no error to us.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_sync_takes_as_long_as_asked_and_ours_does_not() {
        let dir = std::env::temp_dir().join(format!("highwater-slow-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("f");
        // dd's conv=fsync calls fsync once.
        let mut dd = Command::new("dd");
        dd.arg("if=/dev/zero").arg(format!("of={}", file.display()));
        dd.args(["bs=4096", "count=1", "conv=fsync", "status=none"]);
        let start = Instant::now();
        let (mut child, slow) = spawn(dd, Duration::from_millis(400)).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(start.elapsed() >= Duration::from_millis(400));
        drop(slow);
        let start = Instant::now();
        std::fs::File::open(&file).unwrap().sync_all().unwrap();
        assert!(start.elapsed() < Duration::from_millis(400));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
