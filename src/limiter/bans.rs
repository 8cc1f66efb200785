//! Strikes are counted, and bans made, by one task of the limiter, apart from the requests.
//!
//! ```text
//! denial ──▶ waiting strikes ──▶ task: charge them in the store ──▶ too many: block, and forget the strikes
//! ```

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, time::timeout};

use super::Limiter;
use crate::{
    block::{Ban, Block, BlockedBy},
    charge::Charge,
    check::Check,
    decision::{Decision, Denial},
    key::Key,
    observe::BanEvent,
    operation::{Operation, Reply},
    policy::Policy,
};

/// How many identities can wait: one that is attacked by many more has to count what it can.
const MAX_WAITING: usize = 1_024;

/// How many identities go in one call.
const MAX_TOGETHER: usize = 32;

/// What waits to be counted. At most one task works on it.
#[derive(Debug, Default)]
pub(super) struct Strikes {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    by_identity: HashMap<(Key, Ban), Strike>,
    has_task: bool,
}

/// Denials of one identity.
#[derive(Clone, Debug)]
struct Strike {
    policy: Policy,
    count: u64,
    denied_at_ms: u64,
}

impl Limiter {
    /// Counts a strike for each identity that a policy with a ban denies.
    pub(crate) fn count_strikes(&self, decision: &Decision) {
        if let Decision::Denied(denial) = decision
            && !denial.usage().is_local()
            && self.inner.strikes.add(denial)
        {
            self.start_counting();
        }
    }

    /// Waits until the strikes of all denials so far are counted, and the bans that follow are made.
    #[cfg(feature = "test-util")]
    pub async fn strikes_counted(&self) {
        while self.inner.strikes.lock().has_task {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    #[cold]
    fn start_counting(&self) {
        // Outside of a runtime nothing can be counted apart from the request.
        match Handle::try_current() {
            Ok(runtime) => {
                let task = Counting {
                    limiter: self.clone(),
                    is_done: false,
                };
                drop(runtime.spawn(task.run()));
            }
            Err(_) => *self.inner.strikes.lock() = Waiting::default(),
        }
    }
}

impl Strikes {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the strikes of an identity that were not counted yet.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().by_identity.retain(|(it, _), _| it != key);
    }

    /// Answers whether a task has to be started.
    fn add(&self, denial: &Denial) -> bool {
        let usage = denial.usage();
        let charges = usage.check().charges().iter().zip(usage.policies());
        let mut struck = charges.filter_map(|(charge, it)| {
            let ban = charge.policy().banned_by()?;
            let denies = it.rules().iter().any(|rule| rule.is_exceeded());
            denies.then_some((charge, ban))
        });
        let Some(first) = struck.next() else {
            return false;
        };
        let mut waiting = self.lock();
        for (charge, ban) in [first].into_iter().chain(struck) {
            waiting.add(charge, ban, usage.decided_at_ms());
        }
        !mem::replace(&mut waiting.has_task, true)
    }

    /// What waits. The task ends when nothing does.
    fn take(&self) -> Option<Vec<((Key, Ban), Strike)>> {
        let mut waiting = self.lock();
        if waiting.by_identity.is_empty() {
            *waiting = Waiting::default();
            return None;
        }
        Some(waiting.by_identity.drain().collect())
    }
}

impl Waiting {
    fn add(&mut self, charge: &Charge, ban: Ban, denied_at_ms: u64) {
        let is_full = self.by_identity.len() >= MAX_WAITING;
        let identity = (charge.key().clone(), ban);
        if let Some(strike) = self.by_identity.get_mut(&identity) {
            strike.count += 1;
            strike.denied_at_ms = strike.denied_at_ms.max(denied_at_ms);
        } else if !is_full {
            let strike = Strike {
                policy: charge.policy().clone(),
                count: 1,
                denied_at_ms,
            };
            self.by_identity.insert(identity, strike);
        }
    }
}

/// The task. When it is ended from outside, the next strike starts another.
struct Counting {
    limiter: Limiter,
    is_done: bool,
}

impl Drop for Counting {
    fn drop(&mut self) {
        if !self.is_done {
            *self.limiter.inner.strikes.lock() = Waiting::default();
        }
    }
}

impl Counting {
    async fn run(mut self) {
        while let Some(strikes) = self.limiter.inner.strikes.take() {
            for strikes in strikes.chunks(MAX_TOGETHER) {
                self.count(strikes).await;
            }
        }
        self.is_done = true;
    }

    /// Counts strikes, and blocks who has too many. What the store cannot do is not tried again: the next denial is a
    /// strike, too.
    async fn count(&self, strikes: &[((Key, Ban), Strike)]) {
        let checks = strikes
            .iter()
            .map(|((key, ban), strike)| charge(key, *ban, strike.count));
        let replies = self.call(checks.collect()).await;
        let banned = strikes
            .iter()
            .zip(replies)
            .filter(|(_, reply)| match reply {
                Some(Reply::Check(decision)) => is_last_strike(decision),
                _ => false,
            });
        let banned: Vec<_> = banned.map(|(strike, _)| strike).collect();
        if banned.is_empty() {
            return;
        }
        let operations = banned.iter().flat_map(|((key, ban), strike)| {
            let (key, until) = (key.clone(), ban.until(strike.denied_at_ms));
            let reset = Operation::Reset {
                policy: Policy::of_strikes(ban.strikes()),
                key: key.clone(),
            };
            [
                Operation::Block {
                    key,
                    until,
                    by: BlockedBy::Ban,
                },
                reset,
            ]
        });
        let replies = self.call(operations.collect()).await;
        for ((_, strike), reply) in banned.iter().zip(replies.into_iter().step_by(2)) {
            if let Some(Reply::Block(block)) = reply {
                self.report(&strike.policy, block);
            }
        }
    }

    /// Without the breaker: strikes come from denials, and so from a store that answers.
    async fn call(&self, operations: Vec<Operation>) -> Vec<Option<Reply>> {
        let limiter = &self.limiter.inner;
        let call = timeout(limiter.timeout, limiter.store.call(operations));
        let replies = call.await.ok().and_then(Result::ok).unwrap_or_default();
        replies.into_iter().map(Result::ok).collect()
    }

    fn report(&self, policy: &Policy, block: Block) {
        if let Some(observer) = &self.limiter.inner.observer {
            observer.on_ban(&BanEvent { policy, block });
        }
    }
}

/// More than are needed are as good as as many.
fn charge(key: &Key, ban: Ban, count: u64) -> Operation {
    let strikes = Policy::of_strikes(ban.strikes());
    let cost = count.min(ban.strikes().limit());
    Operation::Check(Check::of_one(Charge::new(&strikes, key.clone(), cost)))
}

/// Where so many do not fit any more, there are too many in any case.
fn is_last_strike(decision: &Decision) -> bool {
    match decision {
        Decision::Allowed(usage) => usage.rules().any(|it| it.remaining() == 0),
        Decision::Denied(_) => true,
        Decision::Blocked(_) => false,
    }
}
