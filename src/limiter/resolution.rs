//! [`Resolution`]: what a limiter makes of a check.

use crate::domain::{
    check::Check,
    decision::{Decision, Usage},
    error::StoreError,
    late::Late,
};

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// Decided by the store, or by the memory of this process in its place.
    Decided(Decision),
    /// The store could not decide, and the failure policy lets the request pass. The usage is one to be settled, if the
    /// store may still admit the check: at no cost unless the request [is served](Usage::serve_late).
    Open(StoreError, Option<Usage>),
    /// The store could not decide, and the request does not pass.
    Closed(StoreError),
}

impl Resolution {
    /// The same, of a check that the store may still admit. A request that does not pass costs nothing.
    #[cold]
    pub(super) fn with_late(self, check: &Check, late: Late) -> Self {
        match self {
            Self::Open(error, _) => {
                let usage = Usage::unused(check).with_late(late);
                Self::Open(error, Some(usage))
            }
            Self::Decided(Decision::Allowed(usage)) => {
                let usage = usage.with_late(late);
                usage.serve_late();
                Self::Decided(Decision::Allowed(usage))
            }
            refused => refused,
        }
    }

    /// The decision; or the error, if the caller has to follow the failure policy.
    pub(super) fn into_result(self) -> Result<Decision, StoreError> {
        match self {
            Self::Decided(decision) => Ok(decision),
            Self::Open(error, _) | Self::Closed(error) => Err(error),
        }
    }
}

/// Whether another try may follow a decision, as the alternatives of a [`FirstOf`](crate::domain::first_of::FirstOf) do:
/// an admission may leave alternatives of shadows. The limiter reports the last decision when all tries are made.
pub(super) fn is_open(decision: &Decision) -> bool {
    match decision {
        Decision::Allowed(usage) => {
            let denies_shadows = matches!(usage.shadow(), Some(Decision::Denied(_)));
            denies_shadows || usage.check().ruled().is_empty()
        }
        Decision::Denied(_) => true,
        Decision::Blocked(_) => false,
    }
}
