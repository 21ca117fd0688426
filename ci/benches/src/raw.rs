//! The machine's own limits: what the volume and the loopback give without a broker.
//!
//! The files lie in the directory that the broker's data will lie in, and are removed afterwards. Every
//! append extends its file, as a log's does.

use crate::stats::percentile;
use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// A file may not grow past this, however fast the disk is.
const FILE_LIMIT: u64 = 2 << 30;

/// What appends of one size, each synced, cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncCost {
    /// The write and its sync together.
    pub op_p50: Duration,
    pub op_p99: Duration,
    /// The fdatasync alone.
    pub sync_p50: Duration,
    pub sync_p99: Duration,
    pub ops_per_s: f64,
    pub bytes_per_s: f64,
}

struct Scratch {
    path: PathBuf,
    file: File,
}

impl Scratch {
    fn create(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Scratch { path, file })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Bytes that no file system compresses.
pub fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Appends `size` bytes and syncs, over and over, on one file.
pub fn append_sync(dir: &Path, size: usize, time: Duration) -> Result<SyncCost> {
    let scratch = Scratch::create(dir, "bench-raw.0")?;
    let data = noise(size);
    let (mut ops, mut syncs) = (Vec::new(), Vec::new());
    let (start, mut pos) = (Instant::now(), 0u64);
    while start.elapsed() < time && pos + size as u64 <= FILE_LIMIT {
        let t0 = Instant::now();
        scratch.file.write_all_at(&data, pos).context("raw write")?;
        let t1 = Instant::now();
        scratch.file.sync_data().context("raw fdatasync")?;
        let t2 = Instant::now();
        ops.push(t2 - t0);
        syncs.push(t2 - t1);
        pos += size as u64;
    }
    let wall = start.elapsed().as_secs_f64();
    Ok(SyncCost {
        op_p50: percentile(&mut ops, 0.5),
        op_p99: percentile(&mut ops, 0.99),
        sync_p50: percentile(&mut syncs, 0.5),
        sync_p99: percentile(&mut syncs, 0.99),
        ops_per_s: ops.len() as f64 / wall,
        bytes_per_s: pos as f64 / wall,
    })
}

/// The same on `files` files at once, a thread each; bytes per second of all together.
pub fn append_sync_parallel(dir: &Path, size: usize, files: usize, time: Duration) -> Result<f64> {
    let data = noise(size);
    let scratch: Vec<Scratch> =
        (0..files).map(|i| Scratch::create(dir, &format!("bench-raw.{i}"))).collect::<Result<_>>()?;
    let start = Instant::now();
    let limit = FILE_LIMIT / files as u64;
    let written: Vec<std::io::Result<u64>> = thread::scope(|s| {
        let workers: Vec<_> = scratch
            .iter()
            .map(|f| {
                let data = &data;
                s.spawn(move || {
                    let mut pos = 0u64;
                    while start.elapsed() < time && pos + size as u64 <= limit {
                        f.file.write_all_at(data, pos)?;
                        f.file.sync_data()?;
                        pos += size as u64;
                    }
                    Ok(pos)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().unwrap_or_else(|_| Err(std::io::Error::other("panicked"))))
            .collect()
    });
    let wall = start.elapsed().as_secs_f64();
    let mut total = 0;
    for w in written {
        total += w.context("raw parallel append")?;
    }
    Ok(total as f64 / wall)
}

/// Bytes per second that one thread reads from another over loopback TCP, in buffers of `size` bytes.
pub fn loopback(size: usize, time: Duration) -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("raw loopback listener")?;
    let addr = listener.local_addr()?;
    let sender = thread::spawn(move || {
        let data = noise(size);
        if let Ok((mut peer, _)) = listener.accept() {
            let _ = peer.set_nodelay(true);
            while peer.write_all(&data).is_ok() {}
        }
    });
    let mut peer = TcpStream::connect(addr)?;
    let mut buf = vec![0u8; size];
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_millis(100) {
        peer.read_exact(&mut buf)?;
    }
    let (start, mut bytes) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        peer.read_exact(&mut buf)?;
        bytes += size as u64;
    }
    let rate = bytes as f64 / start.elapsed().as_secs_f64();
    drop(peer);
    let _ = sender.join();
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_runs_measure_something_and_leave_no_file_behind() {
        let dir = std::env::temp_dir().join(format!("highwater-bench-test-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let time = Duration::from_millis(30);
        let one = append_sync(&dir, 4096, time).unwrap();
        assert!(one.ops_per_s > 0.0 && one.op_p99 >= one.op_p50 && one.op_p50 >= one.sync_p50);
        assert!(append_sync_parallel(&dir, 4096, 3, time).unwrap() > 0.0);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir(&dir).unwrap();
        assert!(loopback(64 << 10, time).unwrap() > 0.0);
    }

    #[test]
    fn noise_does_not_repeat_itself() {
        let n = noise(4096);
        assert_eq!(n.len(), 4096);
        assert_ne!(n[..2048], n[2048..]);
    }
}
