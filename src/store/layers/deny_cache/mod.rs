//! [`DenyCache`]: repeats refusals for a short time, without another call of the store. A refusal is a denial or a
//! block.
//! ```text
//!  check ──▶ remembered? ── yes ──▶ the same refusal, with a Retry-After that has aged
//!                 │ no
//!                 ▼
//!               store ──▶ refused ──▶ remembered until the store could admit, at most a second,
//!                                     and for want of a slot at most 100 ms
//! ```

use std::{fmt, sync::Arc, time::Duration};

use self::{
    clock::Clock,
    memory::{GivenBack, Memory},
    subject::may_be_remembered,
    validity::Validity,
};
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::StoreError,
        operation::{Operation, Reply},
    },
    store::{CallFuture, Store, StoreFuture},
};

mod clock;
mod memory;
mod subject;
mod table;
mod validity;

#[doc = include_str!("../../../../docs/guide/deny_cache.md")]
#[derive(Clone)]
pub struct DenyCache {
    store: Arc<dyn Store>,
    memory: Arc<Memory>,
    clock: Clock,
}

impl DenyCache {
    /// Creates a cache in front of `store`. Clones share the cached refusals.
    pub fn new(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            memory: Arc::new(Memory::new()),
            clock: Clock::system(),
        }
    }

    /// Measures time with `clock` instead of this process's clock. For tests in which the store uses the same one.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(self, clock: ManualClock) -> Self {
        Self {
            clock: Clock::Test(clock),
            ..self
        }
    }

    /// The cached refusal of this check. If there is none, a question that caches the store's answer, or `None` if that
    /// answer must not be cached.
    fn look_up(&self, check: &Check) -> LookUp<Decision> {
        if !may_be_remembered(check) {
            return LookUp::Unknown(None);
        }
        let now = self.clock.now();
        match self.memory.of_check(check, now) {
            Some((refusal, age_ms)) => LookUp::Refused(refusal.repeated(check, age_ms)),
            None => LookUp::Unknown(Some(Question {
                cache: self.clone(),
                check: check.clone(),
                asked: now,
                given_back: self.memory.given_back(),
            })),
        }
    }
}

/// The cached refusal, or a question that caches the store's answer. `None` if that answer must not be cached.
enum LookUp<T> {
    Refused(T),
    Unknown(Option<Question>),
}

/// A check on its way to the store.
struct Question {
    cache: DenyCache,
    check: Check,
    asked: Duration,
    given_back: u64,
}

impl Question {
    /// Caches the store's decision if it is a refusal.
    fn remember(&self, decision: &Decision) {
        if !decision.usage().may_be_repeated() {
            return;
        }
        let refused_for = match decision {
            Decision::Allowed(_) => return,
            Decision::Denied(denial) => denial.recheck_after(),
            Decision::Blocked(blocked) => blocked.retry_after(),
        };
        let validity = Validity::new(self.asked, self.cache.clock.now(), refused_for);
        if validity.holds(self.asked) {
            let memory = &self.cache.memory;
            memory.insert(&self.check, decision, validity, self.given_back);
        }
    }
}

impl Store for DenyCache {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        match self.look_up(check) {
            LookUp::Refused(refusal) => StoreFuture::ready(Ok(refusal)),
            LookUp::Unknown(None) => self.store.check(check),
            LookUp::Unknown(Some(question)) => self.store.check(check).map(move |decision| {
                question.remember(&decision);
                decision
            }),
        }
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if !decides(&operation) {
            let given_back = GivenBack::new(&self.memory, [&operation]);
            return self.store.execute(operation).holding(given_back);
        }
        match self.look_up_operation(&operation) {
            LookUp::Refused(reply) => StoreFuture::ready(Ok(reply)),
            LookUp::Unknown(question) => self.store.execute(operation).map(move |reply| {
                remember(question, &reply);
                reply
            }),
        }
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        // An operation that gives units back may be meant for a check behind it, so do not answer any from the cache.
        if !operations.iter().all(decides) {
            let given_back = GivenBack::new(&self.memory, &operations);
            return self.store.call(operations).holding(given_back);
        }
        let (mut parts, mut asked) = (Vec::with_capacity(operations.len()), Vec::new());
        for operation in operations {
            let part = self.look_up_operation(&operation);
            if matches!(part, LookUp::Unknown(_)) {
                asked.push(operation);
            }
            parts.push(part);
        }
        if asked.is_empty() {
            return StoreFuture::ready(Ok(join(parts, Vec::new())));
        }
        self.store.call(asked).map(|results| join(parts, results))
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.store)
    }
}

impl DenyCache {
    fn look_up_operation(&self, operation: &Operation) -> LookUp<Reply> {
        let (Operation::Check(check) | Operation::CheckBatch { check, .. }) = operation else {
            return LookUp::Unknown(None);
        };
        let refusal = match self.look_up(check) {
            LookUp::Refused(refusal) => refusal,
            LookUp::Unknown(question) => return LookUp::Unknown(question),
        };
        LookUp::Refused(match operation {
            Operation::CheckBatch { count, .. } => {
                Reply::CheckBatch(vec![refusal; usize::from(*count)])
            }
            _ => Reply::Check(refusal),
        })
    }
}

fn decides(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Check(_) | Operation::CheckBatch { .. }
    )
}

/// Caches a reply if it is a refusal and there is a question for it.
fn remember(question: Option<Question>, reply: &Reply) {
    if let (Some(question), Some(decision)) = (question, reply.last_decision()) {
        question.remember(decision);
    }
}

/// The results of all parts, in their order.
fn join(
    parts: Vec<LookUp<Reply>>,
    results: Vec<Result<Reply, StoreError>>,
) -> Vec<Result<Reply, StoreError>> {
    let mut results = results.into_iter();
    let joined = parts.into_iter().map(|part| match part {
        LookUp::Refused(reply) => Ok(reply),
        LookUp::Unknown(question) => {
            let result = results.next().unwrap_or(Err(TOO_FEW));
            if let Ok(reply) = &result {
                remember(question, reply);
            }
            result
        }
    });
    joined.collect()
}

const TOO_FEW: StoreError =
    StoreError::protocol("the store answered fewer operations than it was called for");

impl fmt::Debug for DenyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenyCache")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
