//! [`Gzip`]: unpacks the members of a file one after the other, and skips the zeros that tapes and block devices add at
//! the end.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

pub(super) struct Gzip<R> {
    /// `None` after the last member.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Gzip<R> {
    pub(super) fn new(packed: R) -> Self {
        Self {
            member: Some(GzDecoder::new(packed)),
        }
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let count = member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let is_more = skip_zeros(member.get_mut())?;
            let packed = self.member.take().map(GzDecoder::into_inner);
            self.member = packed.filter(|_| is_more).map(GzDecoder::new);
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether other bytes follow.
fn skip_zeros(packed: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = packed.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        if bytes.is_empty() || zeros < bytes.len() {
            let is_more = !bytes.is_empty();
            packed.consume(zeros);
            return Ok(is_more);
        }
        packed.consume(zeros);
    }
}
