//! Where commands come from and pictures go.

use super::picture::Style;
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr, OptionalActions, Termios};
use std::io::{self, BufRead, Read, Write};

/// What a player may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// So many batches.
    Produce(u32),
    /// So many seconds.
    Wait(u32),
    Cut,
    Restart,
    /// `None`: never.
    FlushEvery(Option<u64>),
    Quit,
}

pub const KEYS: &str = "p produce  w let time pass  c cut the power  r restart  f flush every …  q quit";

/// A place to play from.
pub trait Front: Send + 'static {
    /// The next command; waits in real time. `dial` is what `f` starts from. `Err`: what was said is none.
    fn next(&mut self, dial: Option<u64>) -> Result<Command, String>;
    /// Shows a picture, made of lines.
    fn show(&mut self, lines: &[String]);
    fn style(&self) -> Style;
    /// Columns.
    fn width(&self) -> usize;
}

/// A line each: `p [batches]`, `w [seconds]`, `c`, `r`, `f [records|off]`, `q`. The end of the input quits.
pub struct Plain<R, W> {
    input: R,
    output: W,
}

impl<R, W> Plain<R, W> {
    pub fn new(input: R, output: W) -> Self {
        Plain { input, output }
    }
}

impl<R: BufRead + Send + 'static, W: Write + Send + 'static> Front for Plain<R, W> {
    fn next(&mut self, dial: Option<u64>) -> Result<Command, String> {
        let mut text = String::new();
        match self.input.read_line(&mut text) {
            Ok(0) | Err(_) => Ok(Command::Quit),
            Ok(_) => parse(text.trim(), dial),
        }
    }

    fn show(&mut self, lines: &[String]) {
        // Whoever reads may have gone away; the next command then is the end of the input.
        let _ = writeln!(self.output, "{}\n", lines.join("\n")).and_then(|()| self.output.flush());
    }

    fn style(&self) -> Style {
        Style::Plain
    }

    fn width(&self) -> usize {
        96
    }
}

fn parse(text: &str, dial: Option<u64>) -> Result<Command, String> {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let none = || format!("{text:?} is no command ({KEYS})");
    let number = |default: u32| match rest {
        "" => Ok(default),
        n => n.parse::<u32>().ok().filter(|n| (1..=1000).contains(n)).ok_or_else(none),
    };
    match word {
        "p" => number(1).map(Command::Produce),
        "w" => number(1).map(Command::Wait),
        "c" if rest.is_empty() => Ok(Command::Cut),
        "r" if rest.is_empty() => Ok(Command::Restart),
        "q" if rest.is_empty() => Ok(Command::Quit),
        "f" if rest.is_empty() => Ok(Command::FlushEvery(turned(dial))),
        "f" if rest == "off" => Ok(Command::FlushEvery(None)),
        "f" => rest.parse().ok().filter(|n| *n > 0).map(|n| Command::FlushEvery(Some(n))).ok_or_else(none),
        _ => Err(none()),
    }
}

/// The dial's next stop: off, 1, 10, off.
fn turned(dial: Option<u64>) -> Option<u64> {
    match dial {
        None => Some(1),
        Some(1) => Some(10),
        Some(_) => None,
    }
}

/// A terminal, which gives single keys while this lives.
pub struct Terminal {
    before: Termios,
}

impl Terminal {
    pub fn open() -> io::Result<Terminal> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        // The other screen, without cursor.
        print!("\x1b[?1049h\x1b[?25l");
        Ok(Terminal { before })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        print!("\x1b[?25h\x1b[?1049l");
        let _ = io::stdout().flush();
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

impl Front for Terminal {
    fn next(&mut self, dial: Option<u64>) -> Result<Command, String> {
        let mut key = [0];
        match io::stdin().read(&mut key) {
            // Control-C and Control-D come as keys.
            Ok(0) | Err(_) => Ok(Command::Quit),
            Ok(_) if matches!(key[0], 3 | 4 | 27) => Ok(Command::Quit),
            Ok(_) => parse(&char::from(key[0]).to_string(), dial),
        }
    }

    fn show(&mut self, lines: &[String]) {
        print!("\x1b[2J\x1b[H{}\r\n", lines.join("\r\n"));
        let _ = io::stdout().flush();
    }

    fn style(&self) -> Style {
        Style::Colour
    }

    fn width(&self) -> usize {
        tcgetwinsize(io::stdout()).map_or(80, |w| usize::from(w.ws_col).max(20)) - 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_or_says_why_not() {
        assert_eq!(parse("p", None), Ok(Command::Produce(1)));
        assert_eq!(parse("p 12", None), Ok(Command::Produce(12)));
        assert_eq!(parse("f", Some(1)), Ok(Command::FlushEvery(Some(10))));
        assert_eq!(parse("f off", Some(1)), Ok(Command::FlushEvery(None)));
        for wrong in ["", "x", "p 0", "p x", "c 1", "f 0", "w 1001"] {
            assert!(parse(wrong, None).is_err(), "{wrong}");
        }
    }
}
