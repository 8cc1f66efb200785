//! Strikes are counted, and bans made, by one task of the limiter, apart from the requests.
//!
//! ```text
//! denial ──▶ waiting strikes ──▶ task: charge them in the store ──▶ too many: block, and forget the strikes
//! ```

use std::{
    cmp::Reverse,
    collections::HashMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, task::JoinSet, time::timeout};

use super::Limiter;
use crate::{
    block::{Ban, BlockedBy},
    charge::Charge,
    check::Check,
    decision::{Decision, Denial},
    key::Key,
    observe::BanEvent,
    operation::{Operation, Reply},
    policy::Policy,
    window::StepSpec,
};

/// How many identities can wait: one that is attacked by many more has to count what it can.
const MAX_WAITING: usize = 1_024;

/// How many identities are counted at a time.
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
        let struck = struck(denial);
        if struck.is_empty() {
            return false;
        }
        let mut waiting = self.lock();
        for (charge, ban) in struck {
            waiting.add(charge, ban, denial.usage().decided_at_ms());
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

/// Whom a denial strikes, and under which ban. It is one strike, however many policies deny: where their strikes count
/// together, it is one under the ban that comes first.
fn struck(denial: &Denial) -> Vec<(&Charge, Ban)> {
    let usage = denial.usage();
    let charges = usage.check().charges().iter().zip(usage.policies());
    let all = charges.filter_map(|(charge, it)| {
        let ban = charge.policy().banned_by()?;
        let denies = it.rules().iter().any(|rule| rule.is_exceeded());
        denies.then_some((charge, ban))
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, ban)| (ban.strikes().limit(), Reverse(ban.time())));
    let mut struck: Vec<(&Charge, Ban)> = Vec::new();
    for (charge, ban) in all {
        let spec = StepSpec::of(&ban.strikes());
        let is_known = struck.iter().any(|(other, known)| {
            other.key() == charge.key() && StepSpec::of(&known.strikes()) == spec
        });
        if !is_known {
            struck.push((charge, ban));
        }
    }
    struck
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
                let mut counted = JoinSet::new();
                for ((key, ban), strike) in strikes {
                    let (limiter, key, strike) =
                        (self.limiter.clone(), key.clone(), strike.clone());
                    counted.spawn(count(limiter, key, *ban, strike));
                }
                while counted.join_next().await.is_some() {}
            }
        }
        self.is_done = true;
    }
}

/// Counts strikes of an identity, and blocks it if it has too many. What the store cannot do is not tried again: the next
/// denial is a strike, too. No call is about two identities: their keys may be on servers that a proxy stands before.
async fn count(limiter: Limiter, key: Key, ban: Ban, strike: Strike) {
    let replies = call(&limiter, vec![charge(&key, ban, strike.count)]).await;
    match replies.first() {
        Some(Reply::Check(decision)) if is_last_strike(decision) => {}
        _ => return,
    }
    let block = Operation::Block {
        key: key.clone(),
        until: ban.until(strike.denied_at_ms),
        by: BlockedBy::Ban,
    };
    let policy = Policy::of_strikes(ban.strikes());
    let forget = Operation::Reset { policy, key };
    let replies = call(&limiter, vec![block, forget]).await;
    if let (Some(Reply::Block(block)), Some(observer)) = (replies.first(), &limiter.inner.observer)
    {
        let (policy, block) = (&strike.policy, *block);
        observer.on_ban(&BanEvent { policy, block });
    }
}

/// What was replied before the first error. Without the breaker: strikes come from denials, and so from a store that
/// answers.
async fn call(limiter: &Limiter, operations: Vec<Operation>) -> Vec<Reply> {
    let limiter = &limiter.inner;
    let call = timeout(limiter.timeout, limiter.store.call(operations));
    let replies = call.await.ok().and_then(Result::ok).unwrap_or_default();
    replies.into_iter().map_while(Result::ok).collect()
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
