//! The `WWW-Authenticate` of an error, as a value that a header can have.

use http::HeaderValue;

use crate::domain::error::ExtractError;

impl ExtractError {
    /// Changes the kind to [`Unauthenticated`](crate::error::ExtractErrorKind::Unauthenticated), with this
    /// `WWW-Authenticate`.
    ///
    /// ```
    /// use http::HeaderValue;
    /// use sluicegate::error::ExtractError;
    ///
    /// let realm = "staging";                                          // from the configuration
    /// let challenge = HeaderValue::try_from(format!("Bearer realm=\"{realm}\""))?;
    /// let error = ExtractError::missing("no token was sent").with_challenge(challenge);
    /// assert_eq!(error.challenge(), Some("Bearer realm=\"staging\""));
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    #[allow(
        clippy::needless_pass_by_value,
        reason = "as the literal that is usual"
    )]
    pub fn with_challenge(self, challenge: HeaderValue) -> Self {
        let challenge = String::from_utf8_lossy(challenge.as_bytes()).into_owned();
        self.challenging(challenge.into())
    }
}
