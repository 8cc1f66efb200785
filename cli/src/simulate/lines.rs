//! [`Lines`]: reads a file, stdin or a gzip archive line by line. Lines longer than 64 KiB are skipped.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use serde::Serialize;

use crate::{Error, Result};

/// No server accepts a request that leads to a longer line.
const MAX_LINE: usize = 64 << 10;

/// The number of bytes to choose a format by.
const HEAD: u64 = 1 << 20;

const BUFFER: usize = 128 << 10;

/// Some editors write this at the start of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
    /// The first bytes, by which a format is chosen.
    head: Vec<u8>,
}

/// The number of lines, by their fate.
#[derive(Default, Serialize)]
pub(super) struct LineCounts {
    pub(super) read: u64,
    /// The lines without the prefix in --path.
    pub(super) filtered: u64,
    /// The lines that are later than --reorder allows, and that are replayed in the first second to come.
    pub(super) late: u64,
    pub(super) unreadable: u64,
    /// The lines about something else than a request, or of one that has another line.
    pub(super) left_out: u64,
    /// The lines with blanks in the name of a user.
    pub(super) loose: u64,
    /// The first unreadable lines, each with its place and the problem.
    #[serde(skip)]
    pub(super) shown: Vec<String>,
}

/// One line, or the reason why there is none.
pub(super) enum ReadLine<'a> {
    Text(&'a [u8]),
    TooLong,
    End,
}

impl Lines {
    /// Opens a file, or stdin if the path is `-`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let of_path = |error: io::Error| Error::file(path, &error);
        let raw: Box<dyn Read> = if path == Path::new("-") {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                return Err(Error::usage("name a log, or pipe one into stdin"));
            }
            Box::new(stdin)
        } else {
            Box::new(File::open(path).map_err(of_path)?)
        };
        Self::new(raw).map_err(of_path)
    }

    pub(super) fn new(raw: impl Read + 'static) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(BUFFER, raw);
        let mut reader: Box<dyn BufRead> = match reader.fill_buf()? {
            #[cfg(feature = "gzip")]
            [0x1f, 0x8b, ..] => {
                let unpacked = flate2::bufread::MultiGzDecoder::new(reader);
                Box::new(BufReader::with_capacity(BUFFER, unpacked))
            }
            #[cfg(not(feature = "gzip"))]
            [0x1f, 0x8b, ..] => return Err(packed_by("z")),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(packed_by("zstd")),
            [b'B', b'Z', b'h', ..] => return Err(packed_by("bz")),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(packed_by("xz")),
            _ => Box::new(reader),
        };
        let mut head = Vec::new();
        reader.by_ref().take(HEAD).read_to_end(&mut head)?;
        Ok(Self {
            reader: Box::new(io::Cursor::new(head.clone()).chain(reader)),
            line: Vec::new(),
            number: 0,
            head,
        })
    }

    /// The first lines that are not empty, without one that may be cut.
    pub(super) fn sample(&self, most: usize) -> Vec<&[u8]> {
        let end = self.head.iter().rposition(|byte| *byte == b'\n');
        let is_cut = self.head.len() as u64 == HEAD;
        let whole = &self.head[..end.filter(|_| is_cut).unwrap_or(self.head.len())];
        let lines = whole.strip_prefix(BYTE_ORDER_MARK).unwrap_or(whole);
        let lines = lines.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| !line.is_empty()).take(most).collect()
    }

    /// The next line and its number, counted from 1.
    pub(super) fn next(&mut self) -> io::Result<(u64, ReadLine<'_>)> {
        self.line.clear();
        let limit = MAX_LINE as u64 + 1;
        let mut reader = self.reader.by_ref().take(limit);
        if reader.read_until(b'\n', &mut self.line)? == 0 {
            return Ok((self.number, ReadLine::End));
        }
        self.number += 1;
        if self.line.ends_with(b"\n") {
            self.line.pop();
        } else if self.line.len() > MAX_LINE {
            self.reader.skip_until(b'\n')?;
            return Ok((self.number, ReadLine::TooLong));
        }
        if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok((self.number, ReadLine::Text(&self.line)))
    }
}

fn packed_by(program: &str) -> io::Error {
    io::Error::other(format!("unpack it first: {program}cat FILE | sluicegate …"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn lengths(raw: Vec<u8>) -> Vec<Option<usize>> {
        let mut lines = Lines::new(io::Cursor::new(raw)).unwrap();
        let mut lengths = Vec::new();
        loop {
            lengths.push(match lines.next().unwrap().1 {
                ReadLine::Text(line) => Some(line.len()),
                ReadLine::TooLong => None,
                ReadLine::End => return lengths,
            });
            assert!(lines.line.capacity() <= 4 * MAX_LINE);
        }
    }

    fn packed(raw: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(raw).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_not_kept() {
        let long = vec![b'x'; 10 * MAX_LINE];
        let raw = [b"one\n", &long[..], b"\n\nfour"].concat();
        let expected = [Some(3), None, Some(0), Some(4)];
        assert_eq!(lengths(raw.clone()), expected);
        assert_eq!(lengths(packed(&raw)), expected);
        for (length, expected) in [(MAX_LINE, Some(MAX_LINE)), (MAX_LINE + 1, None)] {
            assert_eq!(lengths([&long[..length], b"\n"].concat()), [expected]);
            assert_eq!(lengths(long[..length].to_vec()), [expected]);
        }
    }

    #[test]
    fn packed_parts_follow_one_another() {
        let raw = [packed(b"one\ntw"), packed(b"o\n")].concat();
        assert_eq!(lengths(raw.clone()), [Some(3), Some(3)]);
        let followed = [&raw[..], &[0, 0, 7]].concat();
        assert!(Lines::new(io::Cursor::new(followed)).is_err());
        assert_eq!(lengths(Vec::new()), []);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let raw = [BYTE_ORDER_MARK, b"one\n", BYTE_ORDER_MARK, b"two"].concat();
        let expected = [Some(3), Some(6)];
        assert_eq!(lengths(raw.clone()), expected);
        assert_eq!(lengths(packed(&raw)), expected);
    }

    #[test]
    fn what_was_packed_badly_is_an_error() {
        let mut raw = packed(&[b'x'; 1_000]);
        raw.truncate(20);
        assert!(Lines::new(io::Cursor::new(raw)).is_err());
    }
}
