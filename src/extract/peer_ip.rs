//! [`PeerIp`](struct@PeerIp): keys from the address at the other end of the connection.

use std::net::IpAddr;

use http::request::Parts;

use super::{
    KeyExtractor, Keys,
    ip::{self, DEFAULT_IPV6_PREFIX},
};
use crate::domain::{error::ExtractError, key::Key};

/// The IP address at the other end of the connection, which a client cannot choose at will.
///
/// The server puts the address into the request's extensions when it accepts a connection:
///
/// | server | what it needs |
/// |---|---|
/// | axum | the feature `axum`, and `axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())` |
/// | axum, in a test without a server | the feature `axum`, and `MockConnectInfo(SocketAddr)` around the router |
/// | tonic, with its TLS or without | the feature `tonic`, and a TCP listener |
/// | another, or tonic over streams of your own | a plain [`SocketAddr`](std::net::SocketAddr) in the extensions of each request |
/// | any, behind the PROXY protocol | the same, inserted by the code that reads the protocol |
///
/// A plain `SocketAddr` comes before `ConnectInfo`, which has the load balancer's address behind the PROXY protocol.
///
/// If a request has none of them, or an unspecified address, the service is
/// [misconfigured](crate::error::ExtractErrorKind::Misconfigured): each request is answered with a 500, and one warning
/// says what to do.
///
/// `PeerIp` alone is a value of this type, as of a unit struct.
///
/// An IPv4 address that is mapped into IPv6 counts as that IPv4 address. IPv6 counts by network, `/64` by default: one
/// household or machine has at least that many addresses, and could use a new one for each request.
///
/// **Behind a proxy** this is the proxy's address, and all clients share one limit: use
/// [`ForwardedIp`](super::ForwardedIp) there. You get one warning if nine tenths of a hundred requests in a row, among
/// the first 10 000 of a layer, have been forwarded.
///
/// ```
/// use std::net::SocketAddr;
/// use sluicegate::{Key, KeyExtractor, PeerIp, extract::Keys};
///
/// let mut head = http::Request::get("/").body(())?.into_parts().0;
/// head.extensions.insert("[2001:db8:1:2ff::7]:50000".parse::<SocketAddr>()?);
///
/// assert_eq!(PeerIp.extract(&head)?, Keys::from(Key::new("ip", "2001:db8:1:2ff::/64")));
/// assert_eq!(PeerIp.ipv6_prefix(56).extract(&head)?, Keys::from(Key::new("ip", "2001:db8:1:200::/56")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: u8,
}

/// The extractor [`PeerIp`](struct@PeerIp) with its default: IPv6 counts by `/64`.
#[doc(hidden)] // The page of the type says that its name alone is a value.
#[allow(
    non_upper_case_globals,
    reason = "so that `PeerIp` alone is a value of its type, as of a unit struct"
)]
pub const PeerIp: PeerIp = PeerIp {
    ipv6_prefix: DEFAULT_IPV6_PREFIX,
};

impl PeerIp {
    /// Sets how many leading bits of an IPv6 address identify a client, 32 to 128, instead of 64.
    ///
    /// # Panics
    ///
    /// When `bits` is below 32 or above 128.
    ///
    /// You can use several prefixes together, each with a different policy. With 128, most clients can choose among
    /// 2^64 addresses.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = ip::checked_ipv6_prefix(bits);
        self
    }

    /// Returns the key of requests from this address. You use it to reset, peek or block from code.
    ///
    /// ```
    /// # use sluicegate::{Key, PeerIp};
    /// assert_eq!(PeerIp.key("2001:db8:1:2ff::7".parse()?), Key::new("ip", "2001:db8:1:2ff::/64"));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn key(&self, address: IpAddr) -> Key {
        ip::key(ip::canonical(address), self.ipv6_prefix)
    }

    /// Returns the peer's address; an IPv4 address that is mapped into IPv6 is returned as IPv4. An address is personal
    /// data: do not keep it in logs.
    ///
    /// # Errors
    ///
    /// As [`extract`](KeyExtractor::extract).
    #[allow(clippy::unused_self, reason = "as of every extractor of addresses")]
    pub fn address(&self, head: &Parts) -> Result<IpAddr, ExtractError> {
        ip::peer(&head.extensions)
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        PeerIp
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let peer = ip::peer(&head.extensions)?;
        Ok(Keys::from(ip::key(peer, self.ipv6_prefix)).of_peer(true))
    }
}
