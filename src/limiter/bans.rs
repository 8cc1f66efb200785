//! Counts strikes and makes bans, in a task of each limiter, off the request path.
//!
//! ```text
//! denial ──▶ waiting strikes ──▶ task: charge them in the store ──▶ too many: ban
//! ```

use std::{
    cmp::Reverse,
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{caller::Caller, refusals::Refusals, timeout::within};
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
};

/// How many identities can wait. Under an attack from many more, the rest are dropped and not counted.
const MAX_WAITING: usize = 1_024;

/// How many bytes their values can have: clients may choose them.
const MAX_BYTES: usize = 1 << 20;

/// How many identities are counted at the same time.
const MAX_TOGETHER: u32 = 32;

/// Strikes that wait to be counted.
pub(super) struct StrikeQueue {
    waiting: Mutex<Waiting>,
    /// Its permit is free while no task runs; a task ends under the lock.
    task: Arc<Semaphore>,
    refusals: Arc<Refusals>,
    background: Arc<BackRoom>,
}

#[derive(Debug, Default)]
struct Waiting {
    by_identity: HashMap<Key, Vec<Strikes>>,
    /// The sum of the sizes of all values.
    bytes: usize,
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

/// One denial of one identity, and the exceeded rule of the policy that denied.
#[derive(Clone, Copy)]
struct Strike<'a> {
    charge: &'a Charge,
    ban: Ban,
    rule: Rule,
    /// 0 if a strike under another ban is counted in the same place.
    count: u64,
}

impl StrikeQueue {
    pub(super) fn new(refusals: &Arc<Refusals>, background: &Arc<BackRoom>) -> Self {
        Self {
            waiting: Mutex::default(),
            task: Arc::new(Semaphore::new(1)),
            refusals: Arc::clone(refusals),
            background: Arc::clone(background),
        }
    }

    /// Counts a strike for each identity that a policy with a ban denies.
    pub(super) fn count(self: &Arc<Self>, decision: &Decision, caller: &Arc<Caller>) {
        if let Decision::Denied(denial) = decision
            && !denial.usage().is_local()
            && self.add(denial)
        {
            self.start_counting(caller);
        }
    }

    /// Waits until the strikes so far are counted.
    #[cfg(feature = "manual-clock")]
    pub(super) async fn counted(self: &Arc<Self>, caller: &Arc<Caller>) {
        loop {
            drop(self.task.acquire().await);
            if self.lock().by_identity.is_empty() {
                return;
            }
            self.start_counting(caller); // a strike came while this held the permit
        }
    }

    #[cold]
    fn start_counting(self: &Arc<Self>, caller: &Arc<Caller>) {
        let Ok(task) = Arc::clone(&self.task).try_acquire_owned() else {
            return self.background.look();
        };
        let counting = Counting {
            queue: Arc::clone(self),
            caller: Arc::clone(caller),
            task: Some(task),
        };
        self.background.spawn(counting.run());
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the strikes of an identity that were not counted yet.
    pub(super) fn forget(&self, key: &Key) {
        let mut waiting = self.lock();
        if waiting.by_identity.remove(key).is_some() {
            waiting.bytes -= key.value().len();
        }
    }

    /// Returns whether to start a task, if none is alive.
    fn add(&self, denial: &Denial) -> bool {
        let struck = struck(denial);
        if struck.is_empty() {
            return false;
        }
        let mut waiting = self.lock();
        for strike in struck {
            waiting.add(strike, denial.usage().decided_at_ms());
        }
        true
    }

    /// Takes all waiting strikes; `None` if there are none, which ends the task.
    fn take(&self, task: &mut Option<OwnedSemaphorePermit>) -> Option<HashMap<Key, Vec<Strikes>>> {
        let mut waiting = self.lock();
        if waiting.by_identity.is_empty() {
            *task = None;
            return None;
        }
        Some(mem::take(&mut *waiting).by_identity)
    }
}

/// The identities that a denial strikes, and the ban of each strike. A missing slot is no strike: it means "not now".
///
/// A denial is one strike, however many policies deny: bans over the same key and window share one counter in the store,
/// so only the ban that sorts first counts it.
fn struck(denial: &Denial) -> Vec<Strike<'_>> {
    let usage = denial.usage();
    let charges = usage.check().charges().iter().zip(usage.policies());
    let all = charges.filter_map(|(charge, usage)| {
        let ban = charge.policy().ban_config()?;
        let rules = usage.rules().iter();
        let mut exceeded = rules.filter(|it| it.is_exceeded() && !it.rule().is_concurrency());
        let rule = exceeded.next()?.rule();
        Some(Strike {
            charge,
            ban,
            rule,
            count: 1,
        })
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by(|one, other| order(&one.ban).cmp(&order(&other.ban)));
    let mut struck: Vec<Strike<'_>> = Vec::new();
    for mut strike in all {
        let spec = Spec::of(&strike.ban.strikes());
        let is_counted = struck.iter().any(|known| {
            known.charge.key() == strike.charge.key() && Spec::of(&known.ban.strikes()) == spec
        });
        strike.count = u64::from(!is_counted);
        struck.push(strike);
    }
    struck
}

/// Sorts the bans of one window: fewest strikes first, then longest ban. The first times decide between bans that grow.
fn order(ban: &Ban) -> (u64, Reverse<&[u64]>) {
    (ban.strikes().limit(), Reverse(ban.times_ms()))
}

impl Waiting {
    fn add(&mut self, strike: Strike<'_>, denied_at_ms: u64) {
        let Strike {
            charge,
            ban,
            rule,
            count,
        } = strike;
        if !self.by_identity.contains_key(charge.key()) {
            let bytes = self.bytes + charge.key().value().len();
            if self.by_identity.len() >= MAX_WAITING || bytes > MAX_BYTES {
                return;
            }
            self.bytes = bytes;
        }
        let all = self.by_identity.entry(charge.key().clone()).or_default();
        if let Some(strikes) = all.iter_mut().find(|strikes| strikes.ban == ban) {
            strikes.count += count;
            strikes.denied_at_ms = strikes.denied_at_ms.max(denied_at_ms);
        } else {
            all.push(Strikes {
                ban,
                policy: charge.policy().clone(),
                rule,
                count,
                denied_at_ms,
            });
        }
    }
}

/// The counting task. If its runtime ends, or there is none, the strikes that wait are forgotten: a request must not
/// wait for a store call.
struct Counting {
    queue: Arc<StrikeQueue>,
    caller: Arc<Caller>,
    /// `None` after the last strike.
    task: Option<OwnedSemaphorePermit>,
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        if self.task.take().is_some() {
            *waiting = Waiting::default();
        }
    }
}

impl Counting {
    async fn run(mut self) {
        while let Some(waiting) = self.queue.take(&mut self.task) {
            let places = Arc::new(Semaphore::new(MAX_TOGETHER as usize));
            for (key, strikes) in waiting {
                let place = Arc::clone(&places).acquire_owned().await;
                let (caller, refusals) = (self.caller.clone(), self.queue.refusals.clone());
                self.queue.background.spawn(async move {
                    count(&caller, &refusals, key, strikes).await;
                    drop(place);
                });
            }
            drop(places.acquire_many(MAX_TOGETHER).await);
        }
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
    banned.sort_by_key(|(strikes, _)| Reverse((strikes.grows(), strikes.until())));
    let Some(last) = banned.len().checked_sub(1) else {
        return;
    };
    let bans = banned.iter().enumerate().map(|(place, (strikes, _))| {
        let until = Until::At(strikes.until());
        let request = BlockRequest::ban(until, &strikes.policy, &strikes.rule);
        Operation::Ban {
            key: key.clone(),
            strikes: strikes.ban.strikes(),
            // The other bans need the strikes too.
            request: request.keep_strikes(place < last),
        }
    });
    let replies = call(caller, bans.collect()).await.into_iter();
    let made = banned.iter().zip(replies).filter_map(|(ban, reply)| {
        let Some(Reply::Ban(Some(block))) = reply else {
            return None;
        };
        Some((ban, block))
    });
    // Each reply has the block in force: the first to have the last of them made it.
    let made = made.reduce(|one, other| match one.1.or_later(other.1) == one.1 {
        true => one,
        false => other,
    });
    if let Some(((strikes, now_ms), block)) = made {
        let left_ms = block
            .until_ms()
            .map(|until_ms| until_ms.saturating_sub(*now_ms));
        refusals.note_made(&key, block, left_ms.map(Duration::from_millis), now);
        let policy = &strikes.policy;
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
    /// The charge of so many strikes, capped at the limit: more would change nothing.
    fn check(&self, key: &Key, count: u64) -> Operation {
        let strikes = self.ban.strikes();
        let count = count.min(strikes.limit());
        let charge = Charge::new(&Policy::of_strikes(strikes), key.clone(), count);
        Operation::Check(Check::of_one(charge))
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

    fn grows(&self) -> bool {
        self.ban.times_ms().len() > 1
    }

    /// The end of a first ban.
    fn until(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.denied_at_ms) + self.ban.time()
    }
}
