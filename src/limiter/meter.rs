//! [`CostMeter`]: counts what a request or a check costs while it is under way.

use std::{
    any::Any,
    borrow::Cow,
    iter,
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::{Limiter, SETTLING};
use crate::{
    domain::{
        charge::Charge,
        decision::{Decision, Usage},
        policy::Policy,
        rule::MAX_UNITS,
        similar::most_similar,
    },
    lock::lock,
    warning,
};

/// The name of the setter in warnings.
pub(crate) const UNDER: &str = "CostMeter::under";

/// Counts what a request costs while its response is being made. The layer settles the last reading when the body ends
/// or is dropped, also when the client leaves early.
///
/// Find it in the extensions of the request, or, with the feature `axum`, take it as an argument of the handler. The
/// layer puts it there after [`meter_costs`](crate::RateLimitLayer::meter_costs). Clones count together; layers around
/// each other share one meter. For a check that a handler makes itself, see [`Limiter::meter`].
///
/// If you meter nothing, the charge stays. Metering 0 refunds it. A request that passes because the store is late has a
/// meter as well, which settles the [late answer](crate::limiter#late-answers).
///
/// ```
/// use std::convert::Infallible;
/// use axum::body::Body;
/// use futures::{StreamExt, stream};
/// use sluicegate::middleware::CostMeter;
///
/// async fn chat(meter: CostMeter) -> Body {
///     let tokens = stream::iter(["To ", "be ", "or "]);                    // from a model
///     Body::from_stream(tokens.map(move |token| {
///         meter.add(1);
///         Ok::<_, Infallible>(token)
///     }))
/// }
/// # let _ = chat;
/// ```
#[derive(Clone, Debug, Default)]
pub struct CostMeter {
    pub(crate) readings: Readings,
    /// The guards of requests, one for each layer: a guard settles the readings when it is dropped.
    requests: Vec<Weak<Guard>>,
    /// That of the check that a handler has made, which ends with the last clone.
    check: Option<Arc<Guard>>,
}

/// Counts what a request costs under one policy: see [`CostMeter::under`]. Clones count together.
#[derive(Clone, Debug)]
pub struct PolicyMeter {
    metered: Arc<Metered>,
    _check: Option<Arc<Guard>>,
}

/// It settles when it is dropped.
pub(crate) type Guard = dyn Any + Send + Sync;

impl CostMeter {
    /// Adds units to the reading, which begins at 0, whatever the request was charged. The reading is at most 2^53 − 1.
    pub fn add(&self, units: u64) {
        self.readings.of_all.add(units);
    }

    /// Replaces the reading, at most 2^53 − 1.
    pub fn set(&self, units: u64) {
        self.readings.of_all.set(units);
    }

    /// Returns the reading; `None` if nothing was metered.
    #[must_use]
    pub fn units(&self) -> Option<u64> {
        self.readings.units()
    }

    /// Returns the meter of one policy, by its name. It begins at 0, and replaces the meter of all for that policy as soon
    /// as it has a reading.
    ///
    /// For responses that cost different units, such as input tokens, output tokens and money. Every layer that has such
    /// a policy settles it, whether it [names](crate::RateLimitLayer::meter_costs_under) the policy or not. You get a
    /// warning about a name that is not charged, in the cases that [`ActualCost`](crate::middleware::ActualCost)
    /// describes. A request can have 256 such meters: further ones settle nothing.
    ///
    /// ```
    /// use sluicegate::middleware::CostMeter;
    ///
    /// # let meter = CostMeter::default();
    /// meter.under("input-tokens").set(812);
    /// let output = meter.under("output-tokens");                     // keep it for a stream
    /// output.add(1);
    /// output.add(1);
    /// assert_eq!((output.units(), meter.units()), (Some(2), None));
    /// ```
    #[must_use]
    pub fn under(&self, policy: impl Into<Cow<'static, str>>) -> PolicyMeter {
        PolicyMeter {
            metered: self.readings.under(policy.into()),
            _check: self.check.clone(),
        }
    }

    /// Delays the end of the response until you drop the guard, too: for work that goes on after the body, such as a
    /// connection that has switched protocols (WebSocket, `CONNECT`).
    ///
    /// Keep the guard for as long as you may still meter. If the response has ended, it delays nothing.
    pub fn delay_end(&self) -> EndGuard {
        let requests = self.requests.iter().filter_map(Weak::upgrade);
        EndGuard {
            _requests: requests.collect(),
        }
    }

    /// Lets the guards of [`delay_end`](Self::delay_end) delay the drop of this one as well.
    pub(crate) fn delay(&mut self, guard: Weak<Guard>) {
        self.requests.push(guard);
    }
}

impl PolicyMeter {
    /// Adds units to the reading, which begins at 0, whatever the request was charged. The reading is at most 2^53 − 1.
    pub fn add(&self, units: u64) {
        self.metered.add(units);
    }

    /// Replaces the reading, at most 2^53 − 1.
    pub fn set(&self, units: u64) {
        self.metered.set(units);
    }

    /// Returns the reading; `None` if nothing was metered under this policy.
    #[must_use]
    pub fn units(&self) -> Option<u64> {
        self.metered.units()
    }
}

impl Limiter {
    /// Returns a meter for a check that you have made yourself, in a handler or a job. When you drop its last clone, and
    /// the meters and guards that you got from them, the check is settled at the reading.
    ///
    /// Move the meter into the stream that you answer with: if the client leaves, the server drops the stream, and the
    /// check costs what was metered until then. The settlement runs in the
    /// [background](crate::limiter#background-work), like that of a [layer](crate::RateLimitLayer::meter_costs): one that
    /// was surely not sent is tried again for a minute, and [`finish`](Self::finish) waits for it. If nothing was metered,
    /// or it fails, the charge stays. A check is settled once: a meter of a denied or settled check settles nothing.
    ///
    /// You may call this, and drop the meter, anywhere. It holds no slot: see [`hold`](Self::hold).
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (tokens, alice) = (Policy::parse("tokens", "1000/1m")?, Key::new("user", "alice"));
    /// let decision = limiter.check([Charge::new(&tokens, alice.clone(), 100)]).await?;
    ///
    /// let meter = limiter.meter(&decision);
    /// meter.add(7);                                                  // or for each part of a stream
    /// drop(meter);
    /// limiter.finish(Duration::from_secs(5)).await;                  // settled in the background
    /// let left = limiter.peek([Charge::new(&tokens, alice, 0)]).await?;
    /// assert_eq!(left.rules().next().unwrap().remaining(), 993);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use = "the check is settled when you drop this"]
    pub fn meter(&self, decision: &Decision) -> CostMeter {
        let mut meter = CostMeter::default();
        if let Decision::Allowed(usage) = decision {
            let check: Arc<Guard> = Arc::new(MeteredCheck {
                limiter: self.clone(),
                usage: usage.clone(),
                readings: meter.readings.clone(),
            });
            meter.delay(Arc::downgrade(&check));
            meter.check = Some(check);
        }
        meter
    }
}

/// A check that a handler has made, to be settled at its reading when this is dropped.
struct MeteredCheck {
    limiter: Limiter,
    usage: Usage,
    readings: Readings,
}

impl Drop for MeteredCheck {
    fn drop(&mut self) {
        let (usage, readings) = (&self.usage, &self.readings);
        // With alternatives, one of the others may have the name.
        if !usage.facts().has_alternatives {
            readings.uncharged(usage).iter().for_each(|name| {
                static WARNED: Once = Once::new();
                let similar = || most_similar(name, charged(usage).map(Policy::name));
                WARNED.call_once(|| warning::unknown_policy(UNDER, name, similar()));
            });
        }
        let cost = |charge: &Charge| {
            let own = readings.units_under(charge.policy().name());
            own.or_else(|| readings.units())
        };
        let parts = Limiter::final_parts(usage, cost);
        self.limiter.settle_in_background(parts, SETTLING);
    }
}

/// Delays the end of a response until it is dropped: see [`CostMeter::delay_end`].
#[must_use = "the response may end when you drop this"]
#[derive(Debug)]
pub struct EndGuard {
    _requests: Vec<Arc<Guard>>,
}

/// More names than a request has policies: a name of its own for each part of a stream must not fill the memory.
const MAX_NAMED: usize = 256;

/// The metered units and 1; 0 if nothing was metered.
#[derive(Debug, Default)]
struct Metered(AtomicU64);

/// The units that were metered for a request, which all of its meters and layers share.
pub(crate) type Readings = Arc<MeteredUnits>;

#[derive(Debug, Default)]
pub(crate) struct MeteredUnits {
    of_all: Metered,
    /// By the names of policies.
    named: Mutex<Vec<(Cow<'static, str>, Arc<Metered>)>>,
    /// Whether several layers settle this, so that none knows all policies.
    is_nested: AtomicBool,
}

impl Metered {
    fn add(&self, units: u64) {
        let add = |reading: u64| Some(reading.max(1).saturating_add(units).min(MAX_UNITS + 1));
        // It never fails, since `add` always returns a number.
        let _ = self.0.fetch_update(Relaxed, Relaxed, add);
    }

    fn set(&self, units: u64) {
        self.0.store(units.min(MAX_UNITS) + 1, Relaxed);
    }

    /// `None` if nothing was metered.
    fn units(&self) -> Option<u64> {
        self.0.load(Relaxed).checked_sub(1)
    }
}

impl MeteredUnits {
    /// The units that were metered under all policies; `None` if none were.
    pub(crate) fn units(&self) -> Option<u64> {
        self.of_all.units()
    }

    /// The meter of the policy of this name, which begins when it is first asked for.
    fn under(&self, policy: Cow<'static, str>) -> Arc<Metered> {
        let mut named = lock(&self.named);
        if let Some((_, metered)) = named.iter().find(|(name, _)| *name == policy) {
            return Arc::clone(metered);
        }
        let metered = Arc::<Metered>::default();
        if named.len() < MAX_NAMED {
            named.push((policy, Arc::clone(&metered)));
        }
        metered
    }

    /// The units that were metered under this very policy; `None` if none were.
    pub(crate) fn units_under(&self, policy: &str) -> Option<u64> {
        let named = lock(&self.named);
        let (_, metered) = named.iter().find(|(name, _)| name == policy)?;
        metered.units()
    }

    /// The names under which something was metered, and under which the check was not charged. With several layers none
    /// can know these.
    pub(crate) fn uncharged(&self, usage: &Usage) -> Vec<Cow<'static, str>> {
        if self.is_nested.load(Relaxed) {
            return Vec::new();
        }
        let named = lock(&self.named);
        let is_charged = |name: &str| charged(usage).any(|policy| policy.name() == name);
        let metered = named.iter().filter(|(_, it)| it.units().is_some());
        let names = metered.map(|(name, _)| name);
        names.filter(|name| !is_charged(name)).cloned().collect()
    }

    /// Notes that another layer also settles these units.
    pub(crate) fn nest(&self) {
        self.is_nested.store(true, Relaxed);
    }
}

/// The policies that a check was charged under, shadows among them.
fn charged(usage: &Usage) -> impl Iterator<Item = &Policy> {
    let shadow = usage.shadow().map(Decision::usage);
    let parts = iter::once(usage).chain(shadow);
    parts.flat_map(|part| part.check().ruled().iter().map(Charge::policy))
}
