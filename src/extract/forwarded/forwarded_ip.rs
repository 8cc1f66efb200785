use std::{net::IpAddr, sync::Arc};

use http::{HeaderName, header::FORWARDED, request::Parts};

use super::{
    entries::{Entries, Form},
    parse,
    trusted::{Trust, TrustedProxies},
};
use crate::{
    error::ExtractError,
    extract::{
        KeyExtractor, Keys,
        ip::{self, DEFAULT_IPV6_PREFIX},
    },
    key::Key,
};

const ABSENT: ExtractError = ExtractError::missing(
    "the header with the client's address is absent, though a trusted proxy sent the request",
);

const UNREADABLE: ExtractError =
    ExtractError::malformed("the forwarded address of the client cannot be read");

const TOO_FEW: ExtractError = ExtractError::malformed("fewer forwarded addresses than proxies");

const TWICE: ExtractError =
    ExtractError::malformed("the header with the client's address was sent twice");

/// The IP address of the client as trusted proxies report it: [`PeerIp`](struct@crate::PeerIp) for services behind
/// proxies.
///
/// It reads exactly one header, from the right, and uses an entry only if a trusted proxy has written it. Its keys are
/// those of `PeerIp`, with IPv6 by network. See the [module's page](super) for what each proxy needs. Clones are
/// cheap.
///
/// - There is no peer address, and proxies are trusted by network: the service is misconfigured, as with `PeerIp`.
/// - The peer is not trusted: the header is ignored, and the peer is the client.
/// - The peer is trusted and the header absent: the key is missing.
/// - The client is the first entry from the right that is no trusted proxy; where all are, the leftmost entry.
/// - An entry that is needed and cannot be read, is `unknown`, or is hidden: malformed. No other entry is used
///   instead.
/// - More than 64 entries or 4 KiB would have to be read: malformed.
#[derive(Clone, Debug)]
pub struct ForwardedIp {
    source: Arc<Source>,
    ipv6_prefix: u8,
}

#[derive(Debug)]
struct Source {
    header: HeaderName,
    form: Form,
    trusted: TrustedProxies,
}

impl ForwardedIp {
    /// Reads `X-Forwarded-For`: a list of addresses, to which each proxy appends the one that called it.
    #[must_use]
    pub fn x_forwarded_for(trusted: TrustedProxies) -> Self {
        let header = HeaderName::from_static("x-forwarded-for");
        Self::new(header, Form::XForwardedFor, trusted)
    }

    /// Reads `Forwarded` (RFC 7239): a list of elements like `for="[2001:db8::7]:50000";proto=https`.
    #[must_use]
    pub fn forwarded(trusted: TrustedProxies) -> Self {
        Self::new(FORWARDED, Form::Forwarded, trusted)
    }

    /// Reads a header of one address, which a trusted proxy always sets or overwrites: `cf-connecting-ip`,
    /// `x-real-ip`.
    ///
    /// Two lines, or two values, are malformed. The header does not show which proxy wrote it: any count of trusted
    /// proxies means that the peer is trusted.
    ///
    /// ```
    /// use http::HeaderName;
    /// use sluicegate::{ForwardedIp, extract::TrustedProxies};
    ///
    /// let trusted = TrustedProxies::networks(["10.0.0.0/8".parse()?]);
    /// let client = ForwardedIp::header(HeaderName::from_static("x-real-ip"), trusted.clone());
    ///
    /// let name = "CF-Connecting-IP";                                  // from the configuration
    /// let client = ForwardedIp::header(name.parse()?, trusted);
    /// # let _ = client;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn header(name: HeaderName, trusted: TrustedProxies) -> Self {
        Self::new(name, Form::Single, trusted)
    }

    fn new(header: HeaderName, form: Form, trusted: TrustedProxies) -> Self {
        Self {
            source: Arc::new(Source {
                header,
                form,
                trusted,
            }),
            ipv6_prefix: DEFAULT_IPV6_PREFIX,
        }
    }

    /// Sets how many leading bits of an IPv6 address identify a client, instead of 64: at least 32, at most 128.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = ip::ipv6_prefix_within_bounds(bits);
        self
    }

    /// The key of the requests of a client with this address: to reset, peek or block it from code. It is that of
    /// [`PeerIp::key`](struct@crate::PeerIp#method.key).
    #[must_use]
    pub fn key(&self, address: IpAddr) -> Key {
        ip::key(ip::canonical(address), self.ipv6_prefix)
    }

    /// The client's address itself; an IPv4 address that is mapped into IPv6 is returned as IPv4. It is personal data:
    /// do not keep it in logs.
    ///
    /// # Errors
    ///
    /// As [`extract`](KeyExtractor::extract).
    pub fn address(&self, head: &Parts) -> Result<IpAddr, ExtractError> {
        match &self.source.trusted.trust {
            Trust::Count(0) => ip::peer(&head.extensions),
            Trust::Count(proxies) => self.source.nth_from_right(head, *proxies),
            Trust::Networks(networks) => {
                let trusted = |ip| networks.iter().any(|it| it.contains_canonical(ip));
                let peer = ip::peer(&head.extensions)?;
                if !trusted(peer) {
                    return Ok(peer);
                }
                self.source.first_from_right(head, trusted)
            }
        }
    }
}

impl KeyExtractor for ForwardedIp {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        Ok(ip::key(self.address(head)?, self.ipv6_prefix).into())
    }
}

impl Source {
    /// What is left of the entry that is used is never read.
    fn first_from_right(
        &self,
        head: &Parts,
        trusted: impl Fn(IpAddr) -> bool,
    ) -> Result<IpAddr, ExtractError> {
        let mut answer = Err(ABSENT);
        for entry in self.entries(head)? {
            let ip = self.parse(entry?)?;
            answer = Ok(ip);
            if !trusted(ip) {
                break;
            }
        }
        answer
    }

    /// Entries to the right of it need not be addresses: they are only counted.
    fn nth_from_right(&self, head: &Parts, nth: usize) -> Result<IpAddr, ExtractError> {
        let mut entries = self.entries(head)?;
        let mut next = || entries.next().unwrap_or(Err(TOO_FEW));
        if self.form != Form::Single {
            for _ in 1..nth {
                next()?;
            }
        }
        self.parse(next()?)
    }

    fn entries<'a>(&self, head: &'a Parts) -> Result<Entries<'a>, ExtractError> {
        let lines = head.headers.get_all(&self.header).iter();
        match (lines.take(2).count(), self.form) {
            (0, _) => Err(ABSENT),
            (2.., Form::Single) => Err(TWICE),
            _ => Ok(Entries::new(&head.headers, &self.header, self.form)),
        }
    }

    fn parse(&self, entry: &[u8]) -> Result<IpAddr, ExtractError> {
        let text = str::from_utf8(entry).map_err(|_| UNREADABLE)?;
        let address = match self.form {
            Form::Forwarded => parse::for_of(text).and_then(parse::address),
            Form::XForwardedFor | Form::Single => parse::address(text),
        };
        address.ok_or(UNREADABLE)
    }
}
