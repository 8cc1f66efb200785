//! [`CostMeter`]: a handler counts the cost of its response while it is sent.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock, Weak},
};

use super::{
    ending::{Admitted, AtEnd, Ending, Followed},
    reading::{Reading, Readings},
};
use crate::{domain::decision::Decision, limiter::Limiter};

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
    pub(in crate::middleware) readings: Readings,
    /// The requests that settle the readings when they end, one for each layer.
    requests: Vec<Weak<Admitted>>,
    /// The check that a handler has made, which ends with the last clone.
    check: Option<Arc<Admitted>>,
}

/// Counts what a request costs under one policy: see [`CostMeter::under`]. Clones count together.
#[derive(Clone, Debug)]
pub struct PolicyMeter {
    reading: Arc<Reading>,
    _check: Option<Arc<Admitted>>,
}

impl CostMeter {
    /// Adds units to the reading, which begins at 0, whatever the request was charged. The reading is at most 2^53 − 1.
    pub fn add(&self, units: u64) {
        self.readings.of_all().add(units);
    }

    /// Replaces the reading, at most 2^53 − 1.
    pub fn set(&self, units: u64) {
        self.readings.of_all().set(units);
    }

    /// Returns the reading; `None` if nothing was metered.
    #[must_use]
    pub fn units(&self) -> Option<u64> {
        self.readings.of_all().units()
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
            reading: self.readings.under(policy.into()),
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

    /// Lets the guards of [`delay_end`](Self::delay_end) delay this ending as well.
    pub(in crate::middleware) fn add_ending(&mut self, ending: &Ending) {
        self.requests.push(Arc::downgrade(&ending.request));
    }

    /// Notes that another layer settles the readings, too.
    pub(in crate::middleware) fn nest(&self) {
        self.readings.nest();
    }
}

impl PolicyMeter {
    /// Adds units to the reading, which begins at 0, whatever the request was charged. The reading is at most 2^53 − 1.
    pub fn add(&self, units: u64) {
        self.reading.add(units);
    }

    /// Replaces the reading, at most 2^53 − 1.
    pub fn set(&self, units: u64) {
        self.reading.set(units);
    }

    /// Returns the reading; `None` if nothing was metered under this policy.
    #[must_use]
    pub fn units(&self) -> Option<u64> {
        self.reading.units()
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
        static METERS_ALL: LazyLock<Arc<AtEnd>> = LazyLock::new(|| {
            Arc::new(AtEnd {
                meters_all: true,
                ..AtEnd::default()
            })
        });
        let mut meter = CostMeter::default();
        if let Decision::Allowed(usage) = decision {
            let followed = Followed {
                at_end: Arc::clone(&METERS_ALL),
                readings: meter.readings.clone(),
                answers_head: false,
            };
            let (limiter, usage) = (self.clone(), usage.clone());
            let ending = Ending::new(limiter, usage, None, Some(followed), false);
            meter.add_ending(&ending);
            meter.check = Some(Arc::clone(&ending.request));
        }
        meter
    }
}

/// Delays the end of a response until it is dropped: see [`CostMeter::delay_end`].
#[must_use = "the response may end when you drop this"]
#[derive(Debug)]
pub struct EndGuard {
    _requests: Vec<Arc<Admitted>>,
}

/// Without a layer that meters costs, you get a meter that settles nothing, and the log a warning.
#[cfg(feature = "axum")]
impl<S: Send + Sync> axum::extract::FromRequestParts<S> for CostMeter {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        head: &mut http::request::Parts,
        _state: &S,
    ) -> Result<Self, Self::Rejection> {
        let meter = head.extensions.get().cloned();
        Ok(meter.unwrap_or_else(|| {
            crate::warning::nothing_meters();
            Self::default()
        }))
    }
}
