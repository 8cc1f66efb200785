//! The entries of a header that may be sent in several lines, read from the right.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header::ValueIter};

use super::parse;
use crate::domain::error::ExtractError;

/// The most entries that are read.
pub(super) const MAX_ENTRIES: usize = 64;

/// Room for `MAX_ENTRIES` entries of 64 bytes. The part to the left of the trusted entries is never read, however long.
const MAX_BYTES: usize = 4096;

const TOO_LONG: ExtractError =
    ExtractError::malformed("more than 64 forwarded addresses, or more than 4 KiB of them");

const UNCLOSED: ExtractError = ExtractError::malformed("a forwarded address has an unclosed quote");

/// The syntax of a header of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    XForwardedFor,
    Forwarded,
    /// A single address, not a list.
    Single,
}

impl Form {
    /// Returns the address in an entry, in canonical form.
    pub(super) fn address(self, entry: &[u8]) -> Option<IpAddr> {
        let text = str::from_utf8(entry).ok()?;
        match self {
            Self::Forwarded => parse::for_of(text).and_then(parse::address),
            Self::XForwardedFor | Self::Single => parse::address(text),
        }
    }
}

pub(super) struct Entries<'a> {
    lines: ValueIter<'a, HeaderValue>,
    rest: Option<&'a [u8]>,
    form: Form,
    entries_left: usize,
    bytes_left: usize,
}

impl<'a> Entries<'a> {
    pub(super) fn new(headers: &'a HeaderMap, name: &HeaderName, form: Form) -> Self {
        Self {
            lines: headers.get_all(name).iter(),
            rest: None,
            form,
            entries_left: MAX_ENTRIES,
            bytes_left: MAX_BYTES,
        }
    }

    /// Cuts off the last entry.
    fn cut(&mut self, line: &'a [u8]) -> Result<&'a [u8], ExtractError> {
        // Look for a comma only within the bytes that may still be read: the rest of the line may be of any length.
        let start = line.len().saturating_sub(self.bytes_left);
        let near = &line[start..];
        let comma = match self.form {
            Form::XForwardedFor => near.iter().rposition(|byte| *byte == b','),
            Form::Forwarded => last_unquoted_comma(near)?,
            Form::Single => None,
        };
        let comma = comma.map(|comma| start + comma);
        if self.entries_left == 0 || (comma.is_none() && start > 0) {
            return Err(TOO_LONG);
        }
        let entry = &line[comma.map_or(0, |comma| comma + 1)..];
        self.entries_left -= 1;
        self.bytes_left = self.bytes_left.saturating_sub(entry.len() + 1);
        self.rest = comma.map(|comma| &line[..comma]);
        Ok(entry)
    }
}

/// Iterates over the entries, or over the error that ends them. An empty element of a list is no entry (RFC 9110,
/// 5.6.1), but counts towards `MAX_ENTRIES`.
impl<'a> Iterator for Entries<'a> {
    type Item = Result<&'a [u8], ExtractError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next_line = || self.lines.next_back().map(HeaderValue::as_bytes);
            let line = self.rest.take().or_else(next_line)?;
            match self.cut(line) {
                Ok(entry) if entry.trim_ascii().is_empty() => {}
                entry => return Some(entry),
            }
        }
    }
}

/// Reads from the right, so that a quote which a client left open does not affect the entries that proxies appended.
fn last_unquoted_comma(line: &[u8]) -> Result<Option<usize>, ExtractError> {
    let mut quoted = false;
    for (index, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !(quoted && ends_in_escape(&line[..index])) => quoted = !quoted,
            b',' if !quoted => return Ok(Some(index)),
            _ => {}
        }
    }
    if quoted { Err(UNCLOSED) } else { Ok(None) }
}

fn ends_in_escape(text: &[u8]) -> bool {
    let backslashes = text.iter().rev().take_while(|byte| **byte == b'\\');
    backslashes.count() % 2 == 1
}
