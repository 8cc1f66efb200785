//! [`Logs`]: the logs, merged by time and sorted.

use std::cmp::Reverse;
use std::path::Path;

use super::formats::Format;
use super::lines::{LineCounts, Lines, ReadLine};
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
    logs: Vec<(Lines, Reader<'a>)>,
    /// The next request of each log; `None` after the last one.
    next: Vec<Option<Request>>,
    pub(super) counts: LineCounts,
    /// Each format, with its time in words and with what to know about it.
    pub(super) formats: Vec<(String, Option<String>)>,
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
            logs.push((lines, reader));
        }
        Ok(Self {
            args,
            mapping,
            logs,
            next: Vec::new(),
            counts: LineCounts::default(),
            formats,
        })
    }

    /// Reads all logs to their ends, merged by time. Gives the requests to `take`.
    pub(super) fn read(&mut self, mut take: impl FnMut(&[Request]) -> Result<()>) -> Result<()> {
        let mut order = Order::new(self.args.reorder, !self.args.no_spread);
        let mut batch = Vec::with_capacity(BATCH);
        for log in 0..self.logs.len() {
            let first = self.read_next(log)?;
            self.next.push(first);
        }
        loop {
            let next = self.next.iter().enumerate();
            let due = next.filter_map(|(at, next)| Some((next.as_ref()?.ms, at)));
            let due = due.min();
            if let Some((_, log)) = due {
                let next = self.read_next(log)?;
                let request = std::mem::replace(&mut self.next[log], next);
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
    fn read_next(&mut self, at: usize) -> Result<Option<Request>> {
        let ((lines, reader), path) = (&mut self.logs[at], &self.args.logs[at]);
        loop {
            let next = lines.next();
            let (number, line) = next.map_err(|error| Error::file(path, &error))?;
            let (line, read) = match line {
                ReadLine::End => return Ok(None),
                ReadLine::TooLong => (&b""[..], Err(Read::Unreadable(TOO_LONG.into()))),
                ReadLine::Text(line) if line.trim_ascii().is_empty() => continue,
                ReadLine::Text(line) => {
                    let place = (at, number);
                    (line, reader.read(line, &mut self.mapping, place, false))
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
                    let (file, is_shown) = (path.display(), counts.shown.len() < SHOWN);
                    let shown = || format!("{file}:{number}: {why}: {}", text::start(line));
                    counts.shown.extend(is_shown.then(shown));
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

/// The result of reading the first lines by one format.
struct Trial<'a, 's> {
    reader: Reader<'a>,
    requests: Vec<Request>,
    /// The lines that do not fit.
    misfits: Vec<&'s [u8]>,
    is_read: bool,
}

/// The format in `--format`, or the one with the most fields that reads nine tenths of the lines.
fn choose<'a>(
    path: &Path,
    sample: &[&[u8]],
    mapping: &mut Mapping,
    args: &'a SimulateArgs,
) -> Result<Reader<'a>> {
    let named = args.format.as_ref();
    let formats = named.map_or_else(|| Ok(Format::all()), |it| Format::of(it))?;
    let trials = formats.into_iter();
    let trials = trials.map(|it| Trial::new(Reader::new(it, mapping, args), sample, mapping));
    let mut trials: Vec<Trial<'_, '_>> = trials.collect();
    // The format that you have named reads what it can.
    let is_sure = named.is_some() || sample.is_empty();
    let fits = |it: &Trial<'_, '_>| sample.len() - it.misfits.len();
    trials.sort_by_key(|it| Reverse((it.is_read, is_sure.then(|| fits(it)), it.reader.known)));
    let best = trials.remove(0);
    if !(is_sure || best.is_read) {
        trials.push(best);
        trials.sort_by_key(|it| Reverse(fits(it)));
        let some = trials.iter().filter(|it| fits(it) > 0);
        let some = some.map(|it| format!("{} reads {}", it.reader.format.name, fits(it)));
        let some: Vec<String> = some.collect();
        return Err(unknown(path, sample.len(), &some, &trials[0].misfits));
    }
    let parts = |it: &Request| (it.ms, it.keys.clone());
    let all = |it: &Trial<'_, '_>| it.requests.iter().map(parts).collect::<Vec<_>>();
    let same = |it: &&Trial<'_, '_>| it.is_read && it.reader.known == best.reader.known;
    let mut others = { trials.iter().filter(same) }.filter(|it| all(it) != all(&best));
    if let Some(other) = others.next().filter(|_| !is_sure) {
        let [one, two] = [&best, other].map(|it| &it.reader.format.name);
        let file = path.display();
        return Err(Error::usage(format_args!(
            "{file}: {one} and {two} read the lines in different ways: name the one with --format NAME"
        )));
    }
    let mut reader = best.reader;
    reader.check(mapping)?;
    reader.needs_status = reader.format.pairs && reader.has_status;
    Ok(reader)
}

impl<'a, 's> Trial<'a, 's> {
    fn new(mut reader: Reader<'a>, sample: &[&'s [u8]], mapping: &mut Mapping) -> Self {
        let (mut requests, mut misfits) = (Vec::new(), Vec::new());
        for line in sample {
            match reader.read(line, mapping, (0, 0), true) {
                Ok(Read::Request(request, false)) => requests.push(request),
                Err(Read::LeftOut) => {}
                _ => misfits.push(*line),
            }
        }
        mapping.forget();
        let is_read = misfits.len() * 10 <= sample.len() && !requests.is_empty();
        Self {
            reader,
            requests,
            misfits,
            is_read,
        }
    }
}

fn unknown(path: &Path, lines: usize, some: &[String], misfits: &[&[u8]]) -> Error {
    let none = || format!("none of {} reads one", Format::all_names());
    let some = Some(some.join(", ")).filter(|it| !it.is_empty());
    let (file, some) = (path.display(), some.unwrap_or_else(none));
    let shown = misfits.iter().take(3);
    let shown: String = shown.map(|it| format!("\n  {}", text::start(it))).collect();
    let help = include_str!("unknown.txt").trim_end();
    Error::usage(format_args!(
        "{file}: no known format fits nine tenths of the first {lines} lines: {some}. Lines that do not fit:{shown}\n{help}"
    ))
}
