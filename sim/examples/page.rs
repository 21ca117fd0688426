//! Makes a page from a life's data: `page LIFE.json PAGE.html`. For work on the page itself, without a life.

#![allow(clippy::disallowed_methods)] // a program of a developer, on real files

use highwater_sim::view;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = paths.as_slice() else { return Err("usage: page LIFE.json PAGE.html".into()) };
    let life: view::data::Life = serde_json::from_slice(&std::fs::read(from)?)?;
    std::fs::write(to, view::html(&life)?)?;
    Ok(())
}
