//! [`Logs`]: the logs, merged by time and sorted.

use super::choose::choose;
use super::lines::{Counts, Line, Lines};
use super::options::SimulateArgs;
use super::order::Order;
use super::reader::{Read, Reader};
use super::request::{Mapping, Request};
use crate::{Error, Result, text};

/// The number of requests that are replayed at once.
const BATCH: usize = 4_096;

/// The number of lines that a format is chosen by.
const SAMPLE: usize = 1_000;

/// The maximum number of unreadable lines to show.
const SHOWN: usize = 5;

const TOO_LONG: &str = "the line is longer than 64 KiB";

/// The logs to read.
pub(super) struct Logs<'a> {
    args: &'a SimulateArgs,
    pub(super) mapping: Mapping,
    logs: Vec<Log<'a>>,
    pub(super) counts: Counts,
    /// Each format, with its time in words and with what to know about it.
    pub(super) formats: Vec<(String, Option<String>)>,
}

struct Log<'a> {
    lines: Lines,
    reader: Reader<'a>,
    /// `None` after the last request.
    next: Option<Request>,
}

impl<'a> Logs<'a> {
    pub(super) fn open(args: &'a SimulateArgs, mut mapping: Mapping) -> Result<Self> {
        let (mut logs, mut formats) = (Vec::new(), Vec::new());
        for path in &args.logs {
            let lines = Lines::open(path)?;
            let reader = choose(path, &lines.sample(SAMPLE), &mut mapping, args)?;
            let words = format!("{}, by {}", reader.format.name, reader.words);
            let format = (words, reader.format.note.clone());
            if !(reader.words.is_empty() || formats.contains(&format)) {
                formats.push(format);
            }
            let next = None;
            logs.push(Log {
                lines,
                reader,
                next,
            });
        }
        let counts = Counts::default();
        Ok(Self {
            args,
            mapping,
            logs,
            counts,
            formats,
        })
    }

    /// Reads all logs to their ends, merged by time. Gives the requests to `take`.
    pub(super) fn read(&mut self, mut take: impl FnMut(&[Request]) -> Result<()>) -> Result<()> {
        let mut order = Order::new(self.args.reorder, !self.args.no_spread);
        let mut batch = Vec::with_capacity(BATCH);
        for log in 0..self.logs.len() {
            self.logs[log].next = self.next(log)?;
        }
        loop {
            let logs = self.logs.iter().enumerate();
            let due = logs.filter_map(|(at, log)| Some((log.next.as_ref()?.ms, at)));
            let due = due.min();
            if let Some((_, log)) = due {
                let next = self.next(log)?;
                let request = std::mem::replace(&mut self.logs[log].next, next);
                request.into_iter().for_each(|it| order.push(it));
            }
            let is_over = due.is_none();
            while let Some(requests) = if is_over { order.pop() } else { order.ready() } {
                batch.extend(requests);
                if batch.len() >= BATCH {
                    take(&batch)?;
                    batch.clear();
                }
            }
            if is_over {
                self.counts.late = order.late;
                return take(&batch);
            }
        }
    }

    /// Reads one more request of a log.
    fn next(&mut self, at: usize) -> Result<Option<Request>> {
        let (log, path) = (&mut self.logs[at], &self.args.logs[at]);
        loop {
            let next = log.lines.next();
            let (number, line) = next.map_err(|error| Error::file(path, &error))?;
            let (line, read) = match line {
                Line::End => return Ok(None),
                Line::TooLong => (&b""[..], Err(Read::Unreadable(TOO_LONG.into()))),
                Line::Text(line) if line.trim_ascii().is_empty() => continue,
                Line::Text(line) => {
                    let place = (at, number);
                    (line, log.reader.read(line, &mut self.mapping, place, false))
                }
            };
            let counts = &mut self.counts;
            counts.read += 1;
            match read.unwrap_or_else(|other| other) {
                Read::Request(request, is_loose) => {
                    counts.loose += u64::from(is_loose);
                    return Ok(Some(request));
                }
                Read::Filtered => counts.filtered += 1,
                Read::LeftOut => counts.left_out += 1,
                Read::Unreadable(why) => {
                    counts.unreadable += 1;
                    if counts.shown.len() < SHOWN {
                        let (file, short) = (path.display(), text::start(line));
                        counts
                            .shown
                            .push(format!("{file}:{number}: {why}: {short}"));
                    }
                }
            }
        }
    }

    /// Prints the unreadable lines on stderr.
    pub(super) fn report(&self) {
        for line in &self.counts.shown {
            anstream::eprintln!("{line}");
        }
        let more = self.counts.unreadable - self.counts.shown.len() as u64;
        if more > 0 {
            anstream::eprintln!("… and {more} more lines that cannot be read");
        }
    }
}
