use http::request::Parts;

use super::{
    KeyExtractor, Keys,
    ip::{self, DEFAULT_WIDTH},
};
use crate::error::ExtractError;

/// The IP address at the other end of the connection, which a client cannot choose at will.
///
/// It is read from the request's extensions: with the feature `axum` from `ConnectInfo<SocketAddr>`, else from a plain
/// [`SocketAddr`](std::net::SocketAddr), which a server puts there when it accepts a connection, or with the feature
/// `tonic` from `TcpConnectInfo`, which tonic puts there where it does not do TLS itself. With none of them, or with an
/// unspecified address, the identity is missing.
///
/// IPv4 in the clothes of IPv6 is IPv4. IPv6 counts by network, `/64` unless told otherwise: one home or one machine has at least
/// that many addresses, and could take a new one for each request.
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
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerIp;

impl PeerIp {
    /// Sets how many leading bits of an IPv6 address make a client, 32 to 128, instead of 64.
    ///
    /// Networks of several widths can be limited together, each with a policy of its own. 128 lets most clients choose
    /// among 2^64 identities.
    ///
    /// # Panics
    ///
    /// When `bits` is below 32 or above 128.
    #[must_use]
    pub const fn ipv6_prefix(self, bits: u8) -> PeerNetwork {
        PeerNetwork {
            width: ip::checked_width(bits),
        }
    }
}

/// [`PeerIp`] with IPv6 networks of another width. Made by [`PeerIp::ipv6_prefix`].
#[derive(Clone, Copy, Debug)]
pub struct PeerNetwork {
    width: u8,
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        self.ipv6_prefix(DEFAULT_WIDTH).extract(head)
    }
}

impl KeyExtractor for PeerNetwork {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let peer = ip::peer(&head.extensions)?;
        Ok(ip::key(peer, self.width).into())
    }
}
