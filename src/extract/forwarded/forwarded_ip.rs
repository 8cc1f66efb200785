//! [`ForwardedIp`]: keys from the client's address that trusted proxies report.

use std::{net::IpAddr, sync::Arc};

use http::{HeaderName, header::FORWARDED, request::Parts};

use super::{
    entries::{Entries, Form},
    evidence::{Evidence, Seen, hash_of},
    trusted::{Trust, TrustedProxies},
};
use crate::{
    domain::{error::ExtractError, key::Key},
    extract::{
        KeyExtractor, Keys,
        ip::{self, DEFAULT_IPV6_PREFIX, X_FORWARDED_FOR},
        watch::Watch,
    },
    warning,
};

const ABSENT: ExtractError = ExtractError::missing(
    "the header with the client's address is absent or empty, though a trusted proxy sent the request",
);

const UNREADABLE: ExtractError =
    ExtractError::malformed("the forwarded address of the client cannot be read");

const TOO_FEW: ExtractError = ExtractError::malformed("fewer forwarded addresses than proxies");

const TWICE: ExtractError =
    ExtractError::malformed("the header with the client's address was sent twice");

/// The IP address of the client that trusted proxies report: [`PeerIp`](struct@crate::PeerIp) for services behind
/// proxies.
///
/// This reads exactly one header, from the right, and uses an entry only if a trusted proxy has written it. The keys
/// are those of `PeerIp`, with IPv6 by network. See the [module's page](super) for the settings of each proxy. Clones
/// are cheap.
///
/// - There is no peer address, and you trust proxies by network: the service is misconfigured, as with `PeerIp`.
/// - The peer is not trusted: the header is ignored, and the peer is the client.
/// - The peer is trusted and the header absent or empty: the key is missing. Empty elements of a list are ignored.
/// - The client is the first entry from the right that is not a trusted proxy; if all are trusted, the leftmost entry.
/// - An entry that is needed and cannot be read, is `unknown`, or is hidden: malformed. No other entry is used instead.
/// - More than 64 entries or 4 KiB would have to be read: malformed.
///
/// **Wrong about your proxies?** You get one warning for an extractor and all clones, if the first 10 000 requests show
/// a mistake: see [the mistakes](super#troubleshooting).
#[derive(Clone, Debug)]
#[must_use]
pub struct ForwardedIp {
    source: Arc<Source>,
    ipv6_prefix: u8,
}

#[derive(Debug)]
struct Source {
    header: HeaderName,
    form: Form,
    trusted: TrustedProxies,
    watch: Watch<Evidence>,
}

/// The source of the client's address.
enum Found {
    /// In the connection: the peer is not a trusted proxy, so the peer is the client.
    Peer(IpAddr),
    Header(IpAddr),
}

impl ForwardedIp {
    /// Reads `X-Forwarded-For`: a list of addresses, to which each proxy appends the address of the caller.
    pub fn x_forwarded_for(trusted: TrustedProxies) -> Self {
        Self::new(X_FORWARDED_FOR, Form::XForwardedFor, trusted)
    }

    /// Reads `Forwarded` (RFC 7239): a list of elements like `for="[2001:db8::7]:50000";proto=https`.
    pub fn forwarded(trusted: TrustedProxies) -> Self {
        Self::new(FORWARDED, Form::Forwarded, trusted)
    }

    /// Reads a header with a single address, which a trusted proxy always sets or overwrites: `cf-connecting-ip`,
    /// `x-real-ip`.
    ///
    /// Two lines, or two values, are malformed. The header does not show which proxy wrote it: any count of trusted
    /// proxies above 0 means that you trust the peer.
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
    pub fn header(name: HeaderName, trusted: TrustedProxies) -> Self {
        Self::new(name, Form::Single, trusted)
    }

    fn new(header: HeaderName, form: Form, trusted: TrustedProxies) -> Self {
        Self {
            source: Arc::new(Source {
                header,
                form,
                trusted,
                watch: Watch::default(),
            }),
            ipv6_prefix: DEFAULT_IPV6_PREFIX,
        }
    }

    /// Sets how many leading bits of an IPv6 address identify a client, 32 to 128, instead of 64.
    ///
    /// # Panics
    ///
    /// When `bits` is below 32 or above 128.
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = ip::checked_ipv6_prefix(bits);
        self
    }

    /// Returns the key of requests from a client with this address, the same as
    /// [`PeerIp::key`](struct@crate::PeerIp#method.key). You use it to reset, peek or block from code.
    #[must_use]
    pub fn key(&self, address: IpAddr) -> Key {
        ip::key(ip::canonical(address), self.ipv6_prefix)
    }

    /// Returns the client's address; an IPv4 address that is mapped into IPv6 is returned as IPv4. An address is
    /// personal data: do not keep it in logs.
    ///
    /// # Errors
    ///
    /// As [`extract`](KeyExtractor::extract).
    pub fn address(&self, head: &Parts) -> Result<IpAddr, ExtractError> {
        let source = &*self.source;
        let found = source.find(head);
        let note = |evidence: &mut Evidence, _| evidence.add(&source.seen(head, &found)?);
        if let Some(mistake) = source.watch.note(note) {
            warning::about_proxies(source.header.as_str(), mistake);
        }
        match found? {
            Found::Peer(ip) | Found::Header(ip) => Ok(ip),
        }
    }
}

impl KeyExtractor for ForwardedIp {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        Ok(ip::key(self.address(head)?, self.ipv6_prefix).into())
    }
}

impl Source {
    fn find(&self, head: &Parts) -> Result<Found, ExtractError> {
        let ip = match &self.trusted.0 {
            Trust::Count(0) => return ip::peer(&head.extensions).map(Found::Peer),
            Trust::Count(proxies) => self.nth_from_right(head, *proxies)?,
            Trust::Networks(networks) => {
                let trusted = |ip| networks.iter().any(|cidr| cidr.contains_canonical(ip));
                let peer = ip::peer(&head.extensions)?;
                if !trusted(peer) {
                    return Ok(Found::Peer(peer));
                }
                self.first_from_right(head, trusted)?
            }
        };
        Ok(Found::Header(ip))
    }

    /// Returns the evidence of this request; `None` if no proxy is trusted, since clients then reach the service
    /// directly.
    fn seen(&self, head: &Parts, found: &Result<Found, ExtractError>) -> Option<Seen> {
        match found {
            Ok(Found::Peer(_)) if self.trusted.is_none() => None,
            Ok(Found::Peer(peer)) if self.is_forwarded(head) => Some(Seen::Untrusted(*peer)),
            Ok(Found::Peer(_)) => Some(Seen::Direct),
            Ok(Found::Header(ip)) => Some(Seen::Client(*ip, self.beyond(head, *ip).map(hash_of))),
            Err(error) if *error == ABSENT => Some(Seen::NoHeader),
            Err(error) if *error == TOO_FEW => Some(Seen::TooFew),
            Err(_) => Some(Seen::Unreadable),
        }
    }

    fn is_forwarded(&self, head: &Parts) -> bool {
        head.headers.contains_key(&self.header) || ip::is_forwarded(&head.headers)
    }

    /// Returns the entry to the left of the client's. For a header with a single address, looks in `X-Forwarded-For`,
    /// which most proxies also write.
    fn beyond<'a>(&self, head: &'a Parts, client: IpAddr) -> Option<&'a [u8]> {
        if self.form == Form::Single {
            let form = Form::XForwardedFor;
            let entries = Entries::new(&head.headers, &X_FORWARDED_FOR, form);
            let mut entries = entries.map_while(Result::ok);
            entries.find(|entry| form.address(entry) == Some(client))?;
            return entries.next();
        }
        let mut entries = self.entries(head).ok()?.map_while(Result::ok);
        match &self.trusted.0 {
            Trust::Count(proxies) => entries.nth(*proxies),
            Trust::Networks(networks) => {
                let trusted = |ip| networks.iter().any(|cidr| cidr.contains_canonical(ip));
                entries.find(|entry| !self.parse(entry).is_ok_and(trusted))?;
                entries.next()
            }
        }
    }

    /// Never reads the entries to the left of the one that is used: clients can write those.
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

    /// Only counts the entries to the right of the `nth`: they need not be addresses.
    fn nth_from_right(&self, head: &Parts, nth: usize) -> Result<IpAddr, ExtractError> {
        let mut entries = self.entries(head)?;
        let mut entry = entries.next().unwrap_or(Err(ABSENT))?;
        if self.form != Form::Single {
            for _ in 1..nth {
                entry = entries.next().unwrap_or(Err(TOO_FEW))?;
            }
        }
        self.parse(entry)
    }

    fn entries<'a>(&self, head: &'a Parts) -> Result<Entries<'a>, ExtractError> {
        let mut lines = head.headers.get_all(&self.header).iter();
        if self.form == Form::Single && lines.nth(1).is_some() {
            return Err(TWICE);
        }
        Ok(Entries::new(&head.headers, &self.header, self.form))
    }

    fn parse(&self, entry: &[u8]) -> Result<IpAddr, ExtractError> {
        self.form.address(entry).ok_or(UNREADABLE)
    }
}
