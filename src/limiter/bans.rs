//! Counts strikes and makes bans, in tasks of each limiter, off the request path.
//!
//! ```text
//! denial ──▶ waiting strikes ──▶ a task: charge them in the store ──▶ too many: ban
//! ```

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{caller::Caller, refusals::Refusals};
use crate::{
    background::BackRoom,
    domain::{
        block::{Ban, BlockRequest, Until},
        charge::Charge,
        check::Check,
        decision::{Decision, Denial},
        key::Key,
        operation::{Operation, Reply},
        policy::Policy,
        rule::Rule,
        window::Spec,
    },
    observe::Event,
    timer::within,
};

/// How many identities can wait. Under an attack from many more, the rest are dropped and not counted.
const MAX_WAITING: usize = 1_024;

/// How many bytes their values can have: clients may choose them.
const MAX_BYTES: usize = 1 << 20;

/// How many tasks count, each one identity at a time.
const MAX_TASKS: u32 = 32;

/// Strikes that wait to be counted.
pub(super) struct StrikeQueue {
    waiting: Mutex<HashMap<Key, Vec<Strikes>>>,
    /// Has a permit for each task that may be begun; a task ends under the lock.
    tasks: Arc<Semaphore>,
    refusals: Arc<Refusals>,
    background: Arc<BackRoom>,
}

/// How often an identity was denied under one ban.
#[derive(Debug)]
struct Strikes {
    ban: Ban,
    /// The policy that denied first, and the rule that the denial exceeded.
    policy: Policy,
    rule: Rule,
    count: u64,
    denied_at_ms: u64,
}

impl StrikeQueue {
    pub(super) fn new(refusals: &Arc<Refusals>, background: &Arc<BackRoom>) -> Self {
        Self {
            waiting: Mutex::default(),
            tasks: Arc::new(Semaphore::new(MAX_TASKS as usize)),
            refusals: Arc::clone(refusals),
            background: Arc::clone(background),
        }
    }

    /// Counts a strike for each identity that a policy with a ban denies.
    pub(super) fn count(self: &Arc<Self>, decision: &Decision, caller: &Arc<Caller>) {
        let Decision::Denied(denial) = decision else {
            return;
        };
        let struck = struck(denial);
        if struck.is_empty() || denial.usage().is_local() {
            return;
        }
        let mut waiting = self.lock();
        for (key, strikes) in struck {
            add(&mut waiting, key, strikes);
        }
        drop(waiting);
        self.start_counting(caller);
    }

    /// Waits until the strikes so far are counted.
    #[cfg(feature = "manual-clock")]
    pub(super) async fn counted(self: &Arc<Self>, caller: &Arc<Caller>) {
        loop {
            drop(self.tasks.acquire_many(MAX_TASKS).await);
            if self.lock().is_empty() {
                return;
            }
            self.start_counting(caller); // a strike came while this held the permits
        }
    }

    #[cold]
    fn start_counting(self: &Arc<Self>, caller: &Arc<Caller>) {
        let Ok(task) = Arc::clone(&self.tasks).try_acquire_owned() else {
            return;
        };
        let (queue, caller, mut task) = (Arc::clone(self), Arc::clone(caller), Some(task));
        self.background.spawn(async move {
            while let Some((key, strikes)) = queue.take(&mut task) {
                count(&caller, &queue.refusals, key, strikes).await;
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Strikes>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the strikes of an identity that were not counted yet.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Takes the strikes of an identity; `None` if there are none, which ends the task.
    fn take(&self, task: &mut Option<OwnedSemaphorePermit>) -> Option<(Key, Vec<Strikes>)> {
        let mut waiting = self.lock();
        let next = waiting.keys().next().cloned();
        let taken = next.and_then(|key| waiting.remove_entry(&key));
        if taken.is_none() {
            *task = None;
        }
        taken
    }
}

/// The identities that a denial strikes, and the ban of each strike. A missing slot is no strike: it means "not now".
///
/// A denial is one strike, however many policies deny: bans over the same key and window share one counter in the store,
/// so it is counted under one of them alone: 1 or 0.
fn struck(denial: &Denial) -> Vec<(&Key, Strikes)> {
    let usage = denial.usage();
    let charges = usage.check().charges().iter().zip(usage.policies());
    let all = charges.filter_map(|(charge, of_policy)| {
        let rules = of_policy.rules().iter();
        let mut exceeded = rules.filter(|it| it.is_exceeded() && !it.rule().is_concurrency());
        let strikes = Strikes {
            ban: charge.policy().ban_config()?,
            policy: charge.policy().clone(),
            rule: exceeded.next()?.rule(),
            count: 1,
            denied_at_ms: usage.decided_at_ms(),
        };
        Some((charge.key(), strikes))
    });
    let mut all: Vec<_> = all.collect();
    // Strikes are counted up to the limit of a ban: so that they reach each, under that with most.
    all.sort_by_key(|(_, strikes)| Reverse(strikes.ban.strikes().limit()));
    let counter = |strikes: &Strikes| Spec::of(&strikes.ban.strikes());
    for place in 1..all.len() {
        let (known, rest) = all.split_at_mut(place);
        let (key, strikes) = &mut rest[0];
        let is_counted = |(of, it): &(&Key, _)| of == key && counter(it) == counter(strikes);
        if known.iter().any(is_counted) {
            strikes.count = 0;
        }
    }
    all
}

fn add(waiting: &mut HashMap<Key, Vec<Strikes>>, key: &Key, new: Strikes) {
    if !waiting.contains_key(key) {
        let bytes = waiting.keys().chain([key]).map(|it| it.value().len());
        if waiting.len() >= MAX_WAITING || bytes.sum::<usize>() > MAX_BYTES {
            return;
        }
    }
    let all = waiting.entry(key.clone()).or_default();
    if let Some(strikes) = all.iter_mut().find(|strikes| strikes.ban == new.ban) {
        strikes.count += new.count;
        strikes.denied_at_ms = strikes.denied_at_ms.max(new.denied_at_ms);
    } else {
        all.push(new);
    }
}

/// Counts the strikes of an identity, and bans the identity if there are too many. A failed call is not retried: the
/// next denial is a strike as well. Each call concerns one identity, because a proxy may keep two keys on two servers.
///
/// The store bans only if the strikes are still there, so that an operator can unblock the identity between the calls.
async fn count(caller: &Caller, refusals: &Refusals, key: Key, strikes: Vec<Strikes>) {
    let counts = strikes.iter().filter(|it| it.count > 0);
    let counts = counts.map(|it| it.check(&key, it.count));
    // Bans of one window share a counter: look at it when all are counted.
    let looks = strikes.iter().filter(|_| strikes.len() > 1);
    let checks = counts.chain(looks.map(|it| it.check(&key, 0)));
    let now = Instant::now();
    let mut replies = call(caller, checks.collect()).await;
    let replies = replies.split_off(replies.len().saturating_sub(strikes.len()));
    let counted = strikes.iter().zip(replies);
    let banned = counted.filter_map(|(strikes, reply)| match reply {
        Some(Reply::Check(decision)) if strikes.reach_limit(&decision) => {
            Some((strikes, decision.usage().decided_at_ms()))
        }
        _ => None,
    });
    let mut banned: Vec<(&Strikes, u64)> = banned.collect();
    // A ban that grows goes up a level only if no longer ban is in place.
    let grows = |ban: &Ban| ban.times_ms().len() > 1;
    banned.sort_by_key(|(it, _)| Reverse((grows(&it.ban), it.until())));
    if banned.is_empty() {
        return;
    }
    let bans = banned.iter().zip(1..).map(|((strikes, _), place)| {
        let until = Until::At(strikes.until());
        let mut request = BlockRequest::ban(until, &strikes.policy, &strikes.rule);
        request.keeps_strikes = place < banned.len(); // the bans after it need them too
        Operation::Ban {
            key: key.clone(),
            strikes: strikes.ban.strikes(),
            request,
        }
    });
    let replies = call(caller, bans.collect()).await;
    let made = banned
        .iter()
        .zip(replies)
        .filter_map(|(it, reply)| match reply {
            Some(Reply::Ban(block)) => Some((it, block?)),
            _ => None,
        });
    // Each reply has the block in force then: the first to have the latest end made it.
    let made = made.reduce(|known, next| match next.1.outlasts(known.1) {
        true => next,
        false => known,
    });
    if let Some(((Strikes { policy, .. }, now_ms), block)) = made {
        let left = |until_ms: u64| Duration::from_millis(until_ms.saturating_sub(*now_ms));
        refusals.note_made(&key, block, block.until_ms().map(left), now);
        caller.events.report(|| Event::Ban { policy, block });
    }
}

/// Skips the breaker: strikes follow from denials, so the store has just answered.
async fn call(caller: &Caller, operations: Vec<Operation>) -> Vec<Option<Reply>> {
    let replies = within(caller.timeout(), caller.store.call(operations)).await;
    let replies = replies.and_then(Result::ok).unwrap_or_default();
    replies.into_iter().map(Result::ok).collect()
}

impl Strikes {
    /// Charges this many strikes, at most the limit: more would change nothing.
    fn check(&self, key: &Key, count: u64) -> Operation {
        let strikes = self.ban.strikes();
        let count = count.min(strikes.limit());
        let charge = Charge::new(&Policy::of_strikes(strikes), key.clone(), count);
        Operation::Check(Check::counting([charge]))
    }

    /// Whether the limit is reached. The policy of strikes holds twice the limit, so that reaching the limit still
    /// fits.
    fn reach_limit(&self, charged: &Decision) -> bool {
        let limit = self.ban.strikes().limit();
        match charged {
            Decision::Allowed(usage) => usage.rules().any(|rule| rule.remaining() <= limit),
            Decision::Denied(_) => true,
            Decision::Blocked(_) => false,
        }
    }

    /// The end of a first ban.
    fn until(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.denied_at_ms.saturating_add(self.ban.times_ms()[0]))
    }
}
