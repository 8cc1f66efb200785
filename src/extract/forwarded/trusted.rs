use super::entries::MAX_ENTRIES;
use crate::extract::Cidr;

/// Which proxies are trusted to report where a request came from: those of some networks, or a number of them.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    pub(super) trust: Trust,
}

#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks(Box<[Cidr]>),
    Count(usize),
}

impl TrustedProxies {
    /// Whether no proxy is trusted, so that no header is read.
    pub(super) fn is_none(&self) -> bool {
        match &self.trust {
            Trust::Networks(networks) => networks.is_empty(),
            Trust::Count(proxies) => *proxies == 0,
        }
    }

    /// Trusts the proxies of these networks only: where the peer is in none of them, the header is ignored.
    ///
    /// Without any network, no header is ever read, and the peer is the client.
    #[must_use]
    pub fn networks(networks: impl IntoIterator<Item = Cidr>) -> Self {
        Self {
            trust: Trust::Networks(networks.into_iter().collect()),
        }
    }

    /// Trusts this number of proxies in a row: 1 is the peer alone, 2 the peer and the proxy that calls it.
    ///
    /// The client is the entry that the outermost of them has written: the `proxies`-th from the right. Only for
    /// services to which every request comes through exactly these proxies: with a count that is too high, a client
    /// can choose its own address; with one that is too low, all clients share the address of a proxy. The peer's
    /// address is not read, so that this also works over Unix sockets.
    ///
    /// With 0, no proxy is trusted, as where a service runs without one: the peer is the client, and no header is read.
    ///
    /// # Panics
    ///
    /// When `proxies` is above 64: more entries are never read.
    #[must_use]
    pub const fn count_including_peer(proxies: usize) -> Self {
        assert!(
            proxies <= MAX_ENTRIES,
            "the number of trusted proxies must be at most 64"
        );
        Self {
            trust: Trust::Count(proxies),
        }
    }
}
