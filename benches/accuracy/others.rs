//! The three algorithms that limiters commonly use, in their simplest form, for the same arrivals.

use std::time::Duration;

use sluicegate::Rule;

use crate::judge::{Answer, Record, window_ms};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Algorithm {
    FixedCounter,
    SlidingCounter,
    TokenBucket,
}

impl Algorithm {
    pub(crate) const ALL: [(Self, &str); 3] = [
        (Self::FixedCounter, "a counter for each window"),
        (Self::SlidingCounter, "two counters, the older one weighted"),
        (
            Self::TokenBucket,
            "a token bucket (GCRA), as large as the limit",
        ),
    ];

    /// The same requests with the decisions of this algorithm.
    pub(crate) fn decide(self, rule: &Rule, arrivals: &[Record]) -> Vec<Record> {
        let mut arrivals = arrivals.to_vec();
        arrivals.sort_by_key(|record| (record.key, record.at));
        let mut state = State::default();
        let mut key = None;
        for record in &mut arrivals {
            if key.replace(record.key) != Some(record.key) {
                state = State::default();
            }
            record.answer = if self.try_acquire(&mut state, rule, record.at) {
                Answer::Admitted
            } else {
                Answer::Denied(Duration::ZERO)
            };
        }
        arrivals
    }

    fn try_acquire(self, state: &mut State, rule: &Rule, at: u64) -> bool {
        let (limit, window) = (rule.limit(), window_ms(rule));
        state.turn_to(at / window);
        let fits = match self {
            Self::FixedCounter => state.count < limit,
            Self::SlidingCounter => {
                // Multiplied by the window, to keep whole numbers.
                let weighted = state.previous * (window - at % window);
                weighted + (state.count + 1) * window <= limit * window
            }
            // A token comes back in window / limit. The bucket is full when that time has come.
            Self::TokenBucket => state.full_at.max(at * limit) + window <= (at + window) * limit,
        };
        if fits {
            state.count += 1;
            state.full_at = state.full_at.max(at * limit) + window;
        }
        fits
    }
}

#[derive(Default)]
struct State {
    /// The aligned window, and the admissions in this window and the one before.
    window: u64,
    count: u64,
    previous: u64,
    /// In ms times the limit.
    full_at: u64,
}

impl State {
    fn turn_to(&mut self, window: u64) {
        if window > self.window {
            self.previous = if window == self.window + 1 {
                self.count
            } else {
                0
            };
            (self.window, self.count) = (window, 0);
        }
    }
}
