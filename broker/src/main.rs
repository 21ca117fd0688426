//! The `highwater` program. What it runs is in `cli/`; in the simulated build there is no program.

#[cfg(not(madsim))]
mod cli;

#[cfg(not(madsim))]
fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(madsim)]
fn main() {
    eprintln!("highwater: this build is for the simulator and serves nothing");
    std::process::exit(2);
}
