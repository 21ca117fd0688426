//! The exercise of the page-cache chapter, live: produce, let time pass, cut the power, restart, again and
//! again, on the broker as it ships and the model of a local file system.
//!
//! Simulated time goes on only while a step is done: it stands still as long as a key is awaited.
//!
//! ```text
//! page_cache  the world: one broker, one producer, one volume
//! picture     what is drawn of it
//! front       where commands come from and pictures go: a terminal, or lines of text for scripts
//! ```

mod front;
mod page_cache;
mod picture;

pub use front::{Front, Plain, Terminal};
pub use page_cache::{play, Counts};

use std::io::IsTerminal;

/// `play page-cache`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum What {
    /// Produce, cut the power, restart: what a broker loses that leaves its bytes in the page cache
    PageCache(PageCacheArgs),
}

#[derive(Clone, Debug, clap::Args)]
pub struct PageCacheArgs {
    /// Sync after so many records (`flush.messages`); without it the kernel decides
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub flush_every: Option<u64>,
    /// Read commands from the standard input, a line each, and print without control codes
    #[arg(long)]
    pub plain: bool,
    /// Which pages a power cut spares, and when the kernel writes back
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Plays until the end of the input or `q`.
pub fn run(args: Args) -> std::io::Result<()> {
    let What::PageCache(args) = args.what;
    if args.plain || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let front = Plain::new(std::io::BufReader::new(std::io::stdin()), std::io::stdout());
        play(args.seed, args.flush_every, front);
    } else {
        play(args.seed, args.flush_every, Terminal::open()?);
    }
    Ok(())
}
