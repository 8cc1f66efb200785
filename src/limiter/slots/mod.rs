//! [`Slot`]: holds slots of concurrency policies, renews them, and returns them when it is dropped.

mod keeper;

use std::{
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, atomic::AtomicU64},
    task::Poll,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::sync::Notify;

pub(super) use self::keeper::Keeper;

use super::{FOR_EVER, Limiter};
use crate::clock::now_ms;
use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{Decision, Usage},
    error::{ConfigError, StoreError},
    operation::{Operation, Reply},
    policy::Policy,
    rule::millis,
    slots::{HeldSlots, Slots},
};
use crate::lock::lock;
use crate::observe::{CallInfo, CallKind, Event, SlotChange};
use crate::store::Store;
use crate::timer::within;
use crate::warning;

/// The slots that an admitted check holds. This process renews them in the [background](super#background-work), even if
/// the runtime that took them is blocked or has ended, and returns them when you drop this.
///
/// A slot can be lost while you hold it: the store has not answered for too long, an operator has reset the key, or
/// this process was stopped for longer than the slot's expiry. Then others may take your slot: see
/// [`lost`](Self::lost).
#[must_use = "the slots are returned when you drop this"]
#[derive(Debug)]
pub struct Slot {
    holdings: SmallVec<[Arc<Holding>; 1]>,
}

/// Watches a [`Slot`] that something else holds.
#[derive(Clone, Debug)]
pub struct SlotWatch {
    /// Shadows are left out: the loss of their slots changes nothing.
    holdings: SmallVec<[Arc<Holding>; 1]>,
}

/// The slots of one charge. If another charge of the same check loses its slots, these are held until the work ends.
struct Holding {
    limiter: Limiter,
    charge: Charge,
    /// The hash of its key.
    subject: u64,
    /// When the keeper looks at it.
    due_ms: AtomicU64,
    state: Mutex<HoldingState>,
    /// Notified when the slots are lost.
    lost: Notify,
    is_shadow: bool,
    is_local: bool,
    /// Whether the slots are renewed: otherwise they expire too early for that.
    is_renewed: bool,
    window_ms: u64,
}

enum HoldingState {
    Held {
        /// From before the request was sent that the slots were taken or renewed by.
        since_ms: u64,
    },
    Lost,
    Returned,
}

impl Limiter {
    /// Holds the slots of a check that a limiter has admitted, if it has any, and if nothing else holds them.
    ///
    /// The limiter renews the slots before a third of their expiry has passed, as long as you keep the [`Slot`]. Call
    /// this right after the decision.
    ///
    /// `None` for the decision of a store that you asked yourself, since the limiter does not know when: renew and return
    /// its [`Slots`].
    #[must_use]
    pub fn hold(&self, decision: &Decision) -> Option<Slot> {
        match decision {
            Decision::Allowed(usage) => self.hold_usage(usage),
            _ => None,
        }
    }

    pub(crate) fn hold_usage(&self, usage: &Usage) -> Option<Slot> {
        // Without the time of the request, nothing could be said about how long the slots are held.
        let since_ms = usage.facts().asked_at_ms?.get();
        let mut holdings = SmallVec::new();
        for (place, usage) in usage.admitted_parts().enumerate() {
            if !usage.take_slots() {
                continue;
            }
            let (charges, is_shadow) = (usage.check().charges().iter(), place > 0);
            let taking = charges.filter(|charge| charge.takes_slots());
            let is_local = usage.is_local();
            holdings.extend(taking.map(|charge| {
                let holding =
                    self.holding(charge, HoldingState::Held { since_ms }, is_local, is_shadow);
                let keeper = &self.inner.shared.keeper;
                if !holding.is_renewed {
                    let warned = &keeper.warned_of_early_expiry;
                    warned.call_once(warning::slots_expire_too_early);
                }
                holding.report(SlotChange::Taken);
                keeper.add(&holding);
                holding
            }));
        }
        (!holdings.is_empty()).then_some(Slot { holdings })
    }

    fn holding(
        &self,
        charge: &Charge,
        state: HoldingState,
        is_local: bool,
        is_shadow: bool,
    ) -> Arc<Holding> {
        let rule = charge.policy().rules().first();
        let window_ms = rule.map_or(u64::MAX, |rule| millis(rule.window()));
        Arc::new(Holding {
            limiter: self.clone(),
            charge: charge.clone(),
            subject: self.inner.shared.keeper.subject(charge),
            due_ms: AtomicU64::new(0),
            state: Mutex::new(state),
            lost: Notify::new(),
            is_shadow,
            is_local,
            is_renewed: !self.is_too_short(window_ms),
            window_ms,
        })
    }

    /// Returns the slots that a check may have taken and that no caller holds: at once, and once more a timeout later if the
    /// store does not hold them yet, since the return may have overtaken the check.
    pub(super) fn return_unheld(&self, check: &Check) {
        let (keeper, again_after) = (&self.inner.shared.keeper, self.call_timeout());
        let charges = check.all_charges().iter();
        for charge in charges.filter(|charge| charge.takes_slots()) {
            let holding = self.holding(charge, HoldingState::Returned, false, false);
            keeper.end(&holding, again_after);
        }
    }

    /// Renews slots, or returns them, where they were granted.
    async fn change_slots(
        &self,
        kind: CallKind,
        slots: &Slots,
        is_local: bool,
    ) -> Result<HeldSlots, StoreError> {
        let change = match kind {
            CallKind::Renew => Operation::Renew,
            _ => Operation::Return,
        };
        let read = |reply| match reply {
            Reply::Renew(held) | Reply::Return(held) => Some(held),
            _ => None,
        };
        let to = self.where_decided(is_local, self.call_timeout());
        let info = CallInfo::new(kind, slots.check());
        let begin = |store: &dyn Store| store.execute(change(slots.clone()));
        self.inner.guarded.ask(to, info, begin, read).await
    }

    /// Returns slots.
    async fn give_back(&self, slots: &Slots, is_local: bool) -> Result<HeldSlots, StoreError> {
        let _given_back = self.giving_back([slots.charge()], slots.ids().len());
        self.change_slots(CallKind::Return, slots, is_local).await
    }

    /// Ends the work of this limiter and its clones: returns all slots that they hold, and waits until these and earlier
    /// returns are done, the settlements of ended responses, and the late answers to checks that timed out; for `max_wait`
    /// at most. Returns how many of them are left.
    ///
    /// Call this at the end of a process, when the server has stopped, and then
    /// [`Leases::return_unspent`](crate::store::Leases::return_unspent) if you use leases: slots that are not returned are free only when they
    /// expire. Work that still runs goes on without its slots: `is_held` is then false, but `lost` does not end, and no
    /// response is cut off. A return is given up when its slot has expired, and a settlement after a minute.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, MemoryStore, RateLimitLayer};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let layer = RateLimitLayer::new(limiter.clone());
    /// // … axum::serve(listener, app).with_graceful_shutdown(signal).await?;
    /// let left = limiter.finish(Duration::from_secs(5)).await;
    /// assert_eq!(left, 0);
    /// # let _ = layer;
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn finish(&self, max_wait: Duration) -> usize {
        let background = &self.inner.shared.background;
        let keeper = &self.inner.shared.keeper;
        let ended = async {
            while !keeper.held().is_empty() || background.left() > 0 {
                keeper.held().iter().for_each(Holding::end);
                background.ended().await;
            }
        };
        within(max_wait.min(FOR_EVER), ended).await;
        background.left()
    }

    /// Waits until these charges are admitted, as [`acquire`](Self::acquire) does, and holds their slots: for jobs and
    /// other work that is no request.
    ///
    /// The outer error means that the store could not decide; the inner one is the denial. The [`Slot`] is `None` if
    /// none of the charges is under a [concurrency policy](crate::Rule::concurrent).
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let exports = Policy::parse("exports", "2/30s@concurrent")?;
    /// let export = || [Charge::new(&exports, Key::new("tenant", "acme"), 1)];
    ///
    /// let max_wait = Duration::from_secs(10);
    /// let first = limiter.acquire_slot(export(), max_wait).await?.expect("there are two");
    /// let second = limiter.acquire_slot(export(), max_wait).await?.expect("there are two");
    /// assert!(limiter.acquire_slot(export(), Duration::ZERO).await?.is_err());
    ///
    /// drop(first);                                                       // the work is done
    /// assert!(limiter.acquire_slot(export(), max_wait).await?.is_ok());
    /// # drop(second);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`acquire`](Self::acquire); and [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when slots
    /// of a policy expire in less than six timeouts, since they could not be renewed in time.
    pub async fn acquire_slot(
        &self,
        charges: impl IntoIterator<Item = Charge>,
        max_wait: Duration,
    ) -> Result<Result<Option<Slot>, Decision>, StoreError> {
        let charges: Vec<Charge> = charges.into_iter().collect();
        let mut policies = charges.iter().map(Charge::policy);
        if policies.any(|it| self.expires_too_early(it).is_some()) {
            return Err(StoreError::invalid_request(
                "slots must not expire in less than six timeouts",
            ));
        }
        let decision = self.acquire(charges, max_wait).await?;
        Ok(if decision.is_allowed() {
            Ok(self.hold(&decision))
        } else {
            Err(decision)
        })
    }

    /// The error of a concurrency policy whose slots could not be renewed in time.
    pub(crate) fn expires_too_early(&self, policy: &Policy) -> Option<ConfigError> {
        let rule = policy.rules().iter().find(|rule| rule.is_concurrency())?;
        let is_too_short = self.is_too_short(millis(rule.window()));
        is_too_short.then(|| {
            let least = self.least_expiry();
            let problem = format_args!(
                "the slots of `{rule}` must expire after at least six timeouts of the limiter, {least:?}: let them \
                 expire later, or lower the timeout"
            );
            ConfigError::of_policy(policy.name(), problem)
        })
    }

    fn is_too_short(&self, window_ms: u64) -> bool {
        window_ms < millis(self.least_expiry())
    }

    /// Two renewals may fail by a timeout before a third of this has passed.
    fn least_expiry(&self) -> Duration {
        self.call_timeout().saturating_mul(6)
    }
}

impl Slot {
    /// Returns whether this process may still count on the slots. Once this is `false`, it never becomes `true` again.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.watch().is_held()
    }

    /// Waits until some of the slots are lost: cancel the work then, if it must not go on beside another's. Waits for
    /// ever if they are returned.
    pub async fn lost(&self) {
        self.watch().lost().await;
    }

    /// Returns a watch, for work that does not hold the slots itself.
    #[must_use]
    pub fn watch(&self) -> SlotWatch {
        let counting = self.holdings.iter().filter(|it| !it.is_shadow);
        SlotWatch {
            holdings: counting.cloned().collect(),
        }
    }
}

impl SlotWatch {
    /// Returns whether the slots are held: see [`Slot::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holdings.iter().all(|holding| holding.is_held())
    }

    /// Waits until some of the slots are lost: see [`Slot::lost`].
    pub async fn lost(&self) {
        let each = self
            .holdings
            .iter()
            .map(|it| Box::pin(it.wait_until_lost()));
        let mut each: SmallVec<[_; 1]> = each.collect();
        poll_fn(|cx| {
            let mut each = each.iter_mut();
            match each.any(|lost| lost.as_mut().poll(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Watches the slots of another layer around the same handler as well.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.holdings.extend(other.holdings);
        self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        for holding in &self.holdings {
            holding.end();
            holding.report(SlotChange::Returned);
        }
    }
}

impl Holding {
    fn report(&self, change: SlotChange) {
        let (policy, slots) = (self.charge.policy(), self.charge.cost());
        self.limiter.events().report_safely(|| Event::Slots {
            policy,
            slots,
            change,
        });
    }

    /// Returns the slots, if they are held.
    fn end(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let was_held = matches!(*state, HoldingState::Held { .. });
        *state = HoldingState::Returned;
        drop(state);
        if was_held {
            self.limiter.inner.shared.keeper.end(self, Duration::ZERO);
        }
    }

    /// How many slots it is, at most those of one message.
    fn slots(&self) -> usize {
        usize::try_from(self.charge.cost()).unwrap_or(0)
    }

    fn is_held(&self) -> bool {
        self.left_ms().is_some_and(|left_ms| left_ms > 0)
    }

    /// Notes a renewal that was sent at this time. Returns whether the slots are held: slots that the holder may have
    /// seen lost stay lost.
    fn renewed(&self, asked_at_ms: u64) -> bool {
        match &mut *lock(&self.state) {
            HoldingState::Held { since_ms } if self.left_since(*since_ms) > 0 => {
                *since_ms = asked_at_ms.max(*since_ms);
                true
            }
            HoldingState::Held { .. } | HoldingState::Lost => false,
            HoldingState::Returned => true,
        }
    }

    /// How much longer the slots are surely held; `None` if they are returned.
    fn left_ms(&self) -> Option<u64> {
        match *lock(&self.state) {
            HoldingState::Held { since_ms } => Some(self.left_since(since_ms)),
            HoldingState::Lost => Some(0),
            HoldingState::Returned => None,
        }
    }

    /// How much longer slots are held that were asked for then. Called under the lock of the state: so that slots are
    /// not renewed after they have been seen expired.
    fn left_since(&self, since_ms: u64) -> u64 {
        // The store's clock may have begun its millisecond almost one earlier than ours.
        let surely_ms = self.window_ms.saturating_sub(1);
        since_ms.saturating_add(surely_ms).saturating_sub(now_ms())
    }

    async fn wait_until_lost(&self) {
        loop {
            let lost = self.lost.notified();
            match self.left_ms() {
                None => std::future::pending().await,
                Some(0) => return,
                Some(left_ms) => {
                    // The keeper may be late, and knows nothing of a process that was stopped.
                    let _ = tokio::time::timeout(Duration::from_millis(left_ms), lost).await;
                }
            }
        }
    }

    /// Notifies the holder that the slots are lost. Returns whether they were: not if it has returned them.
    fn lose(&self) -> bool {
        let mut state = lock(&self.state);
        if !matches!(*state, HoldingState::Held { .. }) {
            return false;
        }
        *state = HoldingState::Lost;
        drop(state);
        self.report(SlotChange::Lost);
        self.lost.notify_waiters();
        if !self.is_shadow && self.limiter.inner.shared.keeper.losses.begins() {
            warning::slot_lost();
        }
        true
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding")
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
