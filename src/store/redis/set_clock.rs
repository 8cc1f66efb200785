//! [`SetClock`]: the clock that a test has set, if any.

#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;

/// By default the server's clock decides.
#[derive(Clone, Debug, Default)]
pub(super) struct SetClock {
    #[cfg(feature = "manual-clock")]
    pub(super) clock: Option<ManualClock>,
}

impl SetClock {
    /// The time where it is not the server's clock that decides.
    #[cfg_attr(
        not(feature = "manual-clock"),
        expect(clippy::unused_self, reason = "only tests set a clock")
    )]
    pub(super) fn now_ms(&self) -> Option<u64> {
        #[cfg(feature = "manual-clock")]
        let now_ms = self.clock.as_ref().map(ManualClock::now_ms);
        #[cfg(not(feature = "manual-clock"))]
        let now_ms = None;
        now_ms
    }
}
