//! [`Publisher`]: publishes the policies of a limiter in its store, for operators' tools.
//!
//! ```text
//!  decision ──▶ note: seen before?          on the request's path: a load for each charge, no lock
//!                  │ no
//!                  ▼
//!               policies ──▶ reporter: Operation::Publish, after some seconds, and again every five minutes
//! ```

use std::{
    collections::HashMap,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::timeout;

use super::timeout::REPORTING;
use crate::{
    domain::{
        FailurePolicy,
        charge::Charge,
        check::Check,
        error::{StoreError, StoreErrorKind},
        operation::Operation,
        policy::Policy,
        published::{PublishedPolicy, default_label},
    },
    limiter::jitter,
    store::Store,
    warning::{self, Quiet},
};

/// How many policies a process publishes.
const MAX_POLICIES: usize = 256;

/// Seconds from a new policy to its publication. The delay collects others that follow.
const DELAY: u64 = 5;

/// From one publication to the next; much shorter than the store's retention.
const REFRESH: Duration = Duration::from_secs(300);

/// Seconds from a failed publication to the next, doubled each time up to `REFRESH`.
const RETRY: u64 = 10;

/// The number of marks: a power of two.
const SEEN: usize = 256;

/// The policies of one limiter and its clones.
pub(super) struct Publisher {
    /// Marks of known policies and kinds. The value of a mark determines its place: that one or the next.
    seen: [AtomicU64; SEEN],
    known: Mutex<Known>,
    failures: Quiet,
    /// The store has answered that it publishes nothing.
    is_off: AtomicBool,
}

struct Known {
    policies: HashMap<Policy, Noted>,
    /// Whether a policy of another name was charged when there was no room.
    lacks_some: bool,
    label: Label,
    /// Seconds until the next publication.
    due_in: u64,
    /// Seconds from the next failure to the publication after it.
    retry_in: u64,
}

/// How this process is called beside the number in the ids of its slots.
enum Label {
    HostAndId,
    Own(Box<str>),
    None,
}

impl Label {
    fn text(&self) -> Option<Box<str>> {
        match self {
            Self::HostAndId => Some(default_label()),
            Self::Own(label) => Some(label.clone()),
            Self::None => None,
        }
    }
}

#[derive(Default)]
struct Noted {
    /// From the first use that is published on: a look before it may have a failure policy and kinds of its own.
    published: Option<PublishedPolicy>,
    /// Whether the policy was used since the last publication: one that a reload has replaced is not published again.
    is_used: bool,
    /// Whether the last publication had the policy.
    is_sent: bool,
}

impl Known {
    fn has_room_for(&self, policy: &Policy) -> bool {
        self.policies.len() < MAX_POLICIES || self.policies.contains_key(policy)
    }

    /// Notes that a policy is used, with a key of this kind. A new policy or kind is due for publication soon.
    fn add(
        &mut self,
        charge: &Charge,
        enforces_blocks: bool,
        on_failure: FailurePolicy,
        publishes: bool,
    ) {
        let policy = charge.policy();
        let noted = self.policies.entry(policy.clone()).or_default();
        if !publishes {
            return;
        }
        noted.is_used = true;
        let mut is_new = noted.published.is_none();
        let published = noted.published.get_or_insert_with(|| {
            let failure = policy.failure_policy().unwrap_or(on_failure);
            PublishedPolicy::new(policy.clone().on_failure(failure), enforces_blocks)
        });
        if enforces_blocks {
            published.enforce_blocks();
        }
        is_new |= published.add_kind(charge.key().kind());
        if is_new {
            self.due_in = self.due_in.min(DELAY);
        }
    }

    /// Whether the map keeps this clone of the policy alive. Mark no other: the address may be reused.
    fn keeps(&self, policy: &Policy) -> bool {
        let entry = self.policies.get_key_value(policy);
        entry.is_some_and(|(kept, _)| kept.address() == policy.address())
    }
}

impl Default for Publisher {
    fn default() -> Self {
        Self {
            seen: [const { AtomicU64::new(0) }; SEEN],
            known: Mutex::new(Known {
                policies: HashMap::new(),
                lacks_some: false,
                label: Label::HostAndId,
                due_in: DELAY,
                retry_in: RETRY,
            }),
            failures: Quiet::default(),
            is_off: AtomicBool::new(false),
        }
    }
}

impl Publisher {
    pub(super) fn set_label(&self, label: Option<&str>) {
        self.lock().label = label.map_or(Label::None, |label| Label::Own(label.into()));
    }

    /// The policies that were charged, also those that are not published, and whether these are all.
    pub(super) fn all_known(&self) -> (Vec<Policy>, bool) {
        let known = self.lock();
        (known.policies.keys().cloned().collect(), !known.lacks_some)
    }

    /// Notes the policies of a decided check, and returns whether one is to be published. A known charge costs one load,
    /// if its mark is at the first place. A limiter that publishes nothing notes them for resets.
    pub(super) fn note(&self, check: &Check, on_failure: FailurePolicy, publishes: bool) -> bool {
        let mut is_added = false;
        for charge in check.all_charges() {
            // Publish no peeks: the readiness probe that the docs show uses its own failure policy.
            let publishes = publishes && charge.cost() > 0;
            let mark = mark(charge, publishes);
            let [first, second] = self.places(mark);
            if first.load(Relaxed) != mark && second.load(Relaxed) != mark {
                // No check looks up the blocks of a shadow's keys.
                let enforces_blocks = check.enforces_blocks() && !charge.policy().is_shadow();
                is_added |= self.add(charge, mark, enforces_blocks, on_failure) && publishes;
            }
        }
        is_added
    }

    fn places(&self, mark: u64) -> [&AtomicU64; 2] {
        let place = (mark >> 32) as usize % SEEN;
        [&self.seen[place], &self.seen[(place + 1) % SEEN]]
    }

    #[cold]
    fn add(
        &self,
        charge: &Charge,
        mark: u64,
        enforces_blocks: bool,
        on_failure: FailurePolicy,
    ) -> bool {
        // Requests do not wait for each other: the next request tries again.
        let Ok(mut known) = self.known.try_lock() else {
            return false;
        };
        let policy = charge.policy();
        if policy.rules().is_empty() {
            return false;
        }
        if !known.has_room_for(policy) {
            let mut others = known.policies.keys();
            known.lacks_some |= others.all(|other| other.name() != policy.name());
            return false;
        }
        known.add(charge, enforces_blocks, on_failure, mark & PUBLISHES != 0);
        // Under the lock: otherwise the mark could outlast a publication, and no request would note the policy again.
        if known.keeps(policy) {
            let [first, second] = self.places(mark);
            let place = if first.load(Relaxed) == 0 {
                first
            } else {
                second
            };
            place.store(mark, Relaxed);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes if that is due, and returns whether some policy is still to be published.
    pub(super) async fn second_passed(&self, store: &dyn Store) -> bool {
        if self.is_due() {
            let _ = self.publish(store).await;
        }
        self.has_news()
    }

    fn is_due(&self) -> bool {
        let mut known = self.lock();
        known.due_in = known.due_in.saturating_sub(1);
        known.due_in == 0
    }

    /// Whether a policy was used since the last publication.
    pub(super) fn has_news(&self) -> bool {
        let is_used = || self.lock().policies.values().any(|noted| noted.is_used);
        !self.is_off.load(Relaxed) && is_used()
    }

    pub(super) async fn publish(&self, store: &dyn Store) -> Result<(), StoreError> {
        if self.is_off.load(Relaxed) {
            return Ok(());
        }
        let policies = self.begin();
        if policies.is_empty() {
            return Ok(());
        }
        let answer = store.execute(Operation::Publish(policies));
        let result = timeout(REPORTING, answer).await;
        let result = result.unwrap_or(Err(TOO_LATE)).map(drop);
        // A store that does not know this operation will not learn it.
        if let Err(error) = &result
            && error.kind() == StoreErrorKind::InvalidRequest
        {
            self.is_off.store(true, Relaxed);
            return Ok(());
        }
        self.end(result.is_ok());
        self.failures.note(&result, warning::policies_not_published);
        result
    }

    /// Begins a publication of the policies that were used since the last. The next request under each notes it again.
    fn begin(&self) -> Vec<PublishedPolicy> {
        let mut known = self.lock();
        known.due_in = jitter::around(REFRESH).as_secs();
        let mut used = Vec::new();
        for noted in known.policies.values_mut() {
            noted.is_sent = mem::take(&mut noted.is_used);
            let published = noted.published.as_ref().filter(|_| noted.is_sent);
            used.extend(published.cloned());
        }
        self.seen.iter().for_each(|mark| mark.store(0, Relaxed));
        PublishedPolicy::note_shared_names(&mut used);
        if used.iter().any(|it| it.policy().is_concurrency()) {
            let label = known.label.text();
            used.iter_mut()
                .for_each(|it| it.label_process(label.as_deref()));
        }
        used
    }

    /// After a failure, publishes the same policies again, in twice as long as after the one before, but no longer than
    /// usual.
    fn end(&self, is_published: bool) {
        let mut known = self.lock();
        if is_published {
            known.retry_in = RETRY;
            return;
        }
        for noted in known.policies.values_mut() {
            noted.is_used |= noted.is_sent;
        }
        known.due_in = known.due_in.min(known.retry_in);
        known.retry_in = (known.retry_in * 2).min(REFRESH.as_secs());
    }
}

/// Whether a store publishes policies, as far as it says so at once.
pub(super) fn is_published_by(store: &dyn Store) -> bool {
    let answer = store.execute(Operation::Publish(Vec::new())).take_ready();
    let refusal = answer.and_then(Result::err).map(|error| error.kind());
    refusal != Some(StoreErrorKind::InvalidRequest)
}

/// Set in the marks of limiters that publish: clones may differ.
const PUBLISHES: u64 = 2;

/// Identifies a policy and a kind of keys; never 0.
fn mark(charge: &Charge, publishes: bool) -> u64 {
    let kind = charge.key().kind();
    let address = charge.policy().address() ^ (kind.as_ptr() as u64).rotate_left(32);
    let mark = (address ^ kind.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mark = mark & !PUBLISHES | 1;
    if publishes { mark | PUBLISHES } else { mark }
}

const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "the policies were not published in time",
);

#[cfg(test)]
mod tests;
