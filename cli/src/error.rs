//! [`Error`]: the reason why a verb failed. A "no" is not an error.

use std::path::Path;
use std::process::ExitCode;
use std::{fmt, io};

use sluicegate::StoreError;
use sluicegate::error::StoreErrorKind;

use super::{BAD, WARN};

/// A message for you, and the exit code for a program.
pub(crate) struct Error {
    exit: u8,
    /// The message for you. Empty if the reader has closed the pipe.
    pub(crate) message: String,
    /// Whether there is no answer from the server, or from a node.
    pub(crate) is_away: bool,
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

const USAGE: u8 = 2;
const SERVER: u8 = 3;

impl Error {
    /// Arguments, settings or files that cannot be used: exit code 2.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        let (exit, message, is_away) = (USAGE, message.to_string(), false);
        Self {
            exit,
            message,
            is_away,
        }
    }

    /// A file that cannot be read or written: exit code 2.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Self::usage(format_args!("{}: {error}", path.display()))
    }

    /// A server that cannot be reached, or that answered with an error: exit code 3.
    pub(crate) fn server(message: impl fmt::Display) -> Self {
        let (exit, usage) = (SERVER, Self::usage(message));
        Self { exit, ..usage }
    }

    /// The same error with a place in front. An error without a message stays unchanged.
    pub(crate) fn of(mut self, place: impl fmt::Display) -> Self {
        if !self.message.is_empty() {
            self.message = format!("{place}: {}", self.message);
        }
        self
    }

    /// The same error with another behind it.
    pub(crate) fn and(mut self, other: impl fmt::Display) -> Self {
        self.message = format!("{}; and {other}", self.message);
        self
    }

    /// The same error with the name of the server in front, if the error is about a server.
    pub(crate) fn about(mut self, server: impl fmt::Display) -> Self {
        if self.exit == SERVER {
            self = self.of(server);
        }
        self
    }

    /// The same error with the address of its node in front, if there are several nodes.
    pub(crate) fn at(self, node: Option<String>) -> Self {
        match node {
            Some(node) => self.about(format_args!("its node {node}")),
            None => self,
        }
    }

    /// Prints the error on stderr, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            anstream::eprintln!("{BAD}error:{BAD:#} {}", self.message);
        }
        ExitCode::from(self.exit)
    }
}

/// Prints a warning on stderr about something that was done, but is probably a mistake.
pub(crate) fn warn(message: impl fmt::Display) {
    anstream::eprintln!("{WARN}warning:{WARN:#} {message}");
}

/// An error from writing results. A reader that closes the pipe (`| head`) has seen enough, so that is no failure.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            let (exit, silent) = (0, Self::usage(""));
            Self { exit, ..silent }
        } else {
            Self::usage(format_args!("cannot write the result: {error}"))
        }
    }
}

/// The library's messages never contain the URL, which may have a password.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        let more = match (error.kind(), error.code(), cause.as_deref()) {
            (StoreErrorKind::Timeout, ..) => "see --timeout",
            (_, Some("NOPERM"), Some(cause)) if cause.starts_with("the right") => cause,
            (_, Some("NOPERM"), _) => "`--help` of each verb names those that it needs",
            (_, Some(code), _) => code,
            (_, None, Some("Parse")) => "is there a Redis server at this port?",
            (_, None, Some(cause)) => cause,
            (_, None, None) => "no more is known",
        };
        let is_away = matches!(
            error.kind(),
            StoreErrorKind::Unavailable | StoreErrorKind::Timeout
        );
        let known = Self::server(format_args!("{error}: {more}"));
        Self { is_away, ..known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_what_is_known_of_its_cause() {
        let of = |kind, code: Option<&str>, cause: &str| {
            let error = StoreError::new(kind, "no").with_source(io::Error::other(cause));
            let error = code.into_iter().fold(error, StoreError::with_code);
            Error::from(error).message
        };
        let (timeout, protocol) = (StoreErrorKind::Timeout, StoreErrorKind::Protocol);
        let reply = "error reply of the server";
        assert_eq!(of(timeout, None, "timed out"), "no: see --timeout");
        assert_eq!(of(protocol, None, "strange"), "no: strange");
        assert_eq!(of(protocol, Some("WRONGPASS"), reply), "no: WRONGPASS");
        let missing = "the right `+scan` is missing";
        assert_eq!(
            of(protocol, Some("NOPERM"), missing),
            format!("no: {missing}")
        );
        assert!(of(protocol, Some("NOPERM"), reply).starts_with("no: `--help`"));
    }
}
