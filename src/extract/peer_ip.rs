use http::request::Parts;

use super::{
    KeyExtractor, Keys,
    ip::{self, DEFAULT_IPV6_PREFIX},
};
use crate::error::ExtractError;

/// The IP address at the other end of the connection, which a client cannot choose at will.
///
/// It is read from the request's extensions: with the feature `axum` from `ConnectInfo<SocketAddr>`, else from a plain
/// [`SocketAddr`](std::net::SocketAddr), which a server puts there when it accepts a connection, or with the feature
/// `tonic` from `TcpConnectInfo`, which tonic puts there where it does not do TLS itself. With none of them, or with an
/// unspecified address, the key is [missing](crate::error::ExtractErrorKind::Missing).
///
/// An IPv4 address that is mapped into IPv6 is that IPv4 address. IPv6 counts by network, `/64` by default: one
/// household or machine has at least that many addresses, and could use a new one for each request.
///
/// **Behind a proxy** this is the proxy's address, and all clients share one limit: there, use
/// [`ForwardedIp`](super::ForwardedIp).
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

/// The extractor [`PeerIp`](struct@PeerIp) as it is by default: IPv6 counts by `/64`.
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
    /// Several prefixes can be limited together, each with a policy of its own. With 128, most clients can choose
    /// among 2^64 addresses.
    ///
    /// # Panics
    ///
    /// When `bits` is below 32 or above 128.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = ip::checked_ipv6_prefix(bits);
        self
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
        Ok(ip::key(peer, self.ipv6_prefix).into())
    }
}
