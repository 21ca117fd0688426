//! The broker under test: a child process on a loopback port, ended by its own process id.

use crate::slow::{self, SlowSyncs};
use crate::wire::Client;
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How to start a broker.
#[derive(Clone, Debug)]
pub struct Setup {
    pub binary: PathBuf,
    pub data: PathBuf,
    pub id: i32,
    /// Where it listens; a free port if not given.
    pub listen: Option<SocketAddr>,
    /// `broker.lease.ms`
    pub lease: Option<Duration>,
    /// Where strace writes down what the broker asks of its files.
    pub trace: Option<PathBuf>,
    /// What every sync takes longer.
    pub sync_delay: Option<Duration>,
    /// `ulimit -n`
    pub open_files: Option<u64>,
}

pub struct Broker {
    child: Child,
    pub addr: SocketAddr,
    metrics: SocketAddr,
    /// When the process was started.
    pub started: Instant,
    log: PathBuf,
    /// Dropped after the child has ended.
    _slow: Option<SlowSyncs>,
}

pub fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// The broker's binary, or what runs it.
fn program(setup: &Setup) -> Command {
    match (&setup.trace, setup.open_files) {
        (Some(to), _) => crate::strace::command(to, &setup.binary),
        (None, Some(n)) => {
            let mut sh = Command::new("/bin/sh");
            sh.arg("-c").arg(format!("ulimit -n {n} && exec \"$0\" \"$@\"")).arg(&setup.binary);
            sh
        }
        (None, None) => Command::new(&setup.binary),
    }
}

impl Broker {
    /// Starts a broker and waits until it accepts connections.
    pub fn start(setup: &Setup) -> Result<Self> {
        fs::create_dir_all(&setup.data)?;
        let (addr, metrics) = (setup.listen.map_or_else(free_port, Ok)?, free_port()?);
        let log = setup.data.with_extension(format!("{}.log", setup.id));
        let mut cmd = program(setup);
        cmd.arg("serve").arg("--data").arg(&setup.data).arg("--listen").arg(addr.to_string());
        cmd.arg("--broker-id").arg(setup.id.to_string());
        if let Some(lease) = setup.lease {
            cmd.arg("--set").arg(format!("broker.lease.ms={}", lease.as_millis()));
        }
        cmd.arg("--set").arg(format!("metrics.listener={metrics}"));
        cmd.arg("--set").arg("auto.create.topics.enable=false");
        let out = fs::OpenOptions::new().create(true).append(true).open(&log)?;
        cmd.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let started = Instant::now();
        let (child, slow) = match setup.sync_delay {
            None => (cmd.spawn().with_context(|| format!("cannot start {}", setup.binary.display()))?, None),
            Some(delay) => slow::spawn(cmd, delay).map(|(child, slow)| (child, Some(slow)))?,
        };
        let mut broker = Broker { child, addr, metrics, started, log, _slow: slow };
        broker.await_listening(Duration::from_secs(60))?;
        Ok(broker)
    }

    fn await_listening(&mut self, limit: Duration) -> Result<()> {
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the broker ended at once ({status}): {}", self.last_words());
            }
            ensure!(self.started.elapsed() < limit, "the broker does not listen: {}", self.last_words());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The end of what the broker printed.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    pub fn client(&self) -> Result<Client> {
        Client::connect(self.addr)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path = Path::new("/proc").join(self.child.id().to_string()).join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    fn status_kib(&self, key: &str) -> Result<f64> {
        let status = self.proc("status")?;
        let line =
            status.lines().find(|l| l.starts_with(key)).with_context(|| format!("no {key} in status"))?;
        let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib * 1024.0)
    }

    /// Resident memory, bytes.
    pub fn rss(&self) -> Result<f64> {
        self.status_kib("VmRSS:")
    }

    /// The largest resident memory so far, bytes.
    pub fn peak_rss(&self) -> Result<f64> {
        self.status_kib("VmHWM:")
    }

    pub fn open_files(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// Processor time used so far, seconds.
    pub fn cpu(&self) -> Result<f64> {
        let stat = self.proc("stat")?;
        let after_name = stat.rsplit_once(')').context("odd /proc stat")?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).context("odd /proc stat");
        Ok((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
    }

    /// What the broker counted, from its Prometheus page.
    pub fn metrics(&self) -> Result<Metrics> {
        let mut stream = TcpStream::connect(self.metrics).context("the metrics listener")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(Metrics::parse(&page))
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).context("signal to the broker")
    }

    /// SIGSTOP: the process stays and does nothing.
    pub fn pause(&self) -> Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    /// SIGTERM; how long the broker took to end cleanly.
    pub fn stop(mut self) -> Result<Duration> {
        let start = Instant::now();
        self.signal(rustix::process::Signal::TERM)?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the broker ended with {status}: {}", self.last_words());
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() < Duration::from_secs(120), "the broker does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Samples of a Prometheus page, labels added up.
#[derive(Debug, Default)]
pub struct Metrics(std::collections::BTreeMap<String, f64>);

impl Metrics {
    fn parse(page: &str) -> Self {
        let mut all = Metrics::default();
        for line in page.lines().filter(|l| l.starts_with("highwater_")) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let name = series.split('{').next().unwrap_or(series);
            if let Ok(v) = value.parse::<f64>() {
                *all.0.entry(name.to_string()).or_default() += v;
            }
        }
        all
    }

    /// The value of `name`, an error that names it if the broker does not count that.
    pub fn get(&self, name: &str) -> Result<f64> {
        self.0.get(name).copied().with_context(|| format!("the broker exports no {name}"))
    }

    /// How much `name` grew since `before`.
    pub fn since(&self, before: &Metrics, name: &str) -> Result<f64> {
        Ok(self.get(name)? - before.get(name).unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_page_adds_up_the_labels_of_one_name() {
        let page = "HTTP/1.0 200 OK\r\n\r\n# TYPE highwater_x counter\nhighwater_x_total{a=\"1 2\"} 3\n\
                    highwater_x_total{a=\"b\"} 4\nhighwater_y 0.5\nother 9\n";
        let m = Metrics::parse(page);
        assert_eq!(m.get("highwater_x_total").unwrap(), 7.0);
        assert_eq!(m.get("highwater_y").unwrap(), 0.5);
        assert!(m.get("other").is_err());
    }
}
