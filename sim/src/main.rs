//! `highwater-sim`: the simulator's commands.

#[cfg(not(madsim))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "highwater-sim: this build has no simulator in it (it was compiled without --cfg madsim). Use `cargo sim …`; \
         if you did, an environment RUSTFLAGS overrides what the alias sets: unset it, or add `--cfg madsim` to it."
    );
    std::process::ExitCode::from(2)
}

#[cfg(madsim)]
fn main() -> std::process::ExitCode {
    highwater_sim::cli::main()
}
