//! [`Reading`]: the logs, merged by time and sorted.

use serde::Serialize;

use super::lines::{Line, Lines};
use super::options::SimulateArgs;
use super::order::Order;
use super::record::{Field, Record};
use super::request::{Mapping, Request};
use crate::{Error, Result, text};

/// The number of requests that a thread receives at once.
const BATCH: usize = 2_048;

/// The maximum number of unreadable lines to show.
const SHOWN: usize = 5;

/// The number of lines, by their fate.
#[derive(Default, Serialize)]
pub(super) struct Counts {
    pub(super) read: u64,
    /// The lines without the prefix in --path.
    pub(super) filtered: u64,
    /// The lines that are later than --reorder allows, and that are replayed in the first second to come.
    pub(super) late: u64,
    pub(super) unreadable: u64,
    /// The first unreadable lines, each with its place and the problem.
    #[serde(skip)]
    shown: Vec<String>,
}

/// The logs to read.
pub(super) struct Reading<'a> {
    args: &'a SimulateArgs,
    mapping: &'a Mapping,
    time: Field,
    path: Field,
    logs: Vec<Log>,
    pub(super) counts: Counts,
}

struct Log {
    lines: Lines,
    /// `None` after the last request.
    next: Option<Request>,
}

impl<'a> Reading<'a> {
    pub(super) fn open(args: &'a SimulateArgs, mapping: &'a Mapping) -> Result<Self> {
        let logs = args.logs.iter().map(|path| {
            let (lines, next) = (Lines::open(path)?, None);
            Ok(Log { lines, next })
        });
        Ok(Self {
            args,
            mapping,
            time: Field::new(&args.time),
            path: Field::new("path"),
            logs: logs.collect::<Result<_>>()?,
            counts: Counts::default(),
        })
    }

    /// Reads all logs to their ends, merged by time, or until `send` returns false.
    pub(super) fn read(&mut self, send: &mut dyn FnMut(Vec<Request>) -> bool) -> Result<()> {
        let mut order = Order::new(self.args.reorder, !self.args.no_spread);
        let mut batch = Vec::with_capacity(BATCH);
        for log in 0..self.logs.len() {
            self.logs[log].next = self.next(log)?;
        }
        loop {
            let logs = self.logs.iter().enumerate();
            let due = logs.filter_map(|(at, log)| Some((log.next.as_ref()?.ms, at)));
            let Some((_, log)) = due.min() else { break };
            let next = self.next(log)?;
            if let Some(request) = std::mem::replace(&mut self.logs[log].next, next) {
                order.push(request);
            }
            while let Some(requests) = order.ready() {
                batch.extend(requests);
            }
            if batch.len() >= BATCH && !send(std::mem::take(&mut batch)) {
                return Ok(());
            }
        }
        while let Some(requests) = order.pop() {
            batch.extend(requests);
            if batch.len() >= BATCH && !send(std::mem::take(&mut batch)) {
                return Ok(());
            }
        }
        self.counts.late = order.late;
        send(batch);
        Ok(())
    }

    /// Reads one more request of a log.
    fn next(&mut self, at: usize) -> Result<Option<Request>> {
        let log = &mut self.logs[at];
        let (prefix, field) = (&self.args.path, &self.path);
        let is_chosen = |record: &Record<'_>| {
            let value = record.get(field).unwrap_or_default();
            prefix
                .as_ref()
                .is_none_or(|prefix| value.starts_with(prefix.as_bytes()))
        };
        let path = &self.args.logs[at];
        loop {
            let (number, line) = log
                .lines
                .next()
                .map_err(|error| Error::file(path, &error))?;
            let line = match line {
                Line::End => return Ok(None),
                Line::TooLong => Err((&b""[..], "the line is longer than 64 KiB")),
                Line::Text(line) if line.trim_ascii().is_empty() => continue,
                Line::Text(line) => Ok(line),
            };
            self.counts.read += 1;
            let read = line.and_then(|line| {
                let record = Record::read(line).map_err(|why| (line, why))?;
                let stamp = record.stamp(&self.time).map_err(|why| (line, why))?;
                Ok((record, stamp))
            });
            match read {
                Ok((record, _)) if !is_chosen(&record) => {
                    self.counts.filtered += 1;
                }
                Ok((record, stamp)) => {
                    return Ok(Some(self.mapping.request(&record, stamp, at, number)));
                }
                Err((line, why)) => {
                    self.counts.unreadable += 1;
                    if self.counts.shown.len() < SHOWN {
                        // Cut the line before converting it: it may have 64 KiB.
                        let text = text::printable(&line[..line.len().min(200)]);
                        let short: String = text.chars().take(100).collect();
                        let file = path.display();
                        let shown = format!("{file}:{number}: {why}: {short}");
                        self.counts.shown.push(shown);
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
