//! [`Meaning`]: which answers refuse, by their status alone.

use http::{HeaderMap, StatusCode};

/// The meaning of a status alone. If a response also has a gRPC code, the greater of the two meanings counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Meaning {
    Served,
    /// A refusal if a field asks to wait; served otherwise.
    ServedUnlessAsked,
    /// A refusal if a field asks to wait. Otherwise the service, or something on the way to it, has failed.
    FailedUnlessAsked,
    /// A refusal if a field asks to wait, or nothing is left of a quota. Otherwise neither that nor a success.
    MayRefuse,
    Refused,
}

impl Meaning {
    /// `docs/guide/outbound.md` has this as a table. Without a time, a failure of one instance must not pause the account
    /// for all replicas; a server that names its overload must.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let by_status = match status.as_u16() {
            420 | 429 | 529 => Self::Refused,
            400 | 403 | 408 | 425 | 502..=504 => Self::MayRefuse,
            500.. => Self::FailedUnlessAsked,
            413 | 418 | 430 => Self::ServedUnlessAsked,
            // Such as 409 and 423, whose times are those of a resource.
            _ => Self::Served,
        };
        let code = headers.get("grpc-status").map(|value| value.as_bytes());
        by_status.max(match code {
            // `RESOURCE_EXHAUSTED`.
            Some(b"8") => Self::Refused,
            // `DEADLINE_EXCEEDED`, `PERMISSION_DENIED`, `UNAVAILABLE`.
            Some(b"4" | b"7" | b"14") => Self::MayRefuse,
            // `UNKNOWN`, `INTERNAL`, `DATA_LOSS`.
            Some(b"2" | b"13" | b"15") => Self::FailedUnlessAsked,
            _ => Self::Served,
        })
    }
}
