//! [`Table`]: titles of columns and rows of cells, as text or as HTML.

use std::fmt::Write;

use anstyle::Style;

use super::PLAIN;
use super::text::grouped;

/// Between two columns.
const GAP: &str = "   ";

/// A list for you. Numbers are aligned to the right, and so are the titles above them.
pub(crate) struct Table {
    titles: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

#[derive(Default)]
pub(crate) struct Cell {
    text: String,
    is_right: bool,
    style: Style,
    /// For HTML: the length of a bar behind the text, in thousandths of the cell.
    bar: u64,
}

impl Cell {
    /// Text that is aligned like a number.
    pub(crate) fn right(text: impl Into<String>) -> Self {
        let (is_right, cell) = (true, Self::from(text.into()));
        Self { is_right, ..cell }
    }

    pub(crate) fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }

    /// Adds a bar for a part of the most that a column has.
    pub(crate) fn bar(self, part: u64, most: u64) -> Self {
        let bar = part * 1_000 / most.max(1);
        Self { bar, ..self }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        let plain = Self::default();
        Self { text, ..plain }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::right(grouped(number))
    }
}

impl Table {
    pub(crate) fn new(titles: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            titles: titles.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// The characters that a page has for the last column.
    pub(crate) fn room(&self, page: usize) -> usize {
        let (widths, last) = (self.widths(), self.titles.len() - 1);
        let others: usize = widths[..last].iter().map(|it| it + GAP.len()).sum();
        page.saturating_sub(others + 4)
    }

    /// Fills the last column.
    pub(crate) fn fill(&mut self, cells: impl Iterator<Item = String>) {
        for (row, cell) in self.rows.iter_mut().zip(cells) {
            row.pop();
            row.push(cell.into());
        }
    }

    /// Shortens the cells of the first column, so that each row takes one line, but none to fewer characters than
    /// `least` says.
    pub(crate) fn shorten(&mut self, page: usize, least: impl Fn(&str) -> usize) {
        let others: usize = self.widths()[1..].iter().map(|it| it + GAP.len()).sum();
        let room = page.saturating_sub(others + 4).max(12);
        for Cell { text, .. } in self.rows.iter_mut().filter_map(|row| row.first_mut()) {
            let room = room.max(least(text));
            if text.chars().count() > room {
                *text = text.chars().take(room - 1).chain(['…']).collect();
            }
        }
    }

    /// The width of each column.
    fn widths(&self) -> Vec<usize> {
        let titles = self.titles.iter().map(|title| title.chars().count());
        let widths = titles.enumerate().map(|(column, title)| {
            let cells = self.rows.iter().map(|row| row[column].text.chars().count());
            cells.max().unwrap_or(0).max(title)
        });
        widths.collect()
    }

    /// The table as lines of at most `page` characters, if it can be done by breaking cells at blanks.
    pub(crate) fn text(&self, page: usize) -> String {
        let mut widths = self.widths();
        let longest = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].text.as_str());
            let cells = cells.chain([self.titles[column]]);
            let words = cells.flat_map(|text| text.split(' '));
            words.map(|word| word.chars().count()).max().unwrap_or(0)
        };
        let least: Vec<usize> = (0..widths.len()).map(longest).collect();
        let whole = |widths: &[usize], gap: &str| {
            widths.iter().sum::<usize>() + widths.len() * gap.len() + 1
        };
        let gap = [GAP, "  "][usize::from(whole(&widths, GAP) > page)];
        while whole(&widths, gap) > page {
            let wide = (0..widths.len()).filter(|it| widths[*it] > least[*it]);
            let Some(widest) = wide.max_by_key(|it| widths[*it]) else {
                break;
            };
            widths[widest] -= 1;
        }
        let titles = self.titles.iter().enumerate().map(|(column, title)| {
            let is_right = self.rows.first().is_some_and(|row| row[column].is_right);
            let cell = Cell::from(*title);
            Cell { is_right, ..cell }
        });
        let mut text = line(&titles.collect::<Vec<_>>(), &widths, gap);
        let _ = writeln!(text, "{}", "─".repeat(whole(&widths, gap)));
        for row in &self.rows {
            text += &line(row, &widths, gap);
        }
        text
    }

    /// The table as HTML.
    pub(crate) fn html(&self) -> String {
        let mut html = "<div class=\"scroll\"><table>\n<tr>".to_owned();
        let first = self.rows.first();
        for (column, title) in self.titles.iter().enumerate() {
            let class = first.map_or("", |row| row[column].class());
            let _ = write!(html, "<th class=\"{class}\">{title}");
        }
        for row in &self.rows {
            html += "</tr>\n<tr>";
            for cell in row {
                let (class, text) = (cell.class(), escaped(&cell.text));
                let style = match (cell.style == PLAIN, cell.style == super::style::WARN) {
                    (true, _) => "",
                    (_, true) => " shadow",
                    _ => " real",
                };
                let _ = write!(html, "<td class=\"{class}{style}\"");
                if cell.bar > 0 {
                    let (percent, rest) = (cell.bar / 10, cell.bar % 10);
                    let _ = write!(html, " style=\"background-size:{percent}.{rest}% 60%\"");
                }
                let _ = write!(html, ">{text}");
            }
        }
        html + "</tr>\n</table></div>\n"
    }
}

impl Cell {
    fn class(&self) -> &'static str {
        if self.is_right { "number" } else { "" }
    }
}

/// Escapes text from a log or a file, which may contain HTML.
pub(crate) fn escaped(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// One row, with a line for each part of its most broken cell.
fn line(row: &[Cell], widths: &[usize], gap: &str) -> String {
    let cells = row.iter().zip(widths);
    let parts = cells.map(|(cell, width)| broken(&cell.text, *width));
    let parts: Vec<Vec<String>> = parts.collect();
    let mut lines = String::new();
    for at in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
        let mut line = "  ".to_owned();
        for ((cell, parts), width) in row.iter().zip(&parts).zip(widths) {
            let part = parts.get(at).map_or("", String::as_str);
            let blanks = " ".repeat(width.saturating_sub(part.chars().count()));
            let (before, after) = if cell.is_right {
                (&*blanks, "")
            } else {
                ("", &*blanks)
            };
            let style = if part.is_empty() { PLAIN } else { cell.style };
            let _ = write!(line, "{before}{style}{part}{style:#}{after}{gap}");
        }
        lines += &line.trim_end().replace('\u{a0}', " ");
        lines.push('\n');
    }
    lines
}

/// Breaks a text at blanks into lines of a width, if its words are no longer, but not at `\u{a0}`.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + length <= width => {
                *line += &format!(" {word}")
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BAD;

    #[test]
    fn no_line_ends_with_a_blank() {
        let mut table = Table::new(["identity", "denied for"]);
        table.row(["user=alice".into(), Cell::from("").style(BAD)]);
        let text = anstream::adapter::strip_str(&table.text(80)).to_string();
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
    }
}
