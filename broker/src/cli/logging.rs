//! Log lines go to stderr, by `RUST_LOG` (default `info`); panics among them.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging. An error if `RUST_LOG` cannot be understood.
pub fn start() -> Result<(), String> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => {
            EnvFilter::try_new(&text).map_err(|e| format!("RUST_LOG = {text:?}: {e}"))?
        }
        _ => EnvFilter::new("info"),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// A panic ends its task only. What that means for the broker is decided by whoever awaits the task; that it
/// happened is said here.
fn log_panic(info: &std::panic::PanicHookInfo<'_>) {
    let message = info.payload_as_str().unwrap_or("(no message)");
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let thread = std::thread::current();
    let backtrace = std::backtrace::Backtrace::capture();
    tracing::error!(
        place,
        thread = thread.name().unwrap_or("unnamed"),
        "an assertion failed; this is a bug in highwater: {message}"
    );
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        tracing::error!("{backtrace}");
    }
}
