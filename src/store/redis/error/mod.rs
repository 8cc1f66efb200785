//! Translates an error of Redis for the caller.

use std::{borrow::Cow, error::Error, fmt, io, sync::Arc};

use redis::{ErrorKind, RedisError};

use crate::{
    domain::error::{NO_CREDENTIALS, StoreError, StoreErrorKind},
    warning,
};

/// Classifies an error by its code, if there is one: texts differ between servers, and may name keys, users and
/// addresses. No text is kept.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let code = code(error);
    let (kind, is_untouched, message) = code.map_or_else(|| of_connection(error), of_server);
    let store_error = StoreError::new(kind, message)
        .with_source(Cause::of(error))
        .unsent_if(is_untouched);
    match code {
        Some(code) => store_error.with_code(code),
        None => store_error,
    }
}

/// The same for the reply to a command. If its code says nothing that this crate knows, the server's words are in the
/// log once. A greeting has passwords, which a reply may repeat, so it does not come here.
pub(super) fn reply_error(error: &RedisError) -> StoreError {
    if code(error).is_some_and(|code| code == FORBIDDEN || of_server(code).2 == UNKNOWN) {
        let (code, detail) = (error.code(), error.detail());
        let words = format!(
            "{} {}",
            code.unwrap_or_default(),
            detail.unwrap_or_default()
        );
        let words = words.split(", with args").next().unwrap_or_default(); // those have keys
        let printable = words.chars().filter(|it| matches!(it, ' '..='~'));
        warning::unknown_reply(&printable.take(200).collect::<String>());
    }
    store_error(error)
}

/// A redis-rs error without its texts: a command that the user has no right to run, or that the server does not offer; a
/// name that is not found; the words of a source of credentials; or the kind of the error.
#[derive(Debug)]
struct Cause(Cow<'static, str>);

impl Cause {
    fn of(error: &RedisError) -> Self {
        if let Some(command) = missing_right(error) {
            return Self(format!("the right `+{command}` is missing").into());
        }
        if code(error) == Some(FORBIDDEN) {
            let command = error.detail().and_then(quoted);
            return Self(command.map_or(CALLED.into(), |it| format!("the command `{it}`").into()));
        }
        if let (Some(NO_CREDENTIALS), Some(text)) = (code(error), error.detail()) {
            return Self(text.to_owned().into());
        }
        // redis-rs keeps the cause behind an `Arc`.
        let io = error.source().and_then(|source| {
            match source.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
                Some(shared) => shared.downcast_ref::<io::Error>(),
                None => source.downcast_ref(),
            }
        });
        let refused = matches!(code(error), Some("NOAUTH" | "WRONGPASS"));
        Self(match (io, error.kind()) {
            (_, kind) if refused || kind == ErrorKind::AuthenticationFailed => {
                "the authentication failed".into()
            }
            // It has no kind of its own.
            (Some(io), _) if io.to_string().starts_with("failed to lookup address") => {
                "the name of the host is not known".into()
            }
            (Some(io), _) => io.kind().to_string().into(),
            (_, ErrorKind::Server(_) | ErrorKind::Extension) => "error reply of the server".into(),
            (_, kind) => format!("{kind:?}").into(),
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Cause {}

/// The error of a command that a script has caught, with this text.
pub(super) fn within_script(text: &str) -> RedisError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    redis::make_extension_error(code.into(), Some(detail.into()))
}

/// The error of a source of credentials, with this text.
pub(super) fn no_credentials(text: String) -> RedisError {
    redis::make_extension_error(NO_CREDENTIALS.into(), Some(text))
}

const CALLED: &str = "one that the script calls: `TIME`, `EXISTS`, `GET`, `GETRANGE`, `SET`, `SETRANGE`, `PEXPIREAT`, `DEL`, or one for slots";

/// The code of an error reply. Redis 6.2 hides that of an error within a script behind an `ERR`:
///
/// `ERR Error running script (call to f_<hash>): @user_script:1: @user_script: 1: -OOM command not allowed …`
///
/// and all servers hide the reason why an `EXEC` is refused:
///
/// `EXECABORT Transaction discarded because of: NOPERM User limiter has no permissions to run the 'exec' command`
pub(super) fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let refused = error.detail().filter(|_| code == "EXECABORT");
    let refused =
        refused.and_then(|detail| detail.strip_prefix("Transaction discarded because of: "));
    if let Some((code, _)) = refused.and_then(|refused| refused.split_once(' ')) {
        return Some(code);
    }
    if error.detail().is_some_and(lacks_rights_inside) {
        return Some("NOPERM");
    }
    if code == UNSUPPORTED || error.detail().is_some_and(forbids_inside) {
        return Some(FORBIDDEN);
    }
    let detail = error.detail().filter(|_| code == "ERR");
    let hidden = detail.and_then(|detail| detail.strip_prefix("Error running script"));
    let of_text = |detail: &str| TEXTS.iter().find(|it| detail.starts_with(it.0));
    let named = || detail.and_then(of_text).map_or(code, |it| it.1);
    Some(hidden.and_then(hidden_code).unwrap_or_else(named))
}

/// Names of errors that have no code. They are in lower case, so that no caller gets them as codes.
const FULL: &str = "full";
const QUOTA: &str = "quota";
/// A command was renamed or is not offered. The second is the first word of Envoy's reply.
const FORBIDDEN: &str = "forbidden";
const UNSUPPORTED: &str = "unsupported";
/// Like `OOM`, but perhaps only at a later write of a script.
const CAPACITY: &str = "capacity";
const NO_DATABASE: &str = "no database";
/// A proxy could not connect to its server, or has none: it has sent nothing. The second is a reply of Envoy.
const NO_UPSTREAM: &str = "no";
/// A proxy has lost its server, perhaps after it sent the call. This is the first word of Envoy's replies.
const UPSTREAM: &str = "upstream";

/// How the texts of `ERR` begin, with the code or the name of the error. The rest of a text can name a client. In a pool,
/// redis-rs replaces the code of the reply to a `SELECT` by `ERR`.
const TEXTS: [(&str, &str); 24] = [
    ("max number of clients", FULL),
    ("max concurrent connections exceeded", FULL), // Upstash, as the next three
    ("max requests limit exceeded", QUOTA),
    ("max daily request limit exceeded", QUOTA),
    ("DB capacity quota exceeded", CAPACITY),
    ("DB index is out of range", NO_DATABASE),
    ("invalid DB index", NO_DATABASE),
    ("SELECT is not allowed in cluster mode", NO_DATABASE),
    ("Authentication required", "NOAUTH"),
    ("Redis is running in protected mode", "DENIED"),
    ("AUTH <password> called without", "WRONGPASS"),
    ("Client sent AUTH, but no password", "WRONGPASS"),
    ("invalid password", "WRONGPASS"),
    ("unknown command 'HELLO'", "NOPROTO"),
    ("unknown command `HELLO`", "NOPROTO"),
    ("unknown command", FORBIDDEN),
    ("unsupported command", FORBIDDEN),
    ("This instance has cluster support", "NOCLUSTER"),
    ("Connection refused", NO_UPSTREAM), // twemproxy answers with the system's text for the error
    ("Connection reset by peer", UPSTREAM),
    ("Connection timed out", UPSTREAM),
    ("Host is down", UPSTREAM),
    ("Network is unreachable", UPSTREAM),
    ("No route to host", UPSTREAM),
];

fn hidden_code(text: &str) -> Option<&str> {
    let words = text.split(": ").filter_map(|part| part.split(' ').next());
    let is_code =
        |word: &&str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    words.map(|word| word.trim_start_matches('-')).find(is_code)
}

/// A command that the script may not call fails without a code. The first two texts are those before Redis 7.2, and since.
/// The third is that of a `SELECT` in a pool.
fn lacks_rights_inside(detail: &str) -> bool {
    detail.contains("The user executing the script can't run")
        || detail.contains("ACL failure in script")
        || detail.contains("has no permissions to run the 'select' command")
}

/// A command that a script may not call, or that was renamed: also without a code.
fn forbids_inside(detail: &str) -> bool {
    // Valkey writes its own name.
    detail.contains(" command called from")
        || detail.contains(" command is not allowed from script")
}

/// The command that an error about missing rights names, with its subcommand: `scan`, `cluster|slots`.
fn missing_right(error: &RedisError) -> Option<&str> {
    let detail = error.detail().filter(|_| code(error) == Some("NOPERM"))?;
    let (_, rest) = detail.split_once("to run the ")?;
    let lower = |command: &&str| !command.bytes().any(|byte| byte.is_ascii_uppercase());
    quoted(rest).filter(lower)
}

/// The command that the first quotes of a text enclose: clients' data may follow.
fn quoted(detail: &str) -> Option<&str> {
    let mut parts = detail.split(['\'', '`']);
    let (_, command) = (parts.next()?, parts.next()?);
    let is_plain = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'|' | b'-' | b'_');
    (command.len() <= 32 && command.bytes().all(is_plain)).then_some(command)
}

const UNKNOWN: &str = "the Redis server answered with an error";

/// The codes of errors, each with its kind; whether the server has done nothing of the call, since it cannot serve at the
/// moment, is not the one for these keys, knows no user, or takes no write (it refuses only the first write of a script for
/// these reasons; `NOPERM` may also refuse a later one); and the text.
#[rustfmt::skip]
const CODES: [(&str, StoreErrorKind, bool, &str); 29] = {
    use StoreErrorKind::{AccessDenied, Protocol, Refused, Unavailable};
    [
        ("LOADING", Refused, true, "the Redis server is loading its data"),
        ("BUSY", Refused, true, "the Redis server is busy running a script"),
        ("OOM", Refused, true, "the Redis server is out of memory"),
        (CAPACITY, Refused, false, "the Redis server is out of memory"),
        ("MISCONF", Refused, true, "the Redis server cannot save its data and refuses writes"),
        ("READONLY", Refused, true, "the Redis server is a read-only replica"),
        ("MASTERDOWN", Refused, true, "the Redis server is a replica that has lost its primary"),
        ("NOREPLICAS", Refused, true, "the Redis server has too few replicas to accept writes"),
        ("CLUSTERDOWN", Refused, true, MOVING),
        ("TRYAGAIN", Refused, true, MOVING),
        ("MOVED", Refused, true, MOVING),
        ("ASK", Refused, true, MOVING),
        (FULL, Unavailable, true, "the Redis server has no room for a further connection"),
        (QUOTA, Refused, false, "the Redis service refuses all requests, since its quota is used up"),
        (UPSTREAM, Unavailable, false, "the proxy cannot reach its Redis server"),
        (NO_UPSTREAM, Unavailable, true, "the proxy cannot reach its Redis server"),
        (NO_DATABASE, AccessDenied, false, "the Redis server has no such database"),
        ("NOAUTH", AccessDenied, true, "the Redis server wants a password"),
        ("WRONGPASS", AccessDenied, false, "the Redis server refuses this user or password"),
        ("DENIED", AccessDenied, true, "the Redis server is in protected mode, and wants a password for other machines"),
        ("NOPROTO", AccessDenied, false, "the Redis server does not speak RESP3"),
        ("NOPERM", AccessDenied, false, "the Redis user lacks rights that this store needs"),
        ("NOCLUSTER", AccessDenied, false, "the Redis server is not of a cluster"),
        (FORBIDDEN, AccessDenied, false, "the Redis server forbids a command that this store needs"),
        (NO_CREDENTIALS, AccessDenied, false, "the source of credentials gives none that the server accepts"),
        ("CROSSSLOT", Protocol, true, "the keys of one call are in different hash slots of the Redis cluster"),
        ("WRONGTYPE", Protocol, false, "a key holds a value of another type, not written by this crate"),
        ("NOSCRIPT", Protocol, false, "the Redis server does not keep the script"),
        ("EXECABORT", Protocol, true, UNKNOWN),
    ]
};
const MOVING: &str = "the Redis cluster cannot serve this hash slot now";

fn of_server(code: &str) -> (StoreErrorKind, bool, &'static str) {
    let known = CODES.iter().find(|it| it.0 == code);
    known.map_or((StoreErrorKind::Protocol, false, UNKNOWN), |it| {
        (it.1, it.2, it.3)
    })
}

fn of_connection(error: &RedisError) -> (StoreErrorKind, bool, &'static str) {
    use StoreErrorKind::{AccessDenied, Protocol, Timeout, Unavailable};
    // Only the cause of a failed handshake says whether it will fail again, and redis-rs calls both I/O errors.
    #[cfg(feature = "tls")]
    if let Some(message) = super::tls::handshake_problem(error) {
        return (AccessDenied, false, message);
    }
    let (kind, message) = match error.kind() {
        ErrorKind::AuthenticationFailed => return of_server("WRONGPASS"),
        ErrorKind::RESP3NotSupported => return of_server("NOPROTO"),
        ErrorKind::InvalidClientConfig => (
            AccessDenied,
            "the Redis URL is invalid, or needs a feature of the redis crate",
        ),
        ErrorKind::MasterNameNotFoundBySentinel => (
            AccessDenied,
            "no Redis Sentinel asked knows a primary of this name",
        ),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            (Protocol, "the Redis server's reply cannot be read")
        }
        ErrorKind::Io if error.is_timeout() => (Timeout, "the Redis server did not answer in time"),
        // Only an attempt to connect is refused, so no command was sent.
        ErrorKind::Io if error.is_connection_refusal() => {
            let message = "the Redis server does not accept connections";
            return (Unavailable, true, message);
        }
        ErrorKind::Io if error.is_connection_dropped() => {
            (Unavailable, "the connection to the Redis server was lost")
        }
        _ => (Unavailable, "the Redis server cannot be reached"),
    };
    (kind, false, message)
}

/// Whether an error means that the connection should be replaced.
pub(super) fn needs_another_connection(error: &RedisError) -> bool {
    // A primary that became a replica, or lost its replicas: the address may lead to another server now. `NOAUTH`: the
    // server, or a proxy, has forgotten the login.
    let elsewhere = |code| matches!(code, "READONLY" | "MASTERDOWN" | "NOREPLICAS" | "NOAUTH");
    code(error).is_none_or(elsewhere)
}

/// Whether this answer to the first command of a connection means that the server does not let the connection in.
pub(super) fn is_turned_away(error: &RedisError) -> bool {
    code(error).is_none_or(|code| matches!(code, FULL | "DENIED" | "NOAUTH"))
}

/// Whether a server does not accept this user and password.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    use StoreErrorKind::{AccessDenied, Protocol};
    code(error).is_some_and(|code| matches!(of_server(code).0, AccessDenied | Protocol))
}

pub(super) const UNREADABLE: StoreError =
    StoreError::protocol("a key holds a value that cannot be read, not written by this crate")
        .unsent();
pub(super) const UNASKED: StoreError = StoreError::new(
    StoreErrorKind::Refused,
    "a primary of the Redis cluster was not asked, since its hash slots are being moved",
);
pub(super) const SHUT_DOWN: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "the runtime was shut down in which the store was called",
);
pub(super) const NO_RUNTIME: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "the store was called outside of a tokio runtime",
)
.unsent();

/// The error of a connection that ended.
pub(super) fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

#[cfg(test)]
mod tests;
