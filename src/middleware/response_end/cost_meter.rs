//! [`CostMeter`]: a handler counts the cost of its response while it is sent.

use std::sync::{Arc, Weak};

use super::{
    ending::{Admitted, Ending},
    reading::Reading,
};

/// Counts what a request costs while its response is being made. The layer settles the last reading when the body ends
/// or is dropped, also when the client leaves early.
///
/// Find it in the extensions of the request, or, with the feature `axum`, take it as an argument of the handler. The
/// layer puts it there after [`meter_costs`](crate::RateLimitLayer::meter_costs). Clones count together; layers around
/// each other share one meter.
///
/// If you meter nothing, the charge stays. Metering 0 refunds it.
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
    pub(in crate::middleware) reading: Reading,
    /// The requests that settle the reading when they end, one for each layer.
    requests: Vec<Weak<Admitted>>,
}

impl CostMeter {
    /// Adds units to the reading, which begins at 0, whatever the request was charged. The reading is at most 2^53 − 1.
    pub fn add(&self, units: u64) {
        self.reading.add(units);
    }

    /// Replaces the reading, at most 2^53 − 1.
    pub fn set(&self, units: u64) {
        self.reading.set(units);
    }

    /// Returns the reading; `None` if nothing was metered.
    #[must_use]
    pub fn units(&self) -> Option<u64> {
        self.reading.units()
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
