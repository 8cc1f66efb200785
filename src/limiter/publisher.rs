//! [`Publisher`]: publishes the policies of a limiter in its store, for operators' tools.
//!
//! ```text
//!  decision ──▶ a policy without the mark of this limiter ──▶ noted, and marked
//!                                                              │
//!               reporter: Operation::Publish ◀─────────────────┘
//!               some seconds after the first use, after a reconnect, and every five minutes: then the marks are over
//! ```

use std::{
    collections::HashMap,
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::timeout::REPORTING;
use crate::{
    domain::{
        FailurePolicy,
        charge::Charge,
        check::Check,
        error::{StoreError, StoreErrorKind},
        marks::{LOOKED_AT, next_number},
        operation::{Operation, answer_of},
        policy::Policy,
        published::{PublishedPolicy, default_label, plain_label},
    },
    limiter::jitter,
    lock::lock,
    store::{Store, TIMED_OUT},
    timer::within,
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

/// So many uses of a policy are noted before its mark is set, for the kinds of its keys.
const NOTED: u32 = 256;

/// The policies of one limiter and its clones.
pub(super) struct Publisher {
    /// The number of the limiter since its last publication.
    number: AtomicU64,
    known: Mutex<Known>,
    failures: Quiet,
    /// Nothing is published: the user or the store says so. Policies are noted all the same, for resets.
    is_off: AtomicBool,
}

struct Known {
    policies: HashMap<Policy, Noted>,
    /// Whether a policy of another name was charged when there was no room.
    lacks_some: bool,
    /// How this process is called beside the number in the ids of its slots; `None` for the host and the id.
    label: Option<Option<Box<str>>>,
    /// Seconds until the next publication.
    due_in: u64,
    /// Seconds from the next failure to the publication after it.
    retry_in: u64,
    /// How often the store had connected again at the last publication; `None` before the first.
    reconnects: Option<u64>,
}

#[derive(Default)]
struct Noted {
    /// From the first use that is published on: a look before it may have a failure policy and kinds of its own.
    published: Option<PublishedPolicy>,
    /// How often the policy was used since the last publication: one that is not used is not published again.
    uses: u32,
    /// Whether the last publication had the policy.
    is_sent: bool,
    /// The number of the limiter at the last use.
    number: u64,
    /// Whether the last publication took the policy back, since a reload has replaced it.
    is_over: bool,
}

impl Known {
    /// Notes that a policy is used, with a key of this kind, and returns the mark with which it has to be noted no more until
    /// the next publication, if there is one. A new policy or kind is due for publication soon.
    fn add(
        &mut self,
        charge: &Charge,
        number: u64,
        enforces_blocks: bool,
        on_failure: FailurePolicy,
    ) -> Option<u64> {
        let policy = charge.policy();
        let noted = self.policies.entry(policy.clone()).or_default();
        noted.number = number;
        // Publish no peeks: the readiness probe that the docs show uses its own failure policy.
        if charge.cost() == 0 {
            return Some(number | LOOKED_AT);
        }
        noted.uses += 1;
        let mut is_new = noted.published.is_none();
        let published = noted.published.get_or_insert_with(|| {
            let failure = policy.failure_policy().unwrap_or(on_failure);
            PublishedPolicy::new(policy.clone().on_failure(failure), enforces_blocks)
        });
        published.enforces_blocks |= enforces_blocks;
        is_new |= published.add_kind(charge.key().kind());
        if is_new {
            self.due_in = self.due_in.min(DELAY);
        }
        (noted.uses >= NOTED).then_some(number)
    }

    /// Publishes the policies of the last publication again, after at most `due_in` seconds.
    fn repeat(&mut self, due_in: u64) {
        self.due_in = self.due_in.min(due_in);
        let last = self.policies.values_mut();
        for noted in last.filter(|it| it.is_sent || it.is_over) {
            noted.uses = noted.uses.max(1);
        }
    }
}

impl Publisher {
    pub(super) fn new(store: &dyn Store) -> Self {
        Self {
            number: AtomicU64::new(next_number()),
            known: Mutex::new(Known {
                policies: HashMap::new(),
                lacks_some: false,
                label: None,
                due_in: DELAY,
                retry_in: RETRY,
                reconnects: None,
            }),
            failures: Quiet::default(),
            is_off: AtomicBool::new(is_unpublished_by(store)),
        }
    }

    /// Switches publications on or off. All policies are then noted again.
    pub(super) fn switch(&self, on: bool, store: &dyn Store) {
        self.is_off.store(!on || is_unpublished_by(store), Relaxed);
        self.number.store(next_number(), Relaxed);
    }

    pub(super) fn set_label(&self, label: Option<&str>) {
        lock(&self.known).label = Some(label.map(Into::into));
    }

    /// The number that marks the policies that this limiter has seen.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// The policies that were charged, also those that are not published, and whether these are all.
    pub(super) fn all_known(&self) -> (Vec<Policy>, bool) {
        let known = lock(&self.known);
        (known.policies.keys().cloned().collect(), !known.lacks_some)
    }

    /// Notes the policies of a decided check that lack the mark of this limiter, and returns whether one is to be
    /// published.
    pub(super) fn note(&self, check: &Check, on_failure: FailurePolicy) -> bool {
        // Requests do not wait for each other: the next request tries again.
        let Ok(mut known) = self.known.try_lock() else {
            return false;
        };
        let (number, is_off) = (self.number(), self.is_off.load(Relaxed));
        let mut is_added = false;
        for charge in check.all_charges() {
            let policy = charge.policy();
            if charge.seen_by() == number || charge.is_look() {
                continue;
            }
            if known.policies.len() >= MAX_POLICIES && !known.policies.contains_key(policy) {
                let mut others = known.policies.keys();
                known.lacks_some |= others.all(|other| other.name() != policy.name());
                policy.mark_seen_by(number);
                continue;
            }
            // No check looks up the blocks of a shadow's keys.
            let enforces_blocks = check.enforces_blocks() && !policy.is_shadow();
            // Under the lock: the mark of a number that is over would be of no use.
            let mark = known.add(charge, number, enforces_blocks, on_failure);
            if let Some(mark) = mark.or(is_off.then_some(number)) {
                policy.mark_seen_by(mark);
            }
            is_added |= !is_off && charge.cost() > 0;
        }
        is_added
    }

    /// Publishes if that is due, and returns whether some policy is still to be published.
    pub(super) async fn second_passed(&self, store: &dyn Store) -> bool {
        if self.is_due(reconnects(store).and_then(Result::ok)) {
            let _ = self.publish(store).await;
        }
        self.has_news()
    }

    fn is_due(&self, reconnects: Option<u64>) -> bool {
        let mut known = lock(&self.known);
        known.due_in = known.due_in.saturating_sub(1);
        if known.reconnects.is_some() && reconnects.is_some_and(|it| known.reconnects != Some(it)) {
            known.reconnects = reconnects;
            known.repeat(0); // the server may have lost the policies
        }
        known.due_in == 0
    }

    /// Whether a policy was used since the last publication.
    pub(super) fn has_news(&self) -> bool {
        let known = lock(&self.known);
        !self.is_off.load(Relaxed) && known.policies.values().any(|noted| noted.uses > 0)
    }

    pub(super) async fn publish(&self, store: &dyn Store) -> Result<(), StoreError> {
        if self.is_off.load(Relaxed) {
            return Ok(());
        }
        let policies = self.begin();
        if policies.is_empty() {
            return Ok(());
        }
        let reply = store.execute(Operation::Publish(policies));
        let answer = within(REPORTING, reply.read(answer_of!(Publish))).await;
        let result = answer.unwrap_or(Err(TIMED_OUT));
        // A store that does not know this operation will not learn it.
        if let Err(error) = &result
            && error.kind() == StoreErrorKind::InvalidRequest
        {
            self.is_off.store(true, Relaxed);
            return Ok(());
        }
        self.end(result.as_ref().ok().copied());
        let result = result.map(drop);
        self.failures.note(&result, warning::policies_not_published);
        result
    }

    /// Begins a publication of the policies that were used since the last, and of those that a reload has replaced. The next
    /// request under each policy notes it again.
    fn begin(&self) -> Vec<PublishedPolicy> {
        let mut known = lock(&self.known);
        // A quarter shorter or longer, since processes begin together.
        let due_in = REFRESH * 3 / 4 + jitter::random_up_to(REFRESH / 2);
        known.due_in = due_in.as_secs();
        let (mut used, mut replaced) = (Vec::new(), Vec::new());
        for (policy, noted) in &mut known.policies {
            noted.is_over = policy.marks().is_replaced_after(noted.number);
            noted.is_sent = mem::take(&mut noted.uses) > 0 && !noted.is_over;
            let published = noted.published.iter().cloned();
            if noted.is_over {
                replaced.extend(published.map(|it| PublishedPolicy {
                    is_replaced: true,
                    ..it
                }));
            } else if noted.is_sent {
                used.extend(published);
            }
        }
        self.number.store(next_number(), Relaxed);
        PublishedPolicy::note_shared_names(&mut used);
        if used.iter().any(|it| it.policy.is_concurrency()) {
            let own = known.label.clone();
            let label = own.unwrap_or_else(|| Some(default_label()));
            let label = label.as_deref().map(plain_label);
            used.iter_mut().for_each(|it| it.process.clone_from(&label));
        }
        used.extend(replaced);
        used
    }

    /// Notes how often the store had connected again, if the publication has succeeded. Otherwise publishes the same
    /// policies again, in twice as long as after the failure before, but no longer than usual.
    fn end(&self, published: Option<u64>) {
        let mut known = lock(&self.known);
        if published.is_some() {
            (known.retry_in, known.reconnects) = (RETRY, published);
            known.policies.retain(|_, noted| !noted.is_over);
            return;
        }
        let retry_in = known.retry_in;
        known.repeat(retry_in);
        known.retry_in = (known.retry_in * 2).min(REFRESH.as_secs());
    }
}

/// How often a store has connected again, if the store answers at once.
fn reconnects(store: &dyn Store) -> Option<Result<u64, StoreError>> {
    let answer = store.execute(Operation::Publish(Vec::new()));
    answer.read(answer_of!(Publish)).into_ready().ok()
}

/// Whether a store publishes no policies, as far as it says so at once.
fn is_unpublished_by(store: &dyn Store) -> bool {
    let refusal = reconnects(store).and_then(Result::err);
    refusal.is_some_and(|error| error.kind() == StoreErrorKind::InvalidRequest)
}

#[cfg(test)]
mod tests {
    //! A publication that ends while other threads note policies.

    use std::{hint::spin_loop, thread};

    use super::*;
    use crate::{
        domain::{decision::Decision, key::Key, wanted::UNSEEN},
        store::{Reply, StoreFuture},
    };

    /// Says nothing at once.
    #[derive(Debug)]
    struct Silent;

    impl Store for Silent {
        fn check(&self, _: &Check) -> StoreFuture<Decision> {
            StoreFuture::pending(std::future::pending())
        }

        fn execute(&self, _: Operation) -> StoreFuture<Reply> {
            StoreFuture::pending(std::future::pending())
        }
    }

    fn publisher() -> Publisher {
        Publisher::new(&Silent)
    }

    #[test]
    fn the_next_request_after_a_publication_notes_its_policy_again() {
        let publisher = publisher();
        let policy = Policy::parse("api", "10/1m").unwrap();
        let check = || Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        let (noted, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let publish = || publisher.begin();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    if check().wanted_by(publisher.number()) & UNSEEN != 0 {
                        publisher.note(&check(), FailurePolicy::Open);
                    }
                    noted.fetch_add(1, Relaxed);
                }
            });
            for round in 0..10_000 {
                publish();
                (0..round % 64).for_each(|_| spin_loop());
                publish(); // while the thread notes the policy
                let before = noted.load(Relaxed);
                while noted.load(Relaxed) < before + 3 {
                    spin_loop();
                }
                if !publisher.has_news() {
                    ended.store(true, Relaxed);
                    panic!("no request notes the policy any more");
                }
            }
            ended.store(true, Relaxed);
        });
    }

    #[test]
    fn the_kinds_of_many_uses_are_noted_and_then_a_policy_is_marked() {
        let publisher = publisher();
        let policy = Policy::parse("api", "10/1m").unwrap();
        let note = |kind: &'static str| {
            let check = Check::new([Charge::new(&policy, Key::new(kind, "alice"), 1)]).unwrap();
            let is_wanted = check.wanted_by(publisher.number()) & UNSEEN != 0;
            is_wanted && publisher.note(&check, FailurePolicy::Open)
        };
        assert!(note("ip") && note("user"));
        assert!((2..NOTED).all(|_| note("ip")));
        assert!(!note("ip"));
        let published = publisher.begin();
        assert_eq!(published[0].kinds, ["ip", "user"].map(Into::into).into());
        assert!(note("ip"), "its mark is over");
    }

    #[test]
    fn a_policy_that_is_only_looked_at_is_noted_once_and_again_when_it_is_used() {
        let publisher = publisher();
        let policy = Policy::parse("api", "10/1m").unwrap();
        let is_noted = |cost| {
            let charge = Charge::new(&policy, Key::new("user", "alice"), cost);
            let check = Check::new([charge]).unwrap();
            let is_wanted = check.wanted_by(publisher.number()) & UNSEEN != 0;
            if is_wanted {
                publisher.note(&check, FailurePolicy::Open);
            }
            is_wanted
        };
        assert!(is_noted(0) && !is_noted(0) && is_noted(1));
        assert!((1..NOTED).all(|_| is_noted(1)));
        assert!(!is_noted(0) && !is_noted(1));
        let use_it = Check::new([Charge::new(&policy, Key::new("user", "bob"), 1)]).unwrap();
        let number = publisher.number();
        assert_eq!(use_it.without_cost().wanted_by(number) & UNSEEN, 0);
        assert_eq!(publisher.begin().len(), 1);
        assert!(
            is_noted(0) && !is_noted(0) && is_noted(1),
            "its marks are over"
        );
    }

    #[test]
    fn a_policy_without_room_is_noted_once_until_the_next_publication() {
        let publisher = publisher();
        let policies: Vec<_> = (0..=MAX_POLICIES)
            .map(|place| Policy::parse(format!("p{place}"), "10/1m").unwrap())
            .collect();
        let is_noted = |policy: &Policy| {
            let check = Check::new([Charge::new(policy, Key::new("user", "alice"), 1)]).unwrap();
            let is_wanted = check.wanted_by(publisher.number()) & UNSEEN != 0;
            if is_wanted {
                publisher.note(&check, FailurePolicy::Open);
            }
            is_wanted
        };
        assert!(policies.iter().all(is_noted));
        let last = &policies[MAX_POLICIES];
        assert!(!is_noted(last) && !publisher.all_known().1);
        publisher.begin();
        assert!(is_noted(last) && !is_noted(last));
    }
}
