//! A store with scripted answers, which records checks.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use sluicegate::{
    Decision, MemoryStore, Store, StoreError,
    decision::Count,
    error::StoreErrorKind,
    store::{Check, Operation, Reply, StoreFuture},
};

type Script = dyn Fn(&Check) -> StoreFuture<Decision> + Send + Sync;

pub struct Scripted {
    script: Box<Script>,
    checks: Mutex<Vec<Check>>,
}

impl Scripted {
    /// The script decides the charges, and then the shadows as if they were charges.
    pub fn new(
        script: impl Fn(&Check) -> StoreFuture<Decision> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::whole(move |check| match check.shadow_check() {
            None => script(check),
            Some(shadows) => with_shadows(&script, check, &shadows),
        })
    }

    /// The script decides the shadows itself.
    fn whole(
        script: impl Fn(&Check) -> StoreFuture<Decision> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            checks: Mutex::default(),
        })
    }

    /// Allows everything. One unit counts, for 60 s from the end of a step that ends now.
    pub fn allowing() -> Arc<Self> {
        Self::new(|check| StoreFuture::ready(allowed(check)))
    }

    /// Denies everything, by every rule for this long.
    pub fn denying_for(ms: u64) -> Arc<Self> {
        Self::new(move |check| StoreFuture::ready(denied(check, ms)))
    }

    pub fn far(latency: Duration) -> Arc<Self> {
        let memory = MemoryStore::new();
        Self::whole(move |check| {
            let answer = memory.check(check);
            StoreFuture::pending(async move {
                tokio::time::sleep(latency).await;
                answer.await
            })
        })
    }

    pub fn silent() -> Arc<Self> {
        Self::new(|_| StoreFuture::pending(std::future::pending()))
    }

    pub fn failing() -> Arc<Self> {
        Self::whole(|_| StoreFuture::ready(Err(unavailable())))
    }

    pub fn checks(&self) -> Vec<Check> {
        self.checks.lock().unwrap().clone()
    }

    /// The charges of the only check, as `policy kind cost`.
    pub fn only_check(&self) -> Vec<String> {
        let checks = self.checks();
        assert_eq!(checks.len(), 1, "the store was asked {checks:?}");
        let charges = checks[0].charges().iter();
        charges
            .map(|it| format!("{} {} {}", it.policy().name(), it.key().kind(), it.cost()))
            .collect()
    }
}

/// Decides both in one call, like a store. Leaves out undecided shadows.
fn with_shadows(script: &Script, check: &Check, shadows: &Check) -> StoreFuture<Decision> {
    let decision = match check.charges() {
        [] => StoreFuture::ready(allowed(check)),
        _ => script(check),
    };
    let shadow = script(shadows);
    StoreFuture::pending(async move {
        let (decision, shadow) = futures::join!(decision, shadow);
        Ok(match shadow {
            Ok(shadow) => decision?.with_shadow(shadow),
            Err(_) => decision?,
        })
    })
}

impl Store for Scripted {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.checks.lock().unwrap().push(check.clone());
        (self.script)(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::Check(check) => self.check(&check).map(Reply::Check),
            Operation::Settle(_) | Operation::Reset { .. } => {
                StoreFuture::ready(Err(unavailable()))
            }
            other => StoreFuture::ready(Err(other.unsupported())),
        }
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

pub const NOW_MS: u64 = 1_000_000;

pub fn allowed(check: &Check) -> Result<Decision, StoreError> {
    decide(check, true, |cost, _| count(cost, 0))
}

/// A denial by every rule: all rules are full.
pub fn denied(check: &Check, ms: u64) -> Result<Decision, StoreError> {
    decide(check, false, |_, limit| count(limit, NOW_MS + ms))
}

/// The count of units whose newest step ends now.
pub fn count(used: u64, fits_at_ms: u64) -> Count {
    let mut count = Count::default();
    count.used = used;
    count.newest_end_ms = NOW_MS;
    count.fits_at_ms = fits_at_ms;
    count
}

/// A decision with counts that `count` makes from the cost and the limit of each rule.
pub fn decide(
    check: &Check,
    admitted: bool,
    count: impl Fn(u64, u64) -> Count,
) -> Result<Decision, StoreError> {
    let mut counts = Vec::new();
    for charge in check.charges() {
        for rule in charge.policy().rules() {
            counts.push(count(charge.cost(), rule.limit()));
        }
    }
    Decision::new(check, admitted, NOW_MS, &counts)
}

pub fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "told to fail")
}
