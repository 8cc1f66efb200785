//! [`IntoCharges`]: the charges that an asynchronous look-up returns.

use std::pin::Pin;

use crate::domain::{charge::Charge, error::ExtractError};

/// The future that a look-up of charges returns.
pub(crate) type ChargesFuture =
    Pin<Box<dyn Future<Output = Result<Vec<Charge>, ExtractError>> + Send>>;

/// The return types of a look-up for [`charge_async`](crate::RateLimitLayer::charge_async): a [`Charge`] or a `Vec`, or
/// an `Option` or a `Result` of one of them.
///
/// `None` is [`Missing`](crate::error::ExtractErrorKind::Missing), and the request is rejected. Return an empty `Vec`
/// if this limit does not apply.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no answer of a look-up of charges",
    note = "answer a `Charge`, a `Vec<Charge>`, an `Option` of one, or a `Result` of one, whose error is an \
            `ExtractError`"
)]
pub trait IntoCharges {
    /// Converts the returned value.
    ///
    /// # Errors
    ///
    /// When the value is an error, or `None`.
    fn into_charges(self) -> Result<Vec<Charge>, ExtractError>;
}

impl IntoCharges for Charge {
    fn into_charges(self) -> Result<Vec<Charge>, ExtractError> {
        Ok(vec![self])
    }
}

impl IntoCharges for Vec<Charge> {
    fn into_charges(self) -> Result<Vec<Charge>, ExtractError> {
        Ok(self)
    }
}

impl<C: IntoCharges> IntoCharges for Option<C> {
    fn into_charges(self) -> Result<Vec<Charge>, ExtractError> {
        let found = self.ok_or(ExtractError::missing("the look-up found nothing to charge"))?;
        found.into_charges()
    }
}

impl<C: IntoCharges> IntoCharges for Result<C, ExtractError> {
    fn into_charges(self) -> Result<Vec<Charge>, ExtractError> {
        self?.into_charges()
    }
}
