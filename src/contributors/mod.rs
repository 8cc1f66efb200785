//! Who uses a shared limit up: the [contributors](Limiter::contributors) to an account, by a second label.
//!
//! A tenant's limit is shared by its users. When it is used up, somebody asks which of them it was. A charge may say
//! so: its policy and its key are the *account*, and [`Charge::by`] names the *contributor*.
//!
//! ```
//! use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let api = Policy::parse("api", "100/1m,1000/1h")?;
//! let acme = || Key::new("account", "acme");
//! let request = |user: &str, cost| [Charge::new(&api, acme(), cost).by(Key::new("user", user))];
//!
//! for (user, cost) in [("alice", 60), ("bob", 5), ("alice", 30), ("carol", 200)] {
//!     limiter.check(request(user, cost)).await?;                       // carol's is denied, and does not count
//! }
//! let contributors = limiter.contributors(&api, &acme()).await?;
//! let top: Vec<_> = contributors.iter().map(|it| (it.label(), it.units())).collect();
//! assert_eq!(top, [("user=alice", 90), ("user=bob", 5)]);
//! assert_eq!((contributors.total(), contributors.error()), (95, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! In the middleware, [`contributors`](crate::RateLimitLayer::contributors) behind a limit names who contributes:
//!
//! ```
//! use http::request::Parts;
//! use sluicegate::{Header, Key, MemoryStore, Policy, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new(MemoryStore::new())
//!     .limit(Policy::parse("api", "1000/1h")?, Header::new("x-account"))
//!     .contributors(|head: &Parts| Some(Key::new("path", head.uri.path())));
//! # let _ = layer;
//! # Ok::<(), sluicegate::error::PolicyError>(())
//! ```
//!
//! # When a limit denies
//!
//! Nothing is read for a denial, since that is a call of the store, and nothing is told to clients. A handler of
//! rejections may ask, for a log or for an answer to those who own the account; beside the response, so that it does
//! not wait:
//!
//! ```
//! use http::{Request, Response, request::Parts};
//! use sluicegate::{Key, Limiter, MemoryStore, Policy, RateLimitLayer, middleware::Rejection};
//! use tokio::sync::mpsc;
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let (log, mut lines) = mpsc::channel(16);                             // stands for a log
//! let asking = limiter.clone();
//! let layer = RateLimitLayer::new(limiter)
//!     .limit(Policy::parse("api", "3/1h")?, Key::new("account", "acme"))
//!     .contributors(|head: &Parts| Some(Key::new("user", head.headers.get("x-user")?)))
//!     .rejection(move |rejection: &Rejection, _: &Parts| {
//!         if let (Rejection::Denied(denial), Ok(log)) = (rejection, log.clone().try_reserve_owned()) {
//!             let (limiter, charge) = (asking.clone(), denial.charge().clone());
//!             tokio::spawn(async move {
//!                 if let Ok(told) = limiter.contributors(charge.policy(), charge.key()).await {
//!                     let first = told.iter().next().map(|it| format!("{} {}", it.label(), it.units()));
//!                     log.send(first);
//!                 }
//!             });
//!         }
//!         Response::new(String::new())
//!     });
//!
//! let service = layer.layer(service_fn(async |_: Request<String>| {
//!     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
//! }));
//! for user in ["alice", "bob", "alice", "bob"] {
//!     let request = Request::get("/").header("x-user", user).body(String::new())?;
//!     service.clone().oneshot(request).await?;
//! }
//! assert_eq!(lines.recv().await.unwrap().unwrap(), "user=alice 2");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The bounded channel keeps a flood of denials from becoming a flood of questions.
//!
//! # What is counted
//!
//! - Units that the store has admitted, and shadows too; not what was denied, what a process decided
//!   [locally](crate::Usage::is_local), or what passed because the store could not decide.
//! - A check that is [settled](Limiter::settle) counts with its final cost: the difference is added or taken back when
//!   it is settled.
//! - A [reset](Limiter::reset) of the account leaves them: they tell who it was.
//! - Of charges in one check with the same policy and key, those of the first label.
//! - All processes together, over the longest window of the policy: the last window, and up to a sixth of it more. Of a
//!   fixed window, the units since it began; the window of a [bucket](crate::buckets) is the time of a full refill. A
//!   window shorter than 12 s is taken as 12 s.
//! - Each process tells the store once a second, so the newest second of the *other* processes is missing.
//!
//! # How exact it is
//!
//! [`Contributor::units`] is never too high, and too low by at most [`Contributors::error`], but for what is under way.
//! The error is 0 while an account has fewer than 16 contributors in each sixth of the window. With more, a process
//! knows each to a fortieth of what it has admitted, and the store keeps the 16 that lead. At least 95 % of the true
//! top five are found, under a Zipf load over four limiters. Who begins late in a sixth of the window, spread over
//! many processes, may be seen with the next sixth only.
//!
//! What was told to a store that did not answer is lost, and so is what a process has not told when it ends abruptly:
//! both make units too low. What is given back by a settlement after its contributor was forgotten among many makes
//! them too high. A limiter that is dropped within a runtime tells the rest.
//!
//! # What it costs
//!
//! Nothing, where no charge names a contributor. Where one does, the process counts it when the decision is there, and
//! tells the store later: no check waits for a store because of it. With the extraction of the label that adds about
//! 0.2 µs of the processor's time to a request. A task of tokio's is spawned at the first such check, ends when nothing
//! happens any more or the limiter is dropped, and holds nothing alive. Outside of a runtime there is none: then only
//! what [`Limiter::contributors`] asks for is told.
//!
//! A process keeps up to 1024 accounts of at most 8 KB, those used last; Redis keeps at most 8 KB for each account, in
//! up to seven sorted sets that expire by themselves. See [what is stored](crate::store::redis#what-is-stored) and
//! [the rights](crate::store::redis::deployment#the-least-rights) that this needs.
//!
//! # Labels are data of clients
//!
//! A label reads `user=alice`. A value that is long, unusual or [secret](Key::secret) is hashed, as in the names of
//! Redis keys: `user=#9b2e…`. Labels are at most 44 bytes. They are in no log, metric or response, and `Debug` does not
//! show them: a handler or an operator's tool asks for them. Nothing tells a client who used a limit up, unless your
//! handler does.

use std::fmt;

#[cfg(doc)]
use crate::{charge::Charge, key::Key, limiter::Limiter};

mod contribution;
pub(crate) mod label;
mod span;

pub use contribution::{Contribution, Kept};
pub(crate) use span::Span;

/// How many labels a store keeps for a sixth of a window.
pub(crate) const KEPT_LABELS: usize = 16;

/// Who has contributed to an account in the current window, the greatest first: what [`Limiter::contributors`] answers.
#[derive(Clone, Debug, Default)]
pub struct Contributors {
    list: Vec<Contributor>,
    total: u64,
    error: u64,
}

/// One of the [`Contributors`]. `Debug` does not show the label.
#[derive(Clone, PartialEq, Eq)]
pub struct Contributor {
    label: String,
    units: u64,
}

impl Contributors {
    /// Creates the answer from the units of each label, of which several with one label are added up. For stores.
    ///
    /// `total` is what all have contributed, and `error` how much of it may be anybody's at most.
    #[must_use]
    pub fn new(units: impl IntoIterator<Item = (String, u64)>, total: u64, error: u64) -> Self {
        let mut by_label = std::collections::HashMap::<String, u64>::new();
        for (label, units) in units {
            let sum = by_label.entry(label).or_default();
            *sum = sum.saturating_add(units);
        }
        let list = by_label.into_iter().filter(|(_, units)| *units > 0);
        let mut list: Vec<_> = list
            .map(|(label, units)| Contributor { label, units })
            .collect();
        list.sort_unstable_by(|a, b| (b.units, &a.label).cmp(&(a.units, &b.label)));
        let known = list
            .iter()
            .fold(0_u64, |sum, it| sum.saturating_add(it.units));
        Self {
            list,
            total: total.max(known),
            // What is known to be somebody's is nobody else's.
            error: error.min(total.saturating_sub(known)),
        }
    }

    /// The contributors that are known, the greatest first.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Contributor> {
        self.list.iter()
    }

    /// What all contributors together have been charged, those that are not listed among them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// How much higher the units of a contributor may be than is told, at most; a contributor that is not listed has no
    /// more than this. 0 when the units are exact.
    #[must_use]
    pub const fn error(&self) -> u64 {
        self.error
    }
}

impl Contributor {
    /// Who it is: the kind and the value of the [key](Charge::by), or a hash of the value; at most 44 bytes.
    ///
    /// Data of a client: do not log it, or use it in metrics, where that is not allowed.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What it was charged in the window, at least; at most [`Contributors::error`] more.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }
}

impl fmt::Debug for Contributor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.label.split('=').next().unwrap_or_default();
        write!(f, "Contributor({kind}=…: {})", self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributors_are_added_up_and_the_greatest_come_first() {
        let units = [("b", 5), ("a", 3), ("c", 0), ("a", 4)];
        let units = units.map(|(label, units)| (label.to_owned(), units));
        let contributors = Contributors::new(units, 20, 100);
        let list: Vec<_> = contributors
            .iter()
            .map(|it| (it.label(), it.units()))
            .collect();
        assert_eq!(list, [("a", 7), ("b", 5)]);
        assert_eq!((contributors.total(), contributors.error()), (20, 8));
    }

    #[test]
    fn debug_shows_no_label() {
        let units = [("user=alice".to_owned(), 5)];
        let text = format!("{:?}", Contributors::new(units, 5, 0));
        assert!(
            text.contains("user=…: 5") && !text.contains("alice"),
            "{text}"
        );
    }
}
