//! `highwater dump-log`: prints what stands in segment files, and in the small files beside them.
//!
//! Promises: one line for each batch, and one more for a transaction's marker, whatever the file holds; a place that is no batch is said with its bytes,
//! and the dump goes on behind it. Memory is bounded by one chunk, or with `--records` by one batch. Files of
//! other brokers are read too, if their batches are of magic 2. Exit code 0 if all is sound, a torn tail at the
//! end of a segment included; otherwise 1.

mod batches;
mod documents;
mod format;

use super::complain;
use super::output::{say, Output};
use clap::Args;
use highwater::storage::names::FileName;
use highwater::volume::{Class, OsVolume, Volume, VolumeFile};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// What `dump-log` takes.
#[derive(Debug, Args)]
pub struct Flags {
    /// Segments (.log), indexes, lists of aborted transactions, manifests, checkpoints, producer snapshots
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Opens the batches and prints their records
    #[arg(long)]
    records: bool,
    /// Prints at most so many bytes of each key, value and header
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_bytes: usize,
}

/// Prints the files, and says whether all of them are sound.
pub fn main(flags: &Flags) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            complain(&e);
            return ExitCode::FAILURE;
        }
    };
    let mut out = Output::new(BufWriter::new(std::io::stdout().lock()));
    let mut sound = true;
    for path in &flags.files {
        if out.open {
            sound &= runtime.block_on(file(path, flags, &mut out));
        }
    }
    runtime.shutdown_background();
    match out.finish() {
        Ok(()) if sound => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(e) => {
            complain(&format!("cannot print: {e}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints one file; `false` if it is not sound.
async fn file<W: Write>(path: &Path, flags: &Flags, out: &mut Output<W>) -> bool {
    match dump(path, flags, out).await {
        Ok(sound) => sound,
        Err(why) => {
            complain(&format!("{}: {why}", path.display()));
            false
        }
    }
}

async fn dump<W: Write>(path: &Path, flags: &Flags, out: &mut Output<W>) -> Result<bool, String> {
    let name = path.file_name().and_then(|n| n.to_str()).ok_or("not a file")?;
    let file = open(path, name).await?;
    let failed = |e: highwater::volume::VolumeError| e.source.to_string();
    let len = file.len().await.map_err(failed)?;
    match FileName::parse(name) {
        Some(FileName::Log(s)) => {
            say!(out, "{}: epoch {}, base offset {}, {len} bytes", path.display(), s.epoch.0, s.base);
            batches::dump(file, len, Some(s.base), flags, out).await.map_err(failed)
        }
        None | Some(FileName::Temp(_)) => {
            let base = format::foreign_base(name);
            let shown = base.map_or(String::new(), |b| format!("base offset {b}, "));
            say!(out, "{}: {shown}{len} bytes", path.display());
            batches::dump(file, len, None, flags, out).await.map_err(failed)
        }
        Some(kind) => documents::dump(file, len, kind, path, out).await,
    }
}

async fn open(path: &Path, name: &str) -> Result<Arc<dyn VolumeFile>, String> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let volume = OsVolume::open(parent).map_err(|e| e.source.to_string())?;
    volume.open(name, Class::Data).await.map_err(|e| e.source.to_string())
}
