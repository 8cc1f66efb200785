//! Checks that wait for a call, and how they are combined: like `src/store/redis/shared_calls/`.

use std::collections::VecDeque;

use crate::{costs::Costs, traffic::is_attacker};

/// The same constants as there.
const FEW_CHARGES: usize = 8;
const MAX_CHARGES: usize = 256;
const MAX_CALLERS: usize = 1_024;
const COMPARED: usize = 16;

#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) identity: u32,
    /// The time of the request's arrival, in µs.
    pub(crate) arrived: f64,
    /// Whether this fetches a lease, so that no request waits for it.
    pub(crate) is_lease: bool,
}

impl Waiting {
    const fn charges(&self) -> usize {
        if self.is_lease { 2 } else { 1 }
    }
}

#[derive(Default)]
pub(crate) struct Line {
    waiting: VecDeque<Waiting>,
    /// The charges of all waiting operations.
    charges: usize,
    pub(crate) in_flight: usize,
}

pub(crate) struct Call {
    pub(crate) process: usize,
    pub(crate) line: usize,
    pub(crate) server: usize,
    pub(crate) sent: f64,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) operations: f64,
    /// The cost for the server, in µs.
    pub(crate) work: f64,
}

impl Line {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.charges += waiting.charges();
        self.waiting.push_back(waiting);
    }

    /// Takes the first waiting checks, as many as share one of `most` calls, and returns them with the number of
    /// operations and the server's work. Identical checks are one operation. If `most` is 0, each has its own call.
    pub(crate) fn gather(
        &mut self,
        most: usize,
        costs: &Costs,
    ) -> Option<(Vec<Waiting>, f64, f64)> {
        let share = self.charges.div_ceil(most.max(1));
        let most_charges = share.clamp(FEW_CHARGES, MAX_CHARGES);
        let mut waiting: Vec<Waiting> = Vec::new();
        // Each identity, whether this is a lease, and the number of checks.
        let mut operations: Vec<(u32, bool, usize)> = Vec::new();
        let mut charges = 0;
        while let Some(&next) = self.waiting.front() {
            let same = |(identity, is_lease, _): &&mut (u32, bool, usize)| {
                !*is_lease && *identity == next.identity
            };
            match operations.iter_mut().rev().take(COMPARED).find(same) {
                Some(operation) if !next.is_lease => operation.2 += 1,
                _ => {
                    charges += next.charges();
                    if !operations.is_empty() && charges > most_charges {
                        break;
                    }
                    operations.push((next.identity, next.is_lease, 1));
                }
            }
            self.waiting.pop_front();
            self.charges -= next.charges();
            waiting.push(next);
            if most == 0 || waiting.len() >= MAX_CALLERS {
                break;
            }
        }
        let work = work(&operations, costs);
        (!waiting.is_empty()).then_some((waiting, operations.len() as f64, work))
    }
}

fn work(operations: &[(u32, bool, usize)], costs: &Costs) -> f64 {
    let mut work = costs.server_call + costs.check - costs.further;
    for &(identity, is_lease, count) in operations {
        work += match (is_lease, count) {
            (true, _) => costs.further * (1.0 + costs.settle_ratio),
            _ if is_attacker(identity) => costs.further * costs.denied_ratio,
            _ => costs.further,
        };
        if count > 1 {
            work += costs.batch;
        }
    }
    work
}
