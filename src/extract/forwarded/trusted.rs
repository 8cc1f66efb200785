//! [`TrustedProxies`]: the proxies that may report a client's address.

use super::entries::MAX_ENTRIES;
use crate::extract::Cidr;

/// The proxies that you trust to report a client's address: all in some networks, or a number of them.
#[derive(Clone, Debug)]
#[must_use]
pub struct TrustedProxies(pub(super) Trust);

#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks(Box<[Cidr]>),
    Count(usize),
}

impl TrustedProxies {
    /// Returns whether no proxy is trusted, so that no header is read.
    pub(super) fn is_none(&self) -> bool {
        match &self.0 {
            Trust::Networks(networks) => networks.is_empty(),
            Trust::Count(proxies) => *proxies == 0,
        }
    }

    /// Trusts only the proxies in these networks: if the peer is in none of them, the header is ignored.
    ///
    /// Without any network, no header is ever read, and the peer is the client.
    pub fn networks(networks: impl IntoIterator<Item = Cidr>) -> Self {
        Self(Trust::Networks(networks.into_iter().collect()))
    }

    /// Trusts this number of proxies in a row: 1 is the peer alone, 2 the peer and the proxy that calls it.
    ///
    /// The client is the entry that the outermost of them has written: the `proxies`-th from the right. Use this only
    /// if every request reaches your service through exactly these proxies: if the count is too high, a client can
    /// choose any address; if the count is too low, all clients share the address of a proxy. The peer's address is not
    /// read, so this also works over Unix sockets.
    ///
    /// With 0, no proxy is trusted: the peer is the client, and no header is read.
    ///
    /// # Panics
    ///
    /// When `proxies` is above 64, the most entries that are read.
    pub const fn count_including_peer(proxies: usize) -> Self {
        assert!(
            proxies <= MAX_ENTRIES,
            "the number of trusted proxies must be at most 64"
        );
        Self(Trust::Count(proxies))
    }
}
