//! [`Length`]: a span of time, in whole milliseconds where the rule is valid.

use std::{fmt, time::Duration};

use super::{DurationText, millis};

/// Set where the other bits are nanoseconds, which are not whole milliseconds.
const IS_NANOS: u64 = 1 << 63;

/// A span of time in eight bytes: rules are copied often. A span that no rule can have is kept well enough to be
/// named in an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Length(u64);

impl Length {
    pub(super) const fn of(duration: Duration) -> Self {
        let ms = millis(duration);
        let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000);
        if is_whole || ms >= IS_NANOS / 1_000_000 {
            Self::of_ms(ms)
        } else {
            let nanos = duration.subsec_nanos() as u64;
            Self(IS_NANOS | (duration.as_secs() * 1_000_000_000 + nanos))
        }
    }

    pub(super) const fn of_ms(ms: u64) -> Self {
        Self(if ms < IS_NANOS { ms } else { IS_NANOS - 1 })
    }

    pub(super) const fn is_whole_ms(self) -> bool {
        self.0 < IS_NANOS
    }

    pub(super) const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the whole milliseconds.
    pub(super) const fn ms(self) -> u64 {
        if self.is_whole_ms() {
            self.0
        } else {
            (self.0 - IS_NANOS) / 1_000_000
        }
    }

    pub(super) const fn duration(self) -> Duration {
        if self.is_whole_ms() {
            Duration::from_millis(self.0)
        } else {
            Duration::from_nanos(self.0 - IS_NANOS)
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DurationText(self.duration()).fmt(f)
    }
}
