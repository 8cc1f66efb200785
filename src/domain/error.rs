//! The errors, one type for each situation: [`RuleError`] and [`PolicyError`] when something is built,
//! [`ExtractError`] when a request yields no key, [`StoreError`] when the store could not decide.
//!
//! None of them means that a request was denied: that is a [`Decision`](crate::Decision).
//!
//! ```
//! use sluicegate::{Policy, error::PolicyError};
//!
//! let error = Policy::parse("api", "ten/1s").unwrap_err();
//! assert!(matches!(error, PolicyError::Rule { .. }));
//! ```

use std::{
    error::Error,
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

pub use crate::domain::{policy::PolicyError, rule::RuleError};
use crate::{domain::Text, domain::sent_call::Blame};

/// Why no key could be extracted from a request.
///
/// The message is for the service's own logs, and must not hold what the client sent. Where the client is the cause,
/// [`ProblemJson`](crate::middleware::ProblemJson) sends it the message, too: a name of a header, say, and no internals.
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
    /// The challenge of `Unauthenticated`, or the type that is missing for `Misconfigured`.
    detail: Option<Text>,
    /// The name of the header or cookie that the error is about.
    name: Option<Arc<str>>,
}

/// What kind of [`ExtractError`] it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExtractErrorKind {
    /// The request does not identify its client. The client is the cause.
    Missing,
    /// The request does not identify its client, who has to authenticate: a 401. The client is the cause.
    Unauthenticated,
    /// The request identifies its client in a way that cannot be read. The client is the cause.
    Malformed,
    /// The service could not identify the client, for instance because a look-up failed. The service is the cause.
    Unavailable,
    /// The service is put together in a way in which no client can be identified: a layer or a setting is missing. A
    /// person has to act; until then each request is answered with a 500, and a warning says once what is missing.
    Misconfigured,
}

impl ExtractErrorKind {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 5] = [
        Self::Missing,
        Self::Unauthenticated,
        Self::Malformed,
        Self::Unavailable,
        Self::Misconfigured,
    ];

    /// In one lower-case word, for labels and logs: `missing`, `unauthenticated`, `malformed`, `unavailable`,
    /// `misconfigured`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unauthenticated => "unauthenticated",
            Self::Malformed => "malformed",
            Self::Unavailable => "unavailable",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl ExtractError {
    /// Creates an error of this kind with a message from your configuration. For a message in the program, each kind has
    /// a constructor that is `const`.
    #[must_use]
    pub fn new(kind: ExtractErrorKind, message: impl Into<Text>) -> Self {
        Self {
            kind,
            message: message.into(),
            detail: None,
            name: None,
        }
    }

    const fn literal(kind: ExtractErrorKind, message: &'static str) -> Self {
        Self {
            kind,
            message: Text::literal(message),
            detail: None,
            name: None,
        }
    }

    /// Creates an error of the kind [`Missing`](ExtractErrorKind::Missing): the request does not identify its client.
    #[must_use]
    pub const fn missing(message: &'static str) -> Self {
        Self::literal(ExtractErrorKind::Missing, message)
    }

    /// Creates an error of the kind [`Malformed`](ExtractErrorKind::Malformed): what identifies the client cannot be
    /// read.
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
    /// authenticate. `challenge` is the `WWW-Authenticate` of the response, for instance `Bearer`; one that cannot be
    /// the value of a header is not sent.
    ///
    /// [`with_challenge`](Self::with_challenge) sets one that names a realm of your configuration.
    #[must_use]
    pub const fn unauthenticated(challenge: &'static str) -> Self {
        Self {
            kind: ExtractErrorKind::Unauthenticated,
            message: Text::literal("the client has to authenticate"),
            detail: Some(Text::literal(challenge)),
            name: None,
        }
    }

    /// The same of the kind [`Unauthenticated`](ExtractErrorKind::Unauthenticated), with this challenge.
    pub(crate) fn challenging(self, challenge: Text) -> Self {
        Self {
            kind: ExtractErrorKind::Unauthenticated,
            detail: Some(challenge),
            ..self
        }
    }

    /// Creates an error of the kind [`Misconfigured`](ExtractErrorKind::Misconfigured): `message` says what is missing,
    /// and how to mend it.
    #[must_use]
    pub const fn misconfigured(message: &'static str) -> Self {
        Self::literal(ExtractErrorKind::Misconfigured, message)
    }

    /// The same about the type of this name.
    pub(crate) fn of_type(mut self, name: &'static str) -> Self {
        self.detail = Some(name.into());
        self
    }

    /// The same about the header or cookie of this name.
    pub(crate) fn about(mut self, name: &Arc<str>) -> Self {
        self.name = Some(Arc::clone(name));
        self
    }

    /// What kind of error it is.
    #[must_use]
    pub const fn kind(&self) -> ExtractErrorKind {
        self.kind
    }

    /// The `WWW-Authenticate` of the response to a client that has to authenticate.
    #[must_use]
    pub fn challenge(&self) -> Option<&str> {
        match self.kind {
            ExtractErrorKind::Unauthenticated => self.detail.as_ref().map(Text::as_str),
            _ => None,
        }
    }
}

impl fmt::Display for ExtractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, &self.detail, &self.name) {
            (ExtractErrorKind::Misconfigured, Some(name), _) => {
                write!(f, "`{name}`: {}", self.message)
            }
            (.., Some(name)) => write!(f, "{}: `{name}`", self.message),
            _ => f.write_str(self.message.as_str()),
        }
    }
}

impl Error for ExtractError {}

/// A name in a configuration that cannot be used, such as one that no header can have.
///
/// What takes a name comes in two ways. `new` takes a literal, for instance [`Header::new`](crate::Header::new), and
/// panics when the service is put together, as `HeaderName::from_static` does. A name that is read from a configuration
/// is parsed, and answers this error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    name: Box<str>,
    problem: &'static str,
}

/// How much of a name is shown.
const MAX_NAME: usize = 64;

impl NameError {
    pub(crate) fn new(name: &str, problem: &'static str) -> Self {
        Self {
            name: name.chars().take(MAX_NAME).collect(),
            problem,
        }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.name, self.problem)
    }
}

impl Error for NameError {}

/// The store could not decide: the request is neither allowed nor denied.
///
/// Opaque, because what can go wrong differs by store; [`kind`](Self::kind) says what a caller can act upon,
/// [`code`](Self::code) what the server said, and `source` what caused it. None of them, nor the message, holds a key,
/// a user, an address or a password.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: &'static str,
    /// Apart: an answer of a store is as large as an error, and moved often.
    details: Option<Box<Details>>,
}

/// What only some errors have.
#[derive(Clone, Debug, Default)]
struct Details {
    code: Option<Box<str>>,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// `None` for a call of one caller alone.
    blame: Option<Blame>,
    unsent: bool,
}

/// The longest code of an error reply that is kept.
const MAX_CODE: usize = 24;

/// What kind of [`StoreError`] it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer within the timeout. The call may or may not have been executed.
    Timeout,
    /// The store cannot be reached or cannot work now: down, loading, out of memory, busy, read-only.
    Unavailable,
    /// The store was not called: it has failed several times in a row. See
    /// [`limiter`](crate::limiter#when-the-store-cannot-decide).
    CircuitOpen,
    /// The store denies this caller access: wrong password, missing rights, wrong type of server. A person has to act.
    AccessDenied,
    /// The reply cannot be read, or the stored value was not written by this crate.
    Protocol,
    /// The store keeps as many keys as it may, all of them at their limits, and so cannot decide about a new one; it
    /// decides about the others. See [`MemoryStore`](crate::MemoryStore).
    Full,
    /// The call is not valid: two policies of one name in one check, or a second settlement of one check.
    InvalidRequest,
}

impl StoreErrorKind {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 7] = [
        Self::Timeout,
        Self::Unavailable,
        Self::CircuitOpen,
        Self::AccessDenied,
        Self::Protocol,
        Self::Full,
        Self::InvalidRequest,
    ];

    /// In one lower-case word, for labels and logs: `timeout`, `unavailable`, `circuit_open`, `access_denied`,
    /// `protocol`, `full`, `invalid_request`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::CircuitOpen => "circuit_open",
            Self::AccessDenied => "access_denied",
            Self::Protocol => "protocol",
            Self::Full => "full",
            Self::InvalidRequest => "invalid_request",
        }
    }
}

impl StoreError {
    /// Creates an error of this kind; `message` is one lower-case sentence that holds no key and no secret.
    #[must_use]
    pub const fn new(kind: StoreErrorKind, message: &'static str) -> Self {
        Self {
            kind,
            message,
            details: None,
        }
    }

    pub(crate) const fn protocol(message: &'static str) -> Self {
        Self::new(StoreErrorKind::Protocol, message)
    }

    pub(crate) const fn invalid_request(message: &'static str) -> Self {
        Self::new(StoreErrorKind::InvalidRequest, message)
    }

    /// Adds the code of the server's error reply. One that is not 1 to 24 upper-case ASCII letters is left out: it
    /// could be anything.
    #[must_use]
    pub fn with_code(mut self, code: &str) -> Self {
        let is_code = (1..=MAX_CODE).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_uppercase());
        self.details.get_or_insert_default().code = is_code.then(|| code.into());
        self
    }

    /// Adds what caused the error, which holds no key and no secret either.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.details.get_or_insert_default().source = Some(Arc::new(source));
        self
    }

    /// Marks an error of an operation that was certainly not sent, as when a connection was refused. For stores.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.details.get_or_insert_default().unsent = true;
        self
    }

    /// Whether the operation was certainly not sent, so that it cannot have been done and can be tried again: the
    /// breaker was open, or no connection was made.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        let marked = self.details.as_ref().is_some_and(|details| details.unsent);
        marked || self.kind == StoreErrorKind::CircuitOpen
    }

    /// The same error, of several operations of which some may have been sent.
    #[cfg(feature = "cluster")]
    pub(crate) fn maybe_sent(mut self) -> Self {
        if let Some(details) = &mut self.details {
            details.unsent = false;
        }
        self
    }

    /// The same error, which is the fault of a call that others may share, or of none.
    pub(crate) fn blaming(mut self, blame: Option<Blame>) -> Self {
        if blame.is_some() {
            self.details.get_or_insert_default().blame = blame;
        }
        self
    }

    /// Whether the breaker is to count it: [`Blame::take_report`].
    pub(crate) fn take_report(&self, of_no_call: &AtomicBool) -> bool {
        let blame = self.details.as_ref().and_then(|it| it.blame.as_ref());
        blame.is_none_or(|it| it.take_report(of_no_call))
    }

    /// The code of the server's error reply, for instance `OOM` or `NOPERM`: 1 to 24 upper-case ASCII letters. `None`
    /// when the server did not answer with an error.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.details.as_ref()?.code.as_deref()
    }

    /// What kind of error it is.
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
