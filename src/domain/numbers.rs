//! Whole numbers of stored values, in a given number of bytes, the lowest first.

/// A whole number of `size` bytes, at most eight, the lowest first.
#[inline]
pub(crate) fn number(bytes: &mut &[u8], size: usize) -> Option<u64> {
    let (number, rest) = bytes.split_at_checked(size)?;
    let mut whole = [0; 8];
    whole.get_mut(..size)?.copy_from_slice(number);
    *bytes = rest;
    Some(u64::from_le_bytes(whole))
}

#[inline]
pub(crate) fn push_number(bytes: &mut Vec<u8>, number: u64, size: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..size]);
}
