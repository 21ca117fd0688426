//! Stdout of the offline tools: a reader that goes away ends the output, not the program with an error.

use std::io::{self, ErrorKind, Write};

/// What is printed, and whether somebody still reads it.
pub struct Output<W> {
    to: W,
    pub open: bool,
    failed: Option<io::Error>,
}

impl<W: Write> Output<W> {
    pub fn new(to: W) -> Self {
        Output { to, open: true, failed: None }
    }

    pub fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if self.open {
            let done = self.to.write_fmt(line).and_then(|()| self.to.write_all(b"\n"));
            self.done(done);
        }
    }

    /// Ends it. An error if output was lost although somebody read it (a full disk).
    pub fn finish(mut self) -> io::Result<()> {
        if self.open {
            let done = self.to.flush();
            self.done(done);
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn done(&mut self, done: io::Result<()>) {
        if let Err(e) = done {
            self.open = false;
            self.failed = (e.kind() != ErrorKind::BrokenPipe).then_some(e);
        }
    }
}

/// Prints one line to an [`Output`].
macro_rules! say {
    ($out:expr, $($what:tt)*) => { $out.line(format_args!($($what)*)) };
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is() {
        let mut gone = Output::new(Failing(ErrorKind::BrokenPipe));
        say!(gone, "a");
        assert!(!gone.open);
        assert!(gone.finish().is_ok());
        let mut full = Output::new(Failing(ErrorKind::StorageFull));
        say!(full, "a");
        assert!(full.finish().is_err());
    }
}
