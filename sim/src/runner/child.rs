//! The process of one life, from outside.

use crate::life::Outcome;
use crate::scenario::Scenario;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Real time, of which simulated time goes hundreds of times faster.
const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

/// One life that is wanted.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The scenario's name, for people, and its file.
    pub scenario: String,
    pub path: String,
    pub seed: u64,
    /// `place=value`, laid over the file.
    pub set: Vec<String>,
}

impl Ask {
    fn command(&self) -> std::io::Result<Command> {
        let mut c = Command::new(std::env::current_exe()?);
        c.arg("life").arg(&self.path).arg(self.seed.to_string());
        for s in &self.set {
            c.arg("--set").arg(s);
        }
        Ok(c)
    }

    /// How a person sees this life again.
    pub fn replay(&self) -> String {
        let set: String = self.set.iter().map(|s| format!(" --set '{s}'")).collect();
        let named = self.path.ends_with(&format!("scenarios/{}.toml", self.scenario));
        let what = if named { &self.scenario } else { &self.path };
        format!("cargo sim replay {what} {}{set}", self.seed)
    }
}

/// Lives one life, and says what came of it whatever happens to its process.
pub fn live(ask: &Ask) -> Outcome {
    let failed = |promise, what| Outcome::silent(&ask.scenario, ask.seed, promise, what);
    let spawned = ask
        .command()
        .and_then(|mut c| c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn());
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => return failed("panic", format!("no process for the life: {e}")),
    };
    let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let limit = limit(ask);
    let Ok(out) = out.recv_timeout(limit) else {
        end(&mut child);
        return failed("time-out", format!("not over after {} s of real time", limit.as_secs()));
    };
    let status = child.wait();
    let told = String::from_utf8_lossy(&out);
    let last = told.lines().rev().find_map(|line| serde_json::from_str::<Outcome>(line).ok());
    last.unwrap_or_else(|| {
        let err = err.recv().unwrap_or_default();
        let err = String::from_utf8_lossy(&err);
        let said: Vec<&str> = err.lines().filter(|l| !l.trim().is_empty()).take(6).collect();
        failed("panic", format!("{} ({})", said.join(" | "), status.map_or("?".into(), |s| s.to_string())))
    })
}

/// A life that takes longer is ended. A file that can't be read is the child's to complain of.
fn limit(ask: &Ask) -> Duration {
    Scenario::read(&ask.path)
        .map_or(DEFAULT_LIMIT, |s| s.real_seconds().map_or(DEFAULT_LIMIT, Duration::from_secs))
}

fn end(child: &mut Child) {
    // It may have ended just now.
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads a pipe to its end in a thread of its own, so that neither pipe fills up.
fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is all that there is.
            let _ = pipe.read_to_end(&mut all);
        }
        let _ = tell.send(all);
    });
    told
}
