//! The errors, one type for each situation: [`ConfigError`] when you build a rule, a policy or a layer,
//! [`ExtractError`] when a request has no key, [`StoreError`] when the store could not decide.
//!
//! A denial is not an error: it is a [`Decision`](crate::Decision).
//!
//! ```
//! use sluicegate::Policy;
//!
//! let error = Policy::parse("api", "ten/1s").unwrap_err();
//! assert!(error.to_string().starts_with("policy `api`: rule `ten/1s`: "));
//! ```

use std::{error::Error, fmt, sync::Arc};

use crate::domain::{Text, words::words};

/// The reason why a request has no key.
///
/// The message is for your logs: do not put data from the client into it. If the client is the cause,
/// [`ProblemJson`](crate::middleware::ProblemJson) also sends the message to the client: you may name a header, but no
/// internals.
///
/// ```
/// use sluicegate::{KeyExtractor, PeerIp, error::ExtractErrorKind};
///
/// let head = http::Request::get("/").body(())?.into_parts().0;
/// let error = PeerIp.extract(&head).unwrap_err();
/// assert_eq!(error.kind(), ExtractErrorKind::Misconfigured);         // the server inserts no peer address
/// assert!(error.to_string().contains("into_make_service_with_connect_info"));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractError {
    kind: ExtractErrorKind,
    message: Text,
    challenge: Option<Text>,
    /// The name of the header or cookie that caused the error, or of the missing type.
    name: Option<Text>,
}

/// The kind of an [`ExtractError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExtractErrorKind {
    /// The request does not identify a client. The client is the cause.
    Missing,
    /// The request does not identify a client, and the client has to authenticate: a 401. The client is the cause.
    Unauthenticated,
    /// The request identifies a client in a form that cannot be read. The client is the cause.
    Malformed,
    /// The service could not identify the client, for instance because a look-up failed. The service is the cause.
    Unavailable,
    /// The service cannot identify any client, because a layer or a setting is missing. You have to act: until then
    /// each request is answered with a 500, and one warning names the missing part.
    Misconfigured,
}

words!(
    /// Returns one lower-case word for labels and logs: `missing`, `unauthenticated`, `malformed`, `unavailable`,
    /// `misconfigured`.
    ExtractErrorKind: Missing "missing", Unauthenticated "unauthenticated", Malformed "malformed",
        Unavailable "unavailable", Misconfigured "misconfigured"
);

impl ExtractError {
    /// Creates an error of this kind with a message from your configuration. For a literal message, use the `const`
    /// constructor of the kind.
    #[must_use]
    pub fn new(kind: ExtractErrorKind, message: impl Into<Text>) -> Self {
        Self {
            message: message.into(),
            ..Self::literal(kind, "")
        }
    }

    const fn literal(kind: ExtractErrorKind, message: &'static str) -> Self {
        Self {
            kind,
            message: Text::literal(message),
            challenge: None,
            name: None,
        }
    }

    /// Creates an error of the kind [`Missing`](ExtractErrorKind::Missing): the request does not identify a client.
    #[must_use]
    pub const fn missing(message: &'static str) -> Self {
        Self::literal(ExtractErrorKind::Missing, message)
    }

    /// Creates an error of the kind [`Malformed`](ExtractErrorKind::Malformed): the client's identity cannot be read.
    #[must_use]
    pub const fn malformed(message: &'static str) -> Self {
        Self::literal(ExtractErrorKind::Malformed, message)
    }

    /// Creates an error of the kind [`Unavailable`](ExtractErrorKind::Unavailable): the service could not identify the
    /// client.
    #[must_use]
    pub const fn unavailable(message: &'static str) -> Self {
        Self::literal(ExtractErrorKind::Unavailable, message)
    }

    /// Creates an error of the kind [`Unauthenticated`](ExtractErrorKind::Unauthenticated): the client has to
    /// authenticate. `challenge` is the `WWW-Authenticate` of the response, for instance `Bearer`. A challenge that is
    /// not a valid header value is not sent.
    ///
    /// Use [`with_challenge`](Self::with_challenge) for a challenge with a realm from your configuration.
    #[must_use]
    pub const fn unauthenticated(challenge: &'static str) -> Self {
        Self {
            kind: ExtractErrorKind::Unauthenticated,
            message: Text::literal("the client has to authenticate"),
            challenge: Some(Text::literal(challenge)),
            name: None,
        }
    }

    /// The same of the kind [`Unauthenticated`](ExtractErrorKind::Unauthenticated), with this challenge.
    pub(crate) fn challenging(self, challenge: Text) -> Self {
        Self {
            kind: ExtractErrorKind::Unauthenticated,
            challenge: Some(challenge),
            ..self
        }
    }

    /// Creates an error of the kind [`Misconfigured`](ExtractErrorKind::Misconfigured): `message` names the missing
    /// part and the remedy.
    #[must_use]
    pub const fn misconfigured(message: &'static str) -> Self {
        Self::literal(ExtractErrorKind::Misconfigured, message)
    }

    /// Adds the name of the header or cookie that caused the error, or of the missing type.
    pub(crate) fn about(mut self, name: impl Into<Text>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Returns the kind of this error.
    #[must_use]
    pub const fn kind(&self) -> ExtractErrorKind {
        self.kind
    }

    /// Returns the `WWW-Authenticate` of the response, if the client has to authenticate.
    #[must_use]
    pub fn challenge(&self) -> Option<&str> {
        self.challenge.as_ref().map(Text::as_str)
    }
}

impl fmt::Display for ExtractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, &self.name) {
            (_, None) => f.write_str(self.message.as_str()),
            (ExtractErrorKind::Misconfigured, Some(name)) => {
                write!(f, "`{name}`: {}", self.message)
            }
            (_, Some(name)) => write!(f, "{}: `{name}`", self.message),
        }
    }
}

impl Error for ExtractError {}

/// A mistake in the configuration: a rule, policy, ban, network, name or route that is not valid, or policies that do
/// not go together. The message names the part, the problem and the remedy.
///
/// You can pass a name in two ways. `new` takes a literal, for instance [`Header::new`](crate::Header::new), and panics
/// when the service starts, as `HeaderName::from_static` does. Parse a name from your configuration: a name that is not
/// valid gives this error.
///
/// ```
/// use sluicegate::{Header, error::ConfigError};
///
/// fn key_header(name: &str) -> Result<Header, ConfigError> {
///     name.parse()
/// }
/// assert_eq!(key_header("x api").unwrap_err().to_string(), "`x api` cannot be the name of a header");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(Box<str>);

/// The most characters of a text that a message shows.
const MAX_SHOWN: usize = 64;

/// Returns the value, or panics with the error, which the caller's code has caused.
#[track_caller]
pub(crate) fn valid<T>(made: Result<T, ConfigError>) -> T {
    // Not in a closure, because a panic there would not show the caller's location.
    match made {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl ConfigError {
    pub(crate) fn new(message: fmt::Arguments<'_>) -> Self {
        Self(message.to_string().into())
    }

    /// The error of a name, which is cut after 64 characters.
    pub(crate) fn of_name(name: &str, problem: &str) -> Self {
        Self::new(format_args!("`{}` {problem}", shown(name)))
    }

    /// The error of a policy. The message names the policy, since a configuration can have many.
    pub(crate) fn of_policy(policy: &str, problem: fmt::Arguments<'_>) -> Self {
        Self::new(format_args!("policy `{policy}`: {problem}"))
    }
}

/// Cuts a text that can be of any length.
pub(crate) fn shown(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_SHOWN);
    end.map_or(text, |(end, _)| &text[..end])
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConfigError {}

/// The store could not decide: the request is neither allowed nor denied.
///
/// The possible failures differ by store, so the error is opaque. [`kind`](Self::kind) is for your reaction,
/// [`code`](Self::code) is the server's code, and `source` is the cause. None of these, nor the message, holds a key, a
/// user, an address or a password.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: &'static str,
    is_unsent: bool,
    /// Boxed, since a store's answer is as large as an error, and is moved often.
    details: Option<Box<Details>>,
}

/// The parts that only some errors have.
#[derive(Clone, Debug, Default)]
struct Details {
    code: Option<Box<str>>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The code of a source of credentials that gives none, which may be over soon.
pub(crate) const NO_CREDENTIALS: &str = "NOCREDENTIALS";

/// The longest code of an error reply that is kept.
const MAX_CODE: usize = 24;

/// The kind of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store did not answer within the timeout. The call may or may not have been executed.
    ///
    /// The [breaker](crate::limiter#when-the-store-cannot-decide) counts this kind and
    /// [`Unavailable`](Self::Unavailable), and no other: a store of your own returns one of these two only when a wait
    /// was lost.
    Timeout,
    /// The store cannot be reached: there is no connection, it was lost, or the server has no room for a further one.
    ///
    /// The call was not sent, or no answer will come. A store of your own that has an answer, whatever it says, returns
    /// another kind.
    Unavailable,
    /// The store has answered that it does not do this now: out of memory, a read-only replica, too few replicas, a disk
    /// error, loading, busy, a used-up quota of a service.
    ///
    /// Other operations may still be decided: while Redis is full, an identity that is at its limit is denied, since a
    /// denial writes nothing. See [`operating`](crate::operating#a-server-that-takes-no-writes).
    Refused,
    /// The store was not called, because it failed several times in a row. See
    /// [`limiter`](crate::limiter#when-the-store-cannot-decide).
    CircuitOpen,
    /// The store denies access: wrong password, missing rights, wrong type of server. You have to act.
    AccessDenied,
    /// The reply cannot be read, or the stored value was not written by this crate.
    Protocol,
    /// The store holds as many keys as it may, all of them at their limits, so there is no room for a new key; the
    /// others are still decided. See [`MemoryStore`](crate::MemoryStore).
    Full,
    /// The call is not valid: two policies of one name in one check, or a second settlement of one check.
    InvalidRequest,
}

words!(
    /// Returns one lower-case word for labels and logs: `timeout`, `unavailable`, `refused`, `circuit_open`,
    /// `access_denied`, `protocol`, `full`, `invalid_request`.
    StoreErrorKind: Timeout "timeout", Unavailable "unavailable", Refused "refused",
        CircuitOpen "circuit_open", AccessDenied "access_denied", Protocol "protocol", Full "full",
        InvalidRequest "invalid_request"
);

impl StoreError {
    /// Creates an error of this kind; `message` is one lower-case sentence without a key or a secret.
    #[must_use]
    pub const fn new(kind: StoreErrorKind, message: &'static str) -> Self {
        Self {
            kind,
            message,
            is_unsent: false,
            details: None,
        }
    }

    pub(crate) const fn protocol(message: &'static str) -> Self {
        Self::new(StoreErrorKind::Protocol, message)
    }

    pub(crate) const fn invalid_request(message: &'static str) -> Self {
        Self::new(StoreErrorKind::InvalidRequest, message)
    }

    /// Adds the code of the server's error reply. A code that is not 1 to 24 upper-case ASCII letters is left out,
    /// since it could hold any data.
    #[must_use]
    #[doc(hidden)]
    pub fn with_code(mut self, code: &str) -> Self {
        let is_code = (1..=MAX_CODE).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_uppercase());
        self.details.get_or_insert_default().code = is_code.then(|| code.into());
        self
    }

    /// Adds the cause of the error, which must not hold a key or a secret either.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.details.get_or_insert_default().source = Some(Arc::new(source));
        self
    }

    /// Marks the error of an operation that was certainly not sent, for instance because a connection was refused, or
    /// that the store refused before it changed anything. For stores.
    #[must_use]
    pub const fn unsent(self) -> Self {
        self.unsent_if(true)
    }

    pub(crate) const fn unsent_if(mut self, unsent: bool) -> Self {
        self.is_unsent |= unsent;
        self
    }

    /// Returns whether the operation was certainly not sent, or has certainly changed nothing, so that you can try
    /// again: the breaker was open, no connection was made, the time was over while the operation waited for its turn,
    /// the server loads its data, is busy with a script, takes no writes, is out of memory, or names another node of
    /// the cluster, a value cannot be read, or the store does not [know](crate::store::Operation::unsupported) the
    /// operation.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        self.is_unsent || self.kind == StoreErrorKind::CircuitOpen
    }

    /// Turns the mark off: the error is one of several operations, and some of them may have been sent.
    #[cfg(feature = "redis")]
    pub(crate) const fn maybe_sent(mut self) -> Self {
        self.is_unsent = false;
        self
    }

    /// Returns the code of the server's error reply, for instance `OOM` or `NOPERM`: 1 to 24 upper-case ASCII letters.
    /// `None` when the server did not reply with an error. `NOCREDENTIALS` if a source of credentials gave none that the
    /// server accepts.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.details.as_ref()?.code.as_deref()
    }

    /// Returns the kind of this error.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.details.as_ref()?.source.as_deref();
        source.map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_kept_if_it_is_short_and_of_upper_case_letters() {
        let code = |code| {
            let error = StoreError::new(StoreErrorKind::Protocol, "m").with_code(code);
            error.code().map(ToOwned::to_owned)
        };
        let longest = "A".repeat(MAX_CODE);
        for good in ["OOM", "ERR", &longest] {
            assert_eq!(code(good).as_deref(), Some(good));
        }
        for bad in ["", "alice", "OOM 7", "Ä", &"A".repeat(MAX_CODE + 1)] {
            assert_eq!(code(bad), None, "{bad}");
        }
    }
}
