//! `highwater serve`.

mod banner;
mod http;
mod notify;
mod place;
mod run;
mod samples;

use super::settings::{environment, Flags};
use super::{complain, logging, USAGE};
use highwater::volume::os::raise_fd_limit;
use std::process::ExitCode;

/// Runs a broker until it is told to stop.
pub fn main(flags: &Flags) -> ExitCode {
    if let Err(why) = logging::start() {
        complain(&why);
        return ExitCode::from(USAGE);
    }
    let config = match flags.resolve(environment(), raise_fd_limit()) {
        Ok(config) => config,
        Err(why) => {
            complain(&why);
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            complain(&format!("cannot start threads: {e}"));
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(run::run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&why);
            ExitCode::FAILURE
        }
    };
    // A call that is stuck in the volume must not keep the process.
    runtime.shutdown_background();
    code
}
