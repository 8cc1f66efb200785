//! [`LastDenial`]: the store's last denial to a caller of a queue, which is true of others, too.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    domain::{
        check::Check,
        decision::{Decision, Denial},
    },
    limiter::timeout::FOR_EVER,
};

/// The shortest sleep. A store that denies and yet promises room now would otherwise make the caller spin.
pub(super) const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The head of a queue asks at least this often, since other processes give back units without notice.
pub(super) const RECHECK: Duration = Duration::from_secs(2);

/// The store's denial of a caller with a turn, the time of the denial, and how long the denial surely holds.
#[derive(Clone, Debug)]
pub(super) struct LastDenial {
    check: Check,
    denial: Denial,
    at: Instant,
    pub(super) until: Instant,
    /// A slot may be returned sooner than its denial says, and later than this denial surely holds.
    pub(super) ask_again: Instant,
}

impl LastDenial {
    /// A denial that the store has just answered.
    pub(super) fn new(check: &Check, denial: &Denial) -> Self {
        let at = Instant::now();
        let after = |wait: Option<Duration>| wait.unwrap_or_default().clamp(MIN_SLEEP, FOR_EVER);
        Self {
            check: check.clone(),
            denial: denial.clone(),
            at,
            until: at + after(denial.retry_after_besides_slots()),
            ask_again: at + after(denial.recheck_after()).min(RECHECK),
        }
    }

    /// The same denial of another check.
    pub(super) fn decision(&self, check: &Check) -> Decision {
        let denied = Decision::Denied(self.denial.clone());
        let about_it = match self.compares(check, |last, asked| last == asked) {
            true => denied, // its contributors may be others
            false => denied.repeated(check, 0),
        };
        about_it.aged(check, self.at.elapsed())
    }

    pub(super) fn is_by_slots(&self) -> bool {
        self.denial.is_by_slots()
    }

    pub(super) fn is_valid(&self) -> bool {
        self.until > Instant::now()
    }

    /// Whether the other denial was for the same costs, and ends at about the same millisecond.
    pub(super) fn says_the_same_as(&self, other: &Self) -> bool {
        let apart = self.until.max(other.until) - self.until.min(other.until);
        apart <= MIN_SLEEP && self.compares(&other.check, |one, another| one == another)
    }

    /// Whether the store denies this check as well: one that costs at least as much.
    pub(super) fn holds_for(&self, check: &Check) -> bool {
        self.compares(check, |last, asked| last <= asked)
    }

    /// Whether all costs compare so; policies and keys are those of the queue.
    fn compares(&self, check: &Check, costs: impl Fn(u64, u64) -> bool) -> bool {
        let mut pairs = self.check.charges().iter().zip(check.charges());
        pairs.all(|(last, asked)| costs(last.cost(), asked.cost()))
    }
}
