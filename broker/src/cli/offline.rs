//! What the tools that look at a whole data directory share: how it is opened, and what is said if it is none.

use super::{complain, USAGE};
use highwater::cluster::inspect;
use highwater::volume::OsVolume;
use std::path::Path;
use std::process::ExitCode;

/// Runs `work` on the data directory `dir`. One that is none is a mistake in usage.
pub fn on_data(dir: &Path, work: impl AsyncFnOnce(&OsVolume) -> ExitCode) -> ExitCode {
    let volume = match OsVolume::open(dir) {
        Ok(volume) => volume,
        Err(e) => {
            complain(&format!("{}: {}", dir.display(), e.source));
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            complain(&e);
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        match inspect::is_data(&volume).await {
            Ok(true) => work(&volume).await,
            Ok(false) => {
                complain(&format!("{}: no Highwater data here (no __cluster directory)", dir.display()));
                ExitCode::from(USAGE)
            }
            Err(e) => {
                complain(&format!("{}: {}", dir.display(), e.source));
                ExitCode::from(USAGE)
            }
        }
    });
    // A call that is stuck in the volume must not keep the process.
    runtime.shutdown_background();
    code
}
