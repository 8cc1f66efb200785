//! [`Resolution`]: what a limiter makes of a check.

use crate::domain::{decision::Decision, error::StoreError};

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// Decided by the store, or by the memory of this process in its place.
    Decided(Decision),
    /// The store could not decide, and the failure policy lets the request pass.
    Open(StoreError),
    /// The store could not decide, and the request does not pass.
    Closed(StoreError),
}

impl Resolution {
    /// The decision; or the error, if the caller has to follow the failure policy.
    pub(super) fn into_result(self) -> Result<Decision, StoreError> {
        match self {
            Self::Decided(decision) => Ok(decision),
            Self::Open(error) | Self::Closed(error) => Err(error),
        }
    }
}
