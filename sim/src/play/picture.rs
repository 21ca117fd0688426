//! A segment as a strip of characters: a cell stands for some bytes and shows the worst of what is in it.

use crate::view::strip::{Stored, Track, Where, PAGE};

/// How the strips look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Letters only.
    Plain,
    /// Colours and blocks (ANSI escape codes).
    Colour,
}

/// What a cell shows, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Empty,
    Disk,
    Drive,
    Cache,
    Torn,
    Lost,
}

impl Cell {
    fn plain(self) -> char {
        match self {
            Cell::Empty => ' ',
            Cell::Disk => '#',
            Cell::Drive => '+',
            Cell::Cache => '~',
            Cell::Torn => 'x',
            Cell::Lost => '.',
        }
    }

    /// Foreground and background of a terminal's 256 colours, and the character: told apart without colours, too.
    fn colour(self) -> (u8, u8, char) {
        match self {
            Cell::Empty => (0, 0, ' '),
            Cell::Disk => (15, 29, ' '),
            Cell::Drive => (16, 74, '∙'),
            Cell::Cache => (16, 178, '╱'),
            Cell::Torn => (16, 166, '╳'),
            Cell::Lost => (244, 0, '·'),
        }
    }
}

/// The legend, one line.
pub fn legend(style: Style) -> String {
    let names = [
        (Cell::Disk, "on disk"),
        (Cell::Cache, "only in the page cache"),
        (Cell::Drive, "handed over, not yet durable"),
        (Cell::Torn, "torn"),
        (Cell::Lost, "lost"),
    ];
    let mut parts: Vec<String> =
        names.iter().map(|(c, name)| format!("{} {name}", paint(*c, false, style))).collect();
    parts.push(format!("{} end of a batch", line(style)));
    parts.push("' page".into());
    parts.join("  ")
}

fn line(style: Style) -> char {
    match style {
        Style::Plain => '|',
        Style::Colour => '▏',
    }
}

fn paint(cell: Cell, batch: bool, style: Style) -> String {
    match style {
        Style::Plain if batch => "|".into(),
        Style::Plain => cell.plain().into(),
        Style::Colour => {
            let (fore, back, glyph) = cell.colour();
            let (fore, glyph) = if batch { (15, '▏') } else { (fore, glyph) };
            let back = if back == 0 { "49".into() } else { format!("48;5;{back}") };
            format!("\x1b[38;5;{fore};{back}m{glyph}\x1b[0m")
        }
    }
}

/// Draws one segment, `width` cells wide at most: its name and size, the strip, the pages.
pub fn segment(name: &str, track: &Track, width: usize, style: Style) -> Vec<String> {
    let runs = track.with_lost();
    let end = runs.last().map_or(0, |r| r.to);
    let each = scale(end, width);
    let batches: Vec<&Stored> = track.batches().collect();
    let torn = batches.iter().any(|b| b.torn);
    let whole = batches.iter().filter(|b| !b.torn).count();
    let records: u64 = batches.iter().filter(|b| !b.torn).map(|b| b.count).sum();
    let tail = if torn { ", then a torn one" } else { "" };
    let head = format!("{name}: {} bytes, {whole} batches of {records} records{tail}", track.len);
    let cells = end.div_ceil(each);
    let mut strip = String::new();
    let mut ticks = String::new();
    for n in 0..cells {
        let (from, to) = (n * each, (n + 1) * each);
        let here = runs.iter().filter(|r| r.from < to && r.to > from).map(|r| cell(r.at)).max();
        let bad = batches.iter().any(|b| b.torn && b.pos < to && b.pos + b.len > from);
        let here = here.unwrap_or(Cell::Empty);
        let here = if bad && here < Cell::Torn { Cell::Torn } else { here };
        // The cell in which the next batch begins.
        let begins = n > 0 && batches.iter().any(|b| (from..to).contains(&b.pos));
        strip.push_str(&paint(here, begins && here != Cell::Lost, style));
        ticks.push(if from.div_ceil(PAGE) * PAGE < to { '\'' } else { ' ' });
    }
    vec![head, strip, ticks.trim_end().to_owned()]
}

fn cell(at: Where) -> Cell {
    match at {
        Where::Disk => Cell::Disk,
        Where::Server => Cell::Drive,
        Where::Host => Cell::Cache,
        Where::Lost => Cell::Lost,
        Where::Nowhere => Cell::Empty,
    }
}

/// Bytes per cell: a power of two, so that pages keep their places.
fn scale(end: u64, width: usize) -> u64 {
    let mut each = 256;
    while end.div_ceil(each) > width.max(8) as u64 {
        each *= 2;
    }
    each
}
