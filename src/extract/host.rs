//! [`Host`]: keys from the host that a request is for.

use std::{borrow::Cow, net::Ipv6Addr};

use http::{header::HOST, request::Parts};

use super::{KeyExtractor, Keys};
use crate::domain::{error::ExtractError, key::Key};

/// The host that a request is for, such as the domain of a tenant, in HTTP/1.1 and HTTP/2.
///
/// The host is the authority of the request's URI, which HTTP/2 clients send as `:authority` and HTTP/1.1 clients send
/// to proxies. If the URI has none, it is the value of the header `Host`. A closure that reads only `head.uri.host()`
/// finds no host over HTTP/1.1.
///
/// Each host has one key: in lower case, without a port and without a trailing dot; an IPv6 address in brackets and in
/// the shortest form.
///
/// - Neither an authority nor a header, or an empty one: the key is missing.
/// - Two headers, an authority and a header that name different hosts, or a name with a user or with characters that a
///   URI does not allow: malformed, since the service may use either host, or none.
///
/// **The client chooses the host.** Unless a proxy or an outer layer rejects unknown hosts, a client that makes up a
/// new host for each request is never limited. `X-Forwarded-Host` is not read: if your proxy replaces `Host`, configure
/// it to pass the original on.
///
/// ```
/// use sluicegate::{Key, KeyExtractor, extract::{Host, Keys}};
///
/// let over_http1 = http::Request::get("/").header("host", "Acme.example.com:8080").body(())?.into_parts().0;
/// let over_http2 = http::Request::get("https://acme.example.com/").body(())?.into_parts().0;
/// for head in [over_http1, over_http2] {
///     assert_eq!(Host.extract(&head)?, Keys::from(Key::new("host", "acme.example.com")));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

const ABSENT: ExtractError = ExtractError::missing("the request names no host");

const UNREADABLE: ExtractError = ExtractError::malformed("the host of the request cannot be read");

const TWICE: ExtractError = ExtractError::malformed("the request names two hosts");

impl Host {
    /// Returns the key of requests for this host, with or without a port. You use it to reset, peek or block from code.
    /// A text that is not a host is used unchanged; no request has that key.
    ///
    /// ```
    /// # use sluicegate::{Key, extract::Host};
    /// assert_eq!(Host.key("Acme.example.com."), Key::new("host", "acme.example.com"));
    /// ```
    #[must_use]
    #[allow(clippy::unused_self, reason = "as of every extractor that has a key")]
    pub fn key(&self, host: &str) -> Key {
        let canonical = canonical(host).unwrap_or(Cow::Borrowed(host));
        Key::new("host", canonical.as_bytes())
    }

    /// Returns the host as text, in the form that the key has.
    ///
    /// # Errors
    ///
    /// As [`extract`](KeyExtractor::extract).
    pub fn name<'a>(&self, head: &'a Parts) -> Result<Cow<'a, str>, ExtractError> {
        let mut lines = head.headers.get_all(HOST).iter();
        let header = lines.next();
        let header = header.map(|line| line.to_str().unwrap_or("?").trim_ascii());
        if lines.next().is_some() {
            return Err(TWICE);
        }
        let read = |authority| canonical(authority).ok_or(UNREADABLE);
        match (head.uri.authority(), header.filter(|name| !name.is_empty())) {
            (None, None) => Err(ABSENT),
            (None, Some(header)) => read(header),
            (Some(authority), None) => read(authority.as_str()),
            (Some(authority), Some(header)) => {
                let host = read(authority.as_str())?;
                (host == read(header)?).then_some(host).ok_or(TWICE)
            }
        }
    }
}

impl KeyExtractor for Host {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let name = self.name(head)?;
        Ok(Key::new("host", name.as_bytes()).into())
    }
}

/// Returns the one form of a host, without a port; `None` if the text is not a host.
fn canonical(authority: &str) -> Option<Cow<'_, str>> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (ip, port) = rest.split_once(']')?;
        let ip: Ipv6Addr = ip.parse().ok().filter(|_| is_port(port))?;
        return Some(Cow::Owned(format!("[{ip}]")));
    }
    let end = authority.find(':').unwrap_or(authority.len());
    let (name, port) = authority.split_at(end);
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || !name.bytes().all(is_of_name) || !is_port(port) {
        return None;
    }
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Some(Cow::Owned(name.to_ascii_lowercase()));
    }
    Some(Cow::Borrowed(name))
}

/// Accepts no text, or a colon followed by any number of digits, even none (RFC 3986, 3.2.3).
fn is_port(text: &str) -> bool {
    let digits = text.strip_prefix(':').unwrap_or(text);
    (text.is_empty() || digits.len() < text.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Accepts the characters of a name in a URI (RFC 3986, 3.2.2).
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_form() {
        for (authority, expected) in [
            ("example.com", "example.com"),
            ("EXAMPLE.com.:443", "example.com"),
            ("example.com:", "example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("under_score.example", "under_score.example"),
            ("203.0.113.7:80", "203.0.113.7"),
            ("[2001:DB8:0::7]:80", "[2001:db8::7]"),
        ] {
            assert_eq!(
                canonical(authority).as_deref(),
                Some(expected),
                "{authority}"
            );
        }
    }

    #[test]
    fn what_is_no_host_is_not_guessed_at() {
        for authority in [
            "",
            ".",
            ":80",
            "user@example.com",
            "example.com:http",
            "example.com:80:80",
            "2001:db8::7",
            "[2001:db8::7",
            "[203.0.113.7]",
            "[2001:db8::7]80",
            "a b",
            "a/b",
            "?",
        ] {
            assert_eq!(canonical(authority), None, "{authority}");
        }
    }
}
