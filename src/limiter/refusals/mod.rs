//! [`Refusals`]: blocks and denials that this process remembers.
//!
//! ```text
//!  check ──▶ a remembered denial? ── yes ──▶ the same one, with a `retry_after` that has aged
//!                 │ no
//!                 ▼
//!               store ──▶ refused ──▶ remembered until the store could admit, at most a second,
//!                  │                  and for want of a slot at most 100 ms
//!                  └── cannot decide ──▶ a known block?
//! ```
//!
//! ```text
//!   asked        decided by the store, for d ms            first admission
//!     ├────────────────┼──────────┬───────────────────────────┼──────▶ this process's clock
//!     │                       answered                        │
//!     ├── repeated here, at most MAX_AGE ──▶ asked + d − 1 ms │
//!                                 ├── says: answered + d, rounded up ──▶
//! ```
//!
//! The store decided at some time between the question and the answer, and its clock counts whole milliseconds. So the
//! first admission is later than `asked + d - 1 ms`, and not later than `answered + d`.
//!
//! Denials are remembered by the whole check, if the limiter [caches](Limiter::cache_denials) them. Blocks are always
//! remembered, by identity: the store stays the only source, its answers add and remove them, and they deny here only
//! while the store cannot decide.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::{Duration, UNIX_EPOCH},
};

use tokio::time::Instant;

use self::refund_epochs::RefundEpochs;
use crate::{
    bounded::Sets,
    domain::{
        block::{Block, BlockedBy},
        charge::Charge,
        check::Check,
        decision::{Blocked, Decision},
        key::Key,
        rule::millis,
    },
};

mod refund_epochs;

/// The atomics of [`refund_epochs`]. Tests replace them by those of a model checker.
mod sync {
    pub(super) use std::sync::atomic;
}

/// More are blocked only under attack, and then mostly by bans, which leave first. Some 900 kB.
const MAX_BLOCKS: usize = 10_000;

const MAX_DENIALS: usize = 16_384;

/// The maximum age of a repeated denial. This is also how late you notice an early end through another limiter.
const MAX_AGE: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(1);

/// Enough that a refund to one identity rarely ends the denials of another.
const REFUND_GROUPS: usize = 16_384;

/// Denials of larger checks are not remembered, so that memory is bounded.
const MAX_CHARGES: usize = 16;
const MAX_RULES: usize = 32;
const MAX_KEY_BYTES: usize = 1_024;

/// The clones of a limiter share this.
#[derive(Debug)]
pub(super) struct Refusals {
    /// How many blocks were ever noted or ended here.
    noted: AtomicU64,
    /// The value of `noted` after a block was last ended here.
    ended: AtomicU64,
    blocks: Sets<KnownBlock>,
    denials: Sets<CachedDenial>,
    /// Set with the first denial that may be remembered.
    refunds: OnceLock<RefundEpochs>,
}

#[derive(Clone, Copy, Debug)]
struct KnownBlock {
    block: Block,
    /// The end by the clock of this process; `None` for a permanent block.
    ends: Option<Instant>,
    /// The value of `noted` after this block.
    number: u64,
}

/// A denial, or the answer that an identity is blocked.
#[derive(Debug)]
struct CachedDenial {
    check: Check,
    denial: Decision,
    /// Times of this process's clock, since a fixed point.
    asked: Duration,
    answered: Duration,
    until: Duration,
    /// The number of the last refund before the question, and the groups whose later refunds end this denial.
    given_back: u64,
    groups: Box<[usize]>,
}

/// A check on its way to the store, whose denial may be remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    hash: u64,
    asked: Duration,
    given_back: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            noted: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            blocks: Sets::new(MAX_BLOCKS),
            denials: Sets::new(MAX_DENIALS),
            refunds: OnceLock::new(),
        }
    }
}

/// Denials.
impl Refusals {
    /// Returns the remembered denial of this check. If there is none, a question that
    /// [remembers](Self::remember_denial) the store's answer; `None` if that answer must not be remembered.
    pub(super) fn recall(
        &self,
        check: &Check,
        clock: &DenialClock,
    ) -> Result<Decision, Option<Question>> {
        if !may_be_remembered(check) {
            return Err(None);
        }
        let (hash, now) = (self.denials.hash(Subject(check)), clock());
        let new = || RefundEpochs::new(REFUND_GROUPS);
        let refunds = self.refunds.get_or_init(new);
        let known = self.denials.read(hash, |known| {
            let mut groups = known.groups.iter();
            let holds = Subject(&known.check) == Subject(check)
                && (known.asked..known.until).contains(&now) // a test's clock may step back
                && groups.all(|group| refunds.none_since(known.given_back, *group));
            let age = now.saturating_sub(known.answered);
            holds.then(|| (known.denial.clone(), millis(age)))
        });
        match known.flatten() {
            Some((denial, age_ms)) => Ok(denial.repeated(check, age_ms)),
            None => Err(Some(Question {
                hash,
                asked: now,
                given_back: refunds.last(),
            })),
        }
    }

    /// Remembers the store's decision if it is a denial.
    pub(super) fn remember_denial(
        &self,
        check: &Check,
        decision: &Decision,
        question: Question,
        clock: &DenialClock,
    ) {
        let denied_for = match decision {
            Decision::Allowed(_) => return,
            Decision::Denied(denial) => denial.recheck_after(),
            Decision::Blocked(blocked) => blocked.retry_after(),
        };
        let span = denied_for.unwrap_or(Duration::MAX).saturating_sub(TICK);
        if let Some(refunds) = self.refunds.get()
            && !span.is_zero()
        {
            let denial = CachedDenial {
                check: check.clone(),
                denial: decision.clone(),
                asked: question.asked,
                answered: clock(),
                until: question.asked + span.min(MAX_AGE),
                given_back: question.given_back,
                groups: self.groups_that_end(check, decision, refunds),
            };
            self.denials.insert(question.hash, denial, |it| it.until);
        }
    }

    /// The groups of the charges that do not fit, and of the blocks of all keys. Any of these can end the denial early.
    fn groups_that_end(
        &self,
        check: &Check,
        denial: &Decision,
        refunds: &RefundEpochs,
    ) -> Box<[usize]> {
        let denying = denial.usage().denying();
        let denying =
            denying.map(|charge| self.denials.hash((charge.policy().name(), charge.key())));
        let keys = check.keys().filter(|_| check.enforces_blocks());
        denying
            .chain(keys.map(|key| self.denials.hash(key)))
            .map(|hash| refunds.group(hash))
            .collect()
    }

    /// Ends the denials that a change of an identity can end: of its blocks, or under the policy of this name.
    pub(super) fn end_denials_of(&self, identity: impl Hash) {
        if let Some(refunds) = self.refunds.get() {
            refunds.note(refunds.group(self.denials.hash(identity)));
        }
    }
}

/// Whether a denial of this check may be remembered.
///
/// A check without cost asks for the usage, which only the store knows. A check with nothing but shadows is never
/// denied.
fn may_be_remembered(check: &Check) -> bool {
    let all = check.all_charges();
    let keys = all.iter().map(Charge::key);
    let key_bytes: usize = keys.map(|key| key.value().len()).sum();
    check.charges().iter().any(|charge| charge.cost() > 0)
        && key_bytes <= MAX_KEY_BYTES
        && all.len() <= MAX_CHARGES
        && check.rule_count() <= MAX_RULES
}

/// The subject of a denial: checks with equal subjects are denied together. It has the charges with their costs, and the
/// identities with blocks that deny. Policies are compared with all their rules, so a changed limit makes another subject.
/// Contributors and shadows change no denial.
struct Subject<'a>(&'a Check);

impl PartialEq for Subject<'_> {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (self.0, other.0);
        let mut pairs = one.charges().iter().zip(other.charges());
        one.enforces_blocks() == other.enforces_blocks()
            && one.charges().len() == other.charges().len()
            && pairs.all(|(one, other)| {
                one.cost() == other.cost()
                    && one.policy().is_same(other.policy())
                    && one.key() == other.key()
            })
    }
}

impl Hash for Subject<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for charge in self.0.charges() {
            charge.policy().name().hash(state);
            charge.key().hash(state);
            charge.cost().hash(state);
        }
        self.0.enforces_blocks().hash(state);
    }
}

/// Says the time, since a fixed point, that the age of a denial is measured with: by the clock of this process, which never
/// steps back, and may stand still while the machine sleeps; or by that of a test.
pub(super) type DenialClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Blocks.
impl Refusals {
    /// The number of blocks known when a store call begins: its answer can revoke only those.
    pub(super) fn known(&self) -> u64 {
        self.noted.load(Acquire)
    }

    /// Learns from the store's answer.
    pub(super) fn learn(&self, check: &Check, decision: &Decision, before: u64) {
        if let Decision::Blocked(blocked) = decision {
            // The store may have seen the block before this process ended the block. If still there, the next answer
            // says so.
            let is_news = |_: Option<&_>| before >= self.ended.load(Acquire);
            let (key, block, left) = (blocked.key(), blocked.block(), blocked.retry_after());
            self.note_if(key, block, left, Instant::now(), is_news);
            return;
        }
        if before > 0 && check.enforces_blocks() && !decision.usage().facts().has_unseen_blocks {
            // The store no longer has these.
            for key in check.keys() {
                let is_revoked = |known: &KnownBlock| known.number <= before;
                self.blocks.remove_if(self.blocks.hash(key), is_revoked);
            }
        }
    }

    /// Notes a block that the store may not have, unless a known one holds for longer.
    pub(super) fn note_longer(&self, key: &Key, block: Block, lasts: Duration, now: Instant) {
        let left = |ends: Instant| ends.saturating_duration_since(now);
        let is_longer = |known: &KnownBlock| known.ends.is_none_or(|ends| left(ends) > lasts);
        let notes = |known: Option<&_>| !known.is_some_and(is_longer);
        self.note_if(key, block, Some(lasts), now, notes);
    }

    /// Notes the block that the store returned for a request of `asked` from `now` on: that one, or another that never
    /// ends. A block already known keeps its end.
    pub(super) fn note_made(&self, key: &Key, block: Block, asked: Option<Duration>, now: Instant) {
        let lasts = asked.filter(|_| block.until_ms().is_some());
        let notes = |known: Option<&KnownBlock>| known.is_none_or(|known| known.block != block);
        self.note_if(key, block, lasts, now, notes);
        self.end_denials_of(key);
    }

    /// Notes a block that lasts for `lasts` from `now` on, permanent if `None`, in the place of the known one, if
    /// `notes` agrees.
    fn note_if(
        &self,
        key: &Key,
        block: Block,
        lasts: Option<Duration>,
        now: Instant,
        notes: impl FnOnce(Option<&KnownBlock>) -> bool,
    ) {
        let ends = lasts.and_then(|lasts| now.checked_add(lasts));
        if ends.is_some_and(|ends| ends <= now) {
            return;
        }
        let hash = self.blocks.hash(key);
        let rank = |known: &KnownBlock| known.rank(now);
        self.blocks.update(hash, rank, |known| {
            // Under the lock of the set, so that a call that begins later can revoke it.
            notes(known).then(|| KnownBlock {
                block,
                ends,
                number: self.noted.fetch_add(1, AcqRel) + 1,
            })
        });
    }

    pub(super) fn forget(&self, key: &Key) {
        let number = self.noted.fetch_add(1, AcqRel) + 1;
        self.ended.fetch_max(number, AcqRel);
        // Afterwards, so that an older answer either notes the block before, or sees that it has ended.
        self.blocks.remove_if(self.blocks.hash(key), |_| true);
        self.end_denials_of(key);
    }

    /// Finds the block of the check's identities that ends last.
    pub(super) fn find(&self, check: &Check) -> Option<Blocked> {
        if !check.enforces_blocks() || self.known() == 0 {
            return None;
        }
        let now = Instant::now();
        let known = check.keys().filter_map(|key| {
            let known = self.blocks.read(self.blocks.hash(key), |known| *known)?;
            known.holds(now).then_some((key, known))
        });
        let last = known.max_by_key(|(_, known)| (known.ends.is_none(), known.ends));
        last.map(|(key, known)| Blocked::new(key.clone(), known.block, known.store_now_ms(now)))
    }
}

impl KnownBlock {
    fn holds(&self, now: Instant) -> bool {
        self.ends.is_none_or(|ends| ends > now)
    }

    /// Bans and pauses leave before operators' blocks, and those that end first before the others.
    fn rank(&self, now: Instant) -> (bool, bool, bool, Option<Instant>, u64) {
        let (ends, is_operators) = (self.ends, self.block.source() == BlockedBy::Operator);
        (
            self.holds(now),
            is_operators,
            ends.is_none(),
            ends,
            self.number,
        )
    }

    /// The store's time, as far as this process can compute.
    fn store_now_ms(&self, now: Instant) -> u64 {
        match (self.block.until_ms(), self.ends) {
            (Some(until_ms), Some(ends)) => until_ms.saturating_sub(millis(ends - now)),
            _ => millis(UNIX_EPOCH.elapsed().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: usize) -> Key {
        Key::new("user", number.to_string())
    }

    fn known(refusals: &Refusals, key: &Key) -> Option<KnownBlock> {
        let hash = refusals.blocks.hash(key);
        refusals.blocks.read(hash, |known| *known)
    }

    #[test]
    fn a_block_that_the_store_may_not_have_replaces_only_one_that_ends_earlier() {
        let refusals = Refusals::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let ends = || known(&refusals, &user(1)).unwrap().ends.map(|it| it - now);
        let pause = Block::new(1, BlockedBy::Pause);
        refusals.note_longer(&user(1), pause, 2 * second, now);
        assert_eq!(ends(), Some(2 * second));
        refusals.note_longer(&user(1), pause, second, now);
        assert_eq!(ends(), Some(2 * second));
        refusals.note_longer(&user(1), pause, 3 * second, now);
        assert_eq!(ends(), Some(3 * second));
        refusals.note_made(&user(1), Block::new(1, BlockedBy::Operator), None, now);
        refusals.note_longer(&user(1), pause, 3 * second, now);
        assert_eq!(ends(), None);
        refusals.note_longer(&user(2), pause, second, now);
        refusals.note_longer(&user(2), pause, Duration::MAX, now);
        assert_eq!(known(&refusals, &user(2)).unwrap().ends, None);
    }

    #[test]
    fn of_too_many_the_bans_leave_first_and_of_these_those_that_end_first() {
        let refusals = Refusals::default();
        let now = Instant::now();
        let block = |number: usize, by, seconds| {
            let lasts = Some(Duration::from_secs(seconds));
            refusals.note_made(&user(number), Block::new(1, by), lasts, now);
        };
        for number in 0..1_000 {
            // The operators' end first of all.
            block(number, BlockedBy::Operator, 1);
        }
        for number in 1_000..100_000 {
            block(number, BlockedBy::Ban, number as u64);
        }
        assert_eq!(refusals.blocks.len(), MAX_BLOCKS);
        assert!((0..1_000).all(|number| known(&refusals, &user(number)).is_some()));
        let early = (1_000..20_000).filter(|number| known(&refusals, &user(*number)).is_some());
        assert!(early.count() < 100);
        // Nothing takes the room of blocks that never end, but the latest of these.
        for number in 100_000..200_000 {
            let block = Block::new(u64::MAX, BlockedBy::Operator);
            refusals.note_made(&user(number), block, None, now);
        }
        assert_eq!(refusals.blocks.len(), MAX_BLOCKS);
        assert!(known(&refusals, &user(199_999)).is_some(), "the latest");
    }
}
