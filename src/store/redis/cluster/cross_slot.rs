//! A check whose keys are in several slots: one call for each slot, all or nothing by rolling back.
//!
//! ```text
//!   check ──▶ slot 1: admitted ──▶ settled to 0 ─┐
//!         ──▶ slot 2: denied ───────────────────▶├─▶ denied
//!         ──▶ slot 3: admitted ──▶ settled to 0 ─┘
//! ```
//!
//! Several identical checks are decided together: each slot admits as many as fit there, and when all slots have
//! answered, those that do not fit in every slot are rolled back.
//!
//! After the first denial or error, or when the caller leaves, all admitted charges are rolled back at once, and later
//! admissions as they arrive. So a node that does not answer keeps no charge in other slots for longer than its callers
//! wait. Slots of nodes that are known not to answer are asked first, so that the other slots are rolled back within a
//! round trip.

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};

use super::hash_slots::{Slots, TOO_LATE, join_usages};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{Blocked, Decision, Usage},
        error::StoreError,
        operation::{Operation, answer_of},
        settlement::Settlement,
    },
    store::{
        StoreFuture,
        redis::{RedisStore, connection::PART_TIMEOUT},
    },
};

/// How much earlier than the others to ask a slot whose node does not answer. If there is still no answer, the check
/// has failed.
const HEAD_START: Duration = Duration::from_millis(20);

/// How long a denial or an error waits for the answers of the other slots and for their roll-backs, and an admission
/// for its shadows. All together are below the default timeout of a limiter.
pub(super) const GRACE: Duration = Duration::from_millis(50);

/// Decides identical checks of several slots. If the caller leaves, a task goes on until no charge is left.
pub(super) async fn check_batch(
    store: RedisStore,
    check: Check,
    count: u16,
    slots: Slots,
) -> Result<Vec<Decision>, StoreError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let (answer, answered) = oneshot::channel();
    let (sender, events) = mpsc::unbounded_channel();
    // Dropped with this future, so that the task learns when the caller leaves.
    let _caller = Caller(sender.clone());
    let parts = slots.iter().map(|_| Part::Waiting).collect();
    let batch = CrossSlotBatch {
        store,
        check,
        count,
        slots,
        parts,
        sender,
        caller: Some(answer),
        deadline: None,
        fitting: count.into(),
        is_decided: false,
        denied: false,
        blocked: None,
    };
    tokio::spawn(batch.run(events));
    answered.await.unwrap_or(Err(TOO_LATE))
}

struct CrossSlotBatch {
    store: RedisStore,
    check: Check,
    /// The number of identical checks.
    count: u16,
    slots: Slots,
    /// In the order of the slots.
    parts: Vec<Part>,
    sender: mpsc::UnboundedSender<Event>,
    /// The caller to answer; `None` once answered, or after the caller has left.
    caller: Option<oneshot::Sender<Result<Vec<Decision>, StoreError>>>,
    /// The end of the wait for the slots that were asked first, or, once decided, for all slots.
    deadline: Option<Instant>,
    /// The number of checks that fit in each slot that has answered; 0 after a failure.
    fitting: usize,
    /// Whether `fitting` checks are admitted, so that the charges of all others are rolled back.
    is_decided: bool,
    /// Whether a slot denies all checks.
    denied: bool,
    /// The block that ends last among the blocks found.
    blocked: Option<Blocked>,
}

/// The state of the charges in one slot.
enum Part {
    Waiting,
    Asked,
    Decided(Charged),
    Failed(StoreError),
    /// Not decided, because an identity is blocked.
    Blocked,
}

/// The answer of one slot.
struct Charged {
    /// The usage after each check, the admitted ones first. The last is also the usage of all checks behind.
    usages: Vec<Usage>,
    /// The number of checks to charge. A charge that could not be rolled back stays until its steps are released.
    checks: usize,
    is_rolling_back: bool,
}

enum Event {
    Decided(usize, Result<Vec<Decision>, StoreError>),
    RolledBack(usize, Result<Usage, StoreError>),
    CallerLeft,
}

/// Sends an event when the caller leaves.
struct Caller(mpsc::UnboundedSender<Event>);

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.0.send(Event::CallerLeft);
    }
}

impl CrossSlotBatch {
    async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        self.begin();
        while self.is_under_way() || self.caller.is_some() {
            if !self.is_under_way() {
                self.answer();
                continue;
            }
            let event = match self.deadline {
                None => events.recv().await,
                Some(deadline) => timeout_at(deadline, events.recv()).await.unwrap_or(None),
            };
            match event {
                Some(event) => self.handle(event),
                None if self.is_decided => self.answer(),
                None => self.decide(0),
            }
        }
    }

    fn is_under_way(&self) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Asked => true,
            Part::Decided(charged) => charged.is_rolling_back,
            Part::Waiting | Part::Failed(_) | Part::Blocked => false,
        })
    }

    /// Asks the slots of nodes that do not answer first, or all slots if no node or every node is like that.
    fn begin(&mut self) {
        for part in 0..self.parts.len() {
            if self.store.transport.is_unresponsive(self.slots[part].0) {
                self.ask(part);
            }
        }
        if !self.is_under_way() {
            self.ask_the_others();
        } else if self.parts.iter().any(|part| matches!(part, Part::Waiting)) {
            self.deadline = Some(Instant::now() + HEAD_START);
        }
    }

    fn ask_the_others(&mut self) {
        for part in 0..self.parts.len() {
            if matches!(self.parts[part], Part::Waiting) {
                self.ask(part);
            }
        }
    }

    fn ask(&mut self, part: usize) {
        self.parts[part] = Part::Asked;
        let check = self.check.pick(&self.slots[part].1);
        let answer = self.store.check_batch(check, self.count);
        self.begin_part(answer, move |result| Event::Decided(part, result));
    }

    /// Runs one call in a task, and sends the result as an event.
    fn begin_part<T: Send + 'static>(
        &self,
        answer: StoreFuture<T>,
        event: impl FnOnce(Result<T, StoreError>) -> Event + Send + 'static,
    ) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let result = timeout(PART_TIMEOUT, answer).await;
            let _ = sender.send(event(result.unwrap_or(Err(TOO_LATE))));
        });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Decided(part, Ok(decisions)) => self.note(part, &decisions),
            Event::Decided(part, Err(error)) => {
                self.parts[part] = Part::Failed(error);
                self.decide(0);
            }
            Event::RolledBack(part, result) => self.roll_back_ended(part, result),
            Event::CallerLeft => {
                if self.caller.take().is_some() {
                    self.decide(0);
                }
            }
        }
    }

    fn note(&mut self, part: usize, decisions: &[Decision]) {
        if let Some(Decision::Blocked(blocked)) = decisions.first() {
            self.parts[part] = Part::Blocked;
            let blocks = self.blocked.take().into_iter().chain([blocked.clone()]);
            self.blocked = blocks.reduce(Blocked::or_later);
            return self.decide(0);
        }
        let usages = decisions.iter().map(|decision| decision.usage().clone());
        let admitted = decisions.iter().filter(|decision| decision.is_allowed());
        let checks = admitted.count();
        self.parts[part] = Part::Decided(Charged {
            usages: usages.collect(),
            checks,
            is_rolling_back: false,
        });
        self.denied |= checks == 0;
        self.fitting = self.fitting.min(checks);
        if self.fitting == 0 {
            self.decide(0);
            self.roll_back_others(part);
        } else if !self.is_under_way() {
            self.deadline = None;
            self.ask_the_others();
            if !self.is_under_way() {
                self.decide(self.fitting);
            }
        }
    }

    /// Admits this many checks, and rolls back the charges of the others. The slots that were not asked yet may still
    /// deny the check, and a denial says more than an error.
    fn decide(&mut self, admitted: usize) {
        // Later denials, blocks and errors only add to the answer.
        if self.is_decided && self.fitting == admitted {
            return;
        }
        self.is_decided = true;
        self.fitting = admitted;
        self.deadline = self.caller.is_some().then(|| Instant::now() + GRACE);
        for part in 0..self.parts.len() {
            self.roll_back_others(part);
        }
        if self.caller.is_some() {
            self.ask_the_others();
        }
    }

    /// Rolls back the charges of the checks that are not admitted.
    fn roll_back_others(&mut self, part: usize) {
        let Part::Decided(charged) = &mut self.parts[part] else {
            return;
        };
        let others = charged.checks.saturating_sub(self.fitting);
        if others == 0 || charged.is_rolling_back {
            return;
        }
        let answer = match roll_back(&charged.usages[charged.checks - 1], others) {
            Ok(settlement) => {
                let settle = Operation::Settle(settlement);
                self.store.execute_one(settle, answer_of!(Settle))
            }
            Err(error) => StoreFuture::ready(Err(error)),
        };
        charged.checks = self.fitting;
        charged.is_rolling_back = true;
        self.begin_part(answer, move |result| Event::RolledBack(part, result));
    }

    fn roll_back_ended(&mut self, part: usize, result: Result<Usage, StoreError>) {
        if let Part::Decided(charged) = &mut self.parts[part] {
            charged.is_rolling_back = false;
            if let Ok(usage) = result {
                charged.usages.truncate(charged.checks);
                charged.usages.push(usage);
            }
        }
        // Fewer checks may be admitted by now, because the caller has left.
        self.roll_back_others(part);
    }

    /// Answers the caller, once.
    fn answer(&mut self) {
        self.deadline = None;
        let Some(caller) = self.caller.take() else {
            return;
        };
        let decisions = if let Some(blocked) = self.blocked.clone() {
            Ok(vec![Decision::Blocked(blocked); self.count.into()])
        } else if self.fitting == 0 && !self.denied {
            Err(self.first_error())
        } else {
            self.join_parts()
        };
        if caller.send(decisions).is_err() {
            self.decide(0);
        }
    }

    fn join_parts(&self) -> Result<Vec<Decision>, StoreError> {
        let admitted = (0..self.fitting).map(|check| self.join(check, true));
        let mut decisions: Vec<Decision> = admitted.collect::<Result<_, _>>()?;
        if self.fitting < self.count.into() {
            let denied = self.join(self.fitting, false)?;
            decisions.resize(self.count.into(), denied);
        }
        Ok(decisions)
    }

    /// The decision of the check with this number.
    fn join(&self, check: usize, is_admitted: bool) -> Result<Decision, StoreError> {
        let parts = self.parts.iter().zip(&self.slots);
        let usages = parts.map(|(part, (_, charges))| {
            // We know nothing about a slot that did not answer.
            let unknown = || Usage::unused(&self.check.pick(charges));
            part.usage(check).cloned().unwrap_or_else(unknown)
        });
        let usages: Vec<Usage> = usages.collect();
        let (decided_at_ms, rules) = join_usages(&self.check, &self.slots, usages.iter());
        let joined = Decision::joined(&self.check, is_admitted, decided_at_ms, rules)?;
        if self.parts.iter().any(|part| part.usage(check).is_none()) {
            joined.usage().note_unseen_blocks();
        }
        Ok(joined)
    }

    fn first_error(&self) -> StoreError {
        let mut errors = self.parts.iter().filter_map(|part| match part {
            Part::Failed(error) => Some(error.clone().maybe_sent()), // another part may be charged
            _ => None,
        });
        errors.next().unwrap_or(TOO_LATE)
    }
}

impl Part {
    /// The usage after the check with this number.
    fn usage(&self, check: usize) -> Option<&Usage> {
        match self {
            Self::Decided(charged) => charged.usages.get(check).or(charged.usages.last()),
            Self::Waiting | Self::Asked | Self::Failed(_) | Self::Blocked => None,
        }
    }
}

/// Gives back the charges of this many checks, which were decided together. `usage` is that of one of them.
pub(super) fn roll_back(usage: &Usage, checks: usize) -> Result<Settlement, StoreError> {
    let charges = usage.check().charges().iter().map(|charge| {
        let units = charge.cost() * checks as u64; // no more than were charged
        Charge::new(charge.policy(), charge.key().clone(), units)
    });
    let check = Check::new(charges)?;
    let check = check.shadow_check().unwrap_or(check); // the slot may have been asked for shadows, which count there
    let rules = usage.rules().copied().collect();
    let all = Decision::joined(&check, true, usage.decided_at_ms(), rules)?;
    Settlement::roll_back(all.usage())
}
