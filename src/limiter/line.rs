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

use super::{Limiter, Undecided};
use crate::{
    charge::Check,
    decision::{Decision, Denial},
    key::Key,
};

/// Longer than anybody waits, and far from what an `Instant` cannot hold.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

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

/// What the store said to the head of the line, and until when it holds.
#[derive(Clone, Debug)]
struct Refusal {
    check: Check,
    denial: Denial,
    until: Instant,
}

/// A place in a line, given up when dropped.
struct Place<'a> {
    lines: &'a Lines,
    identity: Identity,
    line: Arc<Line>,
}

/// Waits until the check is admitted; answers a refusal that lasts longer than `most`.
///
/// Cancellation: the place is given up, and the turn passed on. A check that the store was being asked may have been charged.
pub(super) async fn wait(
    limiter: &Limiter,
    check: &Check,
    most: Duration,
) -> Result<Decision, Undecided> {
    let deadline = Instant::now() + most.min(FOR_EVER);
    let place = limiter.lines.join(check);
    let line = &*place.line;
    let Ok(_turn) = timeout_at(deadline, line.turn.lock()).await else {
        return match line.refusal(check) {
            Some(refusal) => Ok(Decision::Denied(refusal.denial)),
            // The line is long, but moves: there may be room.
            None => limiter.decide(check).await,
        };
    };
    loop {
        match line.refusal(check) {
            Some(refusal) if refusal.until > deadline => {
                return Ok(Decision::Denied(refusal.denial));
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
        let counting = |check| {
            Check::charges(check)
                .iter()
                .filter(|it| !it.policy().is_shadow())
        };
        let mut pairs = counting(&refusal.check).zip(counting(check));
        let holds = pairs.all(|(a, b)| a.policy() == b.policy() && a.cost() <= b.cost());
        (holds && refusal.until > Instant::now()).then(|| refusal.clone())
    }

    fn remember(&self, check: &Check, denial: &Denial) {
        let wait = denial.retry_after().unwrap_or_default();
        let refusal = Refusal {
            check: check.clone(),
            denial: denial.clone(),
            until: Instant::now() + wait.clamp(BREATH, FOR_EVER),
        };
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{charge::Charge, policy::Policy, store::MemoryStore};

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
