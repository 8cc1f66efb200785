//! [`Output`]: results on stdout, as text and tables for you or as JSON for programs.

use std::io::{self, IsTerminal, StdoutLock, Write};

use anstream::AutoStream;
use anstyle::Style;
use serde::Serialize;

pub(crate) use super::style::{BAD, BOLD, DIM, GOOD, WARN};
use super::{error::Result, table::Table, text};

/// The width of a page without a terminal.
const COLUMNS: usize = 80;

/// The destination of results. Removes colours unless stdout is a terminal that wants them.
pub(crate) struct Output {
    /// Whether results are for a program (`--json`).
    pub(crate) is_json: bool,
    /// Whether stdout is a terminal.
    pub(crate) is_terminal: bool,
    stdout: AutoStream<StdoutLock<'static>>,
}

impl Output {
    pub(crate) fn new(is_json: bool) -> Self {
        Self {
            is_json,
            is_terminal: io::stdout().is_terminal(),
            stdout: AutoStream::auto(io::stdout().lock()),
        }
    }

    /// The maximum number of columns of a line.
    pub(crate) fn width(&self) -> usize {
        let size = self.is_terminal.then(terminal_size::terminal_size);
        let width = size.flatten().map(|(width, _)| width.0.into());
        width.filter(|columns| *columns > 0).unwrap_or(COLUMNS) // a terminal may not know
    }

    /// Writes one JSON document: indented for a terminal, otherwise on one line.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> Result<()> {
        let json = match self.is_terminal {
            true => serde_json::to_string_pretty(document),
            false => serde_json::to_string(document),
        };
        self.line(escaped(&json.map_err(io::Error::from)?))
    }

    /// Writes a report as JSON with `--json`, otherwise with `write`.
    pub(crate) fn report<T: Serialize>(
        &mut self,
        report: &T,
        write: impl FnOnce(&T, &mut Self) -> Result<()>,
    ) -> Result<()> {
        match self.is_json {
            true => self.document(report),
            false => write(report, self),
        }
    }

    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> Result<()> {
        Ok(writeln!(self.stdout, "{}", line.as_ref())?)
    }

    pub(crate) fn warn(&mut self, line: impl AsRef<str>) -> Result<()> {
        self.styled(WARN, line.as_ref())
    }

    pub(crate) fn styled(&mut self, style: Style, line: &str) -> Result<()> {
        self.line(format!("{style}{line}{style:#}"))
    }

    /// Writes a less important line; nothing if the text is empty.
    pub(crate) fn hint(&mut self, text: &str) -> Result<()> {
        match text {
            "" => Ok(()),
            text => self.styled(DIM, text),
        }
    }

    /// Writes a table that fits the terminal. In a pipe, lines have any length.
    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let page = match self.is_terminal {
            true => self.width(),
            false => usize::MAX,
        };
        match table.rows.is_empty() {
            true => Ok(()),
            false => self.line(table.text(page).trim_end_matches('\n')),
        }
    }
}

/// The same JSON with control characters for terminals written as `\u…`. These occur only within strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && text::is_unsafe(c) {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stdout.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_without_what_a_terminal_obeys() {
        let label = "a\u{202e}\u{9b}31m\u{7f}ä\n";
        let json = serde_json::to_string_pretty(&[label]).unwrap();
        let escaped = escaped(&json);
        assert_eq!(escaped, "[\n  \"a\\u202e\\u009b31m\\u007fä\\n\"\n]");
        assert_eq!(
            serde_json::from_str::<[String; 1]>(&escaped).unwrap(),
            [label]
        );
    }
}
