//! Counts what a broker asks of its files, from outside: strace writes down the calls, and those that name a file under
//! the data directory are counted by kind. Calls are not requests to a file server (an NFS client answers some from its
//! cache, and sends a write with its sync as one request), but they bound them.

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Calls that can reach a file, by its name or by its descriptor.
const CALLS: &str =
    "trace=%file,%fstat,read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,\
                     fsync,fdatasync,sync_file_range,getdents64,ftruncate,fallocate,flock,close";

/// Fails, and says what to do, where there is no strace.
pub fn check() -> Result<()> {
    let ran = Command::new("strace").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match ran {
        Ok(status) if status.success() => Ok(()),
        _ => bail!("strace is needed to count file operations, and is not installed"),
    }
}

/// Runs `binary` with its calls written to `to`. The process that is started is the binary; strace watches from aside, and
/// only what it writes down slows the binary.
pub fn command(to: &Path, binary: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e", CALLS]);
    strace.arg("-o").arg(to).arg(binary);
    strace
}

/// Calls by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls(pub BTreeMap<&'static str, f64>);

impl Calls {
    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }

    pub fn of(&self, kind: &str) -> f64 {
        self.0.get(kind).copied().unwrap_or(0.0)
    }

    /// What was called within `time` from now, a second.
    pub fn watch(traces: &[(&Path, &Path)], time: Duration) -> Result<Vec<Self>> {
        let mut open = Vec::new();
        for (trace, data) in traces {
            let mut file = File::open(trace).with_context(|| format!("no trace at {}", trace.display()))?;
            file.seek(SeekFrom::End(0))?;
            open.push((file, data));
        }
        std::thread::sleep(time);
        let mut all = Vec::new();
        for (mut file, data) in open {
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            let mut calls = Calls::count(&text, &data.to_string_lossy());
            calls.0.values_mut().for_each(|n| *n /= time.as_secs_f64());
            all.push(calls);
        }
        Ok(all)
    }

    /// The calls of a trace that name a file under `data`.
    fn count(trace: &str, data: &str) -> Self {
        let mut calls = Calls::default();
        let named = |line: &&str| line.contains(data) && !line.contains(" resumed>");
        for line in trace.lines().filter(named) {
            *calls.0.entry(kind(line)).or_default() += 1.0;
        }
        calls
    }
}

/// What a line of a trace (`PID call(arguments`) is about.
fn kind(line: &str) -> &'static str {
    let call = line.split_once('(').map_or(line, |(head, _)| head);
    match call.split_whitespace().last().unwrap_or(call) {
        "open" | "openat" if line.contains("O_CREAT") => "create",
        "open" | "openat" => "open",
        "read" | "pread64" | "readv" | "preadv" | "preadv2" => "read",
        "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" => "write",
        "fsync" | "fdatasync" => "sync",
        "getdents64" => "list",
        "stat" | "lstat" | "fstat" | "newfstatat" | "statx" => "stat",
        "unlink" | "unlinkat" | "rmdir" => "unlink",
        "rename" | "renameat" | "renameat2" => "rename",
        "close" => "close",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_counted_by_kind_and_only_under_the_data_directory() {
        let trace = "\
10 openat(AT_FDCWD</tmp>, \"/d/cluster/brokers/1.beat\", O_RDONLY|O_CLOEXEC) = 9</d/cluster/brokers/1.beat>
10 openat(AT_FDCWD</tmp>, \"/d/cluster/probe\", O_RDWR|O_CREAT|O_EXCL, 0666 <unfinished ...>
11 pread64(9</d/cluster/brokers/1.beat>, \"\"..., 300, 0) = 300
10 <... openat resumed>) = 12</d/cluster/probe>
11 read(4</proc/stat>, \"\"..., 300) = 300
11 fdatasync(12</d/cluster/probe>) = 0
12 close(9</d/cluster/brokers/1.beat>) = 0
12 ioctl(9</d/x>, 1) = 0
";
        let calls = Calls::count(trace, "/d/");
        let found: Vec<(&str, f64)> = calls.0.iter().map(|(k, n)| (*k, *n)).collect();
        let expected =
            [("close", 1.0), ("create", 1.0), ("open", 1.0), ("other", 1.0), ("read", 1.0), ("sync", 1.0)];
        assert_eq!(found, expected);
        assert_eq!(calls.total(), 6.0);
    }
}
