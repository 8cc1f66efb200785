//! A check whose keys are in several slots: one call for each slot, all or nothing by rolling back.
//!
//! ```text
//!   check ──▶ slot 1: admitted ──▶ settled to 0 ─┐
//!         ──▶ slot 2: denied ───────────────────▶├─▶ denied
//!         ──▶ slot 3: admitted ──▶ settled to 0 ─┘
//! ```
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

/// How long a denial or an error waits for the answers of the other slots and for their roll-backs. Both together are
/// well below the default timeout of a limiter.
const GRACE: Duration = Duration::from_millis(50);

/// Decides a check of several slots. If the caller leaves, the check continues until no charge is left.
pub(super) fn check(store: RedisStore, check: Check, slots: Slots) -> StoreFuture<Decision> {
    StoreFuture::pending(async move {
        let (answer, answered) = oneshot::channel();
        let (sender, events) = mpsc::unbounded_channel();
        // Dropped with this future, so that the task learns when the caller leaves.
        let _caller = Caller(sender.clone());
        let parts = slots.iter().map(|_| Part::Waiting).collect();
        let check = CrossSlotCheck {
            store,
            check,
            slots,
            parts,
            sender,
            caller: Some(answer),
            deadline: None,
            failed: false,
            denied: false,
            blocked: None,
        };
        tokio::spawn(check.run(events));
        answered.await.unwrap_or(Err(TOO_LATE))
    })
}

struct CrossSlotCheck {
    store: RedisStore,
    check: Check,
    slots: Slots,
    /// In the order of the slots.
    parts: Vec<Part>,
    sender: mpsc::UnboundedSender<Event>,
    /// The caller to answer; `None` once answered, or after the caller has left.
    caller: Option<oneshot::Sender<Result<Decision, StoreError>>>,
    /// The end of the wait for the slots that were asked first, or, after a failure, for all slots.
    deadline: Option<Instant>,
    /// Whether the check will not be admitted, so that everything is rolled back.
    failed: bool,
    denied: bool,
    /// The block that ends last among the blocks found.
    blocked: Option<Blocked>,
}

/// The state of the charges in one slot.
enum Part {
    Waiting,
    Asked,
    Admitted(Usage),
    RollingBack(Usage),
    /// Denied, rolled back, or admitted with a roll-back that failed.
    Ended(Usage),
    Failed(StoreError),
    /// Not decided, because an identity is blocked.
    Blocked,
}

enum Event {
    Decided(usize, Result<Decision, StoreError>),
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

impl CrossSlotCheck {
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
                None if self.failed => self.answer(),
                None => self.fail(),
            }
        }
    }

    fn is_under_way(&self) -> bool {
        let under_way = |it: &Part| matches!(it, Part::Asked | Part::RollingBack(_));
        self.parts.iter().any(under_way)
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
        } else if self.parts.iter().any(|it| matches!(it, Part::Waiting)) {
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
        let answer = self.store.check_one_slot(&check);
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
        // `fail` acts only once, so later denials, blocks and errors only add to the answer.
        match event {
            Event::Decided(part, Ok(Decision::Allowed(usage))) => self.admit(part, usage),
            Event::Decided(part, Ok(Decision::Denied(denial))) => {
                self.parts[part] = Part::Ended(denial.usage().clone());
                self.denied = true;
                self.fail();
            }
            Event::Decided(part, Ok(Decision::Blocked(blocked))) => {
                self.parts[part] = Part::Blocked;
                let blocks = self.blocked.take().into_iter().chain([blocked]);
                self.blocked = blocks.reduce(Blocked::or_later);
                self.fail();
            }
            Event::Decided(part, Err(error)) => {
                self.parts[part] = Part::Failed(error);
                self.fail();
            }
            Event::RolledBack(part, result) => self.roll_back_ended(part, result),
            Event::CallerLeft => {
                if self.caller.take().is_some() {
                    self.fail();
                }
            }
        }
    }

    fn admit(&mut self, part: usize, usage: Usage) {
        self.parts[part] = Part::Admitted(usage);
        if self.failed {
            self.roll_back(part);
        } else if !self.is_under_way() {
            self.deadline = None;
            self.ask_the_others();
        }
    }

    /// Rolls back the admitted charges. The slots that were not asked yet may still deny the check, and a denial says
    /// more than an error.
    fn fail(&mut self) {
        if self.failed {
            return;
        }
        self.failed = true;
        self.deadline = self.caller.is_some().then(|| Instant::now() + GRACE);
        for part in 0..self.parts.len() {
            self.roll_back(part);
        }
        if self.caller.is_some() {
            self.ask_the_others();
        }
    }

    fn roll_back(&mut self, part: usize) {
        let Part::Admitted(usage) = &self.parts[part] else {
            return;
        };
        let usage = usage.clone();
        let answer = match Settlement::roll_back(&usage) {
            Ok(settlement) => {
                let settle = Operation::Settle(settlement);
                self.store.execute_one(settle, answer_of!(Settle))
            }
            Err(error) => StoreFuture::ready(Err(error)),
        };
        self.parts[part] = Part::RollingBack(usage);
        self.begin_part(answer, move |result| Event::RolledBack(part, result));
    }

    /// A charge that could not be rolled back stays until its steps are released.
    fn roll_back_ended(&mut self, part: usize, result: Result<Usage, StoreError>) {
        if let Part::RollingBack(charged) = &self.parts[part] {
            self.parts[part] = Part::Ended(result.unwrap_or_else(|_| charged.clone()));
        }
    }

    /// Answers the caller, once.
    fn answer(&mut self) {
        self.deadline = None;
        let Some(caller) = self.caller.take() else {
            return;
        };
        let decision = if let Some(blocked) = self.blocked.clone() {
            Ok(Decision::Blocked(blocked))
        } else if self.failed && !self.denied {
            Err(self.first_error())
        } else {
            self.join_parts()
        };
        if caller.send(decision).is_err() {
            self.fail();
        }
    }

    fn join_parts(&self) -> Result<Decision, StoreError> {
        let parts = self.parts.iter().zip(&self.slots);
        let usages = parts.map(|(part, (_, charges))| {
            // We know nothing about a slot that did not answer.
            let unknown = || Usage::unused(&self.check.pick(charges));
            part.usage().unwrap_or_else(unknown)
        });
        let usages: Vec<Usage> = usages.collect();
        let (decided_at_ms, rules) = join_usages(&self.check, &self.slots, &usages);
        let joined = Decision::joined(&self.check, !self.failed, decided_at_ms, rules)?;
        if self.parts.iter().any(|part| part.usage().is_none()) {
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
    fn usage(&self) -> Option<Usage> {
        match self {
            Self::Admitted(usage) | Self::RollingBack(usage) | Self::Ended(usage) => {
                Some(usage.clone())
            }
            Self::Waiting | Self::Asked | Self::Failed(_) | Self::Blocked => None,
        }
    }
}
