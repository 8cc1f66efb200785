//! [`Output`]: results on stdout, as text and tables for you or as JSON for programs.

use std::{
    io::{self, IsTerminal, StdoutLock, Write},
    ops::RangeInclusive,
};

use anstream::{AutoStream, ColorChoice};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};
use serde::Serialize;

use super::{error::Result, text};

pub(crate) use super::style::{BAD, BOLD, DIM, GOOD, WARN};

/// One line below the header, and no other lines.
const STYLE: TableStyle = presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─'));

/// The width of a page without a terminal.
const COLUMNS: u16 = 80;

/// The destination of results. Removes colours unless stdout is a terminal that wants them.
pub(crate) struct Output {
    json: bool,
    is_terminal: bool,
    styled: bool,
    stdout: AutoStream<StdoutLock<'static>>,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let styled = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        Self {
            json,
            is_terminal: io::stdout().is_terminal(),
            styled,
            stdout: AutoStream::auto(io::stdout().lock()),
        }
    }

    /// Whether results are for a program (`--json`).
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether stdout is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The maximum number of columns of a line.
    pub(crate) fn width(&self) -> u16 {
        let width = self.is_terminal.then(|| Table::new().width()).flatten();
        width.filter(|columns| *columns > 0).unwrap_or(COLUMNS) // a terminal may not know
    }

    /// Writes one JSON document: indented for a terminal, otherwise on one line.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> Result<()> {
        let json = if self.is_terminal() {
            serde_json::to_string_pretty(document)
        } else {
            serde_json::to_string(document)
        };
        let json = json.map_err(io::Error::from)?;
        writeln!(self, "{}", escaped(&json))?;
        Ok(())
    }

    /// Writes a report as JSON with `--json`, otherwise with `write`.
    pub(crate) fn report<T: Serialize>(
        &mut self,
        report: &T,
        write: impl FnOnce(&T, &mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.json {
            self.document(report)
        } else {
            write(report, self)
        }
    }

    /// Writes a less important line; nothing if the text is empty.
    pub(crate) fn hint(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        Ok(writeln!(self, "{DIM}{text}{DIM:#}")?)
    }

    /// An empty table that fits the terminal. In a pipe, lines have any length.
    pub(crate) fn table<'a>(&self, header: impl IntoIterator<Item = &'a str>) -> Table {
        let mut table = Table::new();
        if self.is_terminal {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(self.width());
        }
        table
            .load_style(STYLE)
            .set_header(header.into_iter().collect::<Vec<_>>());
        if self.styled {
            table.enforce_styling();
        }
        table
    }

    /// Writes a table, without blanks at the ends of its lines.
    pub(crate) fn write_table(&mut self, table: &Table) -> Result<()> {
        writeln!(self, "{}", table.trim_fmt())?;
        Ok(())
    }
}

/// Aligns these columns to the right, for numbers.
pub(crate) fn align_right(table: &mut Table, columns: RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
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
