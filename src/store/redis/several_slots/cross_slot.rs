//! A check whose keys are in several slots: one call for each slot, all or nothing by rolling back.
//!
//! ```text
//!   check ──▶ slot 1: admitted ──▶ rolled back ─┐
//!         ──▶ slot 2: denied ──────────────────▶├─▶ denied
//!         ──▶ slot 3: admitted ──▶ rolled back ─┘
//! ```
//!
//! Several identical checks are decided together: each slot admits as many as fit there, and when all slots have
//! answered, those that do not fit in every slot are rolled back.
//!
//! One task asks all slots at once. After the first denial or error, it rolls back at once what the slots have admitted,
//! and later admissions as they arrive. If the caller leaves, the task goes on: what it then admits stays charged, as in
//! one slot.

use std::{pin::Pin, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::hash_slots::{Slots as HashSlots, TOO_LATE, answered, in_time, join_usages, within};
use crate::{
    domain::{
        charge::Charge,
        check::{Check, CheckBatch},
        decision::{Blocked, Decision, Usage},
        error::StoreError,
        operation::{Operation, answer_of},
        settlement::Settlement,
        slots::Slots,
    },
    store::{
        Store, StoreFuture,
        ext::ANOTHER_REPLY,
        redis::{RedisStore, connection::PART_TIMEOUT},
        sent::Sent,
    },
};

/// How long an answer waits for the denials of other slots, for roll-backs and for shadows. Shorter than the default
/// timeout of a limiter.
const GRACE: Duration = Duration::from_millis(50);

/// How long a roll-back is tried that was surely not sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between the first two tries; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

/// How long the answer of a slot is waited for, to roll it back.
const LATEST: Duration = Duration::from_secs(60);

/// Decides identical checks of several slots, the charges that count and then the shadows of the admitted checks, unless
/// the caller leaves before one of them is sent.
pub(super) async fn check_batch(
    store: RedisStore,
    batch: CheckBatch,
    slots: HashSlots,
    sent: Option<Sent>,
) -> Result<Vec<Decision>, StoreError> {
    if batch.count() == 0 {
        return Ok(Vec::new());
    }
    let checks = CrossSlot {
        parts: vec![Part::default(); slots.len()],
        store,
        sent,
        unanswered: slots.len(),
        slots,
        under_way: FuturesUnordered::new(),
        fitting: batch.count().into(),
        batch,
        is_denied: false,
        blocked: None,
        error: None,
    };
    answered(|caller| checks.decide(caller)).await
}

struct CrossSlot {
    store: RedisStore,
    /// Shared by the parts.
    sent: Option<Sent>,
    batch: CheckBatch,
    slots: HashSlots,
    /// In the order of the slots.
    parts: Vec<Part>,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Event> + Send>>>,
    /// How many slots have not answered.
    unanswered: usize,
    /// The number of checks that fit in each slot that has answered; 0 after an error.
    fitting: usize,
    /// Whether a slot denies all checks.
    is_denied: bool,
    /// The block that ends last among the blocks found.
    blocked: Option<Blocked>,
    error: Option<StoreError>,
}

/// What is charged in one slot.
#[derive(Clone, Default)]
struct Part {
    /// The usage after each check, the admitted ones first; the last is also the usage of all checks behind. Empty if
    /// the slot has not decided.
    usages: Vec<Usage>,
    /// The number of checks that are charged and not to be rolled back.
    checks: usize,
}

/// What happened in the slot with this number.
enum Event {
    Decided(usize, Result<Vec<Decision>, StoreError>),
    Hangs(usize, StoreFuture<Vec<Decision>>),
    RolledBack(usize, Result<Usage, StoreError>),
}

impl CrossSlot {
    async fn decide(mut self, caller: oneshot::Sender<Result<Vec<Decision>, StoreError>>) {
        self.ask();
        while self.fitting > 0
            && self.unanswered > 0
            && let Some(event) = self.under_way.next().await
        {
            self.note(event);
        }
        // A denial or a block says more than an error, and the usage after the roll-backs more than that before.
        let end = Instant::now() + GRACE;
        let _ = timeout_at(end, self.roll_back()).await;
        let decisions = self.decisions(end).await;
        let _ = caller.send(decisions);
        self.roll_back().await;
    }

    fn ask(&self) {
        for (slot, (_, charges)) in self.slots.iter().enumerate() {
            let part = self.batch.map(|check| check.pick(charges));
            let answer = self.store.check_batch(part, self.sent.as_ref());
            let decided = async move {
                let mut answer = answer;
                match timeout(PART_TIMEOUT, &mut answer).await {
                    Ok(decisions) => Event::Decided(slot, decisions),
                    Err(_) => Event::Hangs(slot, answer),
                }
            };
            self.under_way.push(Box::pin(decided));
        }
    }

    fn note(&mut self, event: Event) {
        let (slot, decisions) = match event {
            Event::Decided(slot, Ok(decisions)) => (slot, decisions),
            Event::Decided(_, Err(error)) => {
                self.unanswered -= 1;
                self.fitting = 0;
                self.error.get_or_insert(error);
                return;
            }
            // No caller waits longer. What the slot admits later is rolled back.
            Event::Hangs(slot, answer) => {
                self.fitting = 0;
                self.error.get_or_insert(TOO_LATE);
                let late = async move { Event::Decided(slot, within(LATEST, answer).await) };
                self.under_way.push(Box::pin(late));
                return;
            }
            Event::RolledBack(slot, Ok(usage)) => {
                let part = &mut self.parts[slot];
                part.usages.truncate(part.checks);
                part.usages.push(usage);
                return;
            }
            Event::RolledBack(_, Err(_)) => return, // the charge stays until its steps are released
        };
        self.unanswered -= 1;
        let admitted = decisions.iter().filter(|decision| decision.is_allowed());
        let checks = admitted.count();
        self.fitting = self.fitting.min(checks);
        if let Some(Decision::Blocked(blocked)) = decisions.first() {
            let blocks = self.blocked.take().into_iter().chain([blocked.clone()]);
            self.blocked = blocks.reduce(Blocked::or_later);
            return;
        }
        self.is_denied |= checks == 0;
        let usages = decisions.iter().map(|decision| decision.usage().clone());
        let usages = usages.collect();
        self.parts[slot] = Part { usages, checks };
    }

    /// Rolls back the charges of the checks that do not fit, until all slots have answered.
    ///
    /// Cancellation: call it again to go on.
    async fn roll_back(&mut self) {
        loop {
            for slot in 0..self.parts.len() {
                self.begin_roll_back(slot);
            }
            match self.under_way.next().await {
                Some(event) => self.note(event),
                None => return,
            }
        }
    }

    fn begin_roll_back(&mut self, slot: usize) {
        let part = &mut self.parts[slot];
        let Some(others @ 1..) = part.checks.checked_sub(self.fitting) else {
            return;
        };
        let refund = refund_of(&part.usages[part.checks - 1], others);
        let taken = &part.usages[self.fitting..part.checks];
        let taken = taken.iter().flat_map(|usage| usage.check().charges());
        let returns = Slots::of_charges(taken).into_iter().map(Operation::Return);
        part.checks = self.fitting;
        let store = self.store.clone();
        self.under_way.push(Box::pin(async move {
            let refunded = async {
                let refund = Operation::Settle(refund?);
                give_back(&store, returns.chain([refund]).collect()).await
            };
            Event::RolledBack(slot, refunded.await)
        }));
    }

    /// The decisions, the admissions with their shadows. An error of the shadows is dropped, and so is a late answer.
    async fn decisions(&mut self, end: Instant) -> Result<Vec<Decision>, StoreError> {
        let decisions = self.join()?;
        let admitted = u16::try_from(self.fitting).unwrap_or(u16::MAX);
        let Some(shadows) = self.batch.shadows(admitted).filter(|_| admitted > 0) else {
            return Ok(decisions);
        };
        let shadows = self.store.check_batch(shadows, None);
        let shadows = timeout_at(end, shadows).await;
        let mut shadows = shadows.into_iter().flatten().flatten();
        let with_shadow = |decision: Decision| match shadows.next() {
            Some(shadow) => decision.with_shadow(shadow),
            None => decision,
        };
        Ok(decisions.into_iter().map(with_shadow).collect())
    }

    fn join(&self) -> Result<Vec<Decision>, StoreError> {
        let count = self.batch.count().into();
        if let Some(blocked) = &self.blocked {
            return Ok(vec![Decision::Blocked(blocked.clone()); count]);
        }
        if self.fitting == 0 && !self.is_denied {
            let error = self.error.clone().unwrap_or(TOO_LATE);
            return Err(error.maybe_sent()); // another slot may be charged
        }
        let admitted = (0..self.fitting).map(|check| self.join_one(check, true));
        let mut decisions: Vec<Decision> = admitted.collect::<Result<_, _>>()?;
        if self.fitting < count {
            decisions.resize(count, self.join_one(self.fitting, false)?);
        }
        Ok(decisions)
    }

    /// The decision of the check with this number.
    fn join_one(&self, place: usize, is_admitted: bool) -> Result<Decision, StoreError> {
        let check = self.batch.nth(u16::try_from(place).unwrap_or(u16::MAX));
        let check = &check.without_shadows();
        let parts = self.parts.iter().zip(&self.slots);
        let usages = parts.map(|(part, (_, charges))| {
            let usage = part.usages.get(place).or(part.usages.last()).cloned();
            // We know nothing about a slot that did not answer.
            usage.unwrap_or_else(|| Usage::unused(&check.pick(charges)))
        });
        let usages: Vec<Usage> = usages.collect();
        let (decided_at_ms, rules) = join_usages(check, &self.slots, usages.iter());
        let joined = Decision::joined(check, is_admitted, decided_at_ms, rules)?;
        if self.parts.iter().any(|part| part.usages.is_empty()) {
            joined.usage().note_unseen_blocks();
        }
        Ok(joined)
    }
}

/// Returns slots and refunds charges in one call, and tries again while the store has certainly done nothing.
async fn give_back(store: &RedisStore, operations: Vec<Operation>) -> Result<Usage, StoreError> {
    let end = Instant::now() + PATIENCE;
    let mut pause = PAUSE;
    loop {
        let mut replies = in_time(store.call(operations.clone())).await;
        let returned = match &mut replies {
            Ok(replies) => replies.pop().unwrap_or(Err(ANOTHER_REPLY)),
            Err(error) => Err(error.clone()),
        };
        let is_unsent = returned.as_ref().is_err_and(StoreError::is_unsent);
        if !is_unsent || Instant::now() + pause > end {
            return returned.and_then(|reply| answer_of!(Settle)(reply).ok_or(ANOTHER_REPLY));
        }
        sleep(pause).await;
        pause *= 2;
    }
}

/// The refund of the charges of this many checks, which were decided together. `usage` is that of one of them.
fn refund_of(usage: &Usage, checks: usize) -> Result<Settlement, StoreError> {
    let charges = usage.check().charges().iter().map(|charge| {
        let units = if charge.policy().is_concurrency() {
            0 // slots are returned by their ids
        } else {
            charge.cost() * checks as u64 // no more than were charged
        };
        Charge::new(charge.policy(), charge.key().clone(), units)
    });
    let check = Check::new(charges)?;
    let check = check.shadow_check().unwrap_or(check); // the slot may have been asked for shadows, which count there
    let rules = usage.rules().copied().collect();
    let all = Decision::joined(&check, true, usage.decided_at_ms(), rules)?;
    Settlement::roll_back(all.usage())
}
