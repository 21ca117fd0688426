//! The simulator: thousands of seeded lives of a broker, each on a model of one shared volume.
//!
//! Modules, in the order in which a life uses them; one imports only what stands below it.
//!
//! ```text
//! cli/        the commands; runner/ shrink/ play/ behind them
//! life/       one life: chaos, heal, prove; its verdict
//! view/       the page that shows one life
//! check/      the promises P1-P13, held against the history and the media
//! workload/   who uses the broker: producers, consumers, groups, admin
//! client/     a small Kafka client: the wire, and nothing of the broker's code
//! world/      nodes, processes, clocks; carries the plan's faults out
//! history/    what happened, with true time: the ledger, and its hash
//! scenario/   scenario files, and the plan that a seed draws from one
//! marks       places that some seed must reach
//! volume/     the model of a shared volume; knows the broker's `Volume` trait and nothing else of it
//! ```
//!
//! All but `view/` is built with `--cfg madsim` only (the aliases in `.cargo/config.toml` do that).

#[cfg(madsim)]
pub mod check;
#[cfg(madsim)]
pub mod cli;
#[cfg(madsim)]
pub mod client;
#[cfg(madsim)]
pub mod history;
#[cfg(madsim)]
pub mod life;
#[cfg(madsim)]
pub mod marks;
#[cfg(madsim)]
pub mod play;
#[cfg(madsim)]
pub mod runner;
#[cfg(madsim)]
pub mod scenario;
#[cfg(madsim)]
pub mod shrink;
pub mod view;
#[cfg(madsim)]
pub mod volume;
#[cfg(madsim)]
pub mod workload;
#[cfg(madsim)]
pub mod world;
