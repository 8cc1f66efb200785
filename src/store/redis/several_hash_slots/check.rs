//! A check whose keys are in several hash slots: one call for each hash slot, all or nothing by rolling back.
//!
//! ```text
//!   check ──▶ hash slot 1: admitted ──▶ rolled back ─┐
//!         ──▶ hash slot 2: denied ──────────────────▶├─▶ denied
//!         ──▶ hash slot 3: admitted ──▶ rolled back ─┘
//! ```
//!
//! One task asks all hash slots at once. After the first denial or error, it rolls back at once what these have admitted,
//! and later admissions as they arrive. If the caller leaves, the task goes on in the back room: what it then admits
//! stays charged, as in one hash slot.

use std::{future::ready, time::Duration};

use futures_util::stream::{FuturesUnordered, Stream, StreamExt, iter};
use tokio::time::Instant;

use super::{Parts, TOO_LATE, within};
use crate::{
    domain::{
        check::Check,
        decision::{Blocked, Decision, Facts, Usage},
        error::StoreError,
        operation::{Operation, answer_of},
        settlement::Settlement,
        slots::Slots,
    },
    store::{
        ANOTHER_REPLY, Store,
        redis::{
            RedisStore,
            background::{self, Outliving},
            connection::PART_TIMEOUT,
            shared_calls::queued::Task,
        },
        sent::Sent,
    },
    timer::{self, LazySleep},
};

/// How long an answer waits for the denials of other hash slots, for roll-backs and for shadows. Shorter than the default
/// timeout of a limiter.
const GRACE: Duration = Duration::from_millis(50);

/// How long the answer of a hash slot is waited for, to roll it back, and how long a roll-back is tried that was surely not
/// sent.
const LATEST: Duration = Duration::from_secs(60);

/// Between the first two tries; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

type Answer = Result<Decision, StoreError>;

impl RedisStore {
    /// Decides the charges that count in each part, and then the shadows. An error of the shadows is dropped, and so is a
    /// late answer.
    pub(super) async fn check_apart(&self, check: &Check, parts: &Parts, sent: &Sent) -> Answer {
        if parts.are_keys
            && let Some(blocked) = self.blocked_by_key(check).await?
        {
            return Ok(Decision::Blocked(blocked));
        }
        let asked = parts.of(check).enumerate().map(|(place, part)| {
            let answer = self.execute_one(Task::Check(part), Some(sent.clone()), answer_of!(Check));
            async move { (place, within(LATEST, answer).await) }
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut answers = vec![None; asked.len()];
        // No caller waits longer.
        let end = Instant::now() + PART_TIMEOUT;
        let rest = || end.saturating_duration_since(Instant::now());
        while let Some(Some((place, answer))) = timer::within(rest(), asked.next()).await {
            answers[place] = Some(answer);
            if !answers[place].as_ref().is_some_and(admits) {
                break;
            }
        }
        if !answers.iter().all(|it| it.as_ref().is_some_and(admits)) {
            self.roll_back(asked, &mut answers, parts).await;
            return join(check, parts, &answers, false);
        }
        let decision = join(check, parts, &answers, true)?;
        let Some(shadows) = check.shadow_check() else {
            return Ok(decision);
        };
        Ok(match timer::within(GRACE, self.check(&shadows)).await {
            Some(Ok(shadow)) => decision.with_shadow(shadow),
            _ => decision,
        })
    }

    /// Rolls back what the parts admit, also those that answer later. For a moment, waits for the answers: a denial or a
    /// block says more than an error, and the usage after the roll-backs more than that before.
    async fn roll_back(
        &self,
        asked: impl Stream<Item = (usize, Answer)> + Send + 'static,
        answers: &mut [Option<Answer>],
        parts: &Parts,
    ) {
        let known = answers.iter().cloned().enumerate();
        let known: Vec<_> = known
            .filter_map(|(place, answer)| Some((place, answer?)))
            .collect();
        let store = self.clone();
        let undone = iter(known).chain(asked).map(move |(place, answer)| {
            let store = store.clone();
            async move { (place, store.undo(answer).await) }
        });
        let mut undone = Box::pin(undone.buffer_unordered(answers.len()));
        let all = async {
            while let Some((place, answer)) = undone.next().await {
                answers[place] = Some(answer);
            }
        };
        if timer::within(GRACE, all).await.is_none() {
            let job = parts.job.clone();
            let rest = async move {
                undone.for_each(|_| ready(())).await;
                drop(job);
            };
            background::spawn(Outliving::new(&self.room, rest, None));
        }
    }

    /// Rolls back an admission. If that fails, the charge stays until its steps are released.
    async fn undo(&self, answer: Answer) -> Answer {
        let Ok(Decision::Allowed(usage)) = answer else {
            return answer;
        };
        let after = self.give_back(&usage).await;
        Ok(Decision::Allowed(after.unwrap_or(usage)))
    }

    /// Returns slots and refunds charges in one call, and tries again while the store has certainly done nothing.
    async fn give_back(&self, usage: &Usage) -> Result<Usage, StoreError> {
        let slots = Slots::of_charges(usage.check().charges());
        let refund = Operation::Settle(Settlement::new(usage, |_| 0)?.taking_back());
        let returns = slots.into_iter().map(Operation::Return);
        let operations: Vec<_> = returns.chain([refund]).collect();
        let end = Instant::now() + LATEST;
        let mut pause = PAUSE;
        loop {
            let mut replies = within(PART_TIMEOUT, self.call(operations.clone())).await;
            let returned = match &mut replies {
                Ok(replies) => replies.pop().unwrap_or(Err(ANOTHER_REPLY)),
                Err(error) => Err(error.clone()),
            };
            let is_unsent = returned.as_ref().is_err_and(StoreError::is_unsent);
            if !is_unsent || Instant::now() + pause > end {
                return returned.and_then(|reply| answer_of!(Settle)(reply).ok_or(ANOTHER_REPLY));
            }
            LazySleep::new(pause).await;
            pause *= 2;
        }
    }
}

const fn admits(answer: &Answer) -> bool {
    matches!(answer, Ok(Decision::Allowed(_)))
}

/// The decision of the whole check, without its shadows. A block says more than a denial, and a denial more than an error.
fn join(check: &Check, parts: &Parts, answers: &[Option<Answer>], is_admitted: bool) -> Answer {
    let decisions = || answers.iter().flatten().flatten();
    let blocks = decisions().filter_map(|it| match it {
        Decision::Blocked(blocked) => Some(blocked.clone()),
        _ => None,
    });
    if let Some(blocked) = blocks.reduce(Blocked::or_later) {
        return Ok(Decision::Blocked(blocked));
    }
    if !is_admitted && decisions().all(Decision::is_allowed) {
        let mut errors = answers.iter().flatten().filter_map(|it| it.as_ref().err());
        let error = errors.next().cloned().unwrap_or(TOO_LATE);
        return Err(error.maybe_sent()); // another hash slot may be charged
    }
    let check = &check.without_shadows();
    let usages = answers.iter().zip(parts.of(check));
    let usages = usages.map(|(answer, part)| match answer {
        Some(Ok(decision)) => decision.usage().clone(),
        _ => Usage::unused(&part), // we know nothing about a hash slot that did not answer
    });
    let (decided_at_ms, rules) = parts.join(check, &usages.collect::<Vec<_>>());
    let facts = Facts {
        has_unseen_blocks: decisions().count() < answers.len(),
        ..Facts::default()
    };
    Decision::joined(check, is_admitted, decided_at_ms, rules, facts)
}
