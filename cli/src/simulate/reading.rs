//! [`Reading`]: the logs, merged by time and sorted.

use std::collections::VecDeque;

use indicatif::ProgressBar;
use serde::Serialize;

use super::{
    super::{
        error::{Error, Result},
        text,
    },
    lines::{Line, Lines},
    options::SimulateArgs,
    order::{LAST, Order},
    record::{Field, Record},
    request::{Mapping, Request},
};

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
    /// The next requests of this log: enough that fewer than half may have wrong dates.
    ahead: VecDeque<Request>,
}

impl Log {
    /// The time of the next request, to merge the logs by.
    fn due_ms(&self) -> Option<u64> {
        let next = self.ahead.front()?;
        // Take a request with a wrong date at once, because it must not delay those behind it.
        Some(if self.is_next_wrong() { 0 } else { next.ms })
    }

    /// Whether the date of the next request is wrong: most requests behind it are earlier.
    fn is_next_wrong(&self) -> bool {
        let next_ms = self.ahead.front().map_or(0, |request| request.ms);
        let earlier = self
            .ahead
            .iter()
            .filter(|request| request.ms < next_ms)
            .count();
        earlier > self.ahead.len().saturating_sub(1) / 2
    }
}

impl<'a> Reading<'a> {
    pub(super) fn open(
        args: &'a SimulateArgs,
        mapping: &'a Mapping,
        bar: &ProgressBar,
    ) -> Result<Self> {
        let logs = args.logs.iter().map(|path| {
            let lines = Lines::open(path, bar)?;
            Ok(Log {
                lines,
                ahead: VecDeque::new(),
            })
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
        // Fill the look-ahead first, since it shows which dates are wrong.
        for log in 0..self.logs.len() {
            while self.logs[log].ahead.len() < LAST && self.advance(log)? {}
        }
        loop {
            let logs = self.logs.iter().enumerate();
            let due = logs.filter_map(|(at, log)| Some((log.due_ms()?, at)));
            let Some((_, log)) = due.min() else { break };
            let is_wrong = self.logs[log].is_next_wrong();
            if let Some(request) = self.logs[log].ahead.pop_front() {
                order.push(request, !is_wrong);
            }
            self.advance(log)?;
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

    /// Reads one more request of a log. Returns whether there was one.
    fn advance(&mut self, at: usize) -> Result<bool> {
        let log = &mut self.logs[at];
        let path = &self.args.logs[at];
        loop {
            let (number, line) = log
                .lines
                .next()
                .map_err(|error| Error::file(path, &error))?;
            let line = match line {
                Line::End => return Ok(false),
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
                Ok((record, _)) if !chosen(&record, &self.path, self.args.path.as_deref()) => {
                    self.counts.filtered += 1
                }
                Ok((record, stamp)) => {
                    let request = self.mapping.request(&record, stamp, at, number);
                    log.ahead.push_back(request);
                    return Ok(true);
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

fn chosen(record: &Record<'_>, field: &Field, prefix: Option<&str>) -> bool {
    prefix.is_none_or(|prefix| {
        record
            .get(field)
            .is_some_and(|path| path.starts_with(prefix.as_bytes()))
    })
}
