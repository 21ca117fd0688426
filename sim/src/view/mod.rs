//! The page that shows one life: one HTML file that needs nothing else, for the person with a failing seed.
//!
//! ```text
//! story    one life, as the page tells it
//! items    the history's events on the lanes
//! stalls   when a broker was stalled
//! collect  watches the volume while the life goes on
//! strip    one file's bytes over time
//! data     what a page shows, in the form that the page reads
//! page     the page itself: HTML, style and script, made one file
//! ```
//!
//! The page shows what the history and the volume's model tell, with true time. It decides nothing: that a
//! promise is broken, and which events led there, comes from the checkers.

#[cfg(madsim)]
mod collect;
pub mod data;
#[cfg(madsim)]
mod items;
mod page;
#[cfg(madsim)]
mod stalls;
#[cfg(madsim)]
mod story;
#[cfg(madsim)]
pub mod strip;

#[cfg(madsim)]
pub use collect::{Collector, Home, Seen};
pub use page::html;
#[cfg(madsim)]
pub use story::{life, title, About};
