//! The page that shows one life: one HTML file that needs nothing else, for the person with a failing seed.
//!
//! ```text
//! data   what a page shows, in the form that the page reads
//! page   the page itself: HTML, style and script, made one file
//! ```
//!
//! The page shows what the history and the volume's model tell, with true time. It decides nothing: that a
//! promise is broken, and which events led there, comes from the checkers.

pub mod data;
mod page;

pub use page::html;
