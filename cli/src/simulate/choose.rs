//! Chooses the format of a log by its first lines.

use std::cmp::Reverse;
use std::path::Path;

use super::formats::Format;
use super::options::SimulateArgs;
use super::reader::{Read, Reader};
use super::request::{Mapping, Request};
use crate::{Error, Result, text};

/// The maximum number of lines to show.
const SHOWN: usize = 3;

/// The result of reading the first lines by one format.
struct Trial<'a, 's> {
    reader: Reader<'a>,
    requests: Vec<Request>,
    /// The lines that do not fit.
    misfits: Vec<&'s [u8]>,
    is_read: bool,
}

/// The format in `--format`, or the one with the most fields that reads nine tenths of the lines.
pub(super) fn choose<'a>(
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
        let some = some.map(|it| format!("{} reads {}", it.name(), fits(it)));
        let some: Vec<String> = some.collect();
        return Err(unknown(path, sample.len(), &some, &trials[0].misfits));
    }
    let parts = |it: &Request| (it.ms, it.keys.clone());
    let all = |it: &Trial<'_, '_>| it.requests.iter().map(parts).collect::<Vec<_>>();
    let same = |it: &&Trial<'_, '_>| it.is_read && it.reader.known == best.reader.known;
    let mut others = { trials.iter().filter(same) }.filter(|it| all(it) != all(&best));
    if let Some(other) = others.next().filter(|_| !is_sure) {
        let (file, one, two) = (path.display(), best.name(), other.name());
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

    fn name(&self) -> &str {
        &self.reader.format.name
    }
}

fn unknown(path: &Path, lines: usize, some: &[String], misfits: &[&[u8]]) -> Error {
    let none = || format!("none of {} reads one", Format::all_names());
    let some = Some(some.join(", ")).filter(|it| !it.is_empty());
    let (file, some) = (path.display(), some.unwrap_or_else(none));
    let shown = misfits.iter().take(SHOWN);
    let shown: String = shown.map(|it| format!("\n  {}", text::start(it))).collect();
    let help = include_str!("unknown.txt").trim_end();
    Error::usage(format_args!(
        "{file}: no known format fits nine tenths of the first {lines} lines: {some}. Lines that do not fit:{shown}\n{help}"
    ))
}
