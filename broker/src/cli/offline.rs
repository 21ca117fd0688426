//! What the tools that look at a whole data directory share: how it is opened, and what is said if it is none.

use super::{complain, USAGE};
use clap::Args;
use highwater::cluster::inspect;
use highwater::volume::{OsVolume, Volume};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Where the control plane's files lie.
#[derive(Debug, Args)]
pub struct Apart {
    /// The directory of the control plane's files, if they lie elsewhere (what serve calls --cluster-dir)
    #[arg(long, value_name = "DIR")]
    cluster_dir: Option<PathBuf>,
}

/// Runs `work` on the data directory `dir`. One that is none is a mistake in usage.
pub fn on_data(dir: &Path, apart: &Apart, work: impl AsyncFnOnce(&dyn Volume) -> ExitCode) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            complain(&e);
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        match open(dir, apart).await {
            Ok(volume) => work(&*volume).await,
            Err(why) => {
                complain(&why);
                ExitCode::from(USAGE)
            }
        }
    });
    // A call that is stuck in the volume must not keep the process.
    runtime.shutdown_background();
    code
}

async fn open(dir: &Path, apart: &Apart) -> Result<Arc<dyn Volume>, String> {
    let opened = |dir: &Path| OsVolume::open(dir).map_err(|e| format!("{}: {}", dir.display(), e.source));
    let data: Arc<dyn Volume> = Arc::new(opened(dir)?);
    let (volume, looked_at) = match &apart.cluster_dir {
        None => (data.clone(), dir),
        Some(control) => {
            let split = inspect::split(Arc::new(opened(control)?), data.clone());
            (Arc::new(split) as Arc<dyn Volume>, control.as_path())
        }
    };
    let failed = |e: highwater::volume::VolumeError| format!("{}: {}", looked_at.display(), e.source);
    if inspect::is_data(&*volume).await.map_err(failed)? {
        return Ok(volume);
    }
    if apart.cluster_dir.is_none() && inspect::is_data_apart(&*data).await.map_err(failed)? {
        return Err(format!(
            "{}: the control plane's files of this data lie elsewhere: give --cluster-dir",
            dir.display()
        ));
    }
    Err(format!("{}: no Highwater data here (no __cluster directory)", looked_at.display()))
}
