//! Counts strikes and makes bans, in tasks of each limiter, off the request path.
//!
//! ```text
//! denial ──▶ waiting strikes ──▶ a task: charge them in the store ──▶ too many: ban
//! ```

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::Limiter;
use crate::{
    domain::{
        block::{Ban, BlockRequest, Until},
        charge::Charge,
        check::Check,
        decision::{Decision, Denial, RuleUsage},
        key::Key,
        operation::{Operation, Reply},
        policy::Policy,
        rule::Rule,
        window::Spec,
    },
    lock::lock,
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
    /// Strikes that count together in the store are next to each other.
    waiting: Mutex<HashMap<Key, Vec<Strikes>>>,
    /// Has a permit for each task that may be begun; a task ends under the lock.
    tasks: Arc<Semaphore>,
}

/// How often a denial counted for a ban.
#[derive(Clone)]
struct Strikes {
    count: u64,
    ban: Ban,
    /// The policy that denied first, and the rule that the denial exceeded.
    policy: Policy,
    rule: Rule,
    denied_at_ms: u64,
}

impl Limiter {
    /// Counts a strike for each identity that a policy with a ban denies.
    pub(super) fn count_strikes(&self, decision: &Decision) {
        let Decision::Denied(denial) = decision else {
            return;
        };
        let struck: Vec<_> = struck(denial).collect();
        if struck.is_empty() || denial.usage().is_local() {
            return;
        }
        let mut waiting = lock(&self.inner.shared.strikes.waiting);
        for (place, (key, strikes)) in struck.iter().enumerate() {
            // A denial is one strike, however many policies deny.
            let mut before = struck[..place].iter();
            let is_counted = before.any(|(of, it)| of == key && it.counter() == strikes.counter());
            add(&mut waiting, key, strikes, u64::from(!is_counted));
        }
        drop(waiting);
        self.start_counting();
    }

    /// Waits until the strikes of all denials so far are counted, and the bans that follow are made.
    #[cfg(feature = "manual-clock")]
    #[doc(hidden)]
    pub async fn strikes_counted(&self) {
        let strikes = &self.inner.shared.strikes;
        loop {
            drop(strikes.tasks.acquire_many(MAX_TASKS).await);
            if lock(&strikes.waiting).is_empty() {
                return;
            }
            self.start_counting(); // a strike came while this held the permits
        }
    }

    #[cold]
    fn start_counting(&self) {
        let shared = &self.inner.shared;
        let Ok(task) = Arc::clone(&shared.strikes.tasks).try_acquire_owned() else {
            return;
        };
        let (limiter, mut task) = (self.clone(), Some(task));
        shared.background.spawn(async move {
            while let Some((key, strikes)) = limiter.inner.shared.strikes.take(&mut task) {
                limiter.count_and_ban(key, strikes).await;
            }
        });
    }

    /// Counts the strikes of an identity, and bans the identity if there are too many. A failed call is not retried: the
    /// next denial is a strike as well. Each call concerns one identity, because a proxy may keep two keys on two servers.
    ///
    /// The store bans only if the strikes are still there, so that an operator can unblock the identity between the calls.
    async fn count_and_ban(&self, key: Key, strikes: Vec<Strikes>) {
        let counters = strikes.chunk_by(|one, other| one.counter() == other.counter());
        let checks = counters.clone().map(|together| check(&key, together));
        let now = Instant::now();
        let replies = self.strike(checks.collect()).await;
        let mut banned: Vec<(&Strikes, u64)> = Vec::new();
        for (together, reply) in counters.zip(replies) {
            if let Some(Reply::Check(decision)) = reply {
                let bans = together.iter().filter(|it| it.is_reached(&decision));
                banned.extend(bans.map(|it| (it, decision.usage().decided_at_ms())));
            }
        }
        // A ban that grows goes up a level only if no longer ban is in place.
        let grows = |ban: &Ban| ban.times_ms().len() > 1;
        banned.sort_by_key(|(it, _)| Reverse((grows(&it.ban), it.until())));
        if banned.is_empty() {
            return;
        }
        let bans = banned.iter().zip(1..).map(|((struck, _), place)| {
            let until = Until::At(struck.until());
            let mut request = BlockRequest::ban(until, &struck.policy, &struck.rule);
            request.keeps_strikes = place < banned.len(); // the bans after it need them too
            Operation::Ban {
                key: key.clone(),
                strikes: struck.ban.strikes(),
                request,
            }
        });
        let replies = self.strike(bans.collect()).await;
        let mut replies = banned.iter().zip(replies).rev();
        // Each ban that is made ends later than the one before.
        let made = replies.find_map(|(it, reply)| match reply {
            Some(Reply::Ban(block)) => Some((it, block?)),
            _ => None,
        });
        if let Some(((Strikes { policy, .. }, now_ms), block)) = made {
            let left = |until_ms: u64| Duration::from_millis(until_ms.saturating_sub(*now_ms));
            let refusals = &self.inner.shared.refusals;
            refusals.note_made(&key, block, block.until_ms().map(left), now);
            self.events().report(|| Event::Ban { policy, block });
        }
    }

    /// Skips the breaker: strikes follow from denials, so the store has just answered.
    async fn strike(&self, operations: Vec<Operation>) -> Vec<Option<Reply>> {
        let guarded = &self.inner.guarded;
        let replies = within(guarded.timeout, guarded.store.call(operations)).await;
        let replies = replies.and_then(Result::ok).unwrap_or_default();
        replies.into_iter().map(Result::ok).collect()
    }
}

impl StrikeQueue {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
            tasks: Arc::new(Semaphore::new(MAX_TASKS as usize)),
        }
    }

    /// Forgets the strikes of an identity that were not counted yet.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.waiting).remove(key);
    }

    /// Takes the strikes of an identity; `None` if there are none, which ends the task.
    fn take(&self, task: &mut Option<OwnedSemaphorePermit>) -> Option<(Key, Vec<Strikes>)> {
        let mut waiting = lock(&self.waiting);
        let next = waiting.keys().next().cloned();
        let taken = next.and_then(|key| waiting.remove_entry(&key));
        if taken.is_none() {
            *task = None;
        }
        taken
    }
}

/// The identities that a denial strikes, and the ban of each strike. A missing slot is no strike: it means "not now".
fn struck(denial: &Denial) -> impl Iterator<Item = (&Key, Strikes)> {
    let usage = denial.usage();
    let charges = usage.check().charges().iter().zip(usage.policies());
    charges.filter_map(|(charge, of_policy)| {
        let rules = of_policy.rules().iter();
        let mut exceeded = rules.filter(|it| it.is_exceeded() && !it.rule().is_concurrency());
        let strikes = Strikes {
            count: 1,
            ban: charge.policy().ban_config()?,
            policy: charge.policy().clone(),
            rule: exceeded.next()?.rule(),
            denied_at_ms: usage.decided_at_ms(),
        };
        Some((charge.key(), strikes))
    })
}

fn add(waiting: &mut HashMap<Key, Vec<Strikes>>, key: &Key, new: &Strikes, count: u64) {
    if !waiting.contains_key(key) {
        let bytes = waiting.keys().chain([key]).map(|it| it.value().len());
        if waiting.len() >= MAX_WAITING || bytes.sum::<usize>() > MAX_BYTES {
            return;
        }
    }
    let all = waiting.entry(key.clone()).or_default();
    if let Some(known) = all.iter_mut().find(|it| it.ban == new.ban) {
        known.count += count;
        known.denied_at_ms = known.denied_at_ms.max(new.denied_at_ms);
        return;
    }
    let last = all.iter().rposition(|it| it.counter() == new.counter());
    let place = last.map_or(all.len(), |last| last + 1);
    all.insert(
        place,
        Strikes {
            count,
            ..new.clone()
        },
    );
}

/// Charges the strikes that count together, at most as many as the ban with most, so that they reach each: more would
/// change nothing.
fn check(key: &Key, together: &[Strikes]) -> Operation {
    let rules = together.iter().map(|it| it.ban.strikes());
    let most = rules.max_by_key(Rule::limit);
    let count = together.iter().map(|it| it.count).sum::<u64>();
    let charge = |strikes: Rule| {
        let policy = Policy::of_strikes(strikes);
        Charge::new(&policy, key.clone(), count.min(strikes.limit()))
    };
    Operation::Check(Check::counting(most.map(charge)))
}

impl Strikes {
    /// Bans over the same key and window share one counter in the store.
    fn counter(&self) -> Spec {
        Spec::of(&self.ban.strikes())
    }

    /// Whether the limit is reached. The policy of strikes holds twice the greatest limit, so that reaching a limit still
    /// fits.
    fn is_reached(&self, charged: &Decision) -> bool {
        let limit = self.ban.strikes().limit();
        let used = |rule: &RuleUsage| rule.rule().limit() - rule.remaining();
        match charged {
            Decision::Allowed(usage) => usage.rules().any(|rule| used(rule) >= limit),
            Decision::Denied(_) => true,
            Decision::Blocked(_) => false,
        }
    }

    /// The end of a first ban.
    fn until(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.denied_at_ms.saturating_add(self.ban.times_ms()[0]))
    }
}
