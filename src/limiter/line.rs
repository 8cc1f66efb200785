//! Callers that wait for room, one line for each set of policies and keys.
//!
//! Only the head of a line asks the store, and sleeps until the time that the store told it. Who leaves, for whatever reason,
//! passes the turn on, and with it what the store said last.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout_at};

use super::{FOR_EVER, Limiter, Undecided};
use crate::{
    charge::Charge,
    check::Check,
    decision::{Decision, Denial},
    key::Key,
};

/// What a store that says "now" and refuses again is given, rather than all of the processor.
const BREATH: Duration = Duration::from_millis(1);

/// The lines that somebody stands in.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Mutex<HashMap<Identity, Arc<Line>>>,
}

/// The policies' names and the keys.
type Identity = Box<[(Box<str>, Key)]>;

#[derive(Debug, Default)]
struct Line {
    /// Handed on in order of arrival.
    turn: tokio::sync::Mutex<()>,
    refusal: Mutex<Option<Refusal>>,
}

/// What the store said to the head of the line, when, and until when it holds.
#[derive(Clone, Debug)]
struct Refusal {
    check: Check,
    denial: Denial,
    said: Instant,
    until: Instant,
}

/// A place in a line, given up when dropped.
struct Place<'a> {
    lines: &'a Lines,
    identity: Identity,
    line: Arc<Line>,
}

/// Waits until the check is admitted; answers a denial that lasts longer than `most`.
///
/// Cancellation: the place is given up, and the turn passed on. A check that the store was being asked may have been charged.
pub(super) async fn wait(
    limiter: &Limiter,
    check: &Check,
    most: Duration,
) -> Result<Decision, Undecided> {
    if fits_never(check) {
        return limiter.decide(check).await;
    }
    let deadline = Instant::now() + most.min(FOR_EVER);
    let place = limiter.lines.join(check);
    let line = &*place.line;
    if let Some(refusal) = line.refusal(check).filter(|it| it.until > deadline) {
        return refuse(limiter, check, &refusal).await;
    }
    let Ok(_turn) = timeout_at(deadline, line.turn.lock()).await else {
        // Where nothing is known, the line is long, but moves: there may be room.
        return match line.refusal(check) {
            Some(refusal) => refuse(limiter, check, &refusal).await,
            None => limiter.decide(check).await,
        };
    };
    loop {
        match line.refusal(check) {
            Some(refusal) if refusal.until > deadline => {
                return refuse(limiter, check, &refusal).await;
            }
            Some(refusal) => sleep_until(refusal.until).await,
            None => {}
        }
        let decision = limiter.decide(check).await?;
        match &decision {
            Decision::Denied(denial) if denial.retry_after().is_some() => {
                line.remember(check, denial)
            }
            _ => return Ok(decision),
        }
    }
}

/// What the store would say to this check: what it said to another one like it, or, where that was cheaper, what it says.
async fn refuse(
    limiter: &Limiter,
    check: &Check,
    refusal: &Refusal,
) -> Result<Decision, Undecided> {
    if !refusal.is_of(check) {
        return limiter.decide(check).await;
    }
    let decision = Decision::Denied(refusal.denial.clone()).aged(refusal.said.elapsed());
    limiter.tell_repeated(check, &decision);
    Ok(decision)
}

/// Whether there will never be room.
fn fits_never(check: &Check) -> bool {
    let too_dear = |it: &Charge| {
        it.policy()
            .rules()
            .iter()
            .any(|rule| it.cost() > rule.limit())
    };
    check.charges().iter().any(too_dear)
}

impl Lines {
    fn join(&self, check: &Check) -> Place<'_> {
        let charges = check.charges().iter();
        let identity: Identity = charges
            .map(|it| (it.policy().name().into(), it.key().clone()))
            .collect();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(identity.clone()).or_default().clone();
        Place {
            lines: self,
            identity,
            line,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let lines = &self.lines.lines;
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Given back under the lock, so that the last one to leave sees that it is the last.
        self.line = Arc::default();
        let line = lines.get(&self.identity);
        if line.is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.identity);
        }
    }
}

impl Line {
    /// What is known to refuse this check, too.
    fn refusal(&self, check: &Check) -> Option<Refusal> {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = refusal.as_ref()?;
        let holds = refusal.compares(check, |said, asked| said <= asked);
        (holds && refusal.until > Instant::now()).then(|| refusal.clone())
    }

    fn remember(&self, check: &Check, denial: &Denial) {
        let wait = denial.retry_after().unwrap_or_default();
        let said = Instant::now();
        let refusal = Refusal {
            check: check.clone(),
            denial: denial.clone(),
            said,
            until: said + wait.clamp(BREATH, FOR_EVER),
        };
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }
}

impl Refusal {
    fn is_of(&self, check: &Check) -> bool {
        self.compares(check, |said, asked| said == asked)
    }

    /// Whether all costs compare so, under the same policies; the keys are those of the line.
    fn compares(&self, check: &Check, costs: impl Fn(u64, u64) -> bool) -> bool {
        let mut pairs = self.check.charges().iter().zip(check.charges());
        pairs.all(|(said, asked)| {
            said.policy() == asked.policy() && costs(said.cost(), asked.cost())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{policy::Policy, store::MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn a_line_is_forgotten_when_the_last_one_leaves() {
        let limiter = Limiter::new(MemoryStore::new());
        let policy = Policy::parse("api", "1/1h").unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        assert!(
            limiter
                .wait_for(&check, FOR_EVER)
                .await
                .unwrap()
                .is_allowed()
        );
        let lines = || limiter.lines.lines.lock().unwrap().len();
        assert_eq!(lines(), 0);
        {
            let mut waiting = [0, 1].map(|_| Box::pin(limiter.wait_for(&check, FOR_EVER)));
            let mut context = Context::from_waker(Waker::noop());
            for caller in &mut waiting {
                assert!(pin!(caller).poll(&mut context).is_pending());
            }
            assert_eq!(lines(), 1);
        }
        assert_eq!(lines(), 0);
    }
}
