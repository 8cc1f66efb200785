//! The arithmetic of steps and releases: pure, and the Rust twin of the script.
//!
//! A step is named by its *end*, `(s + 1) · P`: the first millisecond after it. Units charged in it count until its end plus
//! the *hold*, which is the window for a sliding rule and nothing for a fixed one.
//!
//! ```text
//!       charged here                                   released here
//!            ▼                                               ▼
//! ──┬────────x─┬──────────┬───  …  ───┬──────────┬───────────┬──▶ t
//!   │  step s  │  s + 1   │           │          │           │
//!   └────── P ─┘◀────────────────── hold ────────────────────┘
//!             end
//! ```

use crate::rule::{Rule, millis};

/// How a rule counts time, in ms: what tells one section of a stored value from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) step_ms: u64,
    pub(crate) hold_ms: u64,
}

impl Span {
    pub(crate) fn of(rule: &Rule) -> Self {
        let hold_ms = if rule.is_fixed() {
            0
        } else {
            millis(rule.window())
        };
        Self {
            step_ms: millis(rule.step()),
            hold_ms,
        }
    }

    /// The end of the step that `now_ms` falls into.
    pub(crate) fn step_end(self, now_ms: u64) -> u64 {
        now_ms - now_ms % self.step_ms + self.step_ms
    }

    /// The first millisecond at which the units of a step no longer count.
    pub(crate) fn release(self, end_ms: u64) -> u64 {
        end_ms + self.hold_ms
    }
}
